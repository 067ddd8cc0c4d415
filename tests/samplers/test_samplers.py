"""The same cases for every sampler, and the exactness of what they cut out."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import graphs, random_graph, random_queries

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.samplers import SAMPLERS, BFSSampler, PPRSampler, RandomSampler, RandomWalkSampler
from oneshot.subgraph import SubgraphBatch

every_sampler = pytest.mark.parametrize("name", SAMPLERS)
# Those that choose by the entity of a query alone; see test_fitted.py for the other one.
by_entity = pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "fitted"])


def brute_force_choice(scores: list[float], entity: int, count: int) -> list[int]:
    order = sorted(range(len(scores)), key=lambda i: (i != entity, -scores[i], i))
    return sorted(order[:count])


def brute_force_edges(graph: KnowledgeGraph, chosen: list[int]) -> set[tuple[int, int, int]]:
    inside, count = set(chosen), graph.num_relations
    edges = {(x, 2 * count, x) for x in chosen}
    for h, r, t in graph.facts.tolist():
        if h in inside and t in inside:
            edges |= {(h, r, t), (t, r + count, h)}
    return edges


def subgraph_of(batch, query: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Entities and edges, in global ids, of one query of a batch."""
    chosen = batch.entities[batch.entity_query == query].tolist()
    x, r, o = batch.edges[:, batch.edge_query == query]
    edges = zip(batch.entities[x].tolist(), r.tolist(), batch.entities[o].tolist(), strict=True)
    return chosen, list(edges)


def assert_same(ours: SubgraphBatch, expected: SubgraphBatch) -> None:
    for field in dataclasses.fields(expected):
        assert torch.equal(getattr(ours, field.name), getattr(expected, field.name)), field.name


@by_entity
@given(graph=graphs(), seed=st.integers(0, 1000), ratio=st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=25)
def test_entities_and_edges_equal_brute_force(name, graph, seed, ratio):
    sampler = SAMPLERS[name](ratio)
    queries = random_queries(graph, 5, seed)
    scores = sampler.scores(graph, torch.arange(graph.num_entities))
    batch = sampler.sample(graph, queries)
    count = max(1, int(ratio * graph.num_entities))
    for row, (entity, _) in enumerate(queries.tolist()):
        chosen, edges = subgraph_of(batch, row)
        assert chosen == brute_force_choice(scores[entity].tolist(), entity, count)
        assert len(edges) == len(set(edges))
        assert set(edges) == brute_force_edges(graph, chosen)


@every_sampler
@given(graph=graphs(), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=15)
def test_a_batch_is_well_formed(name, graph, seed):
    queries = random_queries(graph, 6, seed)
    batch = SAMPLERS[name](0.4, 0.5).sample(graph, queries)
    assert torch.equal(batch.queries, queries)
    assert torch.equal(batch.entities[batch.source], queries[:, 0])
    assert torch.equal(batch.entity_query[batch.source], torch.arange(6))
    keys = batch.entity_query * graph.num_entities + batch.entities
    assert (keys.diff() > 0).all()
    assert torch.equal(batch.degree, graph.degree[batch.entities])
    x, _, o = batch.edges
    assert (o.diff() >= 0).all()
    assert torch.equal(batch.entity_query[x], batch.edge_query)
    assert torch.equal(batch.entity_query[o], batch.edge_query)
    tensors = vars(batch)
    floats = ("score", "weight")
    assert all(t.dtype == torch.int64 for key, t in tensors.items() if key not in floats)


@every_sampler
@given(graph=graphs(), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=15)
def test_a_query_is_sampled_alike_alone_and_in_company(name, graph, seed):
    sampler = SAMPLERS[name](0.3)
    queries = random_queries(graph, 40, seed)  # more than one block on a processor
    together = sampler.sample(graph, queries)
    for row in (0, 7, 39):
        alone = sampler.sample(graph, queries[row : row + 1])
        assert subgraph_of(alone, 0) == subgraph_of(together, row)
        assert torch.equal(alone.score, together.score[together.entity_query == row])


