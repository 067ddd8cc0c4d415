"""Calibrating: from scores, which compare answers of one query, to probabilities."""

import math

import torch
from torch import Tensor

from oneshot.dataset import Dataset, both_directions
from oneshot.ranking import KnownFacts
from oneshot.reasoner import Calibration, Reasoner

_CANDIDATES = 10  # answers of each question that the fit looks at


def calibrate(
    reasoner: Reasoner, data: Dataset, limit: int = 1000, seed: int = 0, batch_size: int = 16
) -> Calibration:
    """Fit probabilities to the best answers of validation questions.

    Each question is asked; facts of the graph are left out; of the ten best answers those that
    are facts of the validation split count as true. The probability is a logistic function of
    the logarithm of the answer's softmax, fitted by maximum likelihood.
    """
    graph = reasoner.graph
    queries, _ = both_directions(data.valid.to(graph.device), graph.num_relations)
    queries = queries.unique(dim=0)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    queries = queries[order[:limit].to(graph.device)]
    true = KnownFacts(data.valid, graph.num_entities, graph.num_relations).to(graph.device)
    seen = KnownFacts(data.train, graph.num_entities, graph.num_relations).to(graph.device)
    shares, labels = [], []
    for part in queries.split(batch_size):
        batch, scores = reasoner.reason(part)
        known = _marked(batch.find_pairs(*seen.answers(part)), batch.num_entities)
        holds = _marked(batch.find_pairs(*true.answers(part)), batch.num_entities)
        for row in range(len(part)):
            mine = batch.entity_query == row
            share = scores[mine].log_softmax(0)
            new = ~known[mine]
            best = share[new].topk(min(_CANDIDATES, int(new.sum()))).indices
            shares.append(share[new][best])
            labels.append(holds[mine][new][best])
    slope, offset = _fit_logistic(torch.cat(shares).cpu(), torch.cat(labels).cpu())
    return Calibration(slope, offset, len(queries))


def _marked(places: Tensor, size: int) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool, device=places.device)
    mask[places[places >= 0]] = True
    return mask


def _fit_logistic(values: Tensor, labels: Tensor) -> tuple[float, float]:
    """Slope (not below 0) and offset of a logistic regression, by Newton's method."""
    x, y = values.double(), labels.double()
    # Half a success and half a failure keep the fit finite when all labels agree.
    x = torch.cat([x, x.mean().repeat(2)])
    y = torch.cat([y, torch.tensor([0.0, 1.0], dtype=torch.float64)])
    slope, offset = 1.0, 0.0
    for _ in range(100):
        p = torch.sigmoid(slope * x + offset)
        w = (p * (1 - p)).clamp(min=1e-9)
        g = torch.stack([((p - y) * x).sum(), (p - y).sum()])
        ridge = 1e-6
        h = torch.stack(
            [
                torch.stack([(w * x * x).sum() + ridge, (w * x).sum()]),
                torch.stack([(w * x).sum(), w.sum() + ridge]),
            ]
        )
        step = torch.linalg.solve(h, g).clamp(-2, 2)
        slope, offset = slope - float(step[0]), offset - float(step[1])
        if float(step.abs().max()) < 1e-9:
            break
    if not math.isfinite(slope) or slope < 0:
        return 0.0, math.log((float(y.mean()) + 1e-9) / (1 - float(y.mean()) + 1e-9))
    return slope, offset
