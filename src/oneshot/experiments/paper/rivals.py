"""Tables of the systems that the paper argues against, beside ours.

They choose entities while they reason (`oneshot.experiments.rivals`): layer by layer, or with
a subgraph for each candidate.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from oneshot.config import Config, to_toml
from oneshot.data.dataset import Dataset
from oneshot.errors import DivergedError, OneshotError, is_out_of_memory
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.baselines.peers import OURS, TITLES, WHOLE_GRAPH, megabytes
from oneshot.experiments.bench.measure import measure
from oneshot.experiments.paper.ablations import ACCURACY
from oneshot.experiments.rivals.adaprop import AdaPropCoupling
from oneshot.experiments.rivals.astarnet import AStarNetCoupling
from oneshot.experiments.rivals.coupling import CoupledReasoner, Coupling
from oneshot.experiments.rivals.grail import GraILCoupling
from oneshot.experiments.rivals.measure import inference_cost, layer_coverage
from oneshot.experiments.rivals.training import train_coupling
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench
from oneshot.ranking import KnownFacts
from oneshot.reasoner.reasoner import Reasoner
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.interrupt import stop_request

PLAIN = f"{OURS}-plain"
"""Our predictor without kernels of its own, as the other systems are here."""

_TITLES = {
    OURS: TITLES[OURS],
    PLAIN: f"{TITLES[OURS]}, PyTorch operations",
    "adaprop": "as AdaProp",
    "astarnet": "as A*Net",
    "grail": "as GraIL",
}

# Entities that AdaProp adds in each layer: 100 on small graphs and 1,000 on WN18RR in its paper.
_PER_LAYER_SHARE, _LEAST_PER_LAYER, _MOST_PER_LAYER = 40, 100, 1000
# Share of the entities that send in each layer of A*Net, and their least number.
_SENDERS, _LEAST_SENDERS = 0.1, 100
# GraIL: candidates per query in inference and beside the answer in training, queries per epoch, and
# the mean degree above which one hop is a large part of the graph.
_CANDIDATES, _NEGATIVES, _PAIR_QUERIES, _DENSE = 10, 5, 400, 30.0
# Test queries on which time, memory and the coverage of the layers are measured.
_MEASURED_QUERIES = 1000


# The systems -------------------------------------------------------------------------------------


def _adaprop(bench: Workbench, data: Dataset, config: Config) -> Coupling:
    entities = data.graph.num_entities
    share = min(max(entities // _PER_LAYER_SHARE, _LEAST_PER_LAYER), _MOST_PER_LAYER)
    return AdaPropCoupling(config.predictor, data.graph.num_relations, per_layer=share)


def _astarnet(bench: Workbench, data: Dataset, config: Config) -> Coupling:
    share = min(max(_SENDERS, _LEAST_SENDERS / data.graph.num_entities), 1.0)
    return AStarNetCoupling(config.predictor, data.graph.num_relations, entity_ratio=share)


def _grail(bench: Workbench, data: Dataset, config: Config) -> Coupling:
    graph = data.graph
    retriever = bench.reasoner(data, bench.config(data.name))
    hops = 1 if bench.quick or 2 * graph.num_facts > _DENSE * graph.num_entities else 2
    options = {"candidates": _CANDIDATES, "negatives": _NEGATIVES, "hops": hops}
    if bench.quick:
        options.update(candidates=3, negatives=1)
    return GraILCoupling(config.predictor, graph.num_relations, retriever, **options)


_BUILDERS = {"adaprop": _adaprop, "astarnet": _astarnet, "grail": _grail}


def rival_config(system: str, ours: Config, num_facts: int) -> Config:
    """The configuration of a system, based on our short training on the same data."""
    predictor: Mapping[str, Any] = {}
    training: dict[str, Any] = {"precision": "float32"}
    if system == "astarnet":
        # The shape of NBFNet, with the layers and the dimension of A*Net's paper at most.
        layers, dim = min(ours.predictor.num_layers, 6), min(ours.predictor.dim, 32)
        predictor = {**WHOLE_GRAPH["nbfnet"][1], "num_layers": layers, "dim": dim}
        predictor["reinject"] = True
    if system == "grail":
        predictor = {"num_layers": 3, "dim": min(ours.predictor.dim, 16)}
        asked = queries_per_epoch(ours.training, num_facts)
        training.update(
            softmax_over="sampled",
            batch_size=16,
            learning_rate=0.01,
            epochs=3 * ours.training.epochs,
            query_share=min(ours.training.query_share, _PAIR_QUERIES / max(asked, 1)),
            valid_every=3,
            valid_batch_size=16,
            valid_limit=min(ours.training.valid_limit or 200, 200),
        )
    return dataclasses.replace(
        ours,
        predictor=dataclasses.replace(ours.predictor, **predictor),
        training=dataclasses.replace(ours.training, **training),
    )


# Measurement -------------------------------------------------------------------------------------


def _ours(bench: Workbench, name: str, is_plain: bool) -> Figures:
    data, config = bench.dataset(name), bench.config(name)
    is_new = not bench.has_run(data, config)
    begun = time.process_time()
    measured = measure(lambda: bench.train(data, config), bench.device)
    found = measured.result
    if is_new and bench.device.type == "cpu":  # on a GPU, the training itself knows its peak
        found["peak_megabytes"] = megabytes(measured.peak_bytes)
        found |= _cpu_seconds(bench, begun)
    if "failure" in found:
        return {"title": _TITLES[OURS], **found}
    reasoner = bench.reasoner(data, config)
    if not is_plain:
        return {"title": _TITLES[OURS], **found, **_costs(bench, reasoner, data, config)}
    for part in reasoner.predictor.parts():
        part.engine = "plain"
    # Accuracy and training are those of the row above.
    return {"title": _TITLES[PLAIN], **_costs(bench, reasoner, data, config)}


def _coupled(bench: Workbench, name: str, system: str) -> Figures:
    try:
        return {"title": _TITLES[system], **_trained(bench, name, system)}
    except DivergedError:
        return {"title": _TITLES[system], "failure": "not finite"}
    except (OneshotError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"title": _TITLES[system], "failure": "out of memory"}


def _trained(bench: Workbench, name: str, system: str) -> Figures:
    data = bench.dataset(name)
    config = rival_config(system, bench.config(name), data.graph.num_facts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        coupling = _BUILDERS[system](bench, data, config).to(bench.device)
    reasoner = CoupledReasoner(data.graph, coupling)
    budget = " ".join(f"{name} {value:g}" for name, value in coupling.options.items())
    path = bench.kept(data, f"{system} {budget} {bench.device.type} {to_toml(config)}")
    is_resumed = path.is_dir()
    begun = time.process_time()
    with stop_request() as should_stop:
        measured = measure(
            lambda: train_coupling(
                reasoner,
                data,
                config.training,
                path,
                observers=bench.observers,
                should_stop=should_stop,
                messages=bench.messages,
            ),
            bench.device,
        )
    state = measured.result
    spent = {} if is_resumed else _cpu_seconds(bench, begun)
    known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
    known = known.to(bench.device)
    size = _batch_size(config)
    valid, test = (
        evaluate(reasoner, facts, known, batch_size=size) for facts in (data.valid, data.test)
    )
    return {
        **test.metrics.scores(),
        "coverage": test.coverage,
        "valid_mrr": valid.mrr,
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
        **spent,
        "training_queries": sum(record["queries"] for record in state.history),
        "parameters": coupling.num_parameters,
        # The peak of the last process alone would be too low.
        "peak_megabytes": None if is_resumed else megabytes(measured.peak_bytes),
        **_costs(bench, reasoner, data, config),
    }


def _costs(bench: Workbench, reasoner: Reasoner, data: Dataset, config: Config) -> Figures:
    """Time and memory of inference, and what was chosen after each layer (test queries)."""
    known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
    size = _batch_size(config)
    options: Figures = {"batch_size": size, "limit": _MEASURED_QUERIES, "seed": bench.seed}
    chosen = layer_coverage(reasoner, data.test, **options)
    return {
        **inference_cost(reasoner, data, known.to(bench.device), **options),
        "inference_batch_size": size,
        "layer_coverage": chosen.coverage,
        "layer_entities": chosen.entities,
        "by_layer": " ".join(f"{share:.3f}" for share in chosen.coverage),
        "entities": chosen.entities[-1],
    }


def _cpu_seconds(bench: Workbench, begun: float) -> Figures:
    """The CPU time since `begun`, if the work was done by the CPU."""
    is_cpu = bench.device.type == "cpu"
    return {"cpu_seconds": time.process_time() - begun} if is_cpu else {}


def _batch_size(config: Config) -> int:
    return config.training.valid_batch_size or 16


# The tables --------------------------------------------------------------------------------------


def _rows(bench: Workbench, data: str, systems: Sequence[str]) -> Iterator[Row]:
    for system in systems:
        key = {"data": data, "system": system}
        if system in (OURS, PLAIN):
            yield Row(key, partial(_ours, bench, data, system == PLAIN))
        else:
            yield Row(key, partial(_coupled, bench, data, system))


def _layerwise(bench: Workbench) -> Iterator[Row]:
    for data in bench.data_names("WN18RR"):
        yield from _rows(bench, data, (OURS, PLAIN, "adaprop", "astarnet"))


def _candidates(bench: Workbench) -> Iterator[Row]:
    for data in bench.data_names("UMLS", "Family"):
        yield from _rows(bench, data, (OURS, PLAIN, "grail"))


def _finding(rows: Sequence[Figures]) -> str:
    found = {row["system"]: row for row in rows if "ms_per_query" in row}
    ours, plain = found.get(OURS), found.get(PLAIN)
    others = [row for name, row in found.items() if name not in (OURS, PLAIN) and "mrr" in row]
    if ours is None or plain is None or "mrr" not in ours or not others:
        return ""
    parts = [
        f"{row['title']} {row['mrr']:.3f} in {row['ms_per_query'] / plain['ms_per_query']:.1f} "
        "times the time per query"
        for row in others
    ]
    return (
        f"Test MRR {ours['mrr']:.3f} with one subgraph per query; {', '.join(parts)} of ours "
        "without kernels."
    )


_COLUMNS = (
    Column("data", "data"),
    Column("", "title"),
    *ACCURACY,
    Column("valid MRR", "valid_mrr", ".3f"),
    Column("ms / query", "ms_per_query", ".2f"),
    Column("inference MB", "inference_megabytes", ",.0f"),
    Column("training s", "seconds", ",.0f"),
    Column("CPU s", "cpu_seconds", ",.0f"),
    Column("training MB", "peak_megabytes", ",.0f"),
    Column("parameters", "parameters", ","),
    Column("entities", "entities", ",.0f"),
    Column("coverage after each layer", "by_layer"),
    Column("failure", "failure"),
)
_NOTE = (
    "The other systems are our reading of their authors' descriptions, trained with the same "
    "split, loss and choice by validation as ours, in float32 and without kernels, so their "
    "times are to be compared with those of ours with PyTorch operations. Entities: those with "
    "a score, per query; ours are chosen before the first layer, and have one coverage. "
    f"Coverage, time and memory of inference: {_MEASURED_QUERIES:,} test queries; on a CPU, CPU "
    "time. "
)

RIVALS = Table(
    "rivals",
    "Entities chosen once per query or layer by layer",
    _COLUMNS,
    _layerwise,
    by_data(_finding),
    note=_NOTE
    + "Published test MRR on WN18RR, after longer trainings: AdaProp 0.562, A*Net 0.549.",
)

CANDIDATES = Table(
    "candidates",
    "One subgraph per query or one per candidate",
    _COLUMNS,
    _candidates,
    by_data(_finding),
    note=_NOTE
    + f"The system as GraIL re-ranks the best {_CANDIDATES} candidates of ours, and its loss is "
    "over the candidates. Its coverage is that of these candidates, its time includes that of "
    "ours with kernels but not our training, and its memory is that of batches of 16 queries, "
    "ours of 64.",
)