@every_sampler
def test_ranks_tell_with_which_budget_an_entity_is_sampled(name):
    graph = random_graph(8, 40, 90)
    queries, targets = random_queries(graph, 30, 1), random_queries(graph, 30, 2)[:, 0]
    places = SAMPLERS[name](1.0).ranks(graph, queries, targets)
    for count in (1, 5, 20, 40):
        batch = SAMPLERS[name](max_entities=count).sample(graph, queries)
        assert torch.equal(places < count, batch.find(targets) >= 0)


@pytest.mark.parametrize("seed", range(30))
def test_a_ball_chooses_like_the_whole_graph_methods(seed):
    graph = random_graph(seed, 60, 100)
    queries, targets = random_queries(graph, 12, seed), random_queries(graph, 12, seed + 1)[:, 0]
    ball, series = (
        PPRSampler(0.3, method=m, steps=60, ball_factor=9) for m in ("ball", "chebyshev")
    )
    ours, expected = ball.select(graph, queries), series.select(graph, queries)
    exact = series.scores(graph, torch.arange(60))
    for row, (entity, _) in enumerate(queries.tolist()):
        left = set(ours.entities[ours.query == row].tolist())
        right = set(expected.entities[expected.query == row].tolist())
        assert len(left) == len(right)
        # The two may differ only where scores are equal up to rounding.
        for a, b in zip(sorted(left - right), sorted(right - left), strict=True):
            assert float(exact[entity, a]) == pytest.approx(float(exact[entity, b]), abs=1e-6)
    places = ball.ranks(graph, queries, targets)
    wide = PPRSampler(1.0, method="ball", steps=60).select(graph, queries)
    assert len(wide.entities) == 12 * 60
    assert (places[queries[:, 0] == targets] == 0).all()
    assert ((places >= 0) & (places < 60)).all()


def test_unreachable_entities_fill_up_by_lowest_id_or_are_dropped():
    graph = KnowledgeGraph.from_facts([[5, 0, 6], [0, 0, 1]], 8, 1)
    query = torch.tensor([[5, 0]])
    for method in ("chebyshev", "power", "push", "ball"):
        full = PPRSampler(0.5, method=method).sample(graph, query)
        assert full.entities.tolist() == [0, 1, 5, 6]
        lean = PPRSampler(0.5, method=method, keep_unreachable=False).sample(graph, query)
        assert lean.entities.tolist() == [5, 6]


@pytest.mark.parametrize("method", ["chebyshev", "push", "ball"])
def test_included_entities_are_in_and_take_places(method):
    graph = random_graph(9, 40, 80)
    queries = random_queries(graph, 3, 0)
    include = torch.tensor([[39, 38], [37, -1], [-1, -1]])
    sampler = PPRSampler(max_entities=5, method=method, keep_unreachable=False)
    batch = sampler.sample(graph, queries, include)
    chosen = [set(subgraph_of(batch, row)[0]) for row in range(3)]
    assert {38, 39} <= chosen[0]
    assert 37 in chosen[1]
    assert all(len(c) <= 5 for c in chosen)
    many = PPRSampler(max_entities=1, method=method).sample(graph, queries, include)
    assert many.entity_query.bincount().tolist() == [3, 2, 1]


@given(graph=graphs(), seed=st.integers(0, 1000), budget=st.integers(0, 30))
@settings(deadline=None, max_examples=40)
def test_edge_budget_keeps_the_highest_products(graph, seed, budget):
    queries = random_queries(graph, 4, seed)
    for score in ("product", "sum"):
        sampler = PPRSampler(0.6, max_edges=budget, edge_score=score)
        kept, full = sampler.sample(graph, queries), PPRSampler(0.6).sample(graph, queries)
        for row in range(4):
            mine = full.edge_query == row
            x, r, o = full.edges[:, mine]
            p, s = full.score[x], full.score[o]
            value = p * s if score == "product" else p + s
            facts = [i for i in range(len(r)) if r[i] < 2 * graph.num_relations]
            best = sorted(facts, key=lambda i: (-float(value[i]), i))[:budget]
            names = subgraph_of(full, row)[1]
            identities = {e for e in names if e[1] == 2 * graph.num_relations}
            assert set(subgraph_of(kept, row)[1]) == {names[i] for i in best} | identities


