"""SubgraphClassifier: classes of entities, or of sets of them, from the subgraph around them."""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.predictor.predictor import mean_over_sources
from oneshot.samplers import PPRSampler, Sampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import find_device

Sources = Sequence[str | int | Sequence[str | int]] | Tensor | NDArray[np.int64]
"""Entities, or sets of them: names or ids; as an array [n] or [n, s], -1 for none."""

_Batches = list[tuple[Tensor, SubgraphBatch]]

_SHAPE = PredictorConfig(dim=32, num_layers=3, gate=False, shortcut=True, initial="binary")


class SubgraphClassifier:
    """Classifies entities or sets of entities of a graph; an estimator as in scikit-learn.

    One subgraph is sampled per entity, or per set with one PPR that restarts at each of its
    members. The states of the predictor start at the sources. The class is read from the subgraph:
    from the states of the sources and of all entities, and, with `use_labels`, from the classes of
    the labelled entities in it, each weighted by its state. There are no entity embeddings, so that
    entities that were never seen can be classified.

    `sampler`: default 200 entities by PPR. `predictor`: shape of the network.
    `use_labels`: whether the classes of the entities in `fit` are an input for others; for single
        entities only. The own class of an entity is never its input.
    `epochs`, `batch_size`, `learning_rate`, `weight_decay`: of Adam, with a cosine schedule.
    `seed`: of the initial parameters and the order of the batches. `device`: auto, cpu or cuda.

    After `fit`: `classes_`, sorted, and `history_` with one record per epoch.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        sampler: Sampler | None = None,
        predictor: PredictorConfig = _SHAPE,
        *,
        use_labels: bool = False,
        epochs: int = 30,
        batch_size: int = 32,
        learning_rate: float = 5e-3,
        weight_decay: float = 1e-4,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        if predictor.members > 1 or predictor.relations == "relative":
            raise InputError("a classifier has one member, with embedded relations")
        self.device = find_device(device)
        self.graph = graph.to(self.device)
        self.sampler = sampler or PPRSampler(max_entities=200, keep_unreachable=False)
        self.predictor = predictor
        self.use_labels = use_labels
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def fit(
        self,
        sources: Sources,
        labels: ArrayLike,
        valid: tuple[Sources, ArrayLike] | None = None,
    ) -> Self:
        """Train on sources and their classes. → itself

        `valid`: other sources and their classes, by which the best epoch is chosen; without them
        the last epoch is kept.
        """
        asked = self._ids(sources)
        self.classes_, classes = np.unique(np.asarray(labels), return_inverse=True)
        if len(classes) != len(asked) or len(self.classes_) < 2:
            raise InputError(
                f"labels must have one class per source ({len(asked)} sources, {len(classes)} "
                f"labels) and at least two classes, not {len(self.classes_)}"
            )
        wanted = torch.from_numpy(classes).to(self.device)
        self._labels = torch.full((self.graph.num_entities,), -1, device=self.device)
        if self.use_labels:
            if asked.shape[1] > 1:
                raise InputError("use_labels needs single entities, not sets")
            self._labels[asked[:, 0]] = wanted
        with torch.random.fork_rng(devices=[]):  # the global generator belongs to the caller
            torch.manual_seed(self.seed)
            network = _Network(self.predictor, self.graph.num_relations, len(self.classes_))
        self._network = network.to(self.device)
        order = np.random.default_rng(self.seed)
        # Drawn once: sources are often given class by class.
        batches = self._batches(asked, torch.from_numpy(order.permutation(len(asked))))
        checked = None if valid is None else self._batches(self._ids(valid[0]))
        optimizer = torch.optim.Adam(
            network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        self.history_: list[dict[str, float]] = []
        best, kept = -1.0, None
        for _ in range(self.epochs):
            total = 0.0
            network.train()
            for number in order.permutation(len(batches)):
                rows, batch = batches[number]
                loss = nn.functional.cross_entropy(self._scores(batch), wanted[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                total += loss.item() * len(rows)
            schedule.step()
            record = {"loss": total / len(asked)}
            if valid is not None and checked is not None:
                record["valid_accuracy"] = self._accuracy(checked, valid[1])
                if record["valid_accuracy"] > best:
                    best, kept = record["valid_accuracy"], copy.deepcopy(network.state_dict())
            self.history_.append(record)
        if kept is not None:
            network.load_state_dict(kept)
        return self

    def predict_proba(self, sources: Sources) -> NDArray[np.float64]:
        """The probability of each class of `classes_`, [n, C]."""
        if not hasattr(self, "_network"):
            raise InputError("the classifier is not trained; call `fit` first")
        return self._probabilities(self._batches(self._ids(sources)))

    def predict(self, sources: Sources) -> NDArray[np.generic]:
        """The most likely class of each source, [n]."""
        probabilities = self.predict_proba(sources)
        found: NDArray[np.generic] = self.classes_[probabilities.argmax(1)]
        return found

    def score(self, sources: Sources, labels: ArrayLike) -> float:
        """Accuracy: the share of the sources whose most likely class is right."""
        return float((self.predict(sources) == np.asarray(labels)).mean())

    @torch.no_grad()
    def _probabilities(self, batches: _Batches) -> NDArray[np.float64]:
        self._network.eval()
        found = np.empty((sum(len(rows) for rows, _ in batches), len(self.classes_)))
        for rows, batch in batches:
            found[rows.cpu()] = self._scores(batch).double().softmax(1).cpu().numpy()
        return found

    def _accuracy(self, batches: _Batches, labels: ArrayLike) -> float:
        found = self.classes_[self._probabilities(batches).argmax(1)]
        return float((found == np.asarray(labels)).mean())

    def _ids(self, sources: Sources) -> Tensor:
        """The sources as int64 [n, s], -1 for none."""
        if isinstance(sources, Tensor | np.ndarray):
            found = torch.as_tensor(sources)
            return (found[:, None] if found.dim() == 1 else found).to(self.device)
        sets = [[one] if isinstance(one, str | int) else list(one) for one in sources]
        widest = max(map(len, sets), default=1)
        rows = [
            [self.graph.entities.index(one) if isinstance(one, str) else int(one) for one in some]
            + [-1] * (widest - len(some))
            for some in sets
        ]
        return torch.tensor(rows, dtype=torch.long).view(-1, widest).to(self.device)

    def _batches(self, asked: Tensor, rows: Tensor | None = None) -> _Batches:
        """The subgraphs of the sources in batches, with the rows of each; `rows`: their order."""
        rows = torch.arange(len(asked)) if rows is None else rows
        return [
            (some, self.sampler.sample_sets(self.graph, asked[some]))
            for some in rows.to(self.device).split(self.batch_size)
        ]

    def _scores(self, batch: SubgraphBatch) -> Tensor:
        labels = self._labels[batch.entities]
        places, _ = batch.all_sources
        scores: Tensor = self._network(batch, labels.index_fill(0, places, -1))
        return scores


class _Network(nn.Module):
    """Scores of the classes from the states of a subgraph."""

    def __init__(self, config: PredictorConfig, num_relations: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.predictor = Predictor(config, num_relations)
        width = config.dim * (config.num_layers + 1 if config.concat else 1)
        self.read = nn.Sequential(
            nn.Linear(3 * width, 2 * config.dim), nn.ReLU(), nn.Linear(2 * config.dim, num_classes)
        )
        self.attention = nn.Linear(width, 1)
        self.trust = nn.Parameter(torch.ones(()))

    def forward(self, batch: SubgraphBatch, labels: Tensor) -> Tensor:
        """`labels` int64 [N]: the known classes of the entities, -1 for none → scores [n, C]."""
        states = self.predictor.states(batch)
        size = batch.num_queries
        counts = batch.entity_query.bincount(minlength=size)[:, None]
        pooled = states.new_zeros(size, states.shape[1])
        mean = pooled.index_add(0, batch.entity_query, states) / counts
        where = batch.entity_query[:, None].expand_as(states)
        highest = pooled.scatter_reduce(0, where, states, "amax")
        sources = mean_over_sources(states, batch)
        scores: Tensor = self.read(torch.cat([sources, mean, highest], dim=1))
        known = (labels >= 0).nonzero().squeeze(1)
        if not len(known):
            return scores
        # The classes of the labelled entities, by a weight that depends on the paths to them.
        weight = nn.functional.softplus(self.attention(states[known]).squeeze(1))
        weight = weight * batch.score[known].to(weight.dtype)
        place = batch.entity_query[known] * self.num_classes + labels[known]
        votes = weight.new_zeros(size * self.num_classes).index_add(0, place, weight)
        votes = votes.view(size, self.num_classes)
        share = (votes + 1e-6) / (votes + 1e-6).sum(1, keepdim=True)
        return scores + self.trust * share.log()
