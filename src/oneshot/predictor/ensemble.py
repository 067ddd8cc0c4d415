"""Ensemble: several predictors of the same shape, whose mean score is the score."""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.graph.relation_graph import RelationGraph
from oneshot.predictor.fused import fused_plan
from oneshot.predictor.predictor import Engine, Predictor
from oneshot.subgraph import SubgraphBatch

if TYPE_CHECKING:
    from oneshot.predictor.cpu.plan import CPUPlan
    from oneshot.predictor.kernels.plan import FusedPlan


class Ensemble(Predictor):
    """The mean of the scores of `config.members` predictors on the same subgraphs.

    The members differ in their initial parameters and in what dropout hides from them. They are
    trained on the same queries, each with its own loss. Scores are comparable between members,
    because entities outside the subgraph have score 0 in the loss of all of them.

    In training mode the result of `forward` is the scores of each member, [members, N].
    """

    def __init__(self, config: PredictorConfig, num_relations: int) -> None:
        nn.Module.__init__(self)  # it shares the interface of `Predictor`, and none of its parts
        self.config = config
        self.num_relations = num_relations
        one = dataclasses.replace(config, members=1)
        self.members = nn.ModuleList(Predictor(one, num_relations) for _ in range(config.members))

    def __copy__(self) -> "Ensemble":
        """An ensemble with the same parameters whose relations can be set apart."""
        copied = object.__new__(type(self))
        copied.__dict__ = self.__dict__ | {"_modules": dict(self._modules)}
        copied.members = nn.ModuleList(copy.copy(member) for member in self.members)
        return copied

    def parts(self) -> Iterator[Predictor]:
        for member in self.members:
            yield cast(Predictor, member)

    @property
    def engine(self) -> Engine:
        return next(self.parts()).engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        for member in self.parts():
            member.engine = engine

    @property
    def is_relative(self) -> bool:
        return next(self.parts()).is_relative

    def relate(self, graph: RelationGraph) -> None:
        self.num_relations = graph.num_relations
        for member in self.parts():
            member.relate(graph)

    def forward(
        self,
        batch: SubgraphBatch,
        edge_weights: Sequence[Tensor] | None = None,
        plan: "FusedPlan | CPUPlan | None" = None,
    ) -> Tensor:
        """Scores of the sampled entities, [N]; in training mode those of each member,
        [members, N]."""
        takes_kernels = self._takes_kernels(batch)
        if plan is None and edge_weights is None and takes_kernels:
            plan = fused_plan(self, batch, torch.is_grad_enabled())  # the same for all members
        scores = [member(batch, edge_weights, plan) for member in self.parts()]
        if self.training:
            return torch.stack(scores)
        # One at a time, so that a query has the same bits alone and in a batch.
        total: Tensor = sum(scores[1:], start=scores[0])
        return total / len(scores)
