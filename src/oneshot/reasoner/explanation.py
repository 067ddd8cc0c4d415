"""Explanation: the paths from the query entity to an answer that contribute most to its score.

The score is a function of one weight per edge and layer, all 1. Its gradient, averaged while all
weights grow together from 0 to 1 (integrated gradients), distributes the score among the edges of
the layers: the shares add up to the score minus its limit for vanishing weights. (NBFNet uses the
gradient at 1 instead, where the gates of a trained predictor are saturated.) The share of a path is
the sum over its edges. Parallel facts carry similar messages, some of them also to wrong answers.
Therefore the share is multiplied by the agreement: the predictor's support for the other entities
to which the same relations lead. Both steps make the first path a true rule more often;
`benchmarks/explanations.py` measures how often.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.ranking import check_finite
from oneshot.reasoner.cone import Cone, cone_of
from oneshot.reasoner.paths import WeightedPath, heaviest_paths, hops, routes
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.system.notebook import framed

# Points of the average. The median error is 1% of the largest share (4 points: 5%). Gaussian
# quadrature is less accurate, because the score has kinks and saturates.
_GRADIENT_POINTS = 8


@dataclass(frozen=True)
class Step:
    """One edge of a path, by names; `relation` ends in ⁻¹ if the fact is traversed backwards."""

    source: str
    relation: str
    inverse: bool
    target: str


@dataclass(frozen=True)
class Path:
    """A path from the query entity to the answer, without repeated entities.

    `weight`: its edges' share of the score times the predictor's `agreement`. `score_without`:
    the answer's score when the facts of the path are removed from the subgraph. `known`: whether
    the path is the query fact itself. `edges`: indices of its edges in the subgraph's `edges`.
    `parallel`: number of lighter paths through the same entities, with other facts.
    """

    steps: tuple[Step, ...]
    weight: float
    score_without: float
    known: bool
    edges: tuple[int, ...] = field(repr=False)
    parallel: int = 0

    @property
    def mark(self) -> str:
        """A note on the path after its steps; usually empty."""
        if self.known:
            return " (known fact)"
        return f" (+{self.parallel} by parallel facts)" if self.parallel else ""

    @property
    def text(self) -> str:
        """The steps as one line, with the mark."""
        way = "".join(f" —{step.relation}→ {step.target}" for step in self.steps)
        return f"{self.steps[0].source}{way}{self.mark}"

    def __str__(self) -> str:
        return f"{self.text}   weight {self.weight:z.2f}, score without {self.score_without:z.2f}"


@dataclass(frozen=True, eq=False)  # tensors have no truth value
class Explanation:
    """An explanation of an answer's score: paths, heaviest first, and their subgraph.

    `relation` ends in ⁻¹ for an inverse query. `known`: whether the graph contains the query fact
    (then one of the paths may be that fact, and is marked). `num_layers`: maximum number of edges
    of a path. `batch`: the subgraph, including the answer; `source` and `target`: rows of the query
    entity and the answer in it.
    """

    entity: str
    relation: str
    answer: str
    score: float
    known: bool
    paths: tuple[Path, ...]
    num_layers: int
    graph: KnowledgeGraph = field(repr=False)
    batch: SubgraphBatch = field(repr=False)
    source: int = field(repr=False)
    target: int = field(repr=False)

    @property
    def reachable(self) -> bool:
        """Whether the subgraph has a path that is short enough for the predictor."""
        return bool(self.paths)

    @property
    def message(self) -> str:
        """A message if no path is found; otherwise empty."""
        if self.reachable:
            return ""
        edges = "1 edge" if self.num_layers == 1 else f"{self.num_layers} edges"
        return (
            f"no path of at most {edges} leads from {self.entity!r} to {self.answer!r} in the "
            f"subgraph of {self.batch.num_entities:,} entities"
        )

    def __str__(self) -> str:
        known = " (known fact)" if self.known else ""
        title = f"{self.entity} —{self.relation}→ {self.answer}{known}   score {self.score:z.2f}"
        if not self.reachable:
            return f"{title}\n  {self.message}"
        return "\n".join([title, *(f"  {n}. {path}" for n, path in enumerate(self.paths, 1))])

    def as_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        paths = [
            {
                "steps": [dataclasses.asdict(step) for step in path.steps],
                "weight": path.weight,
                "score_without": path.score_without,
                "known": path.known,
                "parallel": path.parallel,
            }
            for path in self.paths
        ]
        return {
            "query": {"entity": self.entity, "relation": self.relation},
            "answer": self.answer,
            "score": self.score,
            "known": self.known,
            "reachable": self.reachable,
            "message": self.message,
            "paths": paths,
        }

    # The plots package depends on the reasoner, so it is imported on demand.

    def to_svg(self, path: str | FilePath | None = None) -> str:
        """A plot of the paths and their surroundings, as SVG; written to `path` if given."""
        from oneshot.plots.explanation.figure import svg

        return svg(self, None if path is None else FilePath(path))

    def to_html(self, path: str | FilePath | None = None) -> str:
        """The plot as a self-contained HTML page; written to `path` if given."""
        from oneshot.plots.explanation.figure import html

        return html(self, None if path is None else FilePath(path))

    def to_png(self, path: str | FilePath) -> None:
        """Write the plot as PNG; needs matplotlib (extra `plot`)."""
        from oneshot.plots.explanation.figure import png

        png(self, FilePath(path))

    def _repr_html_(self) -> str:
        """The plot, for notebooks; it has a white background and fits the width of the page."""
        drawn = self.to_svg().replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
        return framed(drawn)


def explain(
    reasoner: Reasoner,
    batch: SubgraphBatch,
    answers: Sequence[int],
    paths: int = 5,
    beam: int = 32,
    known: Tensor | None = None,
    proceed: Callable[[], None] = lambda: None,
) -> list[Explanation]:
    """Explanations of several answers to one query; see `Reasoner.explain`.

    `batch`: the subgraph of the query; `answers`: ids of entities in it. `known`: the answers that
    the graph contains, int64 [m]; if given, nothing but names is read from the graph, which another
    thread may be changing, and the predictor must have its relations (`Reasoner.relate`).
    `proceed`: called between the steps; what it raises ends the work.
    """
    if paths < 1 or beam < 1:
        raise InputError(f"paths and beam must be at least 1, not {paths} and {beam}")
    was_training = reasoner.predictor.training
    reasoner.predictor.eval()
    if known is None:
        reasoner.relate()
    try:
        explainer = _Explainer(reasoner, batch, known, proceed)
        return [explainer.explained(answer, paths, beam) for answer in answers]
    finally:
        reasoner.predictor.train(was_training)


class _Explainer:
    """Explains answers to the single query of a batch; shared values are computed once."""

    def __init__(
        self,
        reasoner: Reasoner,
        batch: SubgraphBatch,
        known: Tensor | None,
        proceed: Callable[[], None],
    ) -> None:
        self.proceed = proceed
        self.graph, self.predictor, self.batch = reasoner.graph, reasoner.predictor, batch
        self.source = int(batch.source[0])
        self.head, self.relation = batch.queries[0].tolist()
        if known is None:
            known = reasoner.known_answers(self.head, self.relation)
        self.known = known
        self.distance = hops(batch, self.source)
        with torch.no_grad():
            self.scores = self.predictor(batch)
        check_finite(self.scores)

    def explained(self, answer: int, paths: int, beam: int) -> Explanation:
        """The explanation of one answer."""
        graph = self.graph
        target = int(self.batch.find(torch.tensor([answer], device=self.batch.device))[0])
        cone = cone_of(self.predictor, self.batch, target)
        found = routes(self.batch, self._weighed_paths(cone, max(beam, paths)), self.relation)
        return Explanation(
            entity=graph.entities[self.head],
            relation=graph.relation_name(self.relation),
            answer=graph.entities[answer],
            score=float(self.scores[target]),
            known=bool((self.known == answer).any()),
            paths=self._paths(cone, found[:paths]),
            num_layers=self.predictor.config.num_layers,
            graph=graph,
            batch=self.batch,
            source=self.source,
            target=target,
        )

    def _weighed_paths(self, cone: Cone, width: int) -> list[WeightedPath]:
        """Paths to the target of the cone, heaviest first."""
        batch, source, target = self.batch, self.source, cone.target
        if target != source and int(self.distance[target]) > self.predictor.config.num_layers:
            return []
        shares = cone.shares(_GRADIENT_POINTS, self.proceed)
        self.proceed()
        identity = 2 * self.graph.num_relations
        found = heaviest_paths(batch, shares, source, target, identity, width)
        found = [_weighed(batch, self.scores, source, target, path) for path in found]
        return sorted(found, key=lambda path: -path.weight)  # stable for ties

    def _paths(self, cone: Cone, found: Sequence[tuple[WeightedPath, int]]) -> tuple[Path, ...]:
        """Paths by names, with the score of the target without each."""
        self.proceed()
        graph, batch = self.graph, self.batch
        removed = [without_facts(batch, path.edges, graph.num_relations) for path, _ in found]
        rest = cone.scores_without([gone for gone, _ in removed], [left for _, left in removed])
        return tuple(
            Path(
                steps=tuple(_step(graph, batch, edge) for edge in path.edges),
                weight=path.weight,
                score_without=score,
                known=len(path.edges) == 1 and int(batch.edges[1, path.edges[0]]) == self.relation,
                edges=path.edges,
                parallel=parallel,
            )
            for (path, parallel), score in zip(found, rest, strict=True)
        )


def edge_shares(
    predictor: Predictor, batch: SubgraphBatch, target: int, points: int = _GRADIENT_POINTS
) -> Tensor:
    """Contribution of each edge in each layer to the score of `target`, [L, E].

    The contributions add up to the score minus its limit for weights near 0, up to the error of
    averaging over `points` points. They are computed on the `Cone` of the target; the gradients are
    those of `edge_gradients`.
    """
    return cone_of(predictor, batch, target).shares(points)


def agreement(
    batch: SubgraphBatch, scores: Tensor, source: int, target: int, edges: Sequence[int]
) -> float:
    """The predictor's support for the rule that the relations of a path lead to answers, 0 to 1.

    From `source`, the same relations may also lead to other entities. The result is the mean over
    these entities of their likelihood relative to `target`, at most 1, by `scores` [N]. The path
    back to `source` does not count, unless `source` is the target.
    """
    origin, relation, goal = batch.edges
    reached = torch.zeros(batch.num_entities, dtype=torch.bool, device=batch.device)
    reached[source] = True
    for edge in edges:
        taken = (relation == relation[edge]) & reached[origin]
        reached = torch.zeros_like(reached)
        reached[goal[taken]] = True
    reached[source] = source == target
    return float((scores[reached] - scores[target]).exp().clamp(max=1).mean())


def _weighed(
    batch: SubgraphBatch, scores: Tensor, source: int, target: int, path: WeightedPath
) -> WeightedPath:
    """The path with its share times the agreement; negative shares are not increased."""
    factor = agreement(batch, scores, source, target, path.edges) if path.weight > 0 else 1.0
    return path._replace(weight=path.weight * factor)


def without(batch: SubgraphBatch, edges: Sequence[int], num_relations: int) -> SubgraphBatch:
    """The subgraph of one query without the facts of these edges, in both directions."""
    gone, degree = without_facts(batch, edges, num_relations)
    return dataclasses.replace(batch.with_edges(~gone), degree=degree)


def without_facts(
    batch: SubgraphBatch, edges: Sequence[int], num_relations: int
) -> tuple[Tensor, Tensor]:
    """The edges that are gone without the facts of these edges, bool [E], and the degrees [N]."""
    origin, relation, goal = batch.edges
    gone = torch.zeros_like(relation, dtype=torch.bool)
    degree = batch.degree.clone()
    facts = set()
    for edge in edges:
        x, r, o = batch.edges[:, edge].tolist()
        facts.add((x, r, o) if r < num_relations else (o, r - num_relations, x))
    for head, label, tail in facts:
        gone |= (origin == head) & (relation == label) & (goal == tail)
        gone |= (origin == tail) & (relation == label + num_relations) & (goal == head)
        degree[head] -= 1
        degree[tail] -= 1
    return gone, degree


def _step(graph: KnowledgeGraph, batch: SubgraphBatch, edge: int) -> Step:
    origin, relation, goal = batch.edges[:, edge].tolist()
    return Step(
        graph.entities[int(batch.entities[origin])],
        graph.relation_name(relation),
        relation >= graph.num_relations,
        graph.entities[int(batch.entities[goal])],
    )
