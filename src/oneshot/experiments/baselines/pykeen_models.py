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

from oneshot.experiments.baselines.interactions import rotate_pairs
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

    `model`: the class in `pykeen.models`, or a function that makes it. `parts`: real numbers per
    number of the model (complex, quaternion) or block. `inverse`: whether inverse relations have
    their own parameters, if the model supports it. `negatives`: random negatives per fact on large
    graphs; None for all entities. `steps`: approximate number of steps per epoch. `every`: epochs
    between validations. `is_image`: the numbers of an entity form a rectangle. `small`: options for
    training against all entities, if different. `is_product`: the scores of all entities are a
    matrix product (`oneshot.experiments.baselines.interactions`).
    """

    title: str
    model: str | Callable[[], Any]
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

STEPS = 16
"""Distances to an anchor that have a vector of their own; larger ones share the last."""


def nearest_anchors() -> Any:
    """The anchors that are the tokens of an entity: those in the fewest steps, nearest first.

    A token is `anchor · STEPS + steps`, or -1 where there is no further anchor within reach.
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
                away = np.take_along_axis(some, nearest, axis=1)
                token = nearest * STEPS + np.minimum(away, STEPS - 1).astype(np.int64)
                tokens[first : first + len(some), : len(anchors)] = np.where(
                    np.isfinite(away), token, -1
                )
            return tokens

    return NearestAnchors()


def node_piece() -> Any:
    """PyKEEN's NodePiece, with the distances to anchors, as in the paper of its authors.

    PyKEEN's own class leaves them out, so that all entities with the same nearest anchors look the
    same: a quarter of those of WN18RR.
    """
    pykeen = load_pykeen()

    class TokenVectors(load_pykeen().nn.Representation):  # type: ignore[misc]
        """The vector of an anchor plus that of the number of steps to it; last, the padding."""

        def __init__(self, anchors: int, shape: int, initializer: Any) -> None:
            super().__init__(max_id=anchors * STEPS + 1, shape=shape)
            options = {"shape": shape, "initializer": initializer}
            self.anchors = pykeen.nn.Embedding(max_id=anchors + 1, **options)
            self.steps = pykeen.nn.Embedding(max_id=STEPS, **options)

        def reset_parameters(self) -> None:
            self.anchors.reset_parameters()
            self.steps.reset_parameters()

        def _plain_forward(self, indices: Tensor | None = None) -> Tensor:
            if indices is None:
                indices = torch.arange(self.max_id, device=self.device)
            vectors: Tensor = self.anchors(indices // STEPS) + self.steps(indices % STEPS)
            return vectors

    class NodePiece(load_pykeen().models.ERModel):  # type: ignore[misc]
        def __init__(
            self, *, triples_factory: Any, dim: int, anchors: int, tokens: int, **options: Any
        ) -> None:
            relations = pykeen.nn.Embedding(
                max_id=2 * triples_factory.real_num_relations + 1,  # inverses and padding
                shape=dim,
                initializer="init_phases",
                constrainer="complex_normalize",
            )
            choice = {
                "selections": ["degree", pagerank_anchors(), "random"],
                "ratios": [0.4, 0.4, 0.2],
                "num_anchors": anchors,
            }
            nearest = {
                "selection": "MixtureAnchorSelection",
                "selection_kwargs": choice,
                "searcher": nearest_anchors(),
            }
            super().__init__(
                triples_factory=triples_factory,
                interaction=rotate_pairs(),
                entity_representations=pykeen.nn.NodePieceRepresentation,
                entity_representations_kwargs={
                    "triples_factory": triples_factory,
                    "token_representations": [
                        TokenVectors(anchors, dim, "xavier_uniform_"),
                        relations,
                    ],
                    "tokenizers": ["AnchorTokenizer", "RelationTokenizer"],
                    "tokenizers_kwargs": [nearest, {}],
                    "num_tokens": [tokens, 4],
                    "aggregation": "mlp",
                },
                relation_representations=pykeen.nn.SubsetRepresentation,
                relation_representations_kwargs={"base": relations},
                **options,
            )

    return NodePiece


def _nodepiece(dim: int, entities: int) -> dict[str, Any]:
    """Tokens are the nearest of some anchors, and relations; RotatE scores what an MLP makes."""
    count = max(min(500, entities // 10), 3)
    # Pairs of numbers are complex.
    return {"dim": 2 * dim, "anchors": count, "tokens": min(20, count)}


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
    # Against all entities: a network encodes them in each step, so that further ones as negatives
    # cost little, and with a margin against random ones it hardly learns in the first 10,000 steps.
    "nodepiece": Recipe(
        "RotatE + NodePiece",
        node_piece,
        _nodepiece,
        parts=2,
        learning_rate=0.002,
        steps=100,
    ),
}
