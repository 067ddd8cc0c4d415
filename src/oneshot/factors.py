"""Factors: vectors of entities and relations, whose score is added to that of the predictor.

A predictor without entity embeddings works on entities that it has never seen, but it cannot
remember what is special about one that it has. A factorization of the training facts (ComplEx, with
the nuclear 3-norm and the prediction of relations as a second task) remembers just that. The
weight of its score in the sum is chosen by validation, and can be 0. An entity without a vector,
such as one added later, has the vector zero: a query about it is answered by the predictor alone,
and as a candidate it is one that the factors know nothing about.

Factors know the facts that they were fitted to: they must not judge facts of the training graph.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from oneshot.config import FactorsConfig
from oneshot.data.dataset import both_directions
from oneshot.errors import DivergedError, InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.graph.vocabulary import Vocabulary
from oneshot.ranking import dense_ranks
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import fast_products

# Maximum number of scores that are computed at once.
_SCORES = 1 << 26
# Validation queries that decide when to stop, and epochs without a better result until then.
_VALID_QUERIES, _PATIENCE = 2000, 8
_INITIAL = 1e-3  # standard deviation of the vectors before training
# Weights of regularization and of the prediction of relations that are tried, besides the first
# one and none; epochs of each trial, and the share of the time for all of them.
_REGULARIZATION, _REGULARIZATIONS, _RELATION_LOSSES = 0.05, (0.01, 0.1), (0.25, 1.0)
_TRIAL_EPOCHS, _TRIAL_SHARE = 3, 0.5
_MARGIN = 1.3  # time limit as a multiple of the expected time
_TRIED_EPOCHS = (len(_REGULARIZATIONS) + len(_RELATION_LOSSES)) * _TRIAL_EPOCHS


class Factors:
    """Vectors of entities and relations, and the weight of their score.

    `entities` [V, 2k], `relations` [2R, 2k]: real parts, then imaginary parts. The score of `v` as
    an answer to `(u, q, ?)` is `Re(u ∘ q · conj(v))`. `weight`: 0 if the scores are not used;
    `relation_weights` float32 [2R]: those of the query relations, if they differ. `is_complete`:
    false if fitting was interrupted.
    """

    def __init__(
        self,
        entities: Tensor,
        relations: Tensor,
        weight: float = 0.0,
        relation_weights: Tensor | None = None,
        is_complete: bool = True,
    ) -> None:
        self.entities, self.relations = entities, relations
        self.weight, self.relation_weights = weight, relation_weights
        self.is_complete = is_complete

    @property
    def num_parameters(self) -> int:
        return self.entities.numel() + self.relations.numel()

    def to(self, device: torch.device | str) -> "Factors":
        """These factors with their tensors on a device."""
        own = None if self.relation_weights is None else self.relation_weights.to(device)
        vectors = (self.entities.to(device), self.relations.to(device))
        return Factors(*vectors, self.weight, own, self.is_complete)

    def scores(self, queries: Tensor) -> Tensor:
        """Scores of all entities with a vector as answers to `queries` [n, 2], [n, V]."""
        asked, relation = queries.unbind(1)
        has_vector = asked < len(self.entities)
        head = self.entities[asked.where(has_vector, 0)] * has_vector[:, None]
        return _asked(head, self.relations[relation]) @ self.entities.T

    def evidence(self, batch: SubgraphBatch) -> Tensor:
        """How much more likely each entity of a batch is than a random one, as a logarithm, [N]."""
        found = torch.zeros(batch.num_entities, device=batch.device)
        count = len(self.entities)
        has_vector = batch.entities < count
        with torch.no_grad(), fast_products(batch.device):
            for rows in _blocks(batch.num_queries, count):
                scores = self.scores(batch.queries[rows]).float()
                start, end = torch.searchsorted(
                    batch.entity_query, torch.tensor([rows.start, rows.stop], device=batch.device)
                ).tolist()
                query = batch.entity_query[start:end] - rows.start
                known = has_vector[start:end]
                own = scores[query, batch.entities[start:end].where(known, 0)] * known
                found[start:end] = own - (scores.logsumexp(1) - math.log(count))[query]
        return found

    def added(self, scores: Tensor, batch: SubgraphBatch) -> Tensor:
        """The scores [N] of a predictor with the weighted evidence of the factors added."""
        if not self.weight:
            return scores
        if self.relation_weights is None:
            return scores + self.weight * self.evidence(batch)
        weights = self.relation_weights[batch.queries[:, 1]]
        return scores + weights[batch.entity_query] * self.evidence(batch)

    # files ----------------------------------------------------------------------------------------

    def contents(self, graph: KnowledgeGraph) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON value of a file with these factors of a graph."""
        about = {
            "weight": self.weight,
            "complete": self.is_complete,
            "entities": name_digest(graph.entities, len(self.entities)),
            "relations": name_digest(graph.relations, graph.num_relations),
        }
        tensors = {"entities": self.entities.half(), "relations": self.relations.half()}
        if self.relation_weights is not None:
            tensors["relation_weights"] = self.relation_weights
        return tensors, about

    @classmethod
    def from_contents(
        cls, tensors: dict[str, Tensor], about: dict[str, Any], graph: KnowledgeGraph
    ) -> "Factors | None":
        """The factors in a file, for a graph; None if they are of other entities or relations.

        The graph may have further entities, after those of the file.
        """
        entities, relations = tensors.get("entities"), tensors.get("relations")
        weight = about.get("weight")
        is_complete = about.get("complete", True)  # earlier versions saved only complete ones
        own = tensors.get("relation_weights")  # earlier versions had one weight for all
        if (
            entities is None
            or relations is None
            or tensors.keys() - {"relation_weights"} != {"entities", "relations"}
            or (own is not None and own.shape != relations.shape[:1])
            or not (own is None or bool(own.isfinite().all()))
            or entities.dim() != 2
            or relations.dim() != 2
            or entities.shape[1] != relations.shape[1]
            or entities.shape[1] % 2
            or not isinstance(is_complete, bool)
            or not isinstance(weight, int | float)
            or not math.isfinite(weight)
            or not bool(entities.isfinite().all() and relations.isfinite().all())
        ):
            raise InputError("these are not the factors of a graph")
        if (
            len(relations) != 2 * graph.num_relations
            or len(entities) > graph.num_entities
            or about.get("entities") != name_digest(graph.entities, len(entities))
            or about.get("relations") != name_digest(graph.relations, graph.num_relations)
        ):
            return None
        own = None if own is None else own.float()
        found = cls(entities.float(), relations.float(), float(weight), own, is_complete)
        return found.to(graph.device)


