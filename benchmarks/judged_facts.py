"""How good `discover`, `audit` and `relations` are, on facts that were held out or injected.

    python -m benchmarks.judged_facts DATA ... [--minutes 5] [--device cpu] [--pairs 200]
        [--wrong 0.01] [--skip-peers]

A reasoner is trained on each data set, with nothing set but the time. `discover`: the test facts
are hidden, and it is counted how many of the first 100 and 1,000 facts are among them; facts of the
validation split count as known. Beside it stands the frequency baseline, which proposes for each
relation the most frequent tails of its most frequent heads. `relations`: the rank of the true
relation of test facts among all relations, filtered. `audit`: random wrong facts, and wrong facts
whose tail occurs with the relation ("near"), are added to the training facts before training; the
area under the precision-recall curve of the ranking beside that of DistMult (PyKEEN), scored on the
same facts, and of the degree of the entities.
"""

import argparse
import itertools
import time
from importlib import import_module
from typing import Any

import numpy as np
import torch
from benchmarks.common import write_result
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.calibration import calibrate
from oneshot.reasoner.judgement import ScoredFact
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.devices import find_device
from oneshot.training.plan import make_plan
from oneshot.training.trainer import fit

Fact = tuple[int, int, int]

_FIRST = (100, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each training")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=200, help="pairs of entities for relations")
    parser.add_argument("--wrong", type=float, default=0.01, help="share of wrong facts of a type")
    parser.add_argument("--limit", type=int, help="right facts that are audited; default all")
    parser.add_argument("--skip-peers", action="store_true", help="without DistMult")
    options = parser.parse_args()
    device = find_device(options.device)
    rows = {}
    for name in options.data:
        data = load(name)
        reasoner = trained(data, options.minutes, device)
        rows[name] = row = {"discover": discovery(reasoner, data)}
        print(name, row, flush=True)
        row["relations"] = relations(reasoner, data, options.pairs)
        print(name, row["relations"], flush=True)
        row["audit"] = audit(data, options, device)
        print(name, row["audit"], flush=True)
        write_result("judged-facts", {"minutes": options.minutes, "rows": rows}, device)


def trained(data: Dataset, minutes: float, device: torch.device) -> Reasoner:
    """A calibrated reasoner with the configuration of the plan."""
    config = make_plan(data, minutes, device).config
    reasoner = build_reasoner(data.graph, config, device)
    fit(reasoner, data, config.training)
    reasoner.calibration = calibrate(reasoner, data)
    return reasoner


def discovery(reasoner: Reasoner, data: Dataset) -> dict[str, Any]:
    """Precision of the first facts, and the share of the hidden facts among them."""
    hidden = _as_set(data.test)
    seen = _as_set(data.valid)
    begun = time.perf_counter()
    found = reasoner.discover(top=max(_FIRST) + len(seen))
    seconds = time.perf_counter() - begun
    ours = [fact for fact in (_ids(data, one) for one in found) if fact not in seen]
    return {
        "ours": _precision(ours, hidden),
        "frequency": _precision(_frequent(data, seen), hidden),
        "hidden": len(hidden),
        "seconds": seconds,
    }


def _frequent(data: Dataset, seen: set[Fact]) -> list[Fact]:
    """Facts of frequent heads with frequent tails, most frequent first."""
    known = _as_set(data.train) | seen
    facts, size = data.train, data.graph.num_entities
    best: list[tuple[float, Fact]] = []
    for relation in range(data.graph.num_relations):
        mine = facts[facts[:, 1] == relation]
        ends = [torch.bincount(mine[:, column], minlength=size) for column in (0, 2)]
        tops = [count.topk(min(60, size)) for count in ends]
        pairs = itertools.product(
            *(list(zip(*map(Tensor.tolist, top), strict=True)) for top in tops)
        )
        for (many, head), (often, tail) in pairs:
            fact = (head, relation, tail)
            if many and often and fact not in known:
                best.append((many * often / max(len(mine), 1), fact))
    return [fact for _, fact in sorted(best, reverse=True)[: max(_FIRST)]]


def _precision(facts: list[Fact], hidden: set[Fact]) -> dict[str, float]:
    hits = np.cumsum([fact in hidden for fact in facts] or [False])
    found = {f"precision@{n}": float(hits[min(n, len(hits)) - 1] / n) for n in _FIRST}
    return found | {"share_found": float(hits[-1] / len(hidden))}


def relations(reasoner: Reasoner, data: Dataset, pairs: int) -> dict[str, Any]:
    """MRR of the true relation of test facts; other facts between the two are left out."""
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[:pairs]
    true = _as_set(data.known)
    ranks, begun = [], time.perf_counter()
    for head, relation, tail in data.test[order].tolist():
        rank = 0
        for answer in reasoner.relations(head, tail):
            label = data.graph.relations.index(answer.relation)
            fact = (tail, label, head) if answer.inverse else (head, label, tail)
            if fact == (head, relation, tail):
                break
            rank += fact not in true
        ranks.append(rank + 1)
    return {
        "mrr": float(np.mean([1 / rank for rank in ranks])),
        "pairs": len(ranks),
        "relations": 2 * data.graph.num_relations,
        "seconds_per_pair": (time.perf_counter() - begun) / len(ranks),
    }


def audit(data: Dataset, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Area under the precision-recall curve for injected wrong facts."""
    generator = torch.Generator().manual_seed(1)
    count = max(int(options.wrong * len(data.train)), 1)
    graph = data.graph
    known = KnownFacts(data.known, graph.num_entities, graph.num_relations)
    wrong = {kind: _wrong_facts(data, count, known, kind, generator) for kind in ("random", "near")}
    facts = torch.cat([data.train, *wrong.values()])
    noisy = KnowledgeGraph.from_facts(facts, graph.entities, graph.relations)
    changed = Dataset(f"{data.name} with wrong facts", noisy, data.valid, data.test)
    reasoner = trained(changed, options.minutes, device)
    begun = time.perf_counter()
    found = reasoner.audit(limit=options.limit)
    seconds = time.perf_counter() - begun
    ours = {_ids(changed, fact): -fact.score for fact in found}
    degree = noisy.degree
    by_degree = {fact: -float(degree[fact[0]].log1p() + degree[fact[2]].log1p()) for fact in ours}
    scores = {"ours": ours, "degree": by_degree}
    if not options.skip_peers:
        scores["distmult"] = _distmult(changed, list(ours), device)
    return {
        "facts": len(ours),
        "wrong": {kind: len(some) for kind, some in wrong.items()},
        "seconds": seconds,
        "area": {
            kind: {name: _area(value, some) for name, value in scores.items()}
            for kind, some in ((k, _as_set(t)) for k, t in wrong.items())
        },
    }


def _wrong_facts(
    data: Dataset, count: int, known: KnownFacts, kind: str, generator: torch.Generator
) -> Tensor:
    """Facts that no split has; "near": their tail is one of the relation."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        rows = torch.randint(len(data.train), (2 * count,), generator=generator)
        some = data.train[rows].clone()
        if kind == "random":
            some[:, 2] = torch.randint(data.graph.num_entities, (len(some),), generator=generator)
        else:
            for relation in some[:, 1].unique().tolist():
                mine = some[:, 1] == relation
                tails = data.train[data.train[:, 1] == relation, 2]
                drawn = torch.randint(len(tails), (int(mine.sum()),), generator=generator)
                some[mine, 2] = tails[drawn]
        is_new = ~known.holds(some[:, :2], some[:, 2:]).squeeze(1) & (some[:, 0] != some[:, 2])
        found.append(some[is_new])
    every = torch.cat(found).unique(dim=0)
    chosen: Tensor = every[torch.randperm(len(every), generator=generator)[:count]]
    return chosen


def _distmult(data: Dataset, facts: list[Fact], device: torch.device) -> dict[Fact, float]:
    """How doubtful DistMult finds the facts, after training on all of them."""
    triples, pipelines = import_module("pykeen.triples"), import_module("pykeen.pipeline")
    factory, few = (
        triples.CoreTriplesFactory(rows, data.graph.num_entities, data.graph.num_relations)
        for rows in (data.train, data.train[:16])  # the evaluation of the pipeline is not used
    )
    result = pipelines.pipeline(
        training=factory,
        testing=few,
        model="distmult",
        model_kwargs={"embedding_dim": 128},
        training_loop="lcwa",
        loss="crossentropy",
        optimizer_kwargs={"lr": 0.01},
        training_kwargs={"num_epochs": 60, "batch_size": 256, "use_tqdm": False},
        evaluation_kwargs={"batch_size": 16, "use_tqdm": False},
        random_seed=0,
        device=device.type,
    )
    with torch.no_grad():
        scores = result.model.score_hrt(torch.tensor(facts, device=result.model.device))
    return dict(zip(facts, (-scores.squeeze(1)).tolist(), strict=True))


def _area(doubt: dict[Fact, float], wrong: set[Fact]) -> float:
    """Average precision of finding one type of wrong facts among the right ones by doubt."""
    order = sorted(doubt, key=lambda fact: -doubt[fact])
    hits = np.array([fact in wrong for fact in order])
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[hits].mean()) if hits.any() else 0.0


def _as_set(facts: Tensor) -> set[Fact]:
    return {(head, relation, tail) for head, relation, tail in facts.tolist()}


def _ids(data: Dataset, fact: ScoredFact) -> Fact:
    graph = data.graph
    return (
        graph.entities.index(fact.head),
        graph.relations.index(fact.relation),
        graph.entities.index(fact.tail),
    )


if __name__ == "__main__":
    main()