def test_edge_ratio_counts_the_facts_of_the_graph_in_both_directions():
    graph = random_graph(12, 30, 100)
    batch = PPRSampler(1.0, 0.25).sample(graph, torch.tensor([[0, 0]]))
    facts = int((batch.edges[1] < 2 * graph.num_relations).sum())
    assert facts == int(0.25 * 2 * graph.num_facts)


def test_budgets_by_relation_name():
    graph = KnowledgeGraph.from_facts(
        [[i, i % 2, i + 1] for i in range(19)],
        20,
        Vocabulary.from_names(["likes", "knows"], "relation"),
    )
    queries = torch.tensor([[3, 0], [3, 1], [3, 2], [3, 3]])
    sampler = PPRSampler({"default": 0.1, "knows": 0.5, "knows⁻¹": 0.25})
    assert sampler.sample(graph, queries).entity_query.bincount().tolist() == [2, 10, 2, 5]
    counts = PPRSampler(max_entities={"default": 7, "likes": 3})
    assert counts.sample(graph, queries).entity_query.bincount().tolist() == [3, 7, 3, 7]
    with pytest.raises(UnknownNameError, match="did you mean 'knows'"):
        PPRSampler({"know": 0.5}).sample(graph, queries)


def test_the_smaller_of_ratio_and_count_holds():
    graph = random_graph(1, 40, 200)
    query = torch.tensor([[0, 0]])
    assert PPRSampler(0.5, max_entities=3).sample(graph, query).num_entities == 3
    assert PPRSampler(0.1, max_entities=30).sample(graph, query).num_entities == 4
    assert PPRSampler(max_entities=30).sample(graph, query).num_entities == 30
    assert PPRSampler().sample(graph, query).num_entities == 4


def test_bfs_prefers_near_entities():
    chain = KnowledgeGraph.from_facts([[i, 0, i + 1] for i in range(9)])
    batch = BFSSampler(max_entities=5).sample(chain, torch.tensor([[4, 0]]))
    assert batch.entities.tolist() == [2, 3, 4, 5, 6]
    assert batch.score.tolist() == pytest.approx([1 / 3, 1 / 2, 1, 1 / 2, 1 / 3])


def test_random_samplers_follow_their_seed():
    graph = random_graph(2, 40, 150)
    query = torch.tensor([[1, 0]])
    for sampler in (RandomSampler, RandomWalkSampler):
        one, same, other = (sampler(0.3, seed=s).sample(graph, query) for s in (1, 1, 2))
        assert torch.equal(one.score, same.score)
        assert (
            not torch.equal(one.score, other.score)
            or one.entities.tolist() != other.entities.tolist()
        )


def test_random_walks_visit_only_what_they_can_reach():
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [3, 0, 4]], 6)
    visits = RandomWalkSampler(walks=50, length=4).scores(graph, torch.tensor([0, 5]))
    assert visits[0].sum() == 50 * 5
    assert (visits[0, 3:] == 0).all()
    assert (visits[0, :3] > 0).all()
    assert visits[1].tolist() == [0, 0, 0, 0, 0, 250]


def test_uniform_choice_is_uniform():
    graph = random_graph(2, 500, 300)
    queries = torch.stack([torch.arange(400), torch.zeros(400, dtype=torch.long)], dim=1)
    chosen = RandomSampler(0.2).select(graph, queries).entities.bincount(minlength=500).float()
    assert abs(float(chosen[400:].mean()) - 80) < 2  # entities that are no query's own
    assert 6 < float(chosen[400:].std()) < 11  # binomial: 8.0


