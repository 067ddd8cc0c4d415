"""Tests of the import of ULTRA checkpoints, against the network written out edge by edge."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.commands import Command
from tests.support.graphs import random_graph, random_queries
from torch import Tensor

from oneshot.config import from_table
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.run import Run
from oneshot.runs.ultra import import_ultra

Array = NDArray[np.float64]
WHOLE = {"sampler": {"name": "ppr", "entity_ratio": 1.0, "keep_unreachable": True}}


def random_checkpoint(
    path: Path, dim: int = 8, layers: int = 3, seed: int = 0
) -> dict[str, Tensor]:
    """A file of the layout of ULTRA with random tensors, and these tensors."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    tensors = {}
    for network in ("relation_model", "entity_model"):
        for number in range(layers):
            start = f"{network}.layers.{number}"
            tensors[f"{start}.linear.weight"] = drawn(dim, 2 * dim)
            tensors[f"{start}.linear.bias"] = drawn(dim)
            tensors[f"{start}.layer_norm.weight"] = 1 + drawn(dim)
            tensors[f"{start}.layer_norm.bias"] = drawn(dim)
            if network == "relation_model":
                tensors[f"{start}.relation.weight"] = drawn(4, dim)
            else:
                for part in (0, 2):
                    tensors[f"{start}.relation_projection.{part}.weight"] = drawn(dim, dim)
                    tensors[f"{start}.relation_projection.{part}.bias"] = drawn(dim)
    for part, size in ((0, 2 * dim), (2, 1)):
        tensors[f"entity_model.mlp.{part}.weight"] = drawn(size, 2 * dim)
        tensors[f"entity_model.mlp.{part}.bias"] = drawn(size)
    torch.save({"model": tensors, "optimizer": {"state": {}, "param_groups": []}}, path)
    return tensors


def plain_scores(
    tensors: dict[str, Tensor], graph: KnowledgeGraph, entity: int, relation: int
) -> Array:
    """The scores of all entities, by sets and loops over edges."""
    table = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    count = graph.num_relations
    edges = [(h, r, t) for h, r, t in graph.facts.tolist()]
    edges += [(t, r + count, h) for h, r, t in graph.facts.tolist()]
    heads = [{h for h, r, _ in edges if r == one} for one in range(2 * count)]
    tails = [{t for _, r, t in edges if r == one} for one in range(2 * count)]
    touching = [
        (i, kind, j)
        for i in range(2 * count)
        for j in range(2 * count)
        for kind, (one, other) in enumerate(
            ((heads[i], heads[j]), (tails[i], tails[j]), (heads[i], tails[j]), (tails[i], heads[j]))
        )
        if one & other
    ]
    dim = table["entity_model.mlp.2.weight"].shape[1] // 2
    start = np.zeros((2 * count, dim))
    start[relation] = 1
    weights = [
        table[f"relation_model.layers.{number}.relation.weight"] for number in _numbers(table)
    ]
    states = _network(table, "relation_model", start, touching, weights)
    weights = []
    for number in _numbers(table):
        name = f"entity_model.layers.{number}.relation_projection"
        hidden = np.maximum(states @ table[f"{name}.0.weight"].T + table[f"{name}.0.bias"], 0)
        weights.append(hidden @ table[f"{name}.2.weight"].T + table[f"{name}.2.bias"])
    start = np.zeros((graph.num_entities, dim))
    start[entity] = states[relation]
    final = _network(table, "entity_model", start, edges, weights)
    both = np.concatenate([final, np.tile(states[relation], (len(final), 1))], axis=1)
    hidden = both @ table["entity_model.mlp.0.weight"].T + table["entity_model.mlp.0.bias"]
    hidden = np.maximum(hidden, 0)
    scores = hidden @ table["entity_model.mlp.2.weight"].T + table["entity_model.mlp.2.bias"]
    return np.asarray(scores[:, 0])


def _numbers(table: dict[str, Array]) -> range:
    return range(sum(name.endswith(".relation.weight") for name in table))


def _network(
    table: dict[str, Array],
    name: str,
    start: Array,
    edges: list[tuple[int, int, int]],
    weights: list[Array],
) -> Array:
    state = start
    for number in _numbers(table):
        layer = f"{name}.layers.{number}"
        total = start.copy()
        for source, kind, target in edges:
            total[target] += state[source] * weights[number][kind]
        new = np.concatenate([state, total], axis=1) @ table[f"{layer}.linear.weight"].T
        new = new + table[f"{layer}.linear.bias"]
        mean, variance = new.mean(1, keepdims=True), new.var(1, keepdims=True)
        new = (new - mean) / np.sqrt(variance + 1e-5)
        new = new * table[f"{layer}.layer_norm.weight"] + table[f"{layer}.layer_norm.bias"]
        state = np.maximum(new, 0) + state
    return state


def test_scores_on_a_whole_graph(tmp_path: Path) -> None:
    tensors = random_checkpoint(tmp_path / "ultra.pth")
    graph = random_graph(3, 15, 30, 3)
    import_ultra(tmp_path / "ultra.pth", tmp_path / "run", from_table(WHOLE))
    reasoner = Reasoner.load(tmp_path / "run", graph=graph)
    queries = random_queries(graph, 4, 5)
    _, scores = reasoner.reason(queries)
    expected = [plain_scores(tensors, graph, *query) for query in queries.tolist()]
    np.testing.assert_allclose(scores.numpy(), np.concatenate(expected), atol=1e-4, rtol=1e-4)
    assert np.concatenate(expected).std() > 1e-2


def test_the_command(tmp_path: Path, run: Command) -> None:
    """The imported run answers on subgraphs of a graph that it has never seen."""
    random_checkpoint(tmp_path / "ultra.pth", 64, 6)
    out = tmp_path / "run"
    settings = ("--set", "sampler.name=ppr", "--set", "sampler.max_entities=40")
    found = run("import-ultra", tmp_path / "ultra.pth", "--out", out, *settings, "--json").json
    shape = found["predictor"]
    assert (shape["dim"], shape["num_layers"], shape["relation_layers"]) == (64, 6, 6)
    parameters = Run.open(out).reasoner_on(random_graph(0)).predictor.num_parameters
    assert parameters == 168_705
    found = run("predict", out, "Italy", "borders", "--data", "world", "--explain", "--json").json
    assert len(found["answers"]) == 10
    failed = run("import-ultra", tmp_path / "ultra.pth", "--out", out)
    assert failed.code == 2
    assert "another directory" in failed.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(strange=torch.zeros(2)), "unknown tensor"),
        (lambda t: t.pop("entity_model.mlp.2.bias"), "missing"),
        (lambda t: t.update({"entity_model.mlp.2.bias": torch.zeros(3)}), "expected"),
        (lambda t: t.pop("relation_model.layers.0.relation.weight"), "relation types"),
        (lambda t: t.update({"entity_model.mlp.2.bias": torch.zeros(1).long()}), "numbers"),
        (lambda t: t.clear(), "layers"),
    ],
)
def test_damaged_files(tmp_path: Path, change: Any, message: str) -> None:
    tensors = random_checkpoint(tmp_path / "ultra.pth")
    change(tensors)
    torch.save({"model": tensors}, tmp_path / "ultra.pth")
    with pytest.raises(InputError, match=message):
        import_ultra(tmp_path / "ultra.pth", tmp_path / "run", from_table(WHOLE))
    assert not (tmp_path / "run").exists()
