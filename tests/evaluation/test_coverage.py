import pytest
import torch
from networkx import node_connected_component
from tests.support.graphs import as_networkx, random_graph, random_queries

from oneshot.errors import InputError
from oneshot.evaluation.coverage import budget_label, components, coverage
from oneshot.samplers import SAMPLERS, PPRSampler


@pytest.mark.parametrize("name", SAMPLERS)
def test_coverage_counts_the_answers_that_are_sampled(name):
    graph = random_graph(3, 50, 90)
    queries, answers = random_queries(graph, 60, 1), random_queries(graph, 60, 2)[:, 0]
    result = coverage(SAMPLERS[name](1.0), graph, queries, answers, [0.1, 0.3, 1.0, 7])
    whole = as_networkx(graph)
    linked = torch.tensor(
        [
            a in node_connected_component(whole, u)
            for u, a in zip(queries[:, 0].tolist(), answers.tolist(), strict=True)
        ]
    )
    for budget in (0.1, 0.3, 1.0, 7):
        size = {"max_entities": budget} if isinstance(budget, int) else {"entity_ratio": budget}
        found = SAMPLERS[name](**size).sample(graph, queries).find(answers) >= 0
        assert result.coverage[budget] == pytest.approx(float(found.double().mean()))
        assert result.reachable[budget] == pytest.approx(float((found & linked).double().mean()))
    assert result.coverage[1.0] == 1
    assert result.queries == 60


def test_progress_counts_every_query():
    graph = random_graph(3, 50, 90)
    queries = random_queries(graph, 600, 1)
    done = []
    coverage(PPRSampler(0.5), graph, queries, queries[:, 0], [0.5], done.append)
    assert sum(done) == 600


def test_components_are_those_of_the_undirected_graph():
    graph = random_graph(6, 60, 50)
    labels = components(graph)
    whole = as_networkx(graph)
    for entity in range(60):
        mine = set((labels == labels[entity]).nonzero().flatten().tolist())
        assert mine == node_connected_component(whole, entity)


@pytest.mark.parametrize("budget", [0.0, -0.5, 1.5, 0])
def test_bad_budgets_are_named(budget):
    graph = random_graph(0)
    with pytest.raises(InputError, match="entities must be"):
        coverage(PPRSampler(), graph, torch.tensor([[0, 0]]), torch.tensor([1]), [budget])


def test_no_queries_is_an_error():
    with pytest.raises(InputError, match="at least one query"):
        coverage(PPRSampler(), random_graph(0), torch.empty(0, 2), torch.empty(0), [0.5])


def test_answers_must_fit_the_queries():
    graph, query = random_graph(0), torch.tensor([[0, 0]])
    for answers, message in ((torch.tensor([1, 2]), "2 answers"), (torch.tensor([99]), "id 99")):
        with pytest.raises(InputError, match=message):
            coverage(PPRSampler(), graph, query, answers, [0.5])


def test_labels_of_budgets_tell_them_apart():
    budgets = [0.1, 0.1234567, 0.12345671, 1_000_000, 1_000_001, 1.0]
    labels = [budget_label(budget) for budget in budgets]
    assert labels[:1] + labels[3:] == ["0.1", "1000000", "1000001", "1"]
    assert len(set(labels)) == 6
