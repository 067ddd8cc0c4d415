"""PageRank scores as pure functions.

Personalized PageRank (PPR) from an entity `u` is the fixed point of

    p = restart · 1(u) + (1 − restart) · Aᵀ D⁻¹ p

on the undirected simple graph: the share of time that a random walk spends at each entity if it
jumps back to `u` with probability `restart` before each step. If the facts have weights, a walk
follows each pair in proportion to the summed weight of its facts, and degrees are sums of weights.
All functions process a block of entities at once, as a sparse matrix times a dense block, and work
on any device.

With `transition="paper"` the walk matrix is `D⁻¹ A`, as printed in the paper: each score is then
divided by the degree of its entity (and multiplied by that of `u`).
"""

import math
from typing import TYPE_CHECKING, Literal, get_args, overload

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph, weighted_degree
from oneshot.graph.sparse import Matrix

if TYPE_CHECKING:
    from oneshot.samplers.neighbourhood import TopScores

Transition = Literal["walk", "paper"]

# Maximum error of the accelerated iteration, relative to the score of `u`, and minimum number of
# steps: with a high restart the error is small after few steps, but entities farther away than the
# number of steps would all have score 0.
CHEBYSHEV_ERROR = 1e-5
CHEBYSHEV_LEAST_STEPS = 20


@overload
def ppr(
    graph: AdjacencyGraph,
    entities: Tensor,
    restart: float = ...,
    tolerance: float = ...,
    max_steps: int = ...,
    transition: Transition = ...,
    dtype: torch.dtype = ...,
    *,
    top: None = ...,
    exact: None = ...,
) -> Tensor: ...
@overload
def ppr(
    graph: AdjacencyGraph,
    entities: Tensor,
    restart: float = ...,
    *,
    top: int,
    exact: bool | None = ...,
) -> "TopScores": ...
def ppr(
    graph: AdjacencyGraph,
    entities: Tensor,
    restart: float = 0.15,
    tolerance: float = 1e-6,
    max_steps: int = 100,
    transition: Transition = "walk",
    dtype: torch.dtype = torch.float32,
    *,
    top: int | None = None,
    exact: bool | None = None,
) -> "Tensor | TopScores":
    """PPR by power iteration from `p = 1(u)`. `entities` int64 [n] → scores [n, V].

    Stops when the L1 change of every row is below `tolerance`, or after `max_steps`. This
    follows the definition; `ppr_chebyshev` reaches the same scores in fewer steps.

    With `top`, only the entities of highest score: → `TopScores`, [n, top]. On large graphs by a
    local push, whose cost hardly grows with the graph, unless `exact`; the other arguments are for
    all scores.
    """
    if top is not None:
        from oneshot.samplers.neighbourhood import top_ppr

        if transition != "walk":
            raise InputError('top needs transition="walk"')
        return top_ppr(graph, entities, top, restart, exact=exact)
    if exact is not None:
        raise InputError("exact is for top=K; all scores are computed over the whole graph")
    entities = check_entities(graph, entities)
    _check(restart, transition)
    matrix = graph.normalized_adjacency(dtype)
    root = _root_degree(graph, dtype)
    columns = torch.arange(len(entities), device=graph.device)
    # With z = D^-1/2 p the step becomes z ← restart · D^-1/2 1(u) + (1 − restart) · S z.
    z = torch.zeros(graph.num_entities, len(entities), dtype=dtype, device=graph.device)
    jump = restart / root[entities]
    z[entities, columns] = 1 / root[entities]
    # From z to the scores whose change is measured (see `_unscaled`), as one product.
    back = root if transition == "walk" else 1 / root
    scale = 1.0 if transition == "walk" else root[entities].square()
    for _ in range(max_steps):
        new = (matrix @ z).mul_(1 - restart)
        new[entities, columns] += jump
        change = ((back @ z.sub_(new).abs_()) * scale).max() if len(entities) else 0.0
        z = new
        if change < tolerance:
            break
    return _unscaled(z, entities, root, transition)


