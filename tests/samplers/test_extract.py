"""The kernels give exactly what the plain code gives.

On a machine with a GPU they run there, elsewhere under Triton's interpreter. That one has to be
asked for before Triton is imported, so these cases run in a process of their own.
"""

import dataclasses
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot import compiled
from oneshot.data.synthetic.generators import power_law
from oneshot.graph.core import largest_rows
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.samplers import SAMPLERS, PPRSampler, _extract_gpu, _select_gpu, base
from oneshot.samplers._extract import compiled_cut, extract, plain_cut
from oneshot.samplers._extract_gpu import Tiling
from oneshot.samplers._select import choose_highest
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import kernels_work, override_kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

kernels = pytest.mark.skipif(
    not HAS_TRITON or (DEVICE == "cpu" and not INTERPRETED),
    reason="needs Triton with a CUDA device, or its interpreter",
)


# The interpreter is slow: it gets half of the cases here, and the others with the slow tests.
later_if_interpreted = [pytest.mark.slow] if INTERPRETED else []


@pytest.mark.skipif(not HAS_TRITON or DEVICE == "cuda", reason="needs Triton and no CUDA device")
@pytest.mark.skipif(INTERPRETED, reason="is the process that the cases run in")
@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_cases_below_under_the_interpreter(chosen):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", chosen, __file__],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def assert_equal(ours: SubgraphBatch, expected: SubgraphBatch) -> None:
    for field in dataclasses.fields(expected):
        left, right = getattr(ours, field.name), getattr(expected, field.name)
        assert left.dtype == right.dtype, field.name
        assert torch.equal(left, right), field.name


def odd_graph(seed: int) -> KnowledgeGraph:
    """Parallel facts, self-loops, isolated entities, and a hub that all others point to."""
    generator = np.random.default_rng(seed)
    rows = generator.integers([0, 0, 0], [20, 4, 20], size=(40, 3))
    hub = [[i, relation, 7] for i in range(20) for relation in range(4)]
    loops = [[i, 0, i] for i in range(0, 20, 9)]
    return KnowledgeGraph.from_facts(np.concatenate([rows, hub, loops]), 24, 4).to(DEVICE)


