"""Official checkpoints: a file of that layout, against a plain computation of the same network."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from tests.support.official import ATTENTION, DIM, LAYERS, checkpoint

from oneshot.config import from_table
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.official import import_official


def plain_scores(tensors, batch, activation, shortcut, concat):
    """The network of the official code, edge by edge, for a batch of one query."""
    t = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    relation = int(batch.queries[0, 1])
    act = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "identity": lambda x: x}[activation]
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    hidden = np.zeros((batch.num_entities, DIM))
    start = (
        t["query_rela_embed.weight"][relation] if "query_rela_embed.weight" in t else np.ones(DIM)
    )
    hidden[int(batch.source[0])] = start
    state = np.zeros_like(hidden)
    everything = [hidden]
    for layer in range(LAYERS):
        p = {k.split(".", 2)[2]: v for k, v in t.items() if k.startswith(f"gnn_layers.{layer}.")}
        table = p["rela_embed.weight"]
        total = np.zeros_like(hidden)
        for x, r, o in batch.edges.T.tolist():
            inner = p["Ws_attn.weight"] @ hidden[x] + p["Wr_attn.weight"] @ table[r]
            inner = inner + p["Wqr_attn.weight"] @ table[relation] + p["Wqr_attn.bias"]
            alpha = sigmoid(p["w_alpha.weight"] @ np.maximum(inner, 0) + p["w_alpha.bias"])
            total[o] += alpha * (hidden[x] * table[r])
        new = act(total @ p["W_h.weight"].T)
        new = new + hidden if shortcut else new
        silent = new.sum(1) == 0
        given = new @ t["gate.weight_ih_l0"].T + t["gate.bias_ih_l0"]
        kept = state @ t["gate.weight_hh_l0"].T + t["gate.bias_hh_l0"]
        reset = sigmoid(given[:, :DIM] + kept[:, :DIM])
        update = sigmoid(given[:, DIM : 2 * DIM] + kept[:, DIM : 2 * DIM])
        candidate = np.tanh(given[:, 2 * DIM :] + reset * kept[:, 2 * DIM :])
        hidden = (1 - update) * candidate + update * state
        hidden[silent] = 0
        state = hidden
        everything.append(hidden)
    final = np.concatenate(everything, axis=1) if concat else hidden
    if "W_final.weight" in t:
        return final @ t["W_final.weight"][0]
    return final @ final[int(batch.source[0])]


@pytest.fixture
def data() -> Dataset:
    graph = random_graph(5, 25, 70)
    return Dataset("small", graph, graph.facts[:5].long(), graph.facts[5:9].long())


@pytest.mark.parametrize("relational", [True, False])
@pytest.mark.parametrize(("linear", "concat"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize(("activation", "shortcut"), [("relu", False), ("tanh", True)])
def test_scores_equal_a_plain_computation(
    tmp_path, data, relational, linear, concat, activation, shortcut
):
    tensors = checkpoint(2 * data.graph.num_relations + 1, relational, linear, concat)
    file = tmp_path / "saved_model.pt"
    torch.save({"model_state_dict": tensors, "epoch": 3}, file)
    settings = [f"predictor.activation={activation}", f"predictor.shortcut={str(shortcut).lower()}"]
    config = from_table({}, [*settings, "sampler.entity_ratio=0.6"])
    reasoner = import_official(file, data, config)
    shape = reasoner.predictor.config
    assert (shape.num_layers, shape.dim, shape.attention_dim) == (LAYERS, DIM, ATTENTION)
    assert shape.initial == ("relational" if relational else "binary")
    assert (shape.readout, shape.concat) == ("linear" if linear else "dot", concat)
    for query in random_queries(data.graph, 6, 1):
        batch, scores = reasoner.reason(query[None])
        expected = plain_scores(tensors, batch, activation, shortcut, concat)
        assert np.allclose(scores.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_imported_run_can_be_saved_and_asked(tmp_path, data, run):
    tensors = checkpoint(2 * data.graph.num_relations + 1, True, True, False)
    torch.save({"model_state_dict": tensors}, tmp_path / "c.pt")
    data.save(tmp_path / "graph")
    result = run(
        "import-official", tmp_path / "c.pt", "--data", tmp_path / "graph",
        "--out", tmp_path / "run", "--set", "predictor.activation=tanh",
        "--set", "sampler.entity_ratio=1.0", "--json",
    )  # fmt: skip
    assert result.json["run"] == str(tmp_path / "run")
    reasoner = Reasoner.load(tmp_path / "run")
    assert reasoner.predictor.config.activation == "tanh"
    assert len(reasoner.predict(0, 0, top=3)) == 3


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_code_in_a_file_is_not_run(tmp_path, data):
    marker = tmp_path / "ran"
    for name, write in (("torch.pt", torch.save), ("plain.pt", _dump)):
        write({"model_state_dict": Evil(marker)}, tmp_path / name)
        with pytest.raises(InputError, match=r"no code in it was executed|not a readable"):
            import_official(tmp_path / name, data, from_table({}))
        assert not marker.exists()
    pickle.loads((tmp_path / "plain.pt").read_bytes())  # the mark would have been left
    assert marker.exists()


def _dump(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_files_that_do_not_fit_are_named(tmp_path, data):
    kinds = 2 * data.graph.num_relations + 1
    file = tmp_path / "c.pt"
    strange = checkpoint(kinds, True, True, False) | {"other.weight": torch.zeros(2)}
    ragged = checkpoint(kinds, True, True, False) | {"W_final.weight": torch.zeros(1, 7)}
    whole, layer = checkpoint(kinds, True, True, False), "gnn_layers.0"
    for tensors, message in (
        (checkpoint(kinds + 2, True, True, False), "is this the right data set"),
        (strange, "other.weight"),
        (ragged, "readout.weight"),
        ({"gate.weight_ih_l0": torch.zeros(3, 1)}, "has no layer"),
        (
            whole | {f"{layer}.rela_embed.weight": torch.tensor(1.0)},
            r"rela_embed.* \[\], expected",
        ),
        (whole | {f"{layer}.w_alpha.weight": torch.tensor(1.0)}, r"w_alpha.* \[\], expected"),
        (whole | {f"{layer}.w_alpha.weight": torch.zeros(1, 3).long()}, "expected numbers"),
        (whole | {f"{layer}.W_h.weight": torch.zeros(1).expand(10**6, 10**6)}, "W_h|linear"),
        (whole | {f"{layer}.W_h.weight": torch.eye(DIM).to_sparse_csr()}, "expected numbers"),
        (whole | {f"{layer}.rela_embed.weight": torch.zeros(kinds, 0)}, "dim must be at least 1"),
        (whole | {f"{layer}.rela_embed.weight": torch.zeros(1).expand(kinds, 10**6)}, "at most"),
        ({3: torch.zeros(1)}, "unknown tensor 3; not a checkpoint"),
        (whole | {"gnn_layers.99999999.W_h.weight": torch.zeros(6, 6)}, "99999999"),
        (whole | {"gnn_layers.9999.W_h.weight": torch.zeros(6, 6)}, "has layer 9999, but only 4"),
        (whole | {"gnn_layers.3.W_h.weight": torch.zeros(6, 6)}, "layers.3.* is missing"),
        ({}, "has no layer"),
    ):
        torch.save({"model_state_dict": tensors}, file)
        with pytest.raises(InputError, match=message):
            import_official(file, data, from_table({}))
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"c\.pt"):
        import_official(file, data, from_table({}))
    with pytest.raises(InputError, match="No such file"):
        import_official(tmp_path / "missing.pt", data, from_table({}))
