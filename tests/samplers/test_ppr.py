import networkx
import numpy as np
import pytest
import torch
from tests.support.graphs import as_networkx, random_graph

from oneshot.data.load import family
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers._ball import BallWorkspace, grow_ball, ppr_ball
from oneshot.samplers._pagerank import pagerank, ppr, ppr_chebyshev


def reference(graph: KnowledgeGraph, entity: int, restart: float = 0.15) -> np.ndarray:
    scores = networkx.pagerank(
        as_networkx(graph),
        alpha=1 - restart,
        personalization={entity: 1},
        dangling={entity: 1},
        tol=1e-13,
        max_iter=5000,
    )
    return np.array([scores[i] for i in range(graph.num_entities)])


def graph_of_seed(seed: int) -> KnowledgeGraph:
    generator = np.random.default_rng(seed)
    return random_graph(seed, int(generator.integers(2, 80)), int(generator.integers(1, 200)))


@pytest.mark.parametrize("block", range(10))
def test_scores_equal_networkx_on_hundreds_of_graphs(block):
    for seed in range(block * 30, block * 30 + 30):
        graph = graph_of_seed(seed)
        entities = torch.tensor([0, graph.num_entities - 1, seed % graph.num_entities])
        for restart in (0.15, 0.5):
            power = ppr(
                graph, entities, restart, tolerance=1e-12, max_steps=400, dtype=torch.float64
            )
            series = ppr_chebyshev(graph, entities, restart, steps=60, dtype=torch.float64)
            for row, entity in enumerate(entities.tolist()):
                expected = reference(graph, entity, restart)
                assert np.abs(power[row].numpy() - expected).max() < 1e-6
                assert np.abs(series[row].numpy() - expected).max() < 1e-6


def test_the_definition_with_its_defaults_is_close_to_networkx():
    graph = random_graph(5, 200, 900)
    entities = torch.arange(0, 200, 20)
    scores = ppr(graph, entities)
    for row, entity in enumerate(entities.tolist()):
        assert np.abs(scores[row].numpy() - reference(graph, entity)).sum() < 2e-5


def test_scores_sum_to_one_and_an_isolated_entity_keeps_all():
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 4)
    scores = ppr(graph, torch.tensor([0, 3]), dtype=torch.float64)
    assert scores.sum(1).tolist() == pytest.approx([1, 1])
    assert scores[1].tolist() == [0, 0, 0, 1]
    assert ppr_chebyshev(graph, torch.tensor([3]))[0].tolist() == pytest.approx(
        [0, 0, 0, 1], abs=1e-5
    )


def test_the_papers_transition_divides_by_degree():
    graph = random_graph(7)
    degree = graph.neighbours.degree.clamp(min=1).double()
    entities = torch.tensor([0, 4, 9])
    walk = ppr(graph, entities, dtype=torch.float64)
    paper = ppr(graph, entities, transition="paper", dtype=torch.float64)
    assert torch.allclose(paper, walk / degree * degree[entities, None])
    # … which is the fixed point of restart · 1(u) + (1 − restart) · D⁻¹ A p.
    adjacency = torch.from_numpy(networkx.to_numpy_array(as_networkx(graph)))
    linked = graph.neighbours.degree[entities] > 0
    step = 0.85 * (paper @ adjacency.T) / degree
    step[torch.arange(3), entities] += 0.15
    assert torch.allclose(step[linked], paper[linked], atol=1e-5)


def test_truncated_series_gives_zero_beyond_its_steps_and_only_there():
    chain = KnowledgeGraph.from_facts([[i, 0, i + 1] for i in range(30)])
    scores = ppr_chebyshev(chain, torch.tensor([0]), steps=7)[0]
    assert (scores[:8] > 0).all()
    assert (scores[8:] == 0).all()


@pytest.mark.parametrize("restart", [0.15, 0.5, 0.85, 0.95])
def test_default_steps_choose_the_exact_entities(restart):
    graph = family(2000).graph
    entities = torch.arange(0, 2000, 100)
    exact = ppr(graph, entities, restart, 1e-14, 300, dtype=torch.float64)
    ours = ppr_chebyshev(graph, entities, restart)
    for row in range(len(entities)):
        best = exact[row].topk(200).indices
        assert torch.isin(ours[row].topk(200).indices, best).float().mean() >= 0.97


def test_the_papers_scores_converge_by_their_own_change():
    hub = KnowledgeGraph.from_facts([[0, 0, i] for i in range(1, 1500)])
    entity = torch.tensor([0])
    exact = ppr(
        hub, entity, tolerance=1e-14, max_steps=500, transition="paper", dtype=torch.float64
    )
    ours = ppr(hub, entity, tolerance=1e-6, max_steps=500, transition="paper", dtype=torch.float64)
    assert float((exact - ours).abs().sum()) < 1e-5


def test_pagerank_equals_networkx():
    graph = random_graph(11, 50, 300)
    whole = as_networkx(graph)
    linked = [i for i in range(50) if whole.degree(i)]
    expected = networkx.pagerank(whole.subgraph(linked), tol=1e-12)
    scores = pagerank(graph, tolerance=1e-12, dtype=torch.float64)
    assert float(scores.sum()) == pytest.approx(1)
    for entity in linked:
        assert float(scores[entity]) == pytest.approx(expected[entity] * len(linked) / 50, abs=1e-9)
    isolated = set(range(50)) - set(linked)
    assert all(float(scores[i]) == pytest.approx(1 / 50) for i in isolated)


def test_a_ball_of_a_whole_component_is_exact():
    for seed in range(40):
        graph = graph_of_seed(seed)
        workspace = BallWorkspace(graph)
        for entity in (0, graph.num_entities - 1):
            found, scores = ppr_ball(graph, entity, 0.15, graph.num_entities, workspace, steps=60)
            dense = np.zeros(graph.num_entities)
            dense[found.numpy()] = scores.numpy()
            assert np.abs(dense - reference(graph, entity)).max() < 1e-5


def test_a_ball_leaves_a_clean_workspace_and_respects_the_size():
    graph = random_graph(3, 300, 2000)
    workspace = BallWorkspace(graph)
    for size in (1, 2, 17, 100, 300):
        ball = grow_ball(graph.neighbours, 5, 0.15, size, workspace)
        assert len(ball) <= size
        assert 5 in ball
        assert torch.equal(ball, ball.unique())
        assert not workspace.mass.any()
        assert not workspace.joined.any()


def test_a_ball_takes_the_entities_that_matter():
    graph = family(20_000).graph
    workspace = BallWorkspace(graph)
    entities = torch.tensor([10, 9_000, 19_999])
    exact = ppr(graph, entities, tolerance=1e-9)
    for row, entity in enumerate(entities.tolist()):
        found, scores = ppr_ball(graph, entity, 0.15, 900, workspace)
        best = found[scores.topk(300).indices]
        assert np.isin(best.numpy(), exact[row].topk(300).indices.numpy()).mean() > 0.97


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: ppr(g, torch.tensor([99])), "entity id 99"),
        (lambda g: ppr(g, torch.tensor([-1])), "entity id -1"),
        (lambda g: ppr(g, torch.tensor([[0]])), "shape"),
        (lambda g: ppr(g, torch.tensor([0]), restart=1.5), "restart"),
        (lambda g: ppr_chebyshev(g, torch.tensor([0]), transition="other"), "transition"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call(random_graph(0))