def test_no_query_gives_an_empty_batch():
    for sampler in SAMPLERS.values():
        batch = sampler(0.5).sample(random_graph(0), torch.empty(0, 2, dtype=torch.long))
        assert (batch.num_queries, batch.num_entities, batch.num_edges) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entity_ratio": 0.0}, "entity_ratio"),
        ({"entity_ratio": 1.5}, "entity_ratio"),
        ({"entity_ratio": {"default": -1}}, "entity_ratio"),
        ({"edge_ratio": 2}, "edge_ratio"),
        ({"max_entities": 0}, "max_entities"),
        ({"max_edges": -1}, "max_edges"),
        ({"restart": 0}, "restart"),
        ({"method": "fast"}, "method"),
        ({"transition": "none"}, "transition"),
        ({"steps": 0}, "steps"),
        ({"edge_score": "max"}, "edge_score"),
        ({"ball_factor": 0.5}, "ball_factor"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(InputError, match=message):
        PPRSampler(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_entities": 10**30},
        {"max_edges": 10**30},
    ],
)
def test_budgets_beyond_the_graph_mean_all_of_it(options):
    graph = random_graph(0)
    batch = PPRSampler(1.0, **options).sample(graph, torch.tensor([[0, 0]]))
    assert batch.num_entities == 30


@pytest.mark.parametrize("value", [float("inf"), "3", True, float("nan"), 2.5])
def test_budgets_that_are_no_numbers_are_named(value):
    for field in ("max_entities", "entity_ratio"):
        with pytest.raises(InputError, match=field):
            PPRSampler(**{field: value})


@pytest.mark.parametrize("method", ["chebyshev", "push", "ball"])
def test_bad_entities_to_include_are_named(method):
    graph = random_graph(0)
    sampler = PPRSampler(0.2, method=method)
    query = torch.tensor([[0, 0]])
    for include, message in (([[99]], "entity id 99"), ([[-2]], "entity id -2"), ([1], "shape")):
        with pytest.raises(InputError, match=message):
            sampler.sample(graph, query, torch.tensor(include))
    assert 9 in sampler.sample(graph, query, [[9]]).entities


def test_what_is_not_there_is_not_found():
    batch = PPRSampler(1.0).sample(random_graph(0), torch.tensor([[0, 0], [1, 0], [2, 0]]))
    assert batch.find(torch.tensor([-1, -1, -1])).tolist() == [-1, -1, -1]
    assert batch.find(torch.tensor([99, 5, 99])).tolist() == [-1, 35, -1]


