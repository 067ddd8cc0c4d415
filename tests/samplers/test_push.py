"""Tests of the local push with a degree tail, compiled and plain."""

import math
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from tests.support.graphs import as_networkx, random_graph, random_queries

from oneshot import compiled
from oneshot.data.load import load
from oneshot.data.synthetic.generators import family, power_law
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.storage import note_push_recall
from oneshot.samplers import PPRSampler, _push
from oneshot.samplers._pagerank import ppr
from oneshot.samplers._push import PushLimits, ppr_push
from oneshot.samplers.push_recall import choose_precision

KINDS = ("compiled", "plain")
TO_THE_END = PushLimits(precision=0.0, negligible=1e-8, max_edges=10**8)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(_push, "compiled_push", _push.plain_push)
    elif compiled.library() is None:
        pytest.skip("no kernels without a C compiler")
    return str(request.param)


def exact(graph: KnowledgeGraph, entities: torch.Tensor) -> torch.Tensor:
    return ppr(graph, entities, tolerance=1e-12, max_steps=400, dtype=torch.float64)


def count_of(graph: KnowledgeGraph, entities: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    return torch.full((len(entities),), max(int(share * graph.num_entities), 1))


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("seed", range(12))
def test_a_push_to_the_end_is_exact(seed: int) -> None:
    graph = random_graph(seed, 60, 90)
    entities = torch.arange(0, 60, 7)
    found = ppr_push(graph, entities, count_of(graph, entities), 0.15, limits=TO_THE_END)
    expected = exact(graph, entities)
    for row in range(len(entities)):
        size = int(found.counts[row])
        best = found.entities[row, :size]
        # All of the component and nothing else.
        assert torch.equal(best.sort().values, (expected[row] > 0).nonzero().squeeze(1))
        assert found.score[row, :size].numpy() == pytest.approx(
            expected[row, best].numpy(), abs=1e-6
        )


@pytest.mark.usefixtures("kind")
def test_scores_differ_from_the_exact_ones_by_less_than_the_threshold_allows() -> None:
    graph = power_law(3000, 15_000).graph
    entities = torch.tensor([0, 17, int(graph.neighbours.degree.argmax())])
    expected = exact(graph, entities)
    for limits in (PushLimits(), PushLimits(precision=0.01), PushLimits(max_edges=3000)):
        found = ppr_push(graph, entities, torch.tensor([40, 200, 300]), 0.15, limits=limits)
        for row in range(len(entities)):
            best = found.entities[row, : int(found.counts[row])]
            error = (found.score[row, : len(best)] - expected[row, best]).abs()
            allowed = found.threshold[row] * graph.neighbours.degree_of(best)
            assert (error <= allowed + 1e-6).all()


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("name", ["power-law", "family", "star"])
def test_most_of_the_exact_selection_is_found(name: str) -> None:
    if name == "power-law":
        graph = power_law(5000, 40_000).graph
    elif name == "family":
        graph = family(5000).graph
    else:
        # Two hubs whose neighbours overlap: nearly all scores are close to each other.
        facts = [[0, 0, i] for i in range(2, 1200)] + [[1, 0, i] for i in range(900, 2000)]
        facts += [[i, 0, (i * 7) % 1990 + 3] for i in range(3, 1990, 3)]
        graph = KnowledgeGraph.from_facts(facts)
    hub = int(graph.neighbours.degree.argmax())
    entities = torch.tensor([3, graph.num_entities // 2, hub])
    count = 200
    found = ppr_push(graph, entities, torch.full((3,), count), 0.15)
    expected = exact(graph, entities)
    for row in range(3):
        least = expected[row].topk(count).values[-1]
        good = expected[row, found.entities[row]] >= least * (1 - 1e-9)
        assert float(good.float().mean()) >= 0.93
        assert int(entities[row]) in found.entities[row]


@pytest.mark.usefixtures("kind")
def test_entities_with_more_neighbours_than_are_selected_cost_little_more() -> None:
    """Nearly all of their neighbours have the same score, which a push could refine for ever."""
    graph, count = power_law(30_000, 300_000).graph, 300
    degree = graph.neighbours.degree
    entities = ((degree > 1.15 * count) & (degree < 1.4 * count)).nonzero().squeeze(1)[:8]
    counts = torch.full_like(entities, count)

    def push(**limits: float) -> _push.Pushed:
        return ppr_push(graph, entities, counts, 0.15, limits=PushLimits(**limits))

    precise = push(stable=0.0)
    unlimited = push(tie=0.0, backstop=math.inf)
    assert int(unlimited.edges.max()) > 6 * int(precise.edges.max())
    # Ties count as selected,
    assert int(push(backstop=math.inf).edges.sum()) < 0.8 * int(unlimited.edges.sum())
    # and otherwise the search ends.
    limited = push(tie=0.0, backstop=4.0)
    assert (limited.edges <= 4 * precise.edges).all()
    assert (limited.edges >= precise.edges).all()
    for found in (push(), limited):
        for row, scores in enumerate(exact(graph, entities)):
            least = scores.topk(count).values[-1]
            good = scores[found.entities[row]] >= least * 0.98
            assert float(good.float().mean()) >= 0.97


@pytest.mark.usefixtures("kind")
def test_selections_of_many_entities_are_pushed_further() -> None:
    graph = power_law(5000, 40_000).graph
    entities = torch.tensor([3, 100])

    def edges(counts: list[int], **limits: float) -> list[int]:
        pushed = ppr_push(graph, entities, torch.tensor(counts), 0.15, limits=PushLimits(**limits))
        return [int(number) for number in pushed.edges]

    low = edges([50, 51], large_precision=math.inf)
    further = edges([50, 51], large_precision=0.001)
    assert further[0] == low[0]  # a hundredth of the entities
    assert further[1] > 2 * low[1]
    # Whatever is asked beside it, and never less far.
    assert edges([51, 51], large_precision=0.001)[1] == further[1]
    assert edges([51, 51], precision=0.001) == edges([51, 51], precision=0.001, large_precision=1)


def test_queries_after_a_large_one_are_those_of_a_new_state() -> None:
    """The kernel replaces the table of a large query; nothing of it may be left."""
    if compiled.library() is None:
        pytest.skip("no kernels without a C compiler")
    graph = power_law(40_000, 120_000).graph
    entities = torch.arange(8) * 7
    sizes = torch.tensor([2, 20_000, 3, 5, 30_000, 10_000, 4, 2])
    together = ppr_push(graph, entities, sizes, 0.15)
    # A new table has room for 8,000 entities, and is replaced if it is four times as large.
    assert int(together.touched.max()) > 20_000 > 4_000 > int(together.touched.min())
    for row in range(8):
        alone = ppr_push(graph, entities[row : row + 1], sizes[row : row + 1], 0.15)
        size = int(alone.counts)
        assert int(together.counts[row]) == size
        # The order of sums depends on the size of the table.
        assert int(together.edges[row]) == pytest.approx(int(alone.edges), rel=0.02)
        assert int(together.touched[row]) == pytest.approx(int(alone.touched), rel=0.02)
        ours, fresh = (
            dict(
                zip(
                    found.entities[place, :size].tolist(),
                    found.score[place, :size].tolist(),
                    strict=True,
                )
            )
            for found, place in ((together, row), (alone, 0))
        )
        both = sorted(ours.keys() & fresh.keys())
        assert len(both) >= 0.99 * size
        assert [ours[e] for e in both] == pytest.approx([fresh[e] for e in both], rel=1e-3)


def test_compiled_and_plain_push_agree() -> None:
    if compiled.library() is None:
        pytest.skip("no kernels without a C compiler")
    graph = power_law(4000, 20_000).graph
    entities = torch.tensor([0, 5, 999, int(graph.neighbours.degree.argmax())])
    counts, probes = torch.tensor([1, 50, 700, 4000]), torch.tensor([[1], [-1], [2], [3]])
    heads = graph.components.heads(entities, 8 * 4000)
    limited = torch.minimum(counts, heads.size)
    ours, plain = (
        push(graph, entities, limited, 4000, 0.15, heads, probes, PushLimits())
        for push in (_push.compiled_push, _push.plain_push)
    )
    assert torch.equal(ours.counts, plain.counts)
    assert ours.edges.tolist() == pytest.approx(plain.edges.tolist(), rel=0.01)
    assert ours.touched.tolist() == pytest.approx(plain.touched.tolist(), rel=0.01)
    assert ours.probed.numpy() == pytest.approx(plain.probed.numpy(), rel=1e-3, abs=1e-7)
    for row in range(4):
        size = int(ours.counts[row])
        left, right = (dict(zip(p.entities[row, :size].tolist(), p.score[row, :size].tolist(),
                                strict=True)) for p in (ours, plain))  # fmt: skip
        both = left.keys() & right.keys()
        assert len(both) >= 0.99 * size
        assert [left[e] for e in both] == pytest.approx([right[e] for e in both], rel=1e-2)


@pytest.mark.usefixtures("kind")
def test_an_untouched_entity_is_found_by_its_degree() -> None:
    # A chain leads from 0 to a hub that is too far away for the first rounds.
    chain = [[i, 0, i + 1] for i in range(12)]
    star = [[12, 0, i] for i in range(13, 3000)]
    graph = KnowledgeGraph.from_facts(chain + star)
    limits = PushLimits(max_edges=10)
    found = ppr_push(graph, torch.tensor([0]), torch.tensor([9]), 0.15, limits=limits)
    assert int(found.edges) <= 10
    assert 12 in found.entities[0]
    assert int(found.touched) < 12


@pytest.mark.usefixtures("kind")
def test_other_components_and_isolated_entities_have_no_score() -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [3, 0, 4]], 6, 1)
    probes = torch.tensor([[2, 3, 5], [2, 3, 5], [5, 0, -1]])
    found = ppr_push(graph, torch.tensor([0, 3, 5]), torch.tensor([6, 6, 6]), 0.15, probes)
    assert found.counts.tolist() == [3, 2, 1]
    assert found.probed[0].tolist()[1:] == [0, 0]
    assert float(found.probed[0, 0]) > 0
    assert found.probed[2].tolist() == [1, 0, 0]
    assert found.score[2, 0] == 1


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("seed", range(6))
def test_the_sampler_takes_the_selection_of_the_push(seed: int) -> None:
    graph = random_graph(seed, 60, 100)
    queries, targets = random_queries(graph, 12, seed), random_queries(graph, 12, seed + 1)[:, 0]
    push, series = (PPRSampler(0.3, method=m, steps=60) for m in ("push", "chebyshev"))
    ours, expected = push.sample(graph, queries), series.sample(graph, queries)
    assert torch.equal(ours.entity_query.bincount(), expected.entity_query.bincount())
    shared = torch.isin(
        ours.entity_query * 60 + ours.entities, expected.entity_query * 60 + expected.entities
    )
    assert float(shared.float().mean()) >= 0.9
    places = push.ranks(graph, queries, targets)
    wide = PPRSampler(1.0, method="push").ranks(graph, queries, targets)
    sampled = ours.find(targets) >= 0
    assert torch.equal(places < 18, sampled)
    assert (places[queries[:, 0] == targets] == 0).all()
    assert ((wide >= 0) & (wide < 60)).all()
    mass = PPRSampler(0.3, method="push", mass=0.4).sample(graph, queries)
    exact_scores = series.scores(graph, queries[:, 0])
    for row in range(12):
        mine = mass.entities[mass.entity_query == row]
        held = float(exact_scores[row, mine].sum())
        assert len(mine) == 18 or held >= 0.39
    include = torch.tensor([[59, -1]]).repeat(12, 1)
    with_it = push.sample(graph, queries, include)
    assert (with_it.find(torch.full((12,), 59)) >= 0).all()
    assert torch.equal(with_it.entity_query.bincount(), ours.entity_query.bincount())


def test_batches_do_not_change_the_subgraph_of_a_query() -> None:
    graph = power_law(2000, 12_000).graph
    queries = random_queries(graph, 20, 3)
    sampler = PPRSampler(max_entities=100, method="push")
    together = sampler.select(graph, queries)
    for row in range(len(queries)):
        alone = sampler.select(graph, queries[row : row + 1])
        assert torch.equal(alone.entities, together.entities[together.query == row])
        assert torch.equal(alone.score, together.score[together.query == row])


def test_components_equal_those_of_networkx() -> None:
    for seed in range(20):
        graph = random_graph(seed, 50, 20 + 3 * seed)
        index = graph.components
        whole = as_networkx(graph)
        assert sorted(map(sorted, networkx.connected_components(whole))) == sorted(
            index.order[a:b].sort().values.tolist()
            for a, b in zip(index.first[:-1].tolist(), index.first[1:].tolist(), strict=True)
        )
        degree = graph.neighbours.degree
        heads = index.heads(torch.arange(50), 5)
        for entity in range(50):
            own = np.array(sorted(networkx.node_connected_component(whole, entity)))
            best = own[np.lexsort((own, -degree[own].numpy()))][:5]
            assert heads.entities[heads.begin[entity] : heads.end[entity]].tolist() == best.tolist()
            assert float(heads.volume[entity]) == float(degree[own].sum())
            assert int(heads.size[entity]) == len(own)


def test_components_of_a_graph_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = power_law(3000, 4000).graph
    expected = graph.components
    monkeypatch.setattr("oneshot.graph.components._PIECE", 7)
    again = type(expected).of(graph.neighbours.indptr, graph.neighbours.index)
    for name in ("component", "order", "first", "volume"):
        assert torch.equal(getattr(again, name), getattr(expected, name))


def test_a_lower_precision_is_chosen_where_it_finds_almost_as_much(tmp_path: Path) -> None:
    data = power_law(20_000, 80_000)
    graph = data.graph
    chosen = choose_precision(graph, max_entities=300)
    assert chosen.precision in (0.2, 0.4)
    assert chosen.recall >= 0.97
    entities = torch.arange(5)
    graph.push_precision = chosen.precision
    early = ppr_push(graph, entities, torch.full((5,), 300), 0.15)
    usual = ppr_push(graph, entities, torch.full((5,), 300), 0.15, limits=PushLimits())
    assert int(early.edges.sum()) < 0.6 * int(usual.edges.sum())
    # Subsets, saved and changed graphs have it as well.
    assert graph.subset(torch.arange(graph.num_facts) > 5).push_precision == chosen.precision
    data.save(tmp_path)
    assert load(tmp_path).graph.push_precision is None
    note_push_recall(tmp_path, 0.98, 0.4)
    base = load(tmp_path).graph
    assert (base.push_recall, base.push_precision) == (0.98, 0.4)
    live = LiveGraph(base)
    live.add([("e1", base.relations[0], "new")])
    assert live.graph().push_precision == 0.4


def test_the_default_precision_stays_where_a_lower_one_finds_too_little() -> None:
    """A ring of rings: walks mix slowly, and the degree tail says little."""
    facts = [[i, 0, (i + 1) % 4000] for i in range(4000)]
    facts += [[i, 0, (i + 40) % 4000] for i in range(0, 4000, 40)]
    graph = KnowledgeGraph.from_facts(facts)
    assert choose_precision(graph, max_entities=300).precision is None
    empty = KnowledgeGraph.from_facts([], 5, 1)
    assert choose_precision(empty) == (1.0, None)
