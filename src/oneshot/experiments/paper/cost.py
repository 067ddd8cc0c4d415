"""The tables about cost: parameters and computation by category, time and memory by budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.data.dataset import both_directions
from oneshot.errors import InputError, OneshotError, is_out_of_memory
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.baselines.embedding import count_parameters
from oneshot.experiments.baselines.peers import has_pykeen
from oneshot.experiments.baselines.pykeen_models import RECIPES
from oneshot.experiments.bench.measure import measure
from oneshot.experiments.bench.predictor import training_rate
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.ablations import ALL_DATA
from oneshot.experiments.tables.plot import draw_heat_map
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench
from oneshot.predictor import Predictor
from oneshot.ranking import KnownFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.samplers._budget import DEFAULT_ENTITY_RATIO
from oneshot.samplers._pagerank import CHEBYSHEV_LEAST_STEPS as _STEPS
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
        for part, measure_category in _PAPERS_CATEGORIES.items():
            if part != _SEMANTIC or has_pykeen():
                yield Row({"data": name, "part": part}, partial(measure_category, bench, name))


# The paper's three categories of models. Each has its parameters, and the operations of a query:
# the products counted while it runs, and the value of the paper's formula.
_SEMANTIC = "semantic models (RotatE)"


def _semantic(bench: Workbench, name: str) -> Figures:
    """A model with embeddings of the entities, which scores all of them for a query."""
    data, d = bench.dataset(name), 16 if bench.quick else 1000
    entities, relations = data.graph.num_entities, data.graph.num_relations
    return {
        "measured": count_parameters(RECIPES["rotate"], data, d),
        "formula": entities * d + relations * d,
        "written": "|V| · d + |R| · d",
        "operations": entities * d,
        "paper_operations": relations * d,
        "paper_written": "|R| · d",
    }


def _structural(bench: Workbench, name: str) -> Figures:
    """The predictor on the whole graph."""
    data = bench.dataset(name)
    return _on_a_graph(bench, name, 1.0, 0, f"|E| = {data.graph.num_facts:,} facts")


def _subgraph(bench: Workbench, name: str) -> Figures:
    """The predictor on a sampled subgraph, and the sampler's steps on the whole graph."""
    walked = _STEPS * 2 * bench.dataset(name).graph.num_facts
    remark = f"K = {_STEPS} steps of PPR in both directions"
    return _on_a_graph(bench, name, DEFAULT_ENTITY_RATIO, walked, remark)


def _on_a_graph(bench: Workbench, name: str, ratio: float, sampling: int, remark: str) -> Figures:
    """Parameters and operations with a share of the entities, of one query at a time."""
    data = bench.dataset(name)
    config = bench.config(name, {**_PLAIN, "sampler.entity_ratio": ratio})
    reasoner = build_reasoner(data.graph, config, bench.device)
    reasoner.predictor.engine = "plain"
    queries, _ = both_directions(data.valid, data.graph.num_relations)
    if not len(queries):
        raise InputError(f"{name} has no valid facts; they are needed to count multiplications")
    asked = queries[: min(len(queries), 4)].to(bench.device)
    counts, edges = [], []
    for query in asked.split(1):
        batch = reasoner.sampler.sample(reasoner.graph, query)
        counts.append(products(reasoner.predictor, batch) + messages(config.predictor, batch))
        edges.append(batch.num_edges)
    shape = config.predictor
    mean_edges = sum(edges) / len(edges)
    per_layer = mean_edges * shape.dim * shape.num_layers
    formula = by_formula(shape, data.graph.num_relations)
    return {
        "measured": reasoner.predictor.num_parameters,
        "formula": sum(formula.values()),
        "written": "sum of the parts above: |R| · d and terms without |V|",
        "operations": sum(counts) / len(counts) + sampling,
        "paper_operations": per_layer + sampling,
        "paper_written": f"{'|E| · K + |E_s|' if sampling else '|E|'} · d · L, {remark}",
        "edges": mean_edges,
    }