def ppr_chebyshev(
    graph: AdjacencyGraph,
    entities: Tensor,
    restart: float = 0.15,
    steps: int | None = None,
    transition: Transition = "walk",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PPR by a Chebyshev expansion. `entities` int64 [n] → scores [n, V].

    The scores are a function of the symmetric matrix `S = D^-1/2 A D^-1/2`, whose eigenvalues
    lie in [-1, 1]; in Chebyshev polynomials `T_k`, with `a = 1 − restart`, `s = √(1 − a²)`
    and `ρ = (1 − s) / a`,

        restart · (I − a S)⁻¹ = restart / s · (I + 2 Σ_k ρ^k T_k(S)).

    The error decreases by the factor ρ = 0.56 per step, that of power iteration by 0.85 (`restart`
    0.15). The default number of steps brings it below 1e-5, at least 20. Entities that a walk of
    `steps` steps can reach have a positive score, all others exactly 0.
    """
    entities = check_entities(graph, entities)
    _check(restart, transition)
    root = _root_degree(graph, dtype)
    total = chebyshev(
        graph.normalized_adjacency(dtype), entities, 1 / root[entities], restart, steps
    )
    return _unscaled(total, entities, root, transition)


def chebyshev(
    matrix: Matrix, places: Tensor, values: Tensor, restart: float, steps: int | None
) -> Tensor:
    """`restart · (I − (1 − restart) S)⁻¹` applied to columns with one entry each.

    `matrix` S: symmetric, [V, V], eigenvalues in [-1, 1]; `places` int64 [n] and
    `values` [n]: the row and value of each column's entry. → [V, n], at least 0.
    """
    follow = 1 - restart
    scale = math.sqrt(1 - follow * follow)
    rate = (1 - scale) / follow
    if steps is None:
        steps = math.ceil(math.log(CHEBYSHEV_ERROR) / math.log(rate))
        steps = max(steps, CHEBYSHEV_LEAST_STEPS)
    columns = torch.arange(len(places), device=matrix.device)
    previous = torch.zeros(matrix.shape[0], len(places), dtype=values.dtype, device=matrix.device)
    previous[places, columns] = restart / scale * values
    total = previous.clone()
    current = matrix @ previous
    total.add_(current, alpha=2 * rate)
    for step in range(2, steps + 1):
        # T_k = 2 S T_(k-1) − T_(k-2), written over T_(k-2).
        previous, current = current, matrix.chebyshev_step(current, previous)
        total.add_(current, alpha=2 * rate**step)
    # Far away, the truncated series may be slightly negative: reached, but with almost no score.
    reached = torch.ne(total, 0, out=previous)
    return total.clamp_(min=torch.finfo(total.dtype).tiny).mul_(reached)


def pagerank(
    graph: AdjacencyGraph,
    restart: float = 0.15,
    tolerance: float = 1e-6,
    max_steps: int = 100,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Global PageRank, jumping to a uniformly random entity. → scores [V], summing to 1.

    An entity without neighbours keeps its share 1 / V.
    """
    _check(restart, "walk")
    if not graph.num_entities:
        return torch.zeros(0, dtype=dtype, device=graph.device)
    matrix = graph.normalized_adjacency(dtype)
    root = _root_degree(graph, dtype)[:, None]
    jump = restart / graph.num_entities / root
    z = 1 / graph.num_entities / root
    for _ in range(max_steps):
        new = (matrix @ z).mul_(1 - restart).add_(jump)
        change = (z - new).abs_().mul_(root).sum()
        z = new
        if change < tolerance:
            break
    return (z * root).squeeze(1)


def check_entities(graph: AdjacencyGraph, entities: Tensor) -> Tensor:
    """Entity ids as int64 [n] on the graph's device; raises for ids outside the graph."""
    entities = torch.as_tensor(entities, dtype=torch.long, device=graph.device)
    if entities.dim() != 1:
        raise InputError(f"entities must have shape [n], not {list(entities.shape)}")
    bad = entities[(entities < 0) | (entities >= graph.num_entities)]
    if len(bad):
        raise InputError(
            f"entity id {int(bad[0])} is not in the graph; "
            f"ids range from 0 to {graph.num_entities - 1}"
        )
    return entities


def check_unweighted(graph: AdjacencyGraph, method: str) -> None:
    """Raise if the facts of a graph have weights, for methods that do not support them."""
    if graph.weights is not None:
        raise InputError(
            f'the method "{method}" does not support weights of facts; use "chebyshev" or "power"'
        )


def _check(restart: float, transition: str) -> None:
    if not 0 < restart < 1:
        raise InputError(f"restart must be between 0 and 1, not {restart}")
    if transition not in get_args(Transition):
        raise InputError(f"transition must be one of {get_args(Transition)}, not {transition!r}")


def _root_degree(graph: AdjacencyGraph, dtype: torch.dtype) -> Tensor:
    """`√degree` of each entity, [V]; 1 for one without neighbours."""
    if graph.pair_weights is None:
        return graph.neighbours.degree.clamp(min=1).to(dtype).sqrt()
    degree = weighted_degree(graph.neighbours, graph.pair_weights)
    return torch.where(degree > 0, degree, 1).sqrt().to(dtype)


def _unscaled(z: Tensor, entities: Tensor, root: Tensor, transition: Transition) -> Tensor:
    """From `z` [V, n], scaled by `D^-1/2`, to the scores [n, V]."""
    if transition == "walk":
        return (z * root[:, None]).t().contiguous()
    # D⁻¹A is the walk matrix seen through D: p_paper = D⁻¹ p_walk · degree(u).
    return (z / root[:, None] * root[entities].square()).t().contiguous()
