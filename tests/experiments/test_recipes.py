"""Tests of the variants that the recipe benchmark compares: each is a configuration that trains."""

import json
from pathlib import Path

import pytest
from tests.support.samples import chain_world

from oneshot.config import read_config
from oneshot.data.dataset import both_directions
from oneshot.reasoner.build import build_reasoner

ROOT = Path(__file__).parents[2]
FILES = ("small-graphs.json", "small-graph-variants.json")
GRAPHS = (
    "UMLS",
    "Family",
    *(f"inductive/{n}_v{v}" for n in ("WN18RR", "fb237", "nell") for v in (1, 2)),
)


@pytest.mark.parametrize("file", FILES)
def test_every_variant_is_a_configuration_that_answers(file: str) -> None:
    variants = json.loads((ROOT / "benchmarks" / file).read_text())
    assert {variant["data"] for variant in variants} == set(GRAPHS)
    assert len({variant["name"] for variant in variants}) == len(variants)
    graph = chain_world(20).graph
    queries, _ = both_directions(graph.facts[:2].long(), graph.num_relations)
    configs = []
    for variant in variants:
        is_inductive = variant["data"].startswith("inductive/")
        assert variant.get("test_data") == (f"{variant['data']}_ind" if is_inductive else None)
        config = read_config(ROOT / variant["config"], variant.get("set", []))
        configs.append((variant["data"], config))
        _, scores = build_reasoner(graph, config).reason(queries)
        assert bool(scores.isfinite().all())
        # Factors are vectors of entities, and an inductive data set asks about other ones.
        assert not (is_inductive and config.factors.dim)
    assert all(one not in configs[:place] for place, one in enumerate(configs))
