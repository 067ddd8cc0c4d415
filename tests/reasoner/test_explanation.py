"""Explanations: gradients, the search for paths, what is said about them, and known rules."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import random_graph, random_queries

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.load import family
from oneshot.errors import InputError, UnknownNameError
from oneshot.experiments.bench.rules import RuleBook, Truth, right_answers
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import Predictor
from oneshot.reasoner import cone
from oneshot.reasoner.cone import edge_gradients
from oneshot.reasoner.explanation import (
    agreement,
    edge_shares,
    without,
    without_facts,
)
from oneshot.reasoner.paths import heaviest_paths, hops
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import SAMPLERS, PPRSampler, Sampler
from oneshot.subgraph import SubgraphBatch
from oneshot.training.trainer import fit


def reasoner_on(graph: KnowledgeGraph, seed: int = 0, ratio: float = 1.0, **options) -> Reasoner:
    torch.manual_seed(seed)
    config = PredictorConfig(**({"num_layers": 3, "dim": 8, "attention_dim": 4} | options))
    predictor = Predictor(config, graph.num_relations).double().eval()
    return Reasoner(graph, PPRSampler(ratio), predictor)


def reachable_question(reasoner: Reasoner, seed: int) -> tuple[SubgraphBatch, int]:
    """The subgraph of a question and the place of an answer at a distance of 2, or 1."""
    for query in random_queries(reasoner.graph, 200, seed):
        batch = reasoner.sampler.sample(reasoner.graph, query[None])
        distance = hops(batch, int(batch.source[0]))
        for wanted in (2, 1):
            if (distance == wanted).any():
                return batch, int((distance == wanted).nonzero()[-1])
    raise AssertionError("no such question")


VARIANTS = [
    {"message": "redgnn"},
    {"message": "redgnn", "gate_mask": "reached", "shortcut": True, "concat": True},
    {"message": "nbfnet", "gate": False, "aggregate": "pna", "activation": "tanh"},
    {"message": "drum", "readout": "dot", "aggregate": "mean"},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_gradients_agree_with_finite_differences(options, scale):
    reasoner = reasoner_on(random_graph(5), **options)
    batch, target = reachable_question(reasoner, 1)
    gradient = edge_gradients(reasoner.predictor, batch, target, scale)
    assert gradient.shape == (3, batch.num_edges)
    assert gradient.abs().max() > 0
    edges = set(gradient.abs().flatten().argsort(descending=True)[:8].tolist())
    for flat in edges | set(range(0, gradient.numel(), 97)):
        layer, edge = divmod(flat, batch.num_edges)
        scores = []
        for change in (-1e-5, 1e-5):
            weights = torch.full_like(gradient, scale)
            weights[layer, edge] += change
            with torch.no_grad():
                scores.append(reasoner.predictor(batch, list(weights))[target])
        slope = (scores[1] - scores[0]) / 2e-5
        assert slope == pytest.approx(float(gradient[layer, edge]), rel=1e-4, abs=1e-9)


CONE_VARIANTS = [
    *VARIANTS,
    {"message": "redgnn", "gate": False, "aggregate": "pna", "norm": True, "shortcut": True},
    {"message": "redgnn", "compose": "add", "gate": False, "aggregate": "mean", "readout": "dot"},
    {"message": "redgnn", "compose": "add", "gate_mask": "reached", "priors": True},
    {"message": "nbfnet", "aggregate": "max", "readout": "dot", "concat": True, "priors": True},
    {"message": "redgnn", "gate_mask": "reached", "readout": "dot", "aggregate": "pna"},
    {"aggregate": "pna", "aggregate_over": "graph", "gate": False, "readout": "mlp"},
    {"aggregate": "max", "aggregate_over": "graph", "reinject": True, "concat": True},
    {"aggregate": "mean", "aggregate_over": "graph", "reinject": True, "readout": "mlp"},
    {"message": "nbfnet", "aggregate": "pna", "gate": False, "members": 3},
]


@pytest.mark.parametrize("options", CONE_VARIANTS)
@pytest.mark.parametrize("num_layers", [1, 4])
def test_a_cone_gives_the_results_of_the_whole_subgraph(options, num_layers, monkeypatch):
    """Shares and scores without facts are those that the predictor gives on the whole subgraph."""
    monkeypatch.setattr(cone, "_EDGES_AT_ONCE", 100)  # in several parts
    reasoner = reasoner_on(random_graph(5), num_layers=num_layers, **options)
    predictor, count = reasoner.predictor, reasoner.graph.num_relations
    for seed in range(4):
        batch, target = reachable_question(reasoner, seed)
        for row in (target, int(batch.source[0])):
            found = edge_shares(predictor, batch, row, points=3)
            wanted = [edge_gradients(predictor, batch, row, scale) for scale in (1 / 6, 0.5, 5 / 6)]
            torch.testing.assert_close(found, torch.stack(wanted).mean(0))
            facts = (batch.edges[1] < 2 * count).nonzero().squeeze(1)[:12].tolist()
            groups = [facts[:1], facts[1:4], facts, []]
            removed = [without_facts(batch, edges, count) for edges in groups]
            scores = cone.cone_of(predictor, batch, row).scores_without(
                [gone for gone, _ in removed], [degree for _, degree in removed]
            )
            with torch.no_grad():
                whole = [float(predictor(without(batch, edges, count))[row]) for edges in groups]
            assert scores == pytest.approx(whole)


def test_a_cone_is_smaller_than_its_subgraph():
    """Along a chain, only the entities between the two ends matter."""
    facts = [(i, 0, i + 1) for i in range(40)]
    names = Vocabulary.numbered(41, "entity"), Vocabulary.numbered(1, "relation")
    reasoner = reasoner_on(KnowledgeGraph(torch.tensor(facts), *names), num_layers=4)
    batch = reasoner.sampler.sample(reasoner.graph, torch.tensor([[20, 0]]))
    found = cone.Cone(reasoner.predictor, batch, int(batch.find(torch.tensor([23]))[0]))
    assert batch.num_entities == 41
    assert [batch.entities[step.rows].tolist() for step in found.steps] == [
        [20, 21],
        [21, 22],
        [22, 23],
        [23],
    ]


def test_shares_add_up_to_the_score():
    reasoner = reasoner_on(random_graph(5), activation="tanh")
    batch, target = reachable_question(reasoner, 1)
    with torch.no_grad():
        # Near 0, not at 0: there the gate would take all entities for unreached.
        almost_none = torch.full((3, batch.num_edges), 1e-9, dtype=torch.float64)
        scores = reasoner.predictor(batch), reasoner.predictor(batch, list(almost_none))
        gained = scores[0][target] - scores[1][target]
    shares = edge_shares(reasoner.predictor, batch, target, points=100)
    assert float(shares.sum()) == pytest.approx(float(gained), rel=1e-3)


def brute_force_paths(
    batch: SubgraphBatch, shares: torch.Tensor, source: int, target: int, identity: int
) -> dict[tuple[int, ...], float]:
    """All paths without repeated entities, each with its best way of staying in between."""
    layers, edges = len(shares), batch.edges.T.tolist()
    stay = {x: number for number, (x, r, _) in enumerate(edges) if r == identity}
    found: dict[tuple[int, ...], float] = {}

    def extend(moves: tuple[int, ...], visited: tuple[int, ...]) -> None:
        if visited[-1] == target and moves:
            found[moves] = best_weight(moves, visited)
            return
        if len(moves) < layers:
            for number, (x, r, o) in enumerate(edges):
                fresh = o not in visited or (o == source == target)
                if x == visited[-1] and r != identity and fresh:
                    extend((*moves, number), (*visited, o))

    def best_weight(moves: tuple[int, ...], visited: tuple[int, ...]) -> float:
        weights = []
        for when in itertools.combinations(range(layers), len(moves)):
            done, total = 0, 0.0
            for layer in range(layers):
                edge = moves[done] if layer in when else stay[visited[done]]
                done += layer in when
                total += float(shares[layer, edge])
            weights.append(total)
        return max(weights)

    extend((), (source,))
    return found


@given(seed=st.integers(0, 10_000), layers=st.integers(1, 4), same=st.booleans())
@settings(deadline=None, max_examples=40)
def test_the_heaviest_paths_are_those_of_brute_force(seed, layers, same):
    graph = random_graph(seed, 12, 16, 2)
    query = random_queries(graph, 1, seed)
    batch = PPRSampler(1.0).sample(graph, query)
    source = int(batch.source[0])
    target = source if same else seed % 12
    shares = torch.randn(
        layers, batch.num_edges, generator=torch.Generator().manual_seed(seed)
    ).double()
    expected = brute_force_paths(batch, shares, source, target, 4)
    found = heaviest_paths(batch, shares, source, target, 4, beam=10_000)
    assert len(found) == len({path.edges for path in found})  # those that only wait are one
    assert {path.edges: path.weight for path in found} == pytest.approx(expected)
    weights = [path.weight for path in found]
    assert weights == sorted(weights, reverse=True)
    narrow = heaviest_paths(batch, shares, source, target, 4, beam=1)
    assert bool(narrow) == bool(expected)  # a beam never loses all paths


def test_agreement_asks_where_else_the_same_relations_lead():
    #      0 leads by relation 0 to 1, and from there to 2 and 3; by relation 1 back from 3 to 0
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [1, 0, 3], [3, 1, 0], [1, 1, 2]], 4, 2)
    batch = PPRSampler(1.0).sample(graph, torch.tensor([[0, 0]]))
    number = {tuple(edge): place for place, edge in enumerate(batch.edges.T.tolist())}
    scores = torch.tensor([9.0, 0.0, 2.0, 1.0])
    both, one = [number[0, 0, 1], number[1, 0, 2]], [number[0, 0, 1], number[1, 1, 2]]
    other = [number[0, 0, 1], number[1, 0, 3]]
    assert agreement(batch, scores, 0, 2, both) == pytest.approx((1 + math.exp(-1)) / 2)
    assert agreement(batch, scores, 0, 3, other) == 1  # what is likelier speaks not against it
    assert agreement(batch, scores, 0, 2, one) == 1
    assert agreement(batch, scores, 0, 0, [number[0, 3, 3], number[3, 1, 0]]) == 1


@pytest.mark.parametrize("options", VARIANTS)
def test_score_without_is_the_score_on_a_graph_without_the_facts(options):
    graph = random_graph(5)
    reasoner = reasoner_on(graph, **options)
    batch, target = reachable_question(reasoner, 1)
    head, relation = batch.queries[0].tolist()
    answer = int(batch.entities[target])
    explanation = reasoner.explain(head, relation, answer)
    assert explanation.reachable
    count = graph.num_relations
    for path in explanation.paths:
        gone = set()
        for edge in path.edges:
            x, r, o = batch.edges[:, edge].tolist()
            x, o = int(batch.entities[x]), int(batch.entities[o])
            gone.add((x, r, o) if r < count else (o, r - count, x))
        left = [fact for fact in graph.facts.tolist() if tuple(fact) not in gone]
        smaller = KnowledgeGraph.from_facts(left, graph.num_entities, count)
        assert smaller.num_facts == graph.num_facts - len(gone)
        # All entities are sampled, so that they are the same in both graphs.
        again = Reasoner(smaller, PPRSampler(1.0, keep_unreachable=True), reasoner.predictor)
        expected = again.score(head, relation, answer)
        assert path.score_without == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_facts_are_taken_out_in_both_directions_and_self_loops_once():
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 1, 1], [1, 0, 2]], 3, 2)
    batch = PPRSampler(1.0).sample(graph, torch.tensor([[0, 0]]))
    loops = [e for e, (x, r, o) in enumerate(batch.edges.T.tolist()) if x == o == 1 and r in (1, 3)]
    smaller = without(batch, loops, 2)
    assert smaller.num_edges == batch.num_edges - 2
    assert smaller.degree.tolist() == [1, 2, 1]


def chain(extra: list[list[int]] | None = None) -> KnowledgeGraph:
    """0 —next→ 1 —next→ 2 —next→ 3 —next→ 4, and apart from it 5 —next→ 6."""
    facts = [[i, 0, i + 1] for i in (0, 1, 2, 3, 5)]
    names = ["Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus"]
    return KnowledgeGraph.from_facts(
        facts + (extra or []),
        Vocabulary.from_names(names, "entity"),
        Vocabulary.from_names(["next", "far"], "relation"),
    )


def test_a_path_is_told_by_names():
    explanation = reasoner_on(chain()).explain("Di", "far", "Bo", inverse=True)
    (path,) = explanation.paths
    assert [(s.source, s.relation, s.inverse, s.target) for s in path.steps] == [
        ("Di", "next⁻¹", True, "Cy"),
        ("Cy", "next⁻¹", True, "Bo"),
    ]
    assert (explanation.entity, explanation.relation) == ("Di", "far⁻¹")
    title, line = str(explanation).splitlines()
    assert title == f"Di —far⁻¹→ Bo   score {explanation.score:z.2f}"
    assert line == (
        "  1. Di —next⁻¹→ Cy —next⁻¹→ Bo   "
        f"weight {path.weight:z.2f}, score without {path.score_without:z.2f}"
    )
    record = explanation.as_dict()
    assert record["paths"][0]["steps"][1]["target"] == "Bo"
    assert record["reachable"] is True


@pytest.mark.parametrize("answer", ["Ed", "Flo"])
def test_an_answer_out_of_reach_is_said_plainly(answer):
    explanation = reasoner_on(chain()).explain("Ada", "far", answer)  # 4 edges away, and apart
    assert not explanation.reachable
    assert explanation.paths == ()
    assert f"no path of at most 3 edges leads from 'Ada' to {answer!r}" in explanation.message
    assert explanation.message in str(explanation)
    assert explanation.as_dict()["message"] == explanation.message


def test_an_entity_without_facts_reaches_nothing():
    graph = KnowledgeGraph.from_facts([[0, 0, 1]], 3, 1)
    assert not reasoner_on(graph).explain(2, 0, 1).reachable


def test_an_answer_that_was_not_sampled_is_put_in():
    reasoner = reasoner_on(chain(), ratio=0.3)
    query = torch.tensor([[0, 1]])
    sampled = reasoner.sampler.sample(reasoner.graph, query)
    assert int(sampled.find(torch.tensor([3]))[0]) == -1
    explanation = reasoner.explain("Ada", "far", "Di")
    assert explanation.score == pytest.approx(reasoner.score("Ada", "far", "Di"))
    assert int(explanation.batch.entities[explanation.target]) == 3


def test_the_asked_fact_itself_is_a_path_and_marked():
    explanation = reasoner_on(chain([[0, 1, 2]])).explain("Ada", "far", "Cy")
    assert explanation.known
    marked = {len(path.steps): path.known for path in explanation.paths}
    assert marked == {1: True, 2: False}
    assert "Ada —far→ Cy (known fact)   weight" in str(explanation)
    backwards = reasoner_on(chain([[0, 1, 2]])).explain("Cy", "far", "Ada", inverse=True)
    assert backwards.known
    assert [path.known for path in backwards.paths if len(path.steps) == 1] == [True]
    assert not reasoner_on(chain([[0, 1, 2]])).explain("Cy", "far", "Ada").known


def test_a_route_is_told_once_however_many_facts_lead_along_it():
    #       Ada and Bo, and Bo and Cy, are joined by three facts each: nine paths of one route
    extra = [[1, 0, 0], [0, 1, 1], [2, 0, 1], [1, 1, 2]]
    explanation = reasoner_on(chain(extra)).explain("Ada", "far", "Cy")
    (path,) = explanation.paths
    assert [step.target for step in path.steps] == ["Bo", "Cy"]
    assert path.parallel == 8
    assert " (+8 by parallel facts)   weight" in str(explanation)
    assert explanation.as_dict()["paths"][0]["parallel"] == 8
    # Facts that join question and answer are one route, but the asked one stands for itself.
    direct = reasoner_on(chain(extra)).explain("Ada", "far", "Bo")
    told = {path.known: path.parallel for path in direct.paths if len(path.steps) == 1}
    assert told == {True: 0, False: 1}


def test_a_question_may_be_its_own_answer():
    explanation = reasoner_on(chain([[0, 1, 1], [2, 1, 0]])).explain("Ada", "next", "Ada")
    assert explanation.reachable
    for path in explanation.paths:
        assert path.steps[0].source == path.steps[-1].target == "Ada"
        between = [step.target for step in path.steps[:-1]]
        assert "Ada" not in between
        assert len(set(between)) == len(between)


def test_explanations_are_the_same_each_time_and_leave_no_trace():
    reasoner = reasoner_on(random_graph(5), dropout=0.3)
    batch, target = reachable_question(reasoner, 1)
    head, relation = batch.queries[0].tolist()
    reasoner.predictor.train()
    one, other = (reasoner.explain(head, relation, int(batch.entities[target])) for _ in "ab")
    assert one.paths == other.paths
    assert one.to_svg() == other.to_svg()
    assert reasoner.predictor.training
    assert all(parameter.grad is None for parameter in reasoner.predictor.parameters())


def test_wrong_use_is_named():
    reasoner = reasoner_on(chain())
    with pytest.raises(InputError, match="at least 1"):
        reasoner.explain("Ada", "next", "Bo", paths=0)
    with pytest.raises(UnknownNameError, match="did you mean 'Ada'"):
        reasoner.explain("Adda", "next", "Bo")
    with pytest.raises(UnknownNameError, match="unknown entity"):
        reasoner.explain("Ada", "next", "Zoe")
    with pytest.raises(InputError):
        reasoner.explain("Ada", "next", 99)


def test_a_rule_book_tells_rules_from_what_is_often_true():
    data = family(600)
    count = len(data.relations)
    book = RuleBook(data)

    def truth(head: str, *body: str) -> Truth:
        labels = [
            data.relations.index(name.removesuffix("⁻¹")) + count * name.endswith("⁻¹")
            for name in (head, *body)
        ]
        return book.truth(tuple(labels[1:]), labels[0])

    assert truth("grandmother", "father", "mother") == (True, True, True)
    assert truth("grandmother⁻¹", "mother⁻¹", "father⁻¹") == (True, True, True)
    assert truth("grandmother", "mother⁻¹", "father") == (False, False, False)
    assert truth("grandmother", "grandfather", "wife") == (False, True, True)
    assert truth("uncle", "brother", "uncle") == (False, True, True)
    assert truth("uncle", "aunt", "brother") == (False, False, False)  # may be the father
    assert truth("uncle⁻¹", "sister", "mother⁻¹") == (False, False, True)
    assert truth("husband", "husband", "husband") == (False, False, False)  # nobody has one


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_answers_are_explained_on_the_subgraph_they_were_found_in(name, monkeypatch):
    """Sampled once, with the same explanations as of each answer alone."""
    graph = random_graph(5, 60, 150)
    reasoner = reasoner_on(graph)
    reasoner.sampler = SAMPLERS[name](0.4)
    sample, calls = Sampler.sample, []

    def counting(self, *arguments, **options):
        calls.append(self)
        return sample(self, *arguments, **options)

    monkeypatch.setattr(Sampler, "sample", counting)
    found = reasoner.predict(7, 2, top=10, explain=True)
    assert len(calls) == 1
    assert len(found) == len(found.explanations) == 10
    assert reasoner.predict(7, 2, top=10) == dataclasses.replace(found, explanations=())
    for answer, explanation in zip(found, found.explanations, strict=True):
        alone = reasoner.explain(7, 2, answer.entity)
        assert explanation.as_dict() == alone.as_dict()
        assert explanation.batch is found.explanations[0].batch
        assert torch.equal(explanation.batch.edges, alone.batch.edges)
    assert any(explanation.paths for explanation in found.explanations)
    told = [answer["paths"] for answer in found.as_dict()["answers"]]
    assert told == [explanation.as_dict()["paths"] for explanation in found.explanations]


def test_only_the_best_answers_are_explained_if_so_many_are_asked_for():
    reasoner = reasoner_on(random_graph(5))
    found = reasoner.predict(7, 2, top=5, explain=2)
    assert [why.answer for why in found.explanations] == [answer.entity for answer in found[:2]]
    assert ["paths" in answer for answer in found.as_dict()["answers"]] == [True] * 2 + [False] * 3
    assert len(reasoner.predict(7, 2, top=3, explain=9).explanations) == 3
    assert reasoner.predict(7, 2, explain=0).explanations == ()


def test_answers_among_candidates_are_explained():
    reasoner = reasoner_on(random_graph(5, 60, 150), ratio=0.2)
    sampled = set(reasoner.predict(7, 2, top=60))
    names = [name for name in reasoner.graph.entities if name not in {a.entity for a in sampled}]
    found = reasoner.predict(7, 2, candidates=names[:3], explain=True)
    assert {why.answer for why in found.explanations} == set(names[:3])
    for answer, why in zip(found, found.explanations, strict=True):
        assert why.score == pytest.approx(answer.score)


def test_trained_on_a_family_the_first_path_is_a_true_rule():
    """Held-out facts that are answered correctly, in both directions; see `Truth`."""
    data = family(600)
    count = len(data.relations)
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(num_layers=3, dim=16, attention_dim=4), count)
    reasoner = Reasoner(data.graph, PPRSampler(max_entities=80), predictor)
    training = TrainingConfig(
        epochs=5, learning_rate=5e-3, fact_ratio=0.8, mask_known=True, valid_limit=100
    )
    fit(reasoner, data, training)

    book = RuleBook(data)
    queries, answers, right = right_answers(reasoner, data)
    assert right.double().mean() > 0.95
    chosen = right.nonzero().squeeze(1)[::5].tolist()
    truths = []
    for row in chosen:
        head, relation = queries[row].tolist()
        explanation = reasoner.explain(head, relation, int(answers[row]))
        assert not explanation.paths[0].known
        truths.append(book.truth_of(explanation, relation))
    listed, everywhere, asked = (sum(sense) / len(truths) for sense in zip(*truths, strict=True))
    assert asked >= 0.9
    assert everywhere >= 0.8
    assert listed >= 0.25
