"""Embedding models within a time budget: they end in time, with the best state they had."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.clocks import FakeClock
from tests.support.extras import needs_pykeen
from tests.support.graphs import random_graph

from oneshot.data.dataset import Dataset
from oneshot.evaluation.frequency import frequency_scorer
from oneshot.evaluation.scorer import rank_split
from oneshot.experiments.baselines import embedding, peers
from oneshot.experiments.baselines.checkpoint import Course
from oneshot.experiments.baselines.embedding import build_model, train_embedding, triples_factory
from oneshot.experiments.baselines.interactions import is_fast, speed_up
from oneshot.experiments.baselines.pykeen_import import guest
from oneshot.experiments.baselines.pykeen_models import MEDIUM, RECIPES
from oneshot.experiments.baselines.timetable import Timetable
from oneshot.graph.graph import KnowledgeGraph
from oneshot.training.time_budget import TimeBudget

CPU = torch.device("cpu")
FAST = ["distmult", "complex", "rotate", "conve"]


@pytest.fixture(scope="module")
def data() -> Dataset:
    graph = random_graph(5, entities=40, facts=260, relations=3)
    facts = graph.facts.long()
    rest = KnowledgeGraph.from_facts(facts[60:], graph.entities, graph.relations)
    return Dataset("small", rest, facts[:30], facts[30:60])


class Slow:
    """A watcher under whose clock every step takes a second; it sees the learning rates."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.steps = clock, 0
        self.epochs: list[int] = []
        self.loop: Any = None
        self.rates: list[float] = []

    def told(self, line: str) -> None: ...

    def resumed(self, epoch: int, best_mrr: float) -> None: ...

    def stepped(self) -> None:
        self.clock.now += 1.0
        self.steps += 1
        self.rates.append(self.loop.optimizer.param_groups[0]["lr"])

    def epoch_done(self, epoch: int, best_mrr: float | None) -> None:
        self.epochs.append(epoch)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    watcher = Slow(FakeClock())
    make = embedding._loop

    def seen(*arguments: Any) -> Any:
        watcher.loop = make(*arguments)
        return watcher.loop

    monkeypatch.setattr(embedding, "_loop", seen)
    return watcher


def answers(monkeypatch: pytest.MonkeyPatch, found: list[float]) -> list[float]:
    """Let validations find these MRRs, the last one forever; → those that were asked for."""
    asked: list[float] = []

    def ranked(*_: object, limit: int | None = None, **__: object) -> Any:
        mrr = found[min(len(asked), len(found) - 1)]
        if limit == 60:  # a validation, not the probe
            asked.append(mrr)
        queries = limit or 60
        return SimpleNamespace(metrics=SimpleNamespace(mrr=mrr), queries=queries, seconds=1e-9)

    monkeypatch.setattr(embedding, "rank_split", ranked)
    monkeypatch.setattr(embedding, "_PROBE_QUERIES", 30)
    return asked


def test_the_rate_falls_towards_the_end() -> None:
    clock = FakeClock()
    timetable = Timetable(TimeBudget(1.0, clock), Course())  # no evaluation: all of it is training
    end = 60 - timetable.budget.reserve
    rates = []
    for share in (0.0, 0.5, 0.6, 0.8, 0.99):
        clock.now = 1000 + share * end
        rates.append(timetable.rate)
        assert not timetable.is_over(0.0)
    assert rates == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.025])
    clock.now = 1000 + end
    assert timetable.is_over(0.0)
    assert timetable.is_cut


def test_the_end_begins_early_when_nothing_improves() -> None:
    clock = FakeClock()
    course = Course()
    timetable = Timetable(TimeBudget(10.0, clock), course)
    clock.now += 60
    course.bad = 4
    assert not timetable.validated(5)
    assert timetable.rate == 1.0
    course.bad = 5
    assert timetable.validated(5)
    assert not timetable.validated(5)  # it has begun already
    clock.now += 15
    assert timetable.rate == pytest.approx(0.5)
    assert not timetable.is_over(0.0)
    clock.now += 15
    assert timetable.is_over(0.0)
    assert not timetable.is_cut


def test_validations_leave_most_of_the_time_to_training() -> None:
    clock = FakeClock()
    budget = TimeBudget(10.0, clock)
    budget.validation_queries = 100
    budget.learn(100, 5.0)
    timetable = Timetable(budget, Course())
    clock.now += 30
    assert not timetable.is_due(2, 2)  # with the first it would be a third of the time
    clock.now += 10
    assert timetable.is_due(2, 2)
    timetable.validated(5)
    budget.learn(100, 5.0)
    clock.now += 40
    assert timetable.is_due(3, 10)  # epochs are long: a twentieth of the time is enough


@needs_pykeen
def test_a_training_ends_in_time_with_its_best_state(data: Dataset, slow: Slow) -> None:
    budget = TimeBudget(1.0, slow.clock)
    trained = train_embedding(
        RECIPES["complex"], data, CPU, dim=16, patience=10**6, watcher=slow, budget=budget
    )
    assert trained.stopped == "time"
    # A third of the time at most is kept for the evaluation, and no step begins too late.
    assert 40 <= slow.steps <= 60
    assert budget.used <= 60
    assert trained.epochs == slow.epochs[-1]
    again = rank_split(trained.scorer, data, "valid").metrics.mrr
    assert again == pytest.approx(trained.valid_mrr, abs=1e-9)
    assert slow.rates[0] == slow.rates[20] > slow.rates[-1] > 0


