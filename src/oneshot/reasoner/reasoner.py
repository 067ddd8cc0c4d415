"""Reasoner: graph, sampler and predictor together; the object that users save, load and query."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.factors import Factors
from oneshot.graph.graph import INVERSE_MARK, KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.ranking import check_finite
from oneshot.reasoner.answers import (
    Answer,
    AnswerKeywords,
    AnswerOptions,
    Calibration,
    Candidates,
    Prediction,
    best_answers,
    candidates_of,
)
from oneshot.samplers import Sampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import fast_products

if TYPE_CHECKING:
    from oneshot.reasoner.check import CheckedFact
    from oneshot.reasoner.explanation import Explanation
    from oneshot.reasoner.judgement import ScoredFacts
    from oneshot.reasoner.relations import RelationAnswers
    from oneshot.reasoner.stream import OnError, Query

__all__ = ["Answer", "Calibration", "Prediction", "Reasoner"]

# Entities of a type that are added to a subgraph; of more, only those count that were sampled.
_MOST_INCLUDED = 1000


class Reasoner:
    """Answers queries on a graph: the sampler chooses a subgraph, the predictor scores it.

    The graph may differ from the training graph, if it has the same relations in the same order
    (`load` matches them by name).

    `factors`: vectors whose score is added to that of the predictor, if any; only where no fact of
    the training graph is judged.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        sampler: Sampler,
        predictor: Predictor,
        calibration: Calibration | None = None,
        factors: Factors | None = None,
    ) -> None:
        predictor.check_graph(graph.num_relations)
        self.sampler = sampler
        self.predictor = predictor
        self.graph = graph.to(next(predictor.parameters()).device)
        self.relate()
        self.calibration = calibration
        self.factors = None if factors is None else factors.to(self.graph.device)

    @property
    def device(self) -> torch.device:
        return self.graph.device

    def to(self, device: torch.device | str) -> "Reasoner":
        """Move predictor and graph to a device. → itself"""
        self.predictor.to(device)
        self.graph = self.graph.to(device)
        self.factors = None if self.factors is None else self.factors.to(device)
        self.relate()
        return self

    @property
    def calibration_alone(self) -> Calibration | None:
        """The calibration of the predictor's scores without factors."""
        found = self.calibration
        return found.alone if found is not None and found.alone is not None else found

    def relate(self) -> None:
        """Give the predictor the relations of the graph, which may have changed."""
        if self.predictor.is_relative:
            self.predictor.relate(self.graph.relation_graph)

    def snapshot(self) -> "Reasoner":
        """The same reasoner, for another thread: it keeps this graph and its relations."""
        found = copy.copy(self)
        if self.predictor.is_relative:
            self.relate()
            found.predictor = copy.copy(self.predictor)
        return found

    def reason(
        self, queries: Tensor, include: Tensor | None = None
    ) -> tuple[SubgraphBatch, Tensor]:
        """Subgraphs of `queries` [n, 2] and the scores [N] of their entities; no gradients."""
        batch = self.sampler.sample(self.graph, queries, include)
        return batch, self.scores(batch)

    def scores(self, batch: SubgraphBatch) -> Tensor:
        """The scores [N] of the entities of a batch; no gradients."""
        was_training = self.predictor.training
        self.predictor.eval()
        self.relate()
        try:
            with torch.inference_mode(), fast_products(self.device):
                scores: Tensor = self.predictor(batch).float()
                return scores if self.factors is None else self.factors.added(scores, batch)
        finally:
            self.predictor.train(was_training)

    def query(
        self, entity: str | int, relation: str | int, inverse: bool = False
    ) -> tuple[int, int]:
        """The ids of a query; names are looked up, `name⁻¹` or `inverse` inverts the relation."""
        return self.entity_id(entity), self.relation_id(relation, inverse)

    def relation_id(self, relation: str | int, inverse: bool = False) -> int:
        """The id of a relation (see `query`)."""
        if not isinstance(inverse, bool | np.bool_):  # such as the answer of a triple
            raise InputError(f"inverse must be true or false, not {inverse!r}")
        count = self.graph.num_relations
        if isinstance(relation, str):
            known = self.graph.relations.get(relation)
            if known is None and relation.endswith(INVERSE_MARK):
                known = self.graph.relations.index(relation.removesuffix(INVERSE_MARK)) + count
            label = self.graph.relations.index(relation) if known is None else known
        else:
            label = int(relation)
            if not 0 <= label < 2 * count:
                raise InputError(
                    f"relation id {label} is not in the graph; ids range from 0 to "
                    f"{2 * count - 1}, including inverses"
                )
        return (label + count) % (2 * count) if inverse else label

    def predict(
        self,
        entity: str | int | Sequence[str | int],
        relation: str | int,
        *,
        inverse: bool = False,
        options: AnswerOptions | None = None,
        **changes: Unpack[AnswerKeywords],
    ) -> Prediction:
        """The best answers to `(entity, relation, ?)`, or `(?, relation, entity)` if `inverse`.

        Several entities: the best answers that hold for all of them (see
        `oneshot.reasoner.conjunction`).

        Options, such as `top=10` or `exclude_known=True`, are the fields of `AnswerOptions`, given
        by name or as one value. With `explain=True`, the answers have explanations, on the
        subgraph of the prediction.
        """
        options = (options or AnswerOptions()).changed(changes)
        if isinstance(entity, Sequence) and not isinstance(entity, str):
            from oneshot.reasoner.conjunction import predict_for_all

            return predict_for_all(self, list(entity), relation, inverse, options)
        head, label = self.query(entity, relation, inverse)
        self.check_linked(head)
        allowed, include = self.allowed(label, options)
        query = torch.tensor([[head, label]], device=self.device)
        batch, scores = self.reason(query, include)
        check_finite(scores)
        (found,) = candidates_of(self.graph, batch, scores, self._needs_facts)
        prediction = self._prediction(found, options, allowed)
        if not options.explain:
            return prediction
        from oneshot.reasoner.explanation import explain

        best = [self.entity_id(answer.entity) for answer in prediction[: options.num_explained]]
        return dataclasses.replace(prediction, explanations=tuple(explain(self, batch, best)))

    def predict_stream(
        self,
        queries: "Iterable[Query]",
        *,
        batch_size: int | None = None,
        errors: "OnError" = "raise",
        options: AnswerOptions | None = None,
        **changes: Unpack[AnswerKeywords],
    ) -> Iterator[Prediction]:
        """The answers to many queries, in order; only one batch is in memory at a time.

        `queries`: (entity, relation) or (entity, relation, inverse), from any iterator, also an
        infinite one. Options: as in `predict`. `batch_size`: default 16, on a GPU chosen to fill
        it. `errors`: a query with an unknown name either ends the stream after the answers to the
        queries before it ("raise"), or has a prediction without answers and with its `error`
        ("record").

        A query about an entity without facts does not end the stream; it has no answers unless the
        sampler scores likely answers.
        """
        from oneshot.reasoner.stream import predict_stream

        options = (options or AnswerOptions()).changed(changes)
        return predict_stream(self, queries, options, batch_size, errors)

    def score(self, entity: str | int, relation: str | int, answer: str | int) -> float:
        """The score of one fact; the answer is added to the subgraph if it was not sampled."""
        head, label = self.query(entity, relation)
        self.check_linked(head)
        tail = self.entity_id(answer)
        target = torch.tensor([tail], device=self.device)
        batch, scores = self.reason(torch.tensor([[head, label]], device=self.device), target[None])
        check_finite(scores)
        return float(scores[batch.find(target)])

    def explain(
        self,
        entity: str | int,
        relation: str | int,
        answer: str | int,
        *,
        inverse: bool = False,
        paths: int = 5,
        beam: int = 32,
    ) -> "Explanation":
        """The `paths` paths from the entity to an answer that contribute most to its score.

        The answer is added to the subgraph if it was not sampled. `beam`: number of partial paths
        that the search keeps per entity; more is slower and may find heavier paths.
        """
        from oneshot.reasoner.explanation import explain

        tail = self.entity_id(answer)
        query = torch.tensor([self.query(entity, relation, inverse)], device=self.device)
        included = torch.tensor([[tail]], device=self.device)
        batch = self.sampler.sample(self.graph, query, included)
        return explain(self, batch, [tail], paths, beam)[0]

    def relations(
        self, head: str | int, tail: str | int, *, top: int | None = None
    ) -> "RelationAnswers":
        """The relations that may hold between two entities, in both directions, best score first.

        Those of facts of the graph come before the others. The score is not the probability alone
        (see `RelationAnswer`). In a graph with many relations, only those are listed that join
        entities with facts of the same relations.

        `top`: number of relations; default all.
        """
        from oneshot.reasoner.relations import relations_between

        return relations_between(self, head, tail, top=top)

    def discover(
        self,
        *,
        relations: Sequence[str | int] | None = None,
        entities: Sequence[str | int] | None = None,
        types: Sequence[str | tuple[str | int, str | int]] = (),
        top: int = 100,
        min_probability: float = 0.0,
        batch_size: int | None = None,
        progress: Callable[[int], None] | None = None,
        known: Tensor | None = None,
    ) -> "ScoredFacts":
        """The most likely facts that the graph lacks, best first; at most `top`.

        `relations`, `entities`: only facts of these relations, or with these heads or tails.
        `types`: only facts whose head has these facts, as in `AnswerOptions`. `known` int64 [n, 3]:
        facts that are not listed although the graph lacks them, such as those of `data.known`,
        which has all splits.
        `min_probability`: of a fact, judged in both directions. `progress` is called with the
        number of queries done.

        Of each query, the best answers are considered: ten, or more if `4 · top` answers of all
        queries together would not be reached otherwise.
        """
        from oneshot.reasoner.discovery import Search, discover

        search = Search.named(self, relations, entities, types, top, min_probability)
        return discover(self, search, batch_size, progress, known=known)

    def audit(
        self,
        *,
        relations: Sequence[str | int] | None = None,
        limit: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Callable[[int], None] | None = None,
        held_out: Tensor | None = None,
    ) -> "ScoredFacts":
        """The facts of the graph, most doubtful first, each judged while it is hidden.

        `held_out` int64 [n, 3]: facts that are judged as well, though the graph lacks them, such as
        `data.valid`. `relations`: only facts of these. `limit`: number of facts to judge, sampled
        with `seed`. `progress` is called with the number of queries done, two per fact.
        """
        from oneshot.reasoner.audit import AuditOptions, audit

        options = AuditOptions.named(self, relations, limit, seed)
        return audit(self, options, batch_size, progress, held_out=held_out)

    def check(
        self, head: str | int, relation: str | int, tail: str | int, *, paths: int = 5
    ) -> "CheckedFact":
        """Judge and explain one fact, which is hidden first if the graph contains it.

        A fact that the graph lacks is judged as by `discover`, a fact of the graph as by `audit`.
        `paths`: of the explanation.
        """
        from oneshot.reasoner.check import check_fact

        return check_fact(self, head, relation, tail, paths=paths)

    def save(self, path: str | Path) -> None:
        """Save as a run directory, for `Reasoner.load` and the command line."""
        from oneshot.runs.run import Run

        Run(Path(path)).save(self)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = True,
        with_graph: bool = True,
        metrics: Mapping[str, float] | None = None,
        message: str = "Upload a reasoner",
    ) -> str:
        """Upload to the repository `name` (OWNER/NAME) of the Hugging Face Hub; → its address.

        The repository is created if necessary, `private` or public, and gets a model card. With
        `with_graph`, it contains all facts and names of the graph; otherwise only the names of the
        relations, and the reasoner is loaded with another graph. `metrics`: for the model card.
        Needs the extra `hub`; the token is that of `hf auth login` or `$HF_TOKEN`.
        """
        from oneshot.runs.run import Run

        return Run.push(
            self, name, private=private, with_graph=with_graph, metrics=metrics, message=message
        )

    @staticmethod
    def load(path: str | Path, graph: KnowledgeGraph | None = None) -> "Reasoner":
        """The reasoner in a run directory; with another `graph`, relations are matched by name.

        `hf://OWNER/NAME`, or `…@REVISION`, loads a run from the Hugging Face Hub (extra `hub`).
        """
        from oneshot.runs.run import Run

        run = Run.open(path)
        return run.reasoner if graph is None else run.reasoner_on(graph)

    def renumbered(self, graph: KnowledgeGraph, facts: Tensor) -> Tensor:
        """Facts [n, 3] of another graph, with the relation ids of the predictor."""
        if graph.relations == self.graph.relations:
            return facts
        new_id = torch.zeros(max(graph.num_relations, 1), dtype=torch.long)
        for relation in facts[:, 1].unique().tolist():
            new_id[relation] = self.graph.relations.index(graph.relations[relation])
        return torch.stack([facts[:, 0], new_id[facts[:, 1]], facts[:, 2]], dim=1)

    def checked_facts(self, facts: Tensor) -> Tensor:
        """Facts as ids of the graph, int64 [n, 3]; raises unless they are."""
        if facts.ndim != 2 or facts.shape[1] != 3 or facts.is_floating_point():
            raise InputError(
                f"facts must be integers of shape [n, 3], not {facts.dtype} {list(facts.shape)}"
            )
        sizes = (self.graph.num_entities, self.graph.num_relations, self.graph.num_entities)
        for column, size in enumerate(sizes):
            wrong = facts[(facts[:, column] < 0) | (facts[:, column] >= size)]
            if len(wrong):
                raise InputError(
                    f"fact {wrong[0].tolist()} is not one of the graph, which has "
                    f"{sizes[0]:,} entities and {sizes[1]:,} relations"
                )
        return facts.long()

    def known_answers(self, entity: int, relation: int) -> Tensor:
        """Entities `v` with a fact `(entity, relation, v)` in the graph, int64 [m]."""
        # An edge (v, r, u) into the entity is the fact (u, r⁻¹, v).
        source, label = self.graph.edges_into(entity)
        return source[self.graph.inverse(label) == relation]

    def predictions(
        self, batch: SubgraphBatch, scores: Tensor, options: Sequence[AnswerOptions]
    ) -> Iterator[Prediction]:
        """The answers of each query of a batch, given the scores [N] of its entities.

        `options`: for each query; candidates and explanations are left to the caller. A query about
        an entity without facts has no answers unless the sampler scores likely answers.
        """
        check_finite(scores)
        every = candidates_of(self.graph, batch, scores, self._needs_facts)
        of_types: dict[Any, Tensor | None] = {(): None}
        for found, wanted in zip(every, options, strict=True):
            if wanted.types not in of_types:
                of_types[wanted.types] = self.entities_of_types(wanted.types)
            yield self._prediction(found, wanted, of_types[wanted.types])

    def _prediction(
        self, found: Candidates, options: AnswerOptions, allowed: Tensor | None = None
    ) -> Prediction:
        """The answers of one query, among the `allowed` candidates (None for all)."""
        head, label = found.query
        return Prediction(
            self.graph.entities[head],
            self.graph.relation_name(label),
            best_answers(self.graph, found, self.calibration, options, allowed),
            len(found.entities),
            found.num_edges,
        )

    def allowed(self, relation: int, options: AnswerOptions) -> tuple[Tensor | None, Tensor | None]:
        """The entities that may be answers to a query, by id, and those to add to its subgraph.

        → (int64 [m], or None for all; int64 [1, m], or None for none)
        """
        of_types = self.entities_of_types(options.types) if options.types else None
        wanted, include = of_types, None
        if of_types is not None and 0 < len(of_types) <= _MOST_INCLUDED:
            include = of_types[None]
        if isinstance(options.candidates, str):  # "seen"
            # The answers of a relation are its tails, those of an inverse relation its heads.
            column = 2 if relation < self.graph.num_relations else 0
            mine = self.graph.facts[:, 1] == relation % self.graph.num_relations
            wanted = self.graph.facts[mine, column].long().unique()
        elif options.candidates is not None:
            ids = sorted({self.entity_id(candidate) for candidate in options.candidates})
            wanted = torch.tensor(ids, dtype=torch.long, device=self.device)
            include = wanted[None]
        if wanted is not None and of_types is not None:
            wanted = wanted[torch.isin(wanted, of_types)]
        return wanted, include

    def entities_of_types(self, types: Sequence[str | tuple[str | int, str | int]]) -> Tensor:
        """The entities that have all of some facts, int64 [m]; see `AnswerOptions.types`."""
        found: Tensor | None = None
        for kind in types:
            relation, entity = self._parsed_type(kind) if isinstance(kind, str) else kind
            label = self.relation_id(relation, inverse=True)
            having = self.known_answers(self.entity_id(entity), label).long().unique()
            found = having if found is None else found[torch.isin(found, having)]
        assert found is not None
        return found

    def _parsed_type(self, kind: str) -> tuple[str, str]:
        """The relation and entity of "relation=entity"; either name may contain the sign."""
        splits = [
            (kind[:place], kind[place + 1 :]) for place, sign in enumerate(kind) if sign == "="
        ]
        if not splits:
            raise InputError(f"type {kind!r} must have the form RELATION=ENTITY")
        for relation, entity in splits:
            known = self.graph.relations.get(relation.removesuffix(INVERSE_MARK))
            if known is not None and self.graph.entities.get(entity) is not None:
                return relation, entity
        return splits[0]  # whose error names the nearest names

    def entity_id(self, entity: str | int) -> int:
        """The id of an entity, given by name or by id."""
        if isinstance(entity, str):
            return self.graph.entities.index(entity)
        count = self.graph.num_entities
        if not 0 <= int(entity) < count:
            raise InputError(
                f"entity id {entity} is not in the graph; ids range from 0 to {count - 1}"
            )
        return int(entity)

    def _degree(self, entity: int) -> int:
        """Number of facts of an entity; reads only its own rows."""
        return int(self.graph.degree_of(torch.tensor([entity], device=self.graph.device)))

    @property
    def _needs_facts(self) -> bool:
        """Whether the sampler finds no answers for an entity without facts."""
        return not self.sampler.scores_answers

    def check_linked(self, entity: int) -> None:
        """Raise if nothing can be predicted about an entity because it has no facts."""
        if self._needs_facts and self._degree(entity) == 0:
            raise InputError(
                f"entity {self.graph.entities[entity]!r} has no facts in the graph, so no answer "
                "can be reached from it; add a fact about it first"
            )
