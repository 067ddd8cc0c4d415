"""Weight of the factors: how much their score counts beside that of the predictor."""

from collections.abc import Callable

import torch
from torch import Tensor

from oneshot.config import FactorsConfig
from oneshot.data.dataset import Dataset, both_directions
from oneshot.errors import InputError
from oneshot.factors import fit_factors
from oneshot.ranking import FilteredRanking, KnownFacts
from oneshot.reasoner.batch_size import BatchSize, in_batches
from oneshot.reasoner.reasoner import Reasoner

WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0)
"""The weights that are tried."""

# Number of queries of all relations that count beside those of a relation when its weight is
# chosen: with few queries of its own, it has the weight of all.
_SHRINKAGE = 100.0


def add_factors(
    reasoner: Reasoner, data: Dataset, config: FactorsConfig | None = None, seed: int = 0
) -> dict[float, float]:
    """Fit factors to the facts of a trained reasoner, and choose their weight by validation MRR.

    → the validation MRR of each weight; the reasoner then has factors with the best one.
    """
    config = config or FactorsConfig(dim=128)
    if not config.dim:
        raise InputError("factors.dim must be above 0")
    graph = reasoner.graph
    known = data.known_facts.to(graph.device)
    facts = data.valid.to(graph.device)
    reasoner.factors = fit_factors(graph, config, facts, known, seed=seed)
    return choose_weight(reasoner, facts, known, seed=seed)


def choose_weight(
    reasoner: Reasoner,
    facts: Tensor,
    known: KnownFacts,
    *,
    batch_size: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    until: Callable[[], bool] | None = None,
) -> dict[float, float]:
    """Set the weight of the reasoner's factors to the one with the best MRR on some facts [n, 3].

    Among equal ones the smallest is taken; 0 means that the factors do not help. Otherwise each
    query relation has its own weight, which differs from that of all as far as its queries support
    it. `batch_size`, `limit`, `seed`, `progress`, `until`: as for `evaluate`. → the MRR of each
    weight for all relations
    """
    factors, graph = reasoner.factors, reasoner.graph
    if factors is None:
        raise InputError("this reasoner has no factors")
    if not len(facts):
        return {}
    known = known.to(graph.device)
    queries, answers = both_directions(facts.to(graph.device), graph.num_relations)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))[:limit]
    queries, answers = queries[order.to(graph.device)], answers[order.to(graph.device)]
    size = BatchSize(batch_size, reasoner.predictor.config, graph.device)
    factors.weight = 0.0  # so that the reasoner gives the scores of the predictor alone
    total = torch.zeros(len(WEIGHTS), 2 * graph.num_relations, dtype=torch.float64)
    done = 0
    for rows, batch, scores in in_batches(reasoner, queries, size):
        evidence = factors.evidence(batch)
        ranking = FilteredRanking(batch, answers[rows], known, graph.num_entities)
        found = [1 / ranking.ranks(scores + weight * evidence).realistic for weight in WEIGHTS]
        total.index_add_(1, queries[rows, 1].cpu(), torch.stack(found).double().cpu())
        done = rows.stop
        if progress is not None:
            progress(batch.num_queries)
        if until is not None and until():
            break
    mean = total.sum(1) / done
    factors.weight = WEIGHTS[int(mean.argmax())]
    chosen = (total + _SHRINKAGE * mean[:, None]).argmax(0)
    factors.relation_weights = torch.tensor(WEIGHTS, device=graph.device)[chosen.to(graph.device)]
    return dict(zip(WEIGHTS, mean.tolist(), strict=True))