def test_an_interrupted_ball_does_not_spoil_the_next(monkeypatch):
    graph = random_graph(3, 300, 900)
    query = torch.tensor([[7, 0]])
    sampler = PPRSampler(0.1, method="ball")
    expected = sampler.sample(graph, query)
    calls = []

    def interrupted(*_):
        calls.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("oneshot.samplers._ball._distinct", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sampler.sample(graph, query)
    assert calls
    assert torch.equal(sampler.sample(graph, query).entities, expected.entities)


def test_bad_queries_are_named():
    graph = random_graph(0)
    for query, message in (([[99, 0]], "entity id 99"), ([[0, 6]], "relation id 6")):
        with pytest.raises(InputError, match=message):
            PPRSampler().sample(graph, torch.tensor(query))
    for query in ([0, 1], [[0.5, 0.0]]):
        with pytest.raises(InputError, match="shape"):
            PPRSampler().sample(graph, torch.tensor(query))


def test_auto_takes_a_local_method_only_where_it_wins(monkeypatch):
    graph = random_graph(0, entities=600)
    sampler = PPRSampler(max_entities=6)
    assert sampler.chosen_method(graph, 6) == "chebyshev"
    monkeypatch.setattr("oneshot.samplers.ppr.LOCAL_LEAST_GRAPH", 500)
    assert sampler.chosen_method(graph, 6) == "ball"
    assert sampler.chosen_method(graph, 7) == "chebyshev"
    monkeypatch.setattr("oneshot.samplers.ppr.BALL_LARGEST_HUB", 1)
    for recall, method in ((None, "chebyshev"), (0.9, "chebyshev"), (0.97, "push")):
        graph.push_recall = recall
        assert sampler.chosen_method(graph, 6) == method
    assert PPRSampler(method="power").chosen_method(graph, 6) == "power"
    # Scores over the whole graph would take seconds per query on large graphs.
    monkeypatch.setattr("oneshot.samplers.ppr.PUSH_LEAST_FACTS", graph.num_facts)
    assert sampler.chosen_method(graph, 6) == "push"
    graph.push_recall = 0.9
    assert sampler.chosen_method(graph, 6) == "chebyshev"
    graph.push_recall = None
    with pytest.warns(UserWarning, match="recall was not measured; `oneshot data DATA --save DIR`"):
        assert sampler.chosen_method(graph, 6) == "push"
    monkeypatch.setattr("oneshot.samplers.ppr.PUSH_LEAST_FACTS", graph.num_facts + 1)
    assert sampler.chosen_method(graph, 6) == "chebyshev"


@pytest.mark.parametrize("size", [1, 3, 7, 10, 99])
@pytest.mark.parametrize("max_edges", [None, 20])
def test_a_batch_is_split_into_its_queries_and_put_together(size, max_edges):
    graph = random_graph(4, 40, 90)
    queries = random_queries(graph, 10, 3)
    sampler = PPRSampler(0.4, max_edges=max_edges)
    batch = sampler.sample(graph, queries)
    parts = batch.split(size)
    assert [part.num_queries for part in parts] == [
        len(expected) for expected in queries.split(size)
    ]
    for part, asked in zip(parts, queries.split(size), strict=True):
        assert_same(part, sampler.sample(graph, asked))
        assert part.edges.is_contiguous()
    assert_same(SubgraphBatch.concatenate(parts), batch)


def test_splitting_leaves_the_batch_as_it_is():
    graph = random_graph(4, 40, 90)
    sampler, queries = PPRSampler(0.4), random_queries(graph, 10, 3)
    batch = sampler.sample(graph, queries)
    SubgraphBatch.concatenate(batch.split(4))
    assert_same(batch, sampler.sample(graph, queries))
    empty = sampler.sample(graph, queries[:0])
    assert_same(SubgraphBatch.concatenate(empty.split(4)), empty)
    with pytest.raises(InputError, match="size"):
        batch.split(0)


@pytest.mark.parametrize("distinct", [True, False])
def test_blocks_of_queries_do_not_change_what_is_chosen(monkeypatch, distinct):
    graph = random_graph(5, 40, 90)
    sampler, queries = PPRSampler(0.4), random_queries(graph, 23, 3)
    if distinct:
        queries[:, 0] = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:23]
    whole = sampler.sample(graph, queries)
    for size in (1, 5, 22, 23):
        monkeypatch.setattr("oneshot.samplers.base.block_size", lambda _, size=size: size)
        assert_same(sampler.sample(graph, queries), whole)


class BareGraph:
    """A graph that answers what `AdjacencyGraph` names, and nothing else."""

    def __init__(self, graph):
        self._graph = graph

    def __getattr__(self, name):
        if name not in vars(AdjacencyGraph) or name.startswith("_"):
            raise AttributeError(f"a sampler asked for {name!r}")
        return getattr(self._graph, name)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_ask_for_nothing_but_the_adjacency(name):
    graph = random_graph(4, 40, 90)
    queries, targets = random_queries(graph, 5, 5), torch.arange(5)
    for options in ({}, {"max_edges": 20, "mass": 0.9}):
        sampler = SAMPLERS[name](0.3, **options)
        bare = BareGraph(graph)
        assert_same(sampler.sample(bare, queries), sampler.sample(graph, queries))
        assert torch.equal(
            sampler.ranks(bare, queries, targets), sampler.ranks(graph, queries, targets)
        )
    with pytest.raises(AttributeError, match="asked for 'facts'"):
        BareGraph(graph).facts  # noqa: B018