def fit_factors(
    graph: KnowledgeGraph,
    config: FactorsConfig,
    valid: Tensor,
    known: KnownFacts,
    *,
    seed: int = 0,
    seconds: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
) -> Factors:
    """Factors of the facts of a graph, of the epoch that is best by MRR on some of `valid`.

    If the weights of regularization and relations are not set, a few of them are trained for some
    epochs, if the time allows it, and the best one is continued. `known`: the facts to filter by.
    `seconds`: time limit. `should_stop`: called after each step; once it returns true, the best
    factors so far are returned, as not complete. Without validation facts, all epochs are trained.
    """
    begun = time.perf_counter()

    def is_over() -> bool:
        return should_stop() or time.perf_counter() - begun >= seconds

    def trial(regularization: float, relation_loss: float) -> FactorTraining:
        weights = (regularization, relation_loss)
        return FactorTraining(graph, config, weights, valid, known, seed, is_over)

    regularization = _REGULARIZATION if config.regularization is None else config.regularization
    relation_loss = 0.0 if config.relation_loss is None else config.relation_loss
    best = trial(regularization, relation_loss)
    best.train(1)
    started = time.perf_counter()  # the first epoch has costs that the others do not have
    best.train(min(2, config.epochs))
    is_affordable = _affords_trials(time.perf_counter() - started, seconds)
    if len(valid) and is_affordable and config.epochs >= _TRIAL_EPOCHS:
        best.train(_TRIAL_EPOCHS)
        if config.regularization is None:
            for other in _REGULARIZATIONS:
                best = _better(best, trial(other, relation_loss))
        if config.relation_loss is None:
            for other in _RELATION_LOSSES:
                best = _better(best, trial(best.weights[0], other))
    best.train(config.epochs)
    best.best.is_complete = not should_stop()
    return best.best