def random_choice(
    graph: KnowledgeGraph, queries: torch.Tensor, share: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Entities, their queries and scores, the query's own entity always among them."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(len(queries), graph.num_entities, generator=generator) < share
    chosen[torch.arange(len(queries)), queries[:, 0]] = True
    query, entities = chosen.nonzero().unbind(1)
    score = torch.rand(len(query), generator=generator)
    return entities.to(DEVICE), query.to(DEVICE), score.to(DEVICE)


# The interpreter takes a tenth of a second for a small kernel: few and small cases for each.
@kernels
@pytest.mark.parametrize(
    "tiling",
    [
        pytest.param(Tiling(), marks=later_if_interpreted),
        Tiling(8, 2, 4, 16),
        pytest.param(Tiling(16, 4, 1, 64), marks=later_if_interpreted),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_edges_equal_those_of_the_plain_code(monkeypatch, tiling, share):
    monkeypatch.setattr(_extract_gpu, "TILING", tiling)
    for seed in range(2):
        graph = odd_graph(seed)
        queries = random_queries(graph, 4, seed)
        queries[2] = queries[0]  # the same question twice
        chosen = random_choice(graph, queries, share, seed)
        for budget, score in (([999] * 4, "product"), ([999, 3, 0, 20], "sum")):
            batches = []
            for use in (True, False):
                with override_kernels(use):
                    asked, most = queries.to(DEVICE), torch.tensor(budget, device=DEVICE)
                    batches.append(extract(graph, asked, *chosen, most, score))
            assert_equal(*batches)


@kernels
def test_graphs_without_edges_and_with_one_entity():
    for graph in (
        KnowledgeGraph.from_facts([], 5, 1),
        KnowledgeGraph.from_facts([[0, 0, 0]], 1, 1),
        KnowledgeGraph.from_facts([[0, 0, 1]], 2, 1),
    ):
        queries = torch.tensor([[0, 0], [0, 1]])
        batches = []
        for use in (True, False):
            with override_kernels(use):
                batches.append(
                    PPRSampler(1.0).sample(graph.to(DEVICE), queries.to(DEVICE)).to("cpu")
                )
        assert_equal(*batches)


@kernels
def test_wide_numbers():
    graph = odd_graph(0)
    edges = graph.edges
    graph.edges = dataclasses.replace(
        edges, source=edges.source.long(), relation=edges.relation.long()
    )
    queries = random_queries(graph, 3, 0)
    chosen = random_choice(graph, queries, 0.5, 0)
    budget = torch.full((3,), 1000, device=DEVICE)
    batches = []
    for use in (True, False):
        with override_kernels(use):
            batches.append(extract(graph, queries.to(DEVICE), *chosen, budget))
    assert_equal(*batches)


def scores_with_ties(height: int, width: int, seed: int) -> torch.Tensor:
    """Few different values, zeros among them, very small and large ones."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([0.0, 0.0, 1e-38, 1e-45, 1e-7, 0.1, 0.25, 1.0, 2.0, 3.5, 1e30])
    scores = values[torch.randint(len(values), (height, width), generator=generator)]
    # Rows without ties, and one where all are equal.
    scores[::3] = torch.rand(len(scores[::3]), width, generator=generator)
    scores[1] = 0.5
    return scores


@kernels
@pytest.mark.parametrize(("width", "block"), [(1, 16), (31, 16), (300, 256)])
@pytest.mark.parametrize("forced_columns", [0, 3])
def test_the_highest_equal_those_of_the_plain_code(monkeypatch, width, block, forced_columns):
    monkeypatch.setattr(_select_gpu, "SCORE_BLOCK", block)
    monkeypatch.setattr(_select_gpu, "SELECT_BLOCK", block)
    generator = torch.Generator().manual_seed(width)
    scores = scores_with_ties(5, width, width).to(DEVICE)
    forced = torch.randint(-1, width, (5, forced_columns), generator=generator).to(DEVICE)
    some = torch.randint(1, width + 1, (5,), generator=generator)
    for counts, keep in ((some, True), (some, False), (torch.full_like(some, width), True)):
        results = []
        for use in (True, False):
            given = scores.clone()
            with override_kernels(use):
                results.append(choose_highest(given, counts.to(DEVICE), forced, keep))
            assert torch.equal(given, scores)  # restored
        for ours, expected in zip(*results, strict=True):
            assert ours.dtype == expected.dtype
            assert torch.equal(ours, expected)


@kernels
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=later_if_interpreted),
        {"keep_unreachable": False, "max_edges": 20},
    ],
)
def test_samplers_give_the_same_subgraphs(name, options):
    graph = random_graph(3, 40, 90).to(DEVICE)
    queries = random_queries(graph, 5, 5).to(DEVICE)
    include = random_queries(graph, 5, 6).to(DEVICE) if options else None
    batches = []
    for use in (True, False):
        with override_kernels(use):
            batches.append(SAMPLERS[name](0.3, **options).sample(graph, queries, include))
    assert_equal(*batches)


@kernels
def test_many_queries_are_cut_out_in_parts(monkeypatch):
    graph = odd_graph(1)
    queries = random_queries(graph, 7, 2).to(DEVICE)
    with override_kernels(True):
        whole = PPRSampler(0.4).sample(graph, queries)
        monkeypatch.setattr(_extract_gpu, "TABLE_BYTES", 4 * 24 * 3)  # three queries
        parts = PPRSampler(0.4).sample(graph, queries)
    assert_equal(parts, whole)


def test_with_an_edge_budget_few_candidates_are_looked_at_at_once(monkeypatch):
    graph = random_graph(2, facts=120).to(DEVICE)
    queries = random_queries(graph, 9, 3).to(DEVICE)
    sampler = PPRSampler(0.6, 0.2)
    whole = sampler.sample(graph, queries)
    calls = []

    def counted(*given):
        calls.append(len(given[1]))
        return extract(*given)

    monkeypatch.setattr(base, "extract", counted)
    monkeypatch.setattr(base, "_CANDIDATE_EDGES", 400)  # of about 160 for each query
    assert_equal(sampler.sample(graph, queries), whole)
    assert 1 < len(calls) <= 9
    assert sum(calls) == 9
    calls.clear()
    PPRSampler(0.6).sample(graph, queries)
    assert calls == [9]
    monkeypatch.setattr(base, "_CANDIDATE_EDGES", 1)
    assert_equal(sampler.sample(graph, queries), whole)
    assert len(sampler.sample(graph, queries[:0]).queries) == 0


def test_a_processor_takes_the_plain_code_unless_kernels_are_interpreted():
    assert kernels_work(torch.device("cpu")) is INTERPRETED
    with override_kernels(True):
        assert kernels_work(torch.device("cpu"))
        with override_kernels(None):
            assert kernels_work(torch.device("cpu")) is INTERPRETED
    with override_kernels(False):
        assert not kernels_work(torch.device("cpu"))
    assert kernels_work(torch.device("cpu")) is INTERPRETED


def test_without_triton_the_plain_code_is_taken():
    # `None` in `sys.modules` makes the import fail as if the package were not there.
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, oneshot\n"
        "graph = oneshot.KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]])\n"
        "batch = oneshot.PPRSampler(1.0).sample(graph, torch.tensor([[0, 0]]))\n"
        "print(batch.num_entities, batch.num_edges)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("3 7\n", "")


needs_compiled = pytest.mark.skipif(
    compiled.library() is None or INTERPRETED,
    reason="no kernels without a C compiler, and not those of Triton",
)


def hub_graph(num_entities: int, seed: int = 1) -> KnowledgeGraph:
    """Hubs, several relations per pair, self-loops of hubs and others; ids up to the number."""
    facts = power_law(3000, 40_000, seed=seed).graph.facts.long()
    loops = facts[::50].clone()
    loops[:, 2] = loops[:, 0]
    again = facts[::3].flip(0).clone()
    again[:, 1] = (again[:, 1] + 1) % 10
    again = torch.stack([again[:, 2], again[:, 1], again[:, 0]], 1)  # other direction
    facts = torch.cat([facts, loops, again])
    facts[:, [0, 2]] *= num_entities // 3000
    return KnowledgeGraph.from_facts(facts, num_entities, 10)


def assert_same_cut(graph: KnowledgeGraph, count: int) -> None:
    """The compiled extraction of subgraphs around hubs and others, against the plain one."""
    linked = (graph.degree > 0).nonzero().squeeze(1)
    entities = torch.cat([graph.degree.topk(10).indices, linked[:10]])
    queries = torch.stack([entities, torch.zeros_like(entities)], 1)
    chosen = PPRSampler(max_entities=count, method="push").select(graph, queries)
    budget = torch.full((20,), 10**9)
    ours, plain = (
        cut(graph, queries, chosen.entities, chosen.query, budget)
        for cut in (compiled_cut, plain_cut)
    )
    for one, other in zip(ours, plain, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


@needs_compiled
@pytest.mark.parametrize("num_entities", [3000, 120_000])
@pytest.mark.parametrize("count", [1, 5, 60, 1000])
def test_rows_of_hubs_are_searched_for_the_entities(count: int, num_entities: int) -> None:
    """Rows of more than 16 edges per entity; graphs with and without a table over all entities."""
    assert_same_cut(hub_graph(num_entities), count)


@needs_compiled
@pytest.mark.parametrize("size", [1, 40, 3000])
def test_the_core_gives_the_edges_between_hubs(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oneshot.samplers._extract._CORE_CANDIDATES", 0)
    monkeypatch.setattr(
        "oneshot.samplers._extract.largest_rows", lambda indptr: largest_rows(indptr, size)
    )
    graph = hub_graph(3000)
    for count in (1, 60, 1000):
        assert_same_cut(graph, count)
    assert graph.core is not None
    assert len(graph.core.entities) == size


@needs_compiled
def test_the_core_is_built_only_where_hubs_have_long_rows() -> None:
    graph = hub_graph(3000)
    assert_same_cut(graph, 60)
    assert graph.core is None


def test_the_largest_rows_are_found_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    degree = torch.tensor([3, 0, 9, 1, 7, 7, 2, 8])
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), degree.cumsum(0)])
    for piece in (1, 3, 100):
        monkeypatch.setattr("oneshot.graph.core._PIECE", piece)
        assert largest_rows(indptr, 4).tolist() == [2, 4, 5, 7]
    assert largest_rows(indptr, 20).tolist() == list(range(8))


@needs_compiled
def test_rows_of_the_core_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that come and go between hubs, and between hubs and others."""
    monkeypatch.setattr("oneshot.samplers._extract._CORE_CANDIDATES", 0)
    monkeypatch.setattr(
        "oneshot.samplers._extract.largest_rows", lambda indptr: largest_rows(indptr, 200)
    )
    base = hub_graph(3000)
    live = LiveGraph(base)
    assert_same_cut(live.graph(), 300)
    core = base.core
    assert core is not None
    hubs = base.degree.topk(60).indices.tolist()
    generator = np.random.default_rng(0)
    for step in range(4):
        some = generator.choice(hubs, (8, 2))
        named = [(base.entities[a], base.relations[step], base.entities[b]) for a, b in some]
        live.add(named)
        old = base.facts[generator.integers(0, base.num_facts, 15)].tolist()
        live.remove([(base.entities[h], base.relations[r], base.entities[t]) for h, r, t in old])
        graph = live.graph()
        assert_same_cut(graph, 300)
        assert graph.core is not None
        assert graph.core.is_current is not None
        assert 0 < int(graph.core.is_current.sum()) < 200
    assert base.core is core
