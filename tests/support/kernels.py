"""What Triton's kernels take part in, from the graph to the loss."""

import torch
from tests.support.graphs import random_graph, random_queries
from torch import Tensor

from oneshot.config import PredictorConfig
from oneshot.predictor import Predictor
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.training.losses import softmax_loss


def sampled_scored_and_lost(device: str = "cpu") -> tuple[SubgraphBatch, Tensor, Tensor]:
    """The subgraphs of some queries, the scores of their entities, and the losses of the queries;
    the same each time, but for what computes."""
    graph = random_graph(3, 30, 60).to(device)
    batch = PPRSampler(0.5).sample(graph, random_queries(graph, 4, 5).to(device))
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(dim=16, num_layers=2), graph.num_relations).to(device)
    with torch.no_grad():
        scores = predictor(batch)
        losses = softmax_loss(scores, batch, batch.source, None, None)
    return batch, scores, losses