def fitting_time(epoch: float, epochs: int, most: float) -> tuple[float, float]:
    """Expected time of `fit_factors`, and a time limit that leaves a margin, both at most `most`.

    All in seconds. `epoch`: time per epoch. Trials that `most` allows are possible in the limit.
    """
    if not _affords_trials(epoch, most):
        seconds = enough = epochs * epoch
    else:
        seconds = (epochs + _TRIED_EPOCHS) * epoch
        enough = max(seconds, _TRIED_EPOCHS * epoch / _TRIAL_SHARE)
    return min(seconds, most), min(_MARGIN * enough, most)


def _affords_trials(epoch: float, limit: float) -> bool:
    """Whether there is time for the trials, given that of an epoch and of the whole fit."""
    return _TRIED_EPOCHS * epoch < _TRIAL_SHARE * limit


def _better(best: "FactorTraining", other: "FactorTraining") -> "FactorTraining":
    """The better of two fits after the epochs of a trial."""
    other.train(_TRIAL_EPOCHS)
    return other if other.best_mrr > best.best_mrr else best


class FactorTraining:
    """A training of factors, which can be continued.

    `weights`: of regularization and of the prediction of relations. `best`: the factors of the best
    epoch so far, `best_mrr` their MRR.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        config: FactorsConfig,
        weights: tuple[float, float],
        valid: Tensor,
        known: KnownFacts | None,
        seed: int,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.weights, self.is_over = config, weights, is_over
        device, relations = graph.device, graph.num_relations
        self._generator = torch.Generator().manual_seed(seed)
        self._entities, self._relations = (
            (_INITIAL * torch.randn(rows, 2 * config.dim, generator=self._generator))
            .to(device)
            .requires_grad_()
            for rows in (graph.num_entities, 2 * relations)
        )
        tables = [self._entities, self._relations]
        self._optimizer = torch.optim.Adagrad(tables, lr=config.learning_rate)
        self._queries, self._answers = both_directions(graph.facts.long(), relations)
        some = torch.randperm(len(valid), generator=self._generator)[: _VALID_QUERIES // 2]
        self._valid = both_directions(valid[some.to(valid.device)].to(device), relations)
        self._known = None if known is None else known.to(device)
        self._epoch = self._best_epoch = 0
        self.best, self.best_mrr = self._now(), -1.0

    def train(self, epochs: int) -> None:
        """Train up to so many epochs, or until validation stops improving or the time is over."""
        while (
            self._epoch < epochs
            and self._epoch - self._best_epoch < _PATIENCE
            and not (self._epoch and self.is_over())
        ):
            self._train_epoch()
            self._epoch += 1
            now = self._now()
            if not bool(now.entities.isfinite().all() & now.relations.isfinite().all()):
                if self._best_epoch:
                    return
                raise DivergedError(
                    "the factors diverged: lower factors.learning_rate or raise "
                    "factors.regularization"
                )
            mrr = float(self._epoch)
            if len(self._valid[0]):
                mrr = _mrr(now, *self._valid, self._known)
            if mrr > self.best_mrr:
                self.best, self.best_mrr, self._best_epoch = now, mrr, self._epoch

    def seconds_per_epoch(self, limit: float) -> float:
        """The time of an epoch without validation, from some steps that take about `limit`."""
        steps = self._steps()
        next(steps)  # has costs that the others do not have
        self._wait()
        begun, done = time.perf_counter(), 0
        for _ in steps:
            self._wait()
            done += 1
            if time.perf_counter() - begun > limit:
                break
        count = -(-len(self._queries) // self.config.batch_size)
        return (time.perf_counter() - begun) / done * count if done else 0.0

    def _train_epoch(self) -> None:
        for _ in self._steps():
            if self.is_over():
                return

    def _steps(self) -> Iterator[None]:
        """Make the steps of an epoch, one at a time."""
        device, count = self._entities.device, len(self._entities)
        order = torch.randperm(len(self._queries), generator=self._generator).to(device)
        for step in order.split(self.config.batch_size):
            rivals = None
            if 0 < self.config.negatives < count:
                rivals = torch.randint(count, (self.config.negatives,), generator=self._generator)
                rivals = rivals.to(device)
            self._optimizer.zero_grad(set_to_none=True)
            with fast_products(device):
                loss = _loss(
                    self._entities,
                    self._relations,
                    self._queries[step],
                    self._answers[step],
                    rivals,
                    *self.weights,
                )
                loss.backward()
            # Said explicitly, or torch warns that it does not check the sparse gradients it made.
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                self._optimizer.step()
            yield

    def _wait(self) -> None:
        if self._entities.device.type == "cuda":
            torch.cuda.synchronize(self._entities.device)

    def _now(self) -> Factors:
        """The factors of the moment, rounded as they are saved."""
        entities, relations = self._entities.detach(), self._relations.detach()
        return Factors(entities.half().float(), relations.half().float())


def _loss(
    entities: Tensor,
    relations: Tensor,
    queries: Tensor,
    answers: Tensor,
    rivals: Tensor | None,
    regularization: float,
    relation_loss: float,
) -> Tensor:
    """Mean cross-entropy of answers and relations, and the regularization of their vectors.

    `rivals` int64 [m]: a random sample that represents all entities; None for all of them.
    """
    # Sparse gradients of the entities: a step then costs nothing for those it does not touch.
    is_sparse = rivals is not None and entities.device.type == "cpu"
    head = nn.functional.embedding(queries[:, 0], entities, sparse=is_sparse)
    tail = nn.functional.embedding(answers, entities, sparse=is_sparse)
    relation = nn.functional.embedding(queries[:, 1], relations)
    asked = _asked(head, relation)
    if rivals is None:
        loss = nn.functional.cross_entropy(asked @ entities.T, answers)
    else:
        own = (asked * tail).sum(1)
        others = asked @ nn.functional.embedding(rivals, entities, sparse=is_sparse).T
        others = others.logsumexp(1) + math.log(len(entities) / len(rivals))
        loss = (torch.logaddexp(own, others) - own).mean()
    if relation_loss:
        between = _between(head, tail) @ relations.T
        loss = loss + relation_loss * nn.functional.cross_entropy(between, queries[:, 1])
    norms = sum(_cubed_moduli(vector).sum() for vector in (head, relation, tail))
    return loss + regularization * norms / len(queries)


def _asked(head: Tensor, relation: Tensor) -> Tensor:
    """`u ∘ q` [n, 2k], the complex product of vectors [n, 2k]."""
    (a, b), (c, d) = head.chunk(2, dim=1), relation.chunk(2, dim=1)
    return torch.cat([a * c - b * d, a * d + b * c], dim=1)


def _between(head: Tensor, tail: Tensor) -> Tensor:
    """`conj(u) ∘ v` [n, 2k]: its product with a relation is the score of the fact."""
    (a, b), (c, d) = head.chunk(2, dim=1), tail.chunk(2, dim=1)
    return torch.cat([a * c + b * d, a * d - b * c], dim=1)


def _cubed_moduli(vector: Tensor) -> Tensor:
    """`|z|³` of complex numbers, [n, k]."""
    real, imaginary = vector.chunk(2, dim=1)
    return (real.square() + imaginary.square() + 1e-12).pow(1.5)


def _mrr(factors: Factors, queries: Tensor, answers: Tensor, known: KnownFacts | None) -> float:
    ranks = [
        dense_ranks(factors.scores(queries[rows]), queries[rows], answers[rows], known).realistic
        for rows in _blocks(len(queries), len(factors.entities))
    ]
    return float((1 / torch.cat(ranks)).mean())


def _blocks(num_queries: int, num_entities: int) -> Iterator[slice]:
    """Slices of the queries whose scores of all entities are computed together."""
    size = max(_SCORES // max(num_entities, 1), 1)
    for start in range(0, num_queries, size):
        yield slice(start, min(start + size, num_queries))


def name_digest(names: Vocabulary, count: int) -> str:
    """A checksum of the first `count` names, in their order."""
    checksum = hashlib.sha256()
    ends = names.offsets[: count + 1]
    checksum.update(ends.astype("<i8").tobytes())
    checksum.update(names.blob[: int(ends[-1])].tobytes())
    return checksum.hexdigest()[:32]
