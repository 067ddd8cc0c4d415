import math

import pytest
import torch

from oneshot.data.load import Dataset, load
from oneshot.evaluation.frequency import frequency_metrics
from oneshot.experiments.demo import QUESTION, run_demo
from oneshot.graph.graph import KnowledgeGraph


def test_frequency_ranks_by_how_often_an_entity_occurs_with_the_relation():
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [2, 0, 1], [3, 0, 4], [0, 1, 5]], 6, 2)
    test = torch.tensor([[5, 0, 4]])
    result = frequency_metrics(Dataset("tiny", graph, test, test))
    # (5, 0, ?): entity 1 occurs twice, 4 once: rank 2. (?, 0, 4): 0 and 2 once, 3 is known;
    # 5 never, like 1 and 4: 2 higher, 2 equal: rank 4.
    assert result.mrr == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_the_question_of_the_demo_has_a_held_out_answer():
    data = load("world")
    entity, relation = data.entities.index(QUESTION[0]), data.relations.index(QUESTION[1])
    held_out = data.test[(data.test[:, 0] == entity) & (data.test[:, 1] == relation)]
    assert len(held_out) >= 1


@pytest.mark.slow
def test_the_demo_is_twice_as_good_as_the_baseline(tmp_path):
    answered = []
    shown = run_demo(tmp_path, 0, torch.device("cpu"), answered=answered.append)
    assert answered == [shown.untrained]
    assert [answer.known for answer in shown.untrained] == [False] * 5
    assert shown.result["test"]["mrr"] > 2 * shown.baseline.mrr
    assert shown.plot.stat().st_size > 10_000
    assert math.isfinite(shown.prediction[0].score)
    assert shown.explanation.paths
