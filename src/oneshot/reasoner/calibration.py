"""Calibration: from scores, which are comparable only within a query, to probabilities."""

import math

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset, both_directions
from oneshot.ranking import KnownFacts
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.reasoner import Reasoner

_CANDIDATES = 10  # answers per query used in the fit
_PRIOR = 0.01  # weight of the squared slope
_STEPS = 100


def calibrate(
    reasoner: Reasoner, data: Dataset, limit: int = 1000, seed: int = 0, batch_size: int = 16
) -> Calibration:
    """Fit probabilities to the best answers of validation queries.

    Facts of the graph are excluded. Among the ten best answers of each query, the facts of the
    validation split count as true. The probability is a logistic function of the logarithm of the
    answer's softmax, fitted by maximum likelihood.
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
    """Slope (not below 0) and offset of a logistic regression of `labels` on `values`, both [n].

    Newton's method on standardized values, starting from the share of true labels.
    """
    x, y = values.double(), labels.double()
    mean = float(x.mean()) if len(x) else 0.0
    scale = max(float(x.std(correction=0)), 1e-9) if len(x) else 1.0
    # One success and one failure keep the fit finite when all labels agree.
    x = torch.cat([(x - mean) / scale, x.new_zeros(2)])
    y = torch.cat([y, y.new_tensor([0.0, 1.0])])
    rows = torch.stack([x, torch.ones_like(x)], dim=1)
    prior = torch.diag(x.new_tensor([_PRIOR, 0.0]))  # keeps the slope finite for separable labels

    rate = float(y.mean())
    line = x.new_tensor([0.0, math.log(rate / (1 - rate))])
    for _ in range(_STEPS):
        p = torch.sigmoid(rows @ line)
        gradient = rows.T @ (p - y) + prior @ line
        curvature = (rows * (p * (1 - p))[:, None]).T @ rows + prior
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(2, dtype=x.dtype), gradient)
        line = line - step
        if float(step.abs().max()) < 1e-9:
            break
    slope, offset = line.tolist()
    if slope < 0:  # misleading scores: use only the share of true answers
        return 0.0, math.log(rate / (1 - rate))
    return slope / scale, offset - slope * mean / scale