def messages(config: PredictorConfig, batch: SubgraphBatch) -> int:
    """Multiplications of the messages of all layers: each weights `dim` numbers of its edge."""
    return config.num_layers * batch.num_edges * config.dim


_PAPERS_CATEGORIES: Mapping[str, Callable[[Workbench, str], Figures]] = {
    _SEMANTIC: _semantic,
    "structural models (the whole graph)": _structural,
    "subgraph models (10% of the entities)": _subgraph,
}


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
        raise InputError(f"{name} has no valid facts; they are needed to count multiplications")
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
        Column("operations", "operations", ",.0f"),
        Column("paper's term", "paper_operations", ",.0f"),
        Column("term", "paper_written"),
    ),
    _complexity,
    by_data(_complexity_finding),
    note=(
        "The last rows are the paper's categories of models, with parameters, the multiplications "
        "of one query (of matrix products, messages and, for subgraph models, the steps of PPR), "
        "and the term of the paper's table, without its constants: d² per entity is not in it. The "
        "paper's term for semantic models does not include that a query scores all entities, |V| · "
        "d; edges count in both directions, and with identity edges in a layer."
    ),
)


# efficiency --------------------------------------------------------------------------------------

_GRID = (0.1, 0.2, 0.5, 1.0)
# Wide: in a narrow predictor, most of the time is that of the sampler, which depends little on the
# budget.
_WIDTH = 256


def _efficiency(bench: Workbench) -> Iterator[Row]:
    ratios = (0.2, 1.0) if bench.quick else _GRID
    for name in bench.data_names(*ALL_DATA):
        for entities in ratios:
            for edges in ratios:
                yield Row(
                    {"data": name, "entities": entities, "edges": edges},
                    partial(_cost, bench, name, entities, edges),
                    literature.EFFICIENCY.get((name, entities, edges), {}),
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
        "queries_per_epoch": 2 * round(data.graph.num_facts * (1 - config.training.fact_ratio)),
        "test_queries": 2 * len(data.test),
        "training_ms": 1000 / training.result,
        "training_megabytes": (training.peak_bytes or 0) / 2**20,
        "inference_ms": 1000 * inference.result / min(size, 2 * len(data.valid)),
        "sampling_ms": 1000 * sampling.seconds / len(asked),
        "inference_batch_megabytes": (inference.peak_bytes or 0) / 2**20,
    }


def _whole_times(row: Figures) -> Figures:
    """The times of an epoch and of the test split, and the memory in GB, as the paper prints."""
    if not {"training_ms", "queries_per_epoch"} <= row.keys():
        return {}
    return {
        "training_seconds": row["training_ms"] / 1000 * row["queries_per_epoch"],
        "training_gb": row["training_megabytes"] / 1024,
        "inference_seconds": row["inference_ms"] / 1000 * row["test_queries"],
        "inference_gb": row["inference_batch_megabytes"] / 1024,
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
    "Time and memory, by the size of the subgraph",
    (
        Column("data", "data"),
        Column("entities", "entities"),
        Column("edges", "edges"),
        Column("s / epoch", "training_seconds", ",.1f"),
        Column("training GB", "training_gb", ".1f"),
        Column("s / test split", "inference_seconds", ",.1f"),
        Column("inference GB", "inference_gb", ".1f"),
        Column("training ms / query", "training_ms", ".2f"),
        Column("inference ms / query", "inference_ms", ".2f"),
        Column("sampling ms / query", "sampling_ms", ".2f"),
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
        f"With dimension {_WIDTH}. Times of an epoch and of the test split are those of a query "
        "times the number of queries. Memory is that of a batch of 64 queries; the paper does not "
        "state its batch size (16 for WN18RR in the official code). The selection of the best "
        "facts needs additional memory: half of the facts can need more memory than all of them. "
        f"{literature.TIMES_NOTE}"
    ),
    derive=_whole_times,
)
