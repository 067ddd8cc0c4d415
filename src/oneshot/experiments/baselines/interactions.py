"""Fast interactions: PyKEEN's scores of a query with all entities as a matrix product.

PyKEEN builds a tensor of queries × entities × dimension. The same scores can be computed with a
matrix product, which takes a small part of the time and memory on a CPU.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from oneshot.experiments.baselines.pykeen_import import load_pykeen


def speed_up(model: Any) -> None:
    """Let a PyKEEN model compute the scores of all entities by a matrix product, if possible."""
    fast = _fast_kinds().get(type(getattr(model, "interaction", None)))
    if fast is not None:
        model.interaction.__class__ = fast  # parameters and their names do not change


def is_fast(model: Any) -> bool:
    """Whether this model computes the scores of all entities by a matrix product."""
    return isinstance(getattr(model, "interaction", None), tuple(_fast_kinds().values()))


def rotate_pairs() -> Any:
    """RotatE for real embeddings: neighbours in a row are the two parts of a complex number.

    PyKEEN's own does so, too, but writes out a warning with the numbers at each step, and builds
    the tensor of queries × entities × dimension.
    """

    class RotatePairs(_fast_kinds()[load_pykeen().nn.modules.RotatEInteraction]):  # type: ignore[misc]
        def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
            pairs = (part.unflatten(-1, (-1, 2)).contiguous() for part in (h, r, t))
            scores: Tensor = super().forward(*map(torch.view_as_complex, pairs))
            return scores

    return RotatePairs()


def _is_against_all(one: Tensor, many: Tensor) -> bool:
    """Whether the input is queries [n, 1, d] against all entities [1, m, d]."""
    return one.dim() == many.dim() == 3 and one.shape[1] == 1 and many.shape[0] == 1


def _numbers(vectors: Tensor) -> Tensor:
    """Complex vectors as real ones of twice the length."""
    return torch.view_as_real(vectors).flatten(-2)


@functools.cache
def _fast_kinds() -> dict[type, type]:
    class DistMult(load_pykeen().nn.modules.DistMultInteraction):  # type: ignore[misc]
        def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
            if _is_against_all(h, t) and h.shape[0] == r.shape[0]:
                return (h * r)[:, 0] @ t[0].T
            if _is_against_all(t, h) and t.shape[0] == r.shape[0]:
                return (t * r)[:, 0] @ h[0].T
            scores: Tensor = super().forward(h, r, t)
            return scores

    class ComplEx(load_pykeen().nn.modules.ComplExInteraction):  # type: ignore[misc]
        def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
            if _is_against_all(h, t) and h.shape[0] == r.shape[0]:
                return _numbers((h * r)[:, 0]) @ _numbers(t[0]).T
            if _is_against_all(t, h) and t.shape[0] == r.shape[0]:
                return _numbers((t * r.conj())[:, 0]) @ _numbers(h[0]).T
            scores: Tensor = super().forward(h, r, t)
            return scores

    class RotatE(load_pykeen().nn.modules.RotatEInteraction):  # type: ignore[misc]
        def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
            # A rotation preserves distances, so the answer can be rotated back instead.
            if h.is_complex() and _is_against_all(h, t) and h.shape[0] == r.shape[0]:
                return -torch.cdist(_numbers((h * r)[:, 0]), _numbers(t[0]))
            if t.is_complex() and _is_against_all(t, h) and t.shape[0] == r.shape[0]:
                return -torch.cdist(_numbers((t * r.conj())[:, 0]), _numbers(h[0]))
            scores: Tensor = super().forward(h, r, t)
            return scores

    class ConvE(load_pykeen().nn.modules.ConvEInteraction):  # type: ignore[misc]
        def forward(self, h: Tensor, r: Tensor, t: tuple[Tensor, Tensor]) -> Tensor:
            vectors, bias = t
            if not _is_against_all(h, vectors) or h.shape[0] != r.shape[0]:
                scores: Tensor = super().forward(h, r, t)
                return scores
            # Scores of unit vectors are the network's output for head and relation.
            units = torch.eye(vectors.shape[-1], dtype=vectors.dtype, device=vectors.device)
            made = super().forward(h, r, (units[None], units.new_zeros(1, len(units))))
            found: Tensor = made @ vectors[0].T + bias
            return found

    return {kind.__mro__[1]: kind for kind in (DistMult, ComplEx, RotatE, ConvE)}
