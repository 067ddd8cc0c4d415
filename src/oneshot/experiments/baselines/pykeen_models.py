"""The supported models of PyKEEN, and the options with which each is trained well.

Products of embeddings (DistMult, ComplEx, QuatE, AutoSF) learn best from a softmax, ConvE from a
binary cross-entropy over all entities, with separate parameters for inverse relations; distances
(TransE, RotatE, PairRE, TripleRE) from random negatives, weighted by difficulty. If PyKEEN's
implementation would build a tensor of queries × entities × dimension, the softmax also uses random
negatives, unless the graph is small. Models that embed the whole graph in each step (CompGCN,
R-GCN) need few, large steps.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from oneshot.experiments.baselines.pykeen_import import load_pykeen
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers._pagerank import pagerank

SMALL = {"cpu": 1000, "cuda": 10_000}
"""Number of entities up to which every model is trained against all of them, by device type."""

MEDIUM = 20_000
"""The same for a model with a time budget whose scores are a matrix product."""

Options = Callable[[int, int], dict[str, Any]]
"""Arguments of a model's class, given its own dimension and the number of entities."""


def _plain(dim: int, entities: int) -> dict[str, Any]:
    return {"embedding_dim": dim}


@dataclass(frozen=True)
class Recipe:
    """How one of PyKEEN's models is built and trained.

    `model`: the class in `pykeen.models`. `parts`: real numbers per number of the model (complex,
    quaternion) or block. `inverse`: whether inverse relations have their own parameters, if the
    model supports it. `negatives`: random negatives per fact on large graphs; None for all
    entities. `steps`: approximate number of steps per epoch. `every`: epochs between validations.
    `is_image`: the numbers of an entity form a rectangle. `small`: options for training against all
    entities, if different. `is_product`: the scores of all entities are a matrix product
    (`oneshot.experiments.baselines.interactions`).
    """

    title: str
    model: str
    options: Options = _plain
    parts: int = 1
    inverse: bool = True
    can_invert: bool = True
    loss: str = "CrossEntropyLoss"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    label_smoothing: float = 0.0
    negatives: int | None = None
    learning_rate: float = 0.01
    steps: int = 300
    every: int = 2
    is_image: bool = False
    small: Options | None = None
    is_product: bool = False

    def on(self, entities: int, device: torch.device) -> "Recipe":
        """The recipe for a graph of so many entities, trained on a device.

        On a small graph, random negatives are often true facts, and all entities cost little more.
        Which graphs are small depends on the device. A step then has many more negatives and can be
        smaller.
        """
        if entities > SMALL.get(device.type, SMALL["cpu"]):
            return self
        options = self.small or self.options
        slower = replace(self, options=options, learning_rate=min(self.learning_rate, 0.003))
        if self.negatives is None or not self.can_invert:
            return slower
        return replace(slower, negatives=None, inverse=True, every=2)

    def timed(self, entities: int) -> "Recipe":
        """The recipe for a time budget: against all entities if that learns more in the time."""
        if not self.is_product or self.negatives is None or entities > MEDIUM:
            return self
        return replace(self, negatives=None, every=2)

    def in_words(self) -> str:
        """A complete description, to distinguish it from recipes of other versions."""
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        return ", ".join(f"{name} {getattr(value, '__name__', value)}" for name, value in values)

    def arguments(self, dim: int, entities: int) -> dict[str, Any]:
        """Arguments of the model's class, for `dim` real numbers per entity."""
        return self.options(self.numbers(dim) // self.parts, entities)

    def numbers(self, dim: int) -> int:
        """Real numbers per entity for a requested `dim`: a multiple of the parts."""
        return max(dim - dim % self.parts, self.parts)

    def batch_size(self, examples: int) -> int:
        """Batch size of a step, in facts or (for all entities) queries: at most 1,024."""
        largest = 1024 if self.steps >= 100 else 8192
        return max(min(max(examples // self.steps, 64), largest, examples), 1)


def is_prime(number: int) -> bool:
    """Whether a number, of at least 2, is no product."""
    return all(number % factor for factor in range(2, math.isqrt(number) + 1))


def _free(dim: int, entities: int) -> dict[str, Any]:
    """Embeddings of any length: a norm of 1 leaves a softmax or a margin no room."""
    return {"embedding_dim": dim, "entity_constrainer": None}


# A standard deviation of 1, as PyKEEN's, begins with scores that a softmax cannot leave.
_SMALL = "xavier_normal_"


def _complex(dim: int, entities: int) -> dict[str, Any]:
    initial = {"entity_initializer": _SMALL, "relation_initializer": _SMALL}
    penalty = {"weight": 0.1, "p": 3.0, "normalize": True}
    return {
        "embedding_dim": dim,
        "regularizer": "lp",
        "regularizer_kwargs": penalty,
        **initial,
    }


def _autosf(dim: int, entities: int) -> dict[str, Any]:
    return {"embedding_dim": dim, "embedding_kwargs": {"initializer": _SMALL}}


def _transe(dim: int, entities: int) -> dict[str, Any]:
    """Euclidean distances: for the sum of all differences a margin is soon too small."""
    return {**_free(dim, entities), "scoring_fct_norm": 2}


def _distmult(dim: int, entities: int) -> dict[str, Any]:
    return {**_free(dim, entities), "regularizer": None}


def _quate(dim: int, entities: int) -> dict[str, Any]:
    return {"embedding_dim": dim, "entity_regularizer": None, "relation_regularizer": None}


def _triplere(dim: int, entities: int) -> dict[str, Any]:
    shape = {"shape": dim, "initializer": "xavier_uniform_"}
    return {
        "interaction": "TripleRE",
        "entity_representations_kwargs": shape,
        "relation_representations_kwargs": [shape] * 3,
    }


def _compgcn(dim: int, entities: int) -> dict[str, Any]:
    return {"embedding_dim": dim, "encoder_kwargs": {"num_layers": 1, "dims": dim}}


def _rgcn(dim: int, entities: int) -> dict[str, Any]:
    bases = {"num_bases": 8}
    return {"embedding_dim": dim, "decomposition": "bases", "decomposition_kwargs": bases}


def rotate_pairs() -> Any:
    """RotatE for real embeddings: neighbours in a row are the two parts of a complex number.

    PyKEEN's own does so, too, but writes out a warning with the numbers at each step.
    """

    class RotatePairs(load_pykeen().nn.modules.RotatEInteraction):  # type: ignore[misc]
        def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
            pairs = (part.unflatten(-1, (-1, 2)).contiguous() for part in (h, r, t))
            scores: Tensor = super().forward(*map(torch.view_as_complex, pairs))
            return scores

    return RotatePairs()


def pagerank_anchors() -> Any:
    """The choice of anchors by PageRank, with ours: PyKEEN's refuses isolated entities and hubs."""

    class PageRankAnchors(load_pykeen().nn.node_piece.anchor_selection.SingleSelection):  # type: ignore[misc]
        def rank(self, edge_index: Any) -> Any:
            heads, tails = torch.as_tensor(edge_index)
            graph = KnowledgeGraph.from_facts(
                torch.stack([heads, torch.zeros_like(heads), tails], dim=1)
            )
            return pagerank(graph).argsort(descending=True, stable=True).numpy()

    return PageRankAnchors


_ENTITIES_AT_ONCE = 2**16
"""Whose distances are sorted at a time."""


def nearest_anchors() -> Any:
    """The anchors that are the tokens of an entity: those in the fewest steps, nearest first.

    PyKEEN's search for entities without facts draws among all anchors within reach, so that
    neighbours have little in common; its exact one refuses such entities.
    """

    class NearestAnchors(load_pykeen().nn.node_piece.anchor_search.AnchorSearcher):  # type: ignore[misc]
        def __call__(
            self, edge_index: Any, anchors: Any, k: int, num_entities: int | None = None
        ) -> Any:
            heads, tails = np.asarray(edge_index)
            count = num_entities or int(max(heads.max(), tails.max())) + 1
            graph = csr_array((np.ones(len(heads), bool), (heads, tails)), shape=(count, count))
            steps = np.empty((count, len(anchors)), np.float32)
            for anchor, found in enumerate(anchors):  # one at a time: its answer is of float64
                steps[:, anchor] = shortest_path(
                    graph, directed=False, unweighted=True, indices=int(found)
                )
            tokens = np.full((count, k), -1)
            for first in range(0, count, _ENTITIES_AT_ONCE):
                some = steps[first : first + _ENTITIES_AT_ONCE]
                nearest = some.argsort(axis=1, kind="stable")[:, :k]
                is_near = np.isfinite(np.take_along_axis(some, nearest, axis=1))
                tokens[first : first + len(some), : len(anchors)] = np.where(is_near, nearest, -1)
            return tokens

    return NearestAnchors()


def _nodepiece(dim: int, entities: int) -> dict[str, Any]:
    """Tokens are the nearest of some anchors, and relations; RotatE scores what an MLP makes."""
    count = max(min(500, entities // 10), 3)
    anchors = {
        "selections": ["degree", pagerank_anchors(), "random"],
        "ratios": [0.4, 0.4, 0.2],
        "num_anchors": count,
    }
    return {
        "embedding_dim": 2 * dim,  # pairs of them are complex numbers
        "interaction": rotate_pairs(),
        "aggregation": "mlp",
        "entity_initializer": "xavier_uniform_",
        "relation_initializer": "init_phases",
        "relation_constrainer": "complex_normalize",
        "tokenizers": ["AnchorTokenizer", "RelationTokenizer"],
        "num_tokens": [min(20, count), 4],
        "tokenizers_kwargs": [
            {
                "selection": "MixtureAnchorSelection",
                "selection_kwargs": anchors,
                "searcher": nearest_anchors(),
            },
            {},
        ],
    }


def _distance(title: str, model: str, options: Options = _plain, **others: Any) -> Recipe:
    """A model that scores by a distance: random negatives against a margin."""
    settings: dict[str, Any] = {
        "inverse": False,
        "loss": "NSSALoss",
        "loss_options": {"margin": 9.0, "adversarial_temperature": 1.0},
        "negatives": 32,
        "every": 5,
    }
    return Recipe(title, model, options=options, **{**settings, **others})


def _encoder(title: str, model: str, options: Options, **others: Any) -> Recipe:
    """A graph network that embeds every entity at each step, and a decoder on top."""
    settings: dict[str, Any] = {"negatives": 32, "steps": 5}
    return Recipe(title, model, options=options, **{**settings, **others, "every": 10})


def _product(title: str, options: Options, **others: Any) -> Recipe:
    """A model that scores by a product: a softmax over random negatives."""
    return Recipe(title, title, options, **{"negatives": 32, "every": 3, **others})


DIM = 128
"""Default number of real numbers per entity."""

RECIPES: dict[str, Recipe] = {
    "transe": _distance("TransE", "TransE", _transe, small=_free),
    "distmult": _product("DistMult", _distmult, is_product=True),
    "complex": Recipe("ComplEx", "ComplEx", _complex, parts=2),
    "rotate": _distance("RotatE", "RotatE", parts=2),
    "quate": _product("QuatE", _quate, parts=4),
    "conve": Recipe(
        "ConvE",
        "ConvE",
        loss="BCEWithLogitsLoss",
        label_smoothing=0.1,
        learning_rate=0.003,
        is_image=True,
    ),
    "pairre": _distance("PairRE", "PairRE"),
    "triplere": _distance("TripleRE", "ERModel", _triplere),
    "autosf": _product("AutoSF", _autosf, parts=4),
    "compgcn": _encoder("CompGCN", "CompGCN", _compgcn),
    "rgcn": _encoder("R-GCN", "RGCN", _rgcn, inverse=False, can_invert=False),
    "nodepiece": _distance(
        "RotatE + NodePiece",
        "NodePiece",
        _nodepiece,
        parts=2,
        inverse=True,
        learning_rate=0.002,  # a network encodes entities; it is unstable with larger steps
    ),
}
