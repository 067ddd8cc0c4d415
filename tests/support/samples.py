"""Small predictors, batches and data sets for tests."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot.config import Config, PredictorConfig, from_table
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import Predictor
from oneshot.runs.train import train_run
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch

# All combinations of the interchangeable parts: 96.
COMBINATIONS = [
    {"message": message, "aggregate": aggregate, "readout": readout, "initial": initial, "gate": g}
    for message, aggregate, readout, initial, g in itertools.product(
        ("redgnn", "nbfnet", "drum"),
        ("sum", "mean", "max", "pna"),
        ("linear", "dot"),
        ("binary", "relational"),
        (True, False),
    )
]
# What the parts may be combined with.
VARIANTS: list[dict[str, object]] = [
    {"compose": "add"},
    {"message": "nbfnet", "compose": "add"},
    {"message": "nbfnet", "compose": "rotate"},
    {"concat": True},
    {"concat": True, "readout": "dot"},
    {"shortcut": True},
    {"gate_mask": "reached"},
    {"gate_mask": "reached", "aggregate": "pna", "shortcut": True, "concat": True},
    {"activation": "identity"},
    {"activation": "relu"},
    {"gate": False, "shortcut": True, "readout": "dot"},
    {"norm": True},
    {"norm": True, "gate": False, "activation": "relu", "priors": True},
    {"priors": True, "readout": "dot"},
    {"readout": "mlp", "reinject": True, "aggregate": "pna", "aggregate_over": "graph"},
    {"readout": "mlp", "concat": True, "initial": "binary", "gate": False, "reinject": True},
    {"aggregate": "mean", "aggregate_over": "graph"},
    {"aggregate": "max", "aggregate_over": "graph"},
]


def tiny_predictor(seed: int = 0, num_relations: int = 3, **settings: object) -> Predictor:
    """A predictor in float64 whose parameters are large enough to matter."""
    config = PredictorConfig(
        **({"num_layers": 2, "dim": 2, "attention_dim": 2, "activation": "tanh"} | settings)  # type: ignore[arg-type]
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        predictor = Predictor(config, num_relations).double()
        for parameter in predictor.parameters():
            torch.nn.init.uniform_(parameter, -1, 1)
    return predictor


def tiny_batch(
    seed: int = 0, queries: int = 2, entities: int = 10, facts: int = 14
) -> tuple[KnowledgeGraph, SubgraphBatch]:
    """A graph of 3 relations, and subgraphs of some queries, not all of whose entities are near."""
    graph = random_graph(seed, entities, facts, 3)
    sampler = PPRSampler(entity_ratio=0.8, keep_unreachable=True)
    return graph, sampler.sample(graph, random_queries(graph, queries, seed))


def chain_world(links: int = 60, seed: int = 0) -> Dataset:
    """Facts `next`, `after` (two steps of `next`) and `before` (its inverse): a rule to learn.

    A third of the `after` facts is held out.
    """
    places = torch.arange(links)
    forward = torch.stack([places, torch.zeros(links).long(), (places + 1) % links], 1)
    after = torch.stack([places, torch.ones(links).long(), (places + 2) % links], 1)
    before = torch.stack([(places + 1) % links, torch.full((links,), 2), places], 1)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(links))
    held, seen = after[order[: links // 3]], after[order[links // 3 :]]
    entities = Vocabulary.from_names([f"link {place}" for place in range(links)], "entity")
    relations = Vocabulary.from_names(["next", "after", "before"], "relation")
    graph = KnowledgeGraph.from_facts(torch.cat([forward, seen, before]), entities, relations)
    half = len(held) // 2
    return Dataset("chain", graph, valid=held[:half], test=held[half:])


SMALL = (
    "predictor.num_layers=3",
    "predictor.dim=8",
    "predictor.attention_dim=4",
    "sampler.entity_ratio=0.5",
    "training.epochs=3",
    "training.batch_size=16",
    "training.learning_rate=0.01",
    "training.fact_ratio=0.7",
)
"""Settings that make a training take a second or two."""


def small_config(*changes: str) -> Config:
    """`SMALL` with changes, as a configuration."""
    return from_table({}, (*SMALL, *changes))


def settings(*changes: str) -> list[str]:
    """`SMALL` with changes, as arguments of `oneshot train`, and else the fixed defaults."""
    return ["--no-plan", *(part for setting in (*SMALL, *changes) for part in ("--set", setting))]


def write_world(path: Path, data: Dataset) -> Path:
    """Write a data set as a directory of TSV files."""
    path.mkdir()
    for split in ("train", "valid", "test"):
        rows = data.facts(split).tolist()
        text = "".join(
            f"{data.entities[h]}\t{data.relations[r]}\t{data.entities[t]}\n" for h, r, t in rows
        )
        (path / f"{split}.tsv").write_text(text)
    return path


def trained_run(data: Path, run: Path, *changes: str) -> Path:
    """Train on a data set on disk into a run directory, as the command line does."""
    config = from_table({}, [*SMALL, *changes])
    train_run(load(data, seed=config.training.seed), run, config, torch.device("cpu"))
    return run


def assert_equal_data(one: Dataset, other: Dataset) -> None:
    assert (one.name, one.duplicates) == (other.name, other.duplicates)
    assert list(one.notes) == list(other.notes)
    assert list(one.rules) == list(other.rules)
    assert one.entities == other.entities
    assert one.relations == other.relations
    assert one.graph.fingerprint == other.graph.fingerprint
    for split in ("train", "valid", "test"):
        assert torch.equal(one.facts(split), other.facts(split))
    for part in ("edges", "neighbours"):
        ours, theirs = getattr(one.graph, part), getattr(other.graph, part)
        for field in dataclasses.fields(ours):
            assert torch.equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name
    assert (one.unseen_entities, one.overlaps) == (other.unseen_entities, other.overlaps)