@needs_pykeen
def test_an_epoch_that_is_longer_than_the_time_is_cut(data: Dataset, slow: Slow) -> None:
    slow.clock.now += 58
    budget = TimeBudget(1.0, slow.clock, slow.clock.now - 58)
    trained = train_embedding(RECIPES["distmult"], data, CPU, dim=8, watcher=slow, budget=budget)
    assert trained.stopped == "time"
    assert slow.steps <= 2
    assert (trained.epochs, trained.best_epoch) == (0, 0)
    assert trained.valid_mrr > 0


@needs_pykeen
def test_a_training_that_no_longer_improves_goes_back_to_its_best(
    data: Dataset, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answers(monkeypatch, [0.5, 0.6, 0.1, 0.1, 0.7, 0.2])
    budget = TimeBudget(1000.0, slow.clock)
    trained = train_embedding(
        RECIPES["complex"], data, CPU, dim=4, patience=2, watcher=slow, budget=budget
    )
    assert trained.stopped == "patience"
    assert found[:5] == [0.5, 0.6, 0.1, 0.1, 0.7]
    assert trained.valid_mrr == 0.7
    begun = next(step for step, rate in enumerate(slow.rates) if rate < slow.rates[0])
    assert slow.steps == pytest.approx(1.5 * begun, abs=2)


@needs_pykeen
def test_a_killed_training_has_the_rest_of_its_time(
    data: Dataset, slow: Slow, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(course: Course, _: object) -> bool:
        course.seconds = 30.0
        return False

    monkeypatch.setattr(Course, "read", read)
    budget = TimeBudget(1.0, slow.clock)
    options: Any = {"dim": 8, "watcher": slow, "budget": budget, "kept": tmp_path / "kept"}
    train_embedding(RECIPES["complex"], data, CPU, **options, patience=10**6)
    assert slow.steps <= 30


@needs_pykeen
def test_figures_tell_how_much_of_the_test_split_was_asked(
    data: Dataset, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"dim": 8, "watcher": slow, "clock": slow.clock}
    whole = peers.measure_embedding(RECIPES["complex"], data, CPU, minutes=1.0, **options)
    assert (whole["queries"], whole["of"]) == (60, 60)
    assert whole["stopped"] == "time"
    learn = TimeBudget.learn

    def late(budget: TimeBudget, queries: int, seconds: float) -> None:
        learn(budget, queries, seconds)
        budget.seconds_per_query = 1.0  # so that there is no time for all

    monkeypatch.setattr(TimeBudget, "learn", late)
    part = peers.measure_embedding(RECIPES["complex"], data, CPU, minutes=1.0, **options)
    assert 16 <= part["queries"] < part["of"] == 60
    free = peers.measure_embedding(RECIPES["complex"], data, CPU, dim=8, epochs=1)
    assert "queries" not in free


@needs_pykeen
@pytest.mark.parametrize("name", FAST)
def test_scores_of_all_entities_are_those_of_pykeen(
    data: Dataset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, guest(0, CPU):
        patched.setattr(embedding, "speed_up", lambda model: None)
        model = build_model(RECIPES[name], triples_factory(data, RECIPES[name].inverse), 16).eval()
    assert not is_fast(model)
    asked = data.test[:, :2], data.test[:, 1:]
    with torch.no_grad():
        slowly = model.predict_t(asked[0]), model.predict_h(asked[1])
    names = list(model.state_dict())
    speed_up(model)
    assert is_fast(model)
    assert list(model.state_dict()) == names
    with torch.no_grad():
        fast = model.predict_t(asked[0]), model.predict_h(asked[1])
    for one, other in zip(slowly, fast, strict=True):
        assert one.shape == other.shape == (30, data.graph.num_entities)
        assert float(one.std()) > 0
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_sample_of_a_split_is_asked_in_both_directions(data: Dataset) -> None:
    scorer, directions = frequency_scorer(data), []

    def seen(queries: torch.Tensor) -> torch.Tensor:
        directions.append((queries[:, 1] >= data.graph.num_relations).tolist())
        return scorer(queries)

    whole = rank_split(seen, data, "test")
    assert (whole.queries, whole.of) == (60, 60)
    part = rank_split(seen, data, "test", limit=25, seed=1)
    assert (part.queries, part.of) == (25, 60)
    assert all(len(set(step)) == 1 for step in directions)  # a step asks in one direction
    assert sum(len(step) for step in directions[-2:]) == 25
    assert rank_split(scorer, data, "test", limit=1000).metrics == whole.metrics


def test_with_a_time_budget_products_learn_from_all_entities() -> None:
    recipe = RECIPES["distmult"]
    assert recipe.on(5000, CPU).negatives is not None
    assert recipe.timed(5000).negatives is None
    assert recipe.timed(MEDIUM + 1) == recipe
    assert RECIPES["rotate"].timed(5000) == RECIPES["rotate"]  # distances learn from hard ones
