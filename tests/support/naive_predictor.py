"""The predictor's formulas once more, edge by edge in numpy, as section by section of the paper."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.predictor import Predictor
from oneshot.subgraph import SubgraphBatch

Array = NDArray[np.float64]


def naive_scores(predictor: Predictor, batch: SubgraphBatch) -> Array:
    """Scores [N] of a predictor without dropout."""
    config = predictor.config
    table = {name: value.double().numpy() for name, value in predictor.state_dict().items()}
    relation = batch.queries[:, 1].numpy()
    kinds = 2 * predictor.num_relations + 1
    state = np.zeros((batch.num_entities, config.dim))
    for query, place in enumerate(batch.source.tolist()):
        ones = np.ones(config.dim)
        state[place] = (
            ones if config.initial == "binary" else table["query_embedding.weight"][relation[query]]
        )
    states, gated = [state], np.zeros_like(state)
    distance = _distances(batch)
    for layer in range(config.num_layers):
        arriving: list[list[Array]] = [[] for _ in range(batch.num_entities)]
        for (source, label, target), query in zip(
            batch.edges.T.tolist(), batch.edge_query.tolist(), strict=True
        ):
            message = _message(config, table, layer, state[source], label, relation[query], kinds)
            arriving[target].append(message)
        if config.aggregate_over == "graph" and config.aggregate != "sum":
            for messages, degree in zip(arriving, batch.degree.tolist(), strict=True):
                messages += [np.zeros(config.dim)] * (degree + 1 - len(messages))
        rows = [
            _aggregate(config.aggregate, np.stack(messages), degree)
            for messages, degree in zip(arriving, batch.degree.tolist(), strict=True)
        ]
        product = np.stack(rows) @ table[f"layers.{layer}.linear.weight"].T
        if config.norm:
            product = product / np.sqrt((product**2).mean(1, keepdims=True) + 1e-3)
        new = _activate(config.activation, product)
        new = new + state if config.shortcut else new
        if config.gate:
            live = new.sum(1) != 0 if config.gate_mask == "nonzero" else distance <= layer + 1
            new = gated = _gru(table, new, gated) * live[:, None]
        state = new
        if config.reinject:
            state = state + states[0]  # zero but at the query entities
        states.append(state)
    final = np.concatenate(states, axis=1) if config.concat else state
    if config.readout == "linear":
        scores = final @ table["readout.weight"][0]
    elif config.readout == "mlp":
        asked = table["query_embedding.weight"][relation[batch.entity_query.numpy()]]
        asked = asked @ table["readout.from_query.weight"].T + table["readout.from_query.bias"]
        hidden = final @ table["readout.from_state.weight"].T + asked
        hidden = hidden * _sigmoid(hidden) - asked * _sigmoid(asked)
        scores = hidden @ table["readout.weight.weight"][0]
    else:
        scores = (final * final[batch.source.numpy()][batch.entity_query.numpy()]).sum(1)
    if config.priors:
        weight = table["priors.weight"][relation[batch.entity_query.numpy()]]
        scores = scores + weight[:, 0] * np.log(batch.score.double().numpy() + 1e-7) / 4
        scores = scores + weight[:, 1] * np.log(batch.degree.numpy() + 1.0) / 4
    return np.asarray(scores)


def _message(
    config: Any, table: dict[str, Array], layer: int, h: Array, r: int, q: int, kinds: int
) -> Array:
    here = f"layers.{layer}.message."
    if config.message == "redgnn":
        h_r, h_q = table[here + "relation.weight"][[r, q]]
        hidden = (
            table[here + "from_source.weight"] @ h
            + table[here + "from_relation.weight"] @ h_r
            + table[here + "from_query.weight"] @ h_q
            + table[here + "from_query.bias"]
        )
        value = table[here + "attention.weight"][0] @ np.maximum(hidden, 0)
        attention = _sigmoid(value + table[here + "attention.bias"][0])
        return np.asarray(attention * _compose(config.compose, h, h_r))
    embedding = table["query_embedding.weight"][q]
    if config.message == "nbfnet":
        weights = table[here + "weights.weight"] @ embedding + table[here + "weights.bias"]
        return _compose(config.compose, h, weights.reshape(kinds, -1)[r])
    return h * _drum(config, table, embedding, layer).reshape(kinds, -1)[r]


def _compose(how: str, h: Array, r: Array) -> Array:
    if how == "multiply":
        return h * r
    if how == "add":
        return h + r
    half = len(h) // 2
    turned = (h[:half] + 1j * h[half:]) * (r[:half] + 1j * r[half:])
    return np.concatenate([turned.real, turned.imag])


def _drum(config: Any, table: dict[str, Array], embedding: Array, layer: int) -> Array:
    """Weights [kinds · d] of a layer: an LSTM step by step, forwards and backwards."""
    states = []
    for ending, steps in (("", layer + 1), ("_reverse", config.num_layers - layer)):
        h = c = np.zeros(config.dim)
        for _ in range(steps):
            gates = (
                table[f"drum.lstm.weight_ih_l0{ending}"] @ embedding
                + table[f"drum.lstm.bias_ih_l0{ending}"]
                + table[f"drum.lstm.weight_hh_l0{ending}"] @ h
                + table[f"drum.lstm.bias_hh_l0{ending}"]
            )
            i, f, g, o = np.split(gates, 4)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
        states.append(h)
    return _sigmoid(
        table["drum.weights.weight"] @ np.concatenate(states) + table["drum.weights.bias"]
    )


def _aggregate(how: str, messages: Array, degree: int) -> Array:
    if how == "sum":
        return np.asarray(messages.sum(0))
    if how == "mean":
        return np.asarray(messages.mean(0))
    if how == "max":
        return np.asarray(messages.max(0))
    deviation = np.sqrt(np.maximum(messages.var(0), 1e-6)) - 1e-3
    whole = np.concatenate([messages.mean(0), messages.max(0), messages.min(0), deviation])
    scale = (np.log(degree + 1) + 1) / 3
    return np.concatenate([whole, whole * scale, whole / scale])


def _activate(how: str, values: Array) -> Array:
    if how == "identity":
        return values
    return np.asarray(np.tanh(values) if how == "tanh" else np.maximum(values, 0))


def _gru(table: dict[str, Array], new: Array, old: Array) -> Array:
    left = new @ table["gate.cell.weight_ih"].T + table["gate.cell.bias_ih"]
    right = old @ table["gate.cell.weight_hh"].T + table["gate.cell.bias_hh"]
    (a, b, c), (d, e, f) = np.split(left, 3, axis=1), np.split(right, 3, axis=1)
    update = _sigmoid(b + e)
    return np.asarray((1 - update) * np.tanh(c + _sigmoid(a + d) * f) + update * old)


def _distances(batch: SubgraphBatch) -> NDArray[np.int64]:
    """Hops from each query's entity, [N]; a large number where there is no path."""
    far = 10**6
    distance = np.full(batch.num_entities, far)
    distance[batch.source.numpy()] = 0
    edges = batch.edges.T.tolist()
    for _ in range(batch.num_entities):
        for source, _, target in edges:
            distance[target] = min(distance[target], distance[source] + 1)
    return distance


def _sigmoid(values: Any) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))
