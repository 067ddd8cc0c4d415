"""The tables about cost: parameters and computation by category, time and memory by budget."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.data.dataset import both_directions
from oneshot.errors import InputError, OneshotError, is_out_of_memory
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.bench.measure import measure
from oneshot.experiments.bench.predictor import training_rate
from oneshot.experiments.paper import literature
from oneshot.experiments.tables.plot import draw_heat_map
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench
from oneshot.predictor import Predictor
from oneshot.ranking import KnownFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.training.steps import Stepper

# complexity --------------------------------------------------------------------------------------

# Categories of parameters by the prefix of their names, with the formulas of their numbers.
# R relations give K = 2R + 1 edge types; d dimension, a attention, L layers.
_CATEGORIES = {
    "relation embeddings": ("layers.*.message.relation", "L · K · d"),
    "attention": ("layers.*.message.", "L · (3 · d · a + a + a + 1)"),
    "layers": ("layers.", "L · d²"),
    "query embedding": ("query_embedding", "K · d"),
    "gate": ("gate", "6 · d² + 6 · d"),
    "readout": ("readout", "d"),
}


def _complexity(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names("WN18RR"):
        for category in (*_CATEGORIES, "all"):
            yield Row({"data": name, "part": category}, partial(_parameters, bench, name, category))
        yield Row({"data": name, "part": "a question"}, partial(_products, bench, name))


def _parameters(bench: Workbench, name: str, category: str) -> Figures:
    data = bench.dataset(name)
    config = bench.config(name, _PLAIN).predictor
    counts = counted(Predictor(config, data.graph.num_relations))
    expected = by_formula(config, data.graph.num_relations)
    if category == "all":
        return {"measured": sum(counts.values()), "formula": sum(expected.values())}
    written = _CATEGORIES[category][1]
    return {"measured": counts[category], "formula": expected[category], "written": written}


# The formulas are for the predictor of the official code.
_PLAIN = {
    "predictor.message": "redgnn",
    "predictor.aggregate": "sum",
    "predictor.gate": True,
    "predictor.norm": False,
    "predictor.initial": "relational",
    "predictor.readout": "linear",
    "predictor.concat": False,
}


def counted(predictor: Predictor) -> dict[str, int]:
    """The parameters of a predictor by category; each counts in the first matching one."""
    counts = dict.fromkeys(_CATEGORIES, 0)
    for name, parameter in predictor.named_parameters():
        parts = name.split(".")
        general = ".".join("*" if part.isdecimal() else part for part in parts)
        for category, (beginning, _) in _CATEGORIES.items():
            if name.startswith(beginning) or general.startswith(beginning):
                counts[category] += parameter.numel()
                break
        else:
            raise AssertionError(f"{name} belongs to no category")
    return counts


def by_formula(config: PredictorConfig, num_relations: int) -> dict[str, int]:
    """The parameters by category, according to the formulas."""
    kinds, d, a, layers = 2 * num_relations + 1, config.dim, config.attention_dim, config.num_layers
    return {
        "relation embeddings": layers * kinds * d,
        "attention": layers * (3 * d * a + a + a + 1),
        "layers": layers * d * d,
        "query embedding": kinds * d,
        "gate": 6 * d * d + 6 * d,
        "readout": d,
    }


def _products(bench: Workbench, name: str) -> Figures:
    """Multiplications in matrix products per query, measured and by formula."""
    data = bench.dataset(name)
    config = bench.config(name, _PLAIN)
    reasoner = build_reasoner(data.graph, config, bench.device)
    reasoner.predictor.engine = "plain"
    queries, _ = both_directions(data.valid, data.graph.num_relations)
    if not len(queries):
        raise InputError(f"{name}: has no valid facts; they are needed to count multiplications")
    asked = queries[: min(len(queries), 16)].to(bench.device)
    batch = reasoner.sampler.sample(reasoner.graph, asked)
    measured = products(reasoner.predictor, batch)
    shape = config.predictor
    d, a = shape.dim, shape.attention_dim
    rows, edges = batch.num_entities / len(asked), batch.num_edges / len(asked)
    kinds = 2 * data.graph.num_relations + 1
    # Per layer: W and the gate on every entity, attention by entity, edge type, query and edge.
    formula = shape.num_layers * (
        rows * (7 * d * d + d * a) + (kinds / len(asked) + 1) * d * a + edges * a
    )
    return {
        "measured": measured / len(asked),
        "formula": formula + rows * d,
        "written": "L · (N · (7 · d² + d · a) + K · d · a / n + d · a + E · a) + N · d",
    }


def products(predictor: Predictor, batch: SubgraphBatch) -> int:
    """Multiplications in the matrix products of a forward pass, counted while it runs."""
    total = 0

    def count(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal total
        rows = given[0].numel() // given[0].shape[-1]
        weights = [parameter for parameter in module.parameters() if parameter.dim() == 2]
        total += rows * sum(weight.numel() for weight in weights)

    hooks = [
        module.register_forward_pre_hook(count)
        for module in predictor.modules()
        if isinstance(module, nn.Linear | nn.GRUCell)
    ]
    try:
        with torch.inference_mode():
            predictor(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _complexity_finding(rows: Sequence[Figures]) -> str:
    for row in rows:
        if row["part"] == "all" and "measured" in row:
            agree = row["measured"] == row["formula"]
            verdict = "exactly as" if agree else "not as"
            return (
                f"The predictor has {row['measured']:,} parameters, {verdict} in the formulas; "
                "none of them depends on the number of entities."
            )
    return ""


COMPLEXITY = Table(
    "complexity",
    "Parameters and multiplications, measured beside the formulas",
    (
        Column("data", "data"),
        Column("part", "part"),
        Column("measured", "measured", ",.0f"),
        Column("by formula", "formula", ",.0f"),
        Column("formula", "written"),
    ),
    _complexity,
    by_data(_complexity_finding),
)


# efficiency --------------------------------------------------------------------------------------

_GRID = (0.1, 0.2, 0.5, 1.0)
# Wide: in a narrow predictor, most of the time is that of the sampler, which depends little on the
# budget.
_WIDTH = 256


def _efficiency(bench: Workbench) -> Iterator[Row]:
    ratios = (0.2, 1.0) if bench.quick else _GRID
    for name in bench.data_names("WN18RR"):
        for entities in ratios:
            for edges in ratios:
                yield Row(
                    {"data": name, "entities": entities, "edges": edges},
                    partial(_cost, bench, name, entities, edges),
                )


def _cost(bench: Workbench, name: str, entities: float, edges: float) -> Figures:
    data = bench.dataset(name)
    changes: Figures = {"sampler.entity_ratio": entities, "sampler.edge_ratio": edges}
    if not bench.quick:
        changes["predictor.dim"] = _WIDTH
    config = bench.config(name, changes)
    known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
    try:
        reasoner = build_reasoner(data.graph, config, bench.device)
        stepper = Stepper(reasoner, data, config.training)
        training = measure(partial(training_rate, stepper, 2 if bench.quick else 10), bench.device)
        size = 32 if bench.quick else 512
        # The same batch size for each budget, so that memory is comparable.
        evaluated = partial(evaluate, batch_size=config.training.batch_size, limit=size)

        def answer() -> float:
            return evaluated(reasoner, data.valid, known, seed=bench.seed).seconds

        answer()  # kernels are compiled
        inference = measure(answer, bench.device)
        asked = both_directions(data.valid, data.graph.num_relations)[0][:size].to(bench.device)

        def sample() -> None:
            for part in asked.split(config.training.batch_size):
                reasoner.sampler.sample(reasoner.graph, part)

        sample()
        sampling = measure(sample, bench.device)
    except (OneshotError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"failure": "out of memory"}
    return {
        "training_ms": 1000 / training.result,
        "training_megabytes": (training.peak_bytes or 0) / 2**20,
        "inference_ms": 1000 * inference.result / min(size, 2 * len(data.valid)),
        "sampling_ms": 1000 * sampling.seconds / len(asked),
        "inference_batch_megabytes": (inference.peak_bytes or 0) / 2**20,
    }


def _efficiency_finding(rows: Sequence[Figures]) -> str:
    found = {(row["entities"], row["edges"]): row for row in rows if "training_ms" in row}
    least, most = min(found, default=None), max(found, default=None)
    if least is None or most is None or least == most:
        return ""
    small, whole = found[least], found[most]
    return (
        f"{least[0]:.0%} of the entities and {least[1]:.0%} of the facts "
        f"{_saved(small, whole, 'training_ms')} in training and "
        f"{_saved(small, whole, 'inference_ms')} in inference, against the whole graph."
        f"{_saved_in_the_paper(rows[0]['data'], least, most)}"
    )


def _saved_in_the_paper(data: str, small: tuple[float, float], whole: tuple[float, float]) -> str:
    """The savings of the same budgets in the paper, if printed."""
    pair = [literature.EFFICIENCY.get((data, *budget), {}) for budget in (small, whole)]
    saved = [
        f"{1 - pair[0][seconds] / pair[1][seconds]:.0%} in {phase}"
        for phase in ("training", "inference")
        if all((seconds := f"{phase}_seconds") in figures for figures in pair)
    ]
    return f" The paper's times, on an RTX 3090: {' and '.join(saved)}." if saved else ""


def _saved(small: Figures, whole: Figures, figure: str) -> str:
    share = small[figure] / whole[figure]
    return f"save {1 - share:.0%} of the time" if share <= 1 else f"cost {share - 1:.0%} more time"


EFFICIENCY = Table(
    "efficiency",
    "Time of a query and memory of a batch, by the size of the subgraph",
    (
        Column("data", "data"),
        Column("entities", "entities"),
        Column("edges", "edges"),
        Column("training ms", "training_ms", ".2f"),
        Column("training MB", "training_megabytes", ",.0f"),
        Column("inference ms", "inference_ms", ".2f"),
        Column("inference MB", "inference_batch_megabytes", ",.0f"),
        Column("sampling ms", "sampling_ms", ".2f"),
        Column("failure", "failure"),
    ),
    _efficiency,
    by_data(_efficiency_finding),
    partial(
        draw_heat_map,
        x="entities",
        y="edges",
        value="training_ms",
        label="training time (ms per query)",
        labels=("share of entities", "share of facts"),
    ),
    note=(
        f"With dimension {_WIDTH}. The selection of the best facts needs additional memory: half "
        "of the facts can need more memory than all of them."
    ),
)
