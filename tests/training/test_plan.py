"""The plan before training: what is chosen from data and machine."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.commands import Command
from tests.support.samples import chain_world

import oneshot
from oneshot.config import Config, from_table
from oneshot.data.dataset import Dataset, both_directions
from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.evaluation.coverage import coverage
from oneshot.factors import fitting_time
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.runs.run import Run
from oneshot.runs.train import train_run
from oneshot.samplers import FittedSampler, PPRSampler
from oneshot.samplers import fitted as fitted_module
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.plan import Plan, _direct_shares, make_plan
from oneshot.training.steps import Stepper

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured need not be exact here."""
    monkeypatch.setattr(sys.modules["oneshot.training.plan"], "_PROBE_SECONDS", 0.02)


def value_of(plan: Plan, option: str) -> object:
    section, key = option.split(".")
    return getattr(getattr(plan.config, section), key)


def test_a_plan_covers_what_can_be_covered_on_a_small_graph() -> None:
    data = load("umls")
    plan = make_plan(data, 5.0)
    queries, answers = both_directions(data.valid, data.graph.num_relations)
    ratio = value_of(plan, "sampler.entity_ratio")
    assert isinstance(ratio, float)
    sampler = FittedSampler(ratio)
    sampler.fit(data.graph)
    found = coverage(sampler, data.graph, queries, answers, [ratio])
    assert plan.coverage == pytest.approx(found.coverage[ratio], abs=0.03)
    assert plan.config.training.minutes == 5.0
    assert plan.memory > 0
    assert 0 < plan.seconds <= 300
    assert plan.queries > 0


def test_what_is_given_stays() -> None:
    data = load("umls")
    settings = ["predictor.dim=8", "predictor.num_layers=2", "sampler.max_entities=20"]
    plan = make_plan(data, 1.0, "cpu", [*settings, "training.batch_size=7"], seed=3)
    config = plan.config
    assert (config.predictor.dim, config.predictor.num_layers) == (8, 2)
    assert (config.sampler.max_entities, config.sampler.entity_ratio) == (20, None)
    assert (config.training.batch_size, config.training.seed) == (7, 3)
    given = {setting.partition("=")[0] for setting in settings}
    assert not given & {choice.option for choice in plan.choices}


def test_every_choice_is_in_the_configuration_once() -> None:
    plan = make_plan(load("umls"), 1.0)
    options = [choice.option for choice in plan.choices]
    assert len(options) == len(set(options))
    for choice in plan.choices:
        assert value_of(plan, choice.option) == choice.value


def test_factors_suit_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = sys.modules["oneshot.training.plan"]
    monkeypatch.setattr(planner, "_FEW_ENTITIES", 10)  # answers are compared with a sample

    def chosen(seconds: float, *settings: str) -> tuple[int, int, int]:
        """→ dimension, sample and epochs, if an epoch of 2,000 at 256 takes so long."""

        def epoch(self: Any) -> float:
            table = {"negatives": 2000, **self.table["factors"]}
            return seconds * table["dim"] / 256 * table["negatives"] / 2000

        monkeypatch.setattr(planner._Planner, "_factor_epoch", epoch)
        plan = make_plan(load("umls"), 10.0, settings=[*settings, "predictor.dim=8"])
        found = plan.config.factors
        return found.dim, found.negatives, found.epochs

    assert chosen(0.1) == (256, 2000, 50)
    assert chosen(5.0) == (256, 2000, 10)  # 72 s for the trials and ten epochs
    assert chosen(12.0) == (128, 2000, 10)
    assert chosen(40.0) == (128, 500, 24)  # 180 s, 5 s per epoch
    assert chosen(400.0)[0] == 0
    assert chosen(400.0, "factors.dim=32")[0] == 32
    assert chosen(0.1, "factors.dim=0")[0] == 0


def test_the_size_suits_the_time_that_the_factors_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = sys.modules["oneshot.training.plan"]
    pace = planner._Pace(training=0.05, evaluation=1e-9, edges=1.0, entities=1.0)
    monkeypatch.setattr(planner._Planner, "_probe", lambda *_: pace)
    monkeypatch.setattr(planner._Planner, "_factor_epoch", lambda _: 5.0)
    monkeypatch.setattr(planner.time, "perf_counter", lambda: 0.0)  # planning takes no time
    plan = make_plan(load("umls"), 10.0, settings=["predictor.dim=8", "predictor.members=1"])
    # An epoch takes 5 s: ten of them and twelve of trials. Validations take 12%, and 3% stay free.
    expected = 0.97 * 600 - 22 * 5 - 0.12 * 600
    assert plan.queries == pytest.approx(expected / 0.05, abs=1)
    assert plan.config.training.expected_queries == plan.queries
    # More time later is of use: the epochs are those of all queries that are.
    each = queries_per_epoch(plan.config.training, load("umls").graph.num_facts)
    useful = 30 * 2 * load("umls").graph.num_facts
    assert plan.queries < useful <= plan.config.training.epochs * each <= useful + 2 * each
    assert plan.seconds == pytest.approx(0.97 * 600, abs=0.1)
    assert not plan.is_beyond_budget
    # Fitting may take a little longer, not all that is allowed by default.
    assert 110 < plan.config.factors.time_share * 600 < 1.5 * 110
    free = make_plan(load("umls"), 10.0, settings=["predictor.num_layers=3", "predictor.members=1"])
    reason = {choice.option: choice.reason for choice in free.choices}["predictor.dim"]
    assert f": {free.queries:,} training queries" in reason


def test_the_time_limit_of_factors_is_that_of_the_plan() -> None:
    # Trials of twelve epochs are affordable in half of the time.
    assert fitting_time(1.0, 50, 1000.0) == (62.0, 1.3 * 62)
    assert fitting_time(1.0, 10, 1000.0) == (22.0, 1.3 * 24)
    assert fitting_time(1.0, 10, 24.5) == (22.0, 24.5)
    assert fitting_time(1.0, 10, 23.0) == (10.0, 13.0)
    assert fitting_time(1.0, 50, 23.0) == (23.0, 23.0)


def test_a_plan_that_needs_more_than_the_budget_says_so(run: Command) -> None:
    command = ["plan", "umls", "--set", "predictor.dim=8"]
    told = run(*command, "--minutes", "0.00001")  # planning itself takes longer
    lines = [line for line in told.err.splitlines() if "more than the budget of 1e-05" in line]
    assert len(lines) == 1
    assert "raise --minutes" in lines[0]
    assert "more than the budget" not in run(*command, "--minutes", "1000").err


def test_epochs_without_a_time_limit_are_all_expected() -> None:
    small = ["predictor.dim=8", "predictor.num_layers=2", "factors.dim=0"]
    epochs = ["training.epochs=5000", "training.fact_ratio=0.8"]
    plan = make_plan(chain_world(30), settings=[*small, *epochs])
    assert plan.config.training.minutes == plan.config.training.expected_queries == 0
    assert plan.queries == 5000 * 2 * 16  # a fifth of 80 facts, in both directions
    limited = make_plan(chain_world(30), 0.01, settings=[*small, *epochs])
    assert limited.config.training.minutes == 0.01
    assert limited.queries < plan.queries


def test_time_that_one_predictor_cannot_use_goes_to_an_ensemble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = sys.modules["oneshot.training.plan"]
    monkeypatch.setattr(planner._Planner, "_most_queries", 1000)
    settings = ["predictor.dim=8", "predictor.num_layers=2", "factors.dim=0"]
    short, long = (make_plan(load("umls"), m, settings=settings) for m in (0.01, 5.0))
    assert short.config.predictor.members == 1
    assert long.config.predictor.members == 3
    assert "ensemble" in {c.option: c.reason for c in long.choices}["predictor.members"]
    assert long.queries == pytest.approx(1000, rel=0.02)
    one = make_plan(load("umls"), 5.0, settings=[*settings, "predictor.members=1"])
    assert one.config.predictor.members == 1
    assert one.memory < long.memory  # the seconds are measured


def test_layers_follow_the_distance_of_the_answers() -> None:
    near, far = chain(1), chain(4)
    assert make_plan(near, 2.0).config.predictor.num_layers == 3
    assert make_plan(far, 2.0).config.predictor.num_layers == 6


def chain(hops: int) -> Dataset:
    """A path of entities; each held-out fact leads along so many of its edges."""
    size = 60
    facts = [[i, 0, i + 1] for i in range(size - 1)]
    held_out = torch.tensor([[i, 1, i + hops] for i in range(0, size - hops, 3)])
    facts += [[i, 1, i + hops] for i in range(1, size - hops, 9)] if hops > 1 else [[0, 1, 1]]
    graph = KnowledgeGraph.from_facts(facts, size, 2)
    return Dataset("chain", graph, held_out, held_out)


def test_direct_facts_are_hidden_where_held_out_pairs_have_none() -> None:
    facts = [[i, r, i + 1] for i in range(0, 100, 2) for r in (0, 1)]
    facts += [[i, 0, (i + 3) % 100] for i in range(0, 100, 2)]
    graph = KnowledgeGraph.from_facts(facts, 100, 2)
    apart = torch.tensor([[i, 1, (i + 5) % 100] for i in range(0, 60, 2)])
    data = Dataset("apart", graph, apart, apart)
    valid, train = _direct_shares(data, 0)
    assert valid == 0
    assert train == pytest.approx(2 / 3, abs=0.01)
    assert make_plan(data, 0.2).config.training.hide_direct
    linked = Dataset("linked", graph, graph.facts[:30].long(), apart)
    assert not make_plan(linked, 0.2).config.training.hide_direct


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_no_time_is_refused(minutes: float) -> None:
    with pytest.raises(InputError, match="minutes must be above 0"):
        make_plan(load("umls"), minutes)


def test_odd_graphs_have_a_plan_or_a_clear_line() -> None:
    one = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [2, 0, 3]], 4, 1)
    held_out = torch.tensor([[0, 0, 2]])
    assert isinstance(make_plan(Dataset("one relation", one, held_out, held_out), 0.1), Plan)
    two = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 3, 1)
    assert isinstance(make_plan(Dataset("two facts", two, held_out, held_out), 0.1), Plan)
    single = KnowledgeGraph.from_facts([[0, 0, 1]], 3, 1)
    with pytest.raises(InputError, match="at least two facts"):
        make_plan(Dataset("one fact", single, held_out, held_out), 0.1)
    with pytest.raises(InputError, match="validation split"):
        make_plan(Dataset("no valid", two, held_out[:0], held_out), 0.1)
    unseen = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 6, 1)
    apart = torch.tensor([[3, 0, 4], [4, 0, 5]])
    data = Dataset("unseen", unseen, apart, apart)
    assert make_plan(data, 0.1, settings=["sampler.name='ppr'"]).coverage == 0
    assert make_plan(data, 0.1).coverage == 1  # no path leads there, but a graph so small is whole


@pytest.mark.parametrize(("dim", "layers", "ratio"), [(16, 3, 0.5), (64, 3, 0.5), (64, 5, 1.0)])
def test_the_memory_of_a_plan_is_about_that_of_a_step(dim: int, layers: int, ratio: float) -> None:
    data = load("umls")
    settings = [f"predictor.dim={dim}", f"predictor.num_layers={layers}", "factors.dim=0"]
    plan = make_plan(data, 1.0, settings=[*settings, f"sampler.entity_ratio={ratio}"])
    training = dataclasses.replace(plan.config.training, minutes=0.0)
    stepper = Stepper(reasoner_of(data, plan.config), data, training)
    epoch, kept = stepper.draw_epoch(1), dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        next(stepper.steps(epoch))
    # What the backward pass needs is the largest part; plain operations keep more than kernels.
    assert 0.3 * sum(kept.values()) < plan.memory < 6 * sum(kept.values())


def test_the_memory_of_a_plan_grows_with_the_batch_and_the_subgraph() -> None:
    planner = sys.modules["oneshot.training.plan"]

    def memory(entities: float, edges: float, *settings: str) -> int:
        pace = planner._Pace(1.0, 1.0, edges=edges, entities=entities)
        return int(planner._memory(from_table({}, settings), pace))

    one = memory(100, 1000, "training.batch_size=8")
    assert memory(100, 1000, "training.batch_size=32") == 4 * one
    assert memory(200, 2000, "training.batch_size=8") == 2 * one
    for more in ("predictor.dim=128", "predictor.num_layers=9", "predictor.members=2"):
        assert memory(100, 1000, "training.batch_size=8", more) > one


def test_a_large_graph_has_a_sampler_that_needs_no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting one to millions of facts takes minutes, and the order of all entities, too."""
    planner = sys.modules["oneshot.training.plan"]
    data, settings = load("umls"), ["predictor.dim=8", "predictor.num_layers=2", "factors.dim=0"]
    fitted = make_plan(data, 1.0, settings=settings).config
    assert (fitted.sampler.name, fitted.sampler.method) == ("fitted", "auto")
    assert fitted.predictor.priors
    monkeypatch.setattr(planner, "_MOST_FITTED", data.graph.num_facts - 1)
    monkeypatch.setattr(planner, "LOCAL_LARGEST_SHARE", 0.4)
    monkeypatch.setattr(FittedSampler, "fit", lambda *_: pytest.fail("it was fitted"))
    plain = make_plan(data, 1.0, settings=settings)
    assert (plain.config.sampler.name, plain.config.sampler.method) == ("ppr", "auto")
    assert not plain.config.predictor.priors
    # PPR by a local method knows the nearest entities alone: no budget is larger.
    monkeypatch.setattr(PPRSampler, "chosen_method", lambda *_: "push")
    local = make_plan(data, 1.0, settings=settings)
    assert local.config.sampler.method == "push"
    ratio = local.config.sampler.entity_ratio
    assert isinstance(ratio, float)
    assert 0 < int(ratio * 135) <= 0.4 * 135
    assert local.coverage < plain.coverage
    assert "facts takes long" in {c.option: c.reason for c in local.choices}["sampler.name"]
    own = make_plan(data, 1.0, settings=[*settings, "sampler.name=bfs"])
    assert (own.config.sampler.name, own.config.sampler.method) == ("bfs", "auto")
    assert own.coverage > local.coverage
    for budget, method in (
        ("0.3", "push"),
        ("0.9", "auto"),
        ("{default = 0.3, treats = 0.9}", "auto"),
    ):
        mine = make_plan(data, 1.0, settings=[*settings, f"sampler.entity_ratio={budget}"])
        assert mine.config.sampler.method == method, budget


def test_a_plan_with_local_scores_fits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the push, every budget has scores of its own."""
    fits, fit = [], FittedSampler._fitted

    def counted(sampler: FittedSampler, *arguments: Any) -> Any:
        fits.append(sampler)
        return fit(sampler, *arguments)

    monkeypatch.setattr(fitted_module, "_fits", {})
    monkeypatch.setattr(FittedSampler, "_fitted", counted)
    settings = ["predictor.dim=8", "predictor.num_layers=2", "factors.dim=0"]
    found = make_plan(load("umls"), 1.0, settings=[*settings, "sampler.method=push"]).config
    assert (found.sampler.name, found.sampler.method) == ("fitted", "push")
    assert len(fits) == 1


@pytest.mark.parametrize("size", [1, 7, 100, 12_345])
def test_a_small_budget_of_a_large_graph_is_exact(size: int) -> None:
    planner = sys.modules["oneshot.training.plan"]
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 2_000_000, 1)
    held_out = torch.tensor([[0, 0, 2]])
    found = planner._Planner(Dataset("large", graph, held_out, held_out), 1.0, CPU, (), 0)
    found._choose_budget(planner._Size(16, 3, size), torch.tensor([0, 5]))
    sampler = build_sampler(from_table(found.table).sampler)
    assert sampler.budget.entity_counts(graph, torch.tensor([0])).tolist() == [size]


def test_a_probe_of_a_slow_size_has_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = sys.modules["oneshot.training.plan"]
    sizes: list[int] = []

    class Noted(Stepper):
        def __init__(self, *arguments: Any) -> None:
            sizes.append(arguments[2].batch_size)
            super().__init__(*arguments)

    monkeypatch.setattr(planner, "Stepper", Noted)
    monkeypatch.setattr(planner._Planner, "_guess", lambda *_: 0.5)
    for minutes, queries in ((10.0, 4), (2.0, 2)):  # two seconds, and a hundredth of the time
        sizes.clear()
        settings = ["predictor.dim=8", "predictor.num_layers=2"]
        make_plan(chain_world(30), minutes, settings=settings)
        assert sizes[0] == queries


def test_a_plan_needs_a_data_set() -> None:
    with pytest.raises(InputError, match="data must be a Dataset, as"):
        make_plan("umls", 1.0)  # type: ignore[arg-type]


ODD = {
    "one relation": ([[0, 0, 1], [1, 0, 2], [2, 0, 3]], 4, [[0, 0, 2]]),
    "two facts": ([[0, 0, 1], [1, 0, 2]], 3, [[0, 0, 2]]),
    "the same fact twice": ([[0, 0, 1], [0, 0, 1], [1, 0, 1]], 2, [[0, 0, 1]]),
    "unseen valid entities": ([[0, 0, 1], [1, 0, 2]], 6, [[3, 0, 4], [4, 0, 5]]),
    "loops": ([[0, 0, 0], [1, 0, 1], [2, 1, 2]], 3, [[0, 1, 0]]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("sampler", ["fitted", "ppr"])
def test_odd_graphs_are_trained_to_a_usable_run(tmp_path: Path, name: str, sampler: str) -> None:
    facts, entities, held_out = ODD[name]
    relations = 1 + max(relation for _, relation, _ in facts)
    graph = KnowledgeGraph.from_facts(facts, entities, relations)
    data = Dataset(name, graph, torch.tensor(held_out), torch.tensor(held_out))
    settings = [f"sampler.name='{sampler}'", "predictor.dim=4"]
    config = make_plan(data, 0.01, settings=settings).config
    messages: list[str] = []
    result = train_run(data, tmp_path / "run", config, CPU, messages=messages.append)
    assert result["epochs"] >= 1
    assert 0 < result["test"]["mrr"] <= 1
    assert 0 < result["baseline_mrr"] <= 1
    assert all("\n" not in message for message in messages)
    reasoner = Run.open(tmp_path / "run").reasoner
    answers = list(reasoner.predict(0, 0))
    assert answers
    assert all(0 <= answer.probability <= 1 for answer in answers)


def test_the_public_function_gives_the_configuration() -> None:
    data = load("umls")
    config = oneshot.plan(data, minutes=0.5, device="cpu", settings=["predictor.dim=16"])
    assert isinstance(config, Config)

    state = oneshot.fit(
        reasoner_of(data, config), data, dataclasses.replace(config.training, epochs=1, minutes=0)
    )
    assert state.epoch == 1


def reasoner_of(data: Dataset, config: Config) -> "oneshot.Reasoner":
    return build_reasoner(data.graph, config)


def test_the_command(run: Command) -> None:
    found = run("plan", "umls", "--minutes", "1", "--json").json
    assert {"config", "seconds", "coverage", "memory", "reasons"} <= found.keys()
    assert found["config"]["training"]["minutes"] == 1.0
    assert found["reasons"]["training.clip"]
    assert all(found["reasons"].values())
    table = run("plan", "umls", "--minutes", "1", "--set", "predictor.dim=8").out
    assert "sampler.entity_ratio" in table
    assert "predictor.dim" not in table
    assert "training.clip" not in table  # a detail
    assert "expected: " in table


def test_a_chain_is_planned_and_trained() -> None:
    data = chain_world(30)
    config = oneshot.plan(data, minutes=0.2, device="cpu")
    assert config.training.epochs >= 1


def test_training_plans_what_is_not_set(run: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = ["--set", "predictor.dim=8", "--set", "predictor.num_layers=2"]
    command = ["train", "umls", "--out", str(out), *small, "--device", "cpu"]
    found = run(*command, "--minutes", "0.1", "--json").json
    assert found["plan"]["config"]["predictor"]["dim"] == 8
    assert found["plan"]["reasons"].keys() >= {"sampler.entity_ratio", "training.epochs"}
    assert 0 < found["baseline_mrr"] < 1
    kept = Run(out).config
    assert kept.training.minutes == 0.1
    assert dataclasses.asdict(kept) == found["plan"]["config"]
    again = run(*command, "--resume", "--json").json
    assert again["already_finished"]
    assert again["plan"] is None


def test_the_configuration_of_a_run_repeats_its_plan(run: Command, tmp_path: Path) -> None:
    """A second plan may differ, as the machine is measured; a saved one is used as it is."""
    first, second = tmp_path / "first", tmp_path / "second"
    small = ["predictor.dim=8", "predictor.num_layers=2", "training.epochs=1"]
    small += ["factors.dim=4", "factors.epochs=2", "sampler.entity_ratio=0.2"]
    command = ["train", "umls", "--device", "cpu", "--json"]
    settings = [part for setting in small for part in ("--set", setting)]
    planned = run(*command, "--out", first, *settings).json
    again = run(*command, "--out", second, "--config", first / "config.toml").json
    assert Run(second).config == Run(first).config
    assert again["plan"] is None
    assert again["test"]["mrr"] == pytest.approx(planned["test"]["mrr"], abs=0.01)


def test_epochs_that_are_set_decide(run: Command, tmp_path: Path) -> None:
    command = [
        "train",
        "umls",
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
        "--json",
    ]
    tiny = [
        "--set",
        "predictor.dim=8",
        "--set",
        "training.epochs=1",
        "--set",
        "predictor.num_layers=2",
        "--set",
        "factors.dim=0",
    ]
    found = run(*command, *tiny, "--set", "sampler.max_entities=10").json
    assert found["epochs"] == 1
    assert found["plan"]["config"]["training"]["minutes"] == 0
    assert found["plan"]["config"]["training"]["query_share"] == 1.0


def test_without_a_plan_the_defaults_are_taken(run: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tiny = [
        "predictor.dim=4",
        "training.epochs=1",
        "predictor.num_layers=1",
        "sampler.max_entities=5",
    ]
    settings = [part for setting in tiny for part in ("--set", setting)]
    found = run("train", "umls", "--out", str(out), "--no-plan", *settings, "--json").json
    assert found["plan"] is None
    assert Run(out).config == from_table({}, tiny)


def test_a_plan_for_seconds_measures_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps at the first probe: planning has taken its share then."""
    planner = sys.modules["oneshot.training.plan"]
    pace = planner._Pace(training=0.01, evaluation=0.001, edges=1.0, entities=1.0)
    probed: list[Any] = []

    def probe(self: Any, size: Any, _: float) -> Any:
        probed.append(size)
        self.started -= 100
        return pace._replace(training=10.0 ** len(probed))  # so that other sizes are better

    monkeypatch.setattr(planner._Planner, "_probe", probe)
    monkeypatch.setattr(FittedSampler, "fit", lambda *_: pytest.fail("a sampler was fitted"))
    short = make_plan(load("umls"), 0.05)
    assert len(probed) == 1
    assert (short.config.sampler.name, short.config.factors.dim) == ("ppr", 0)


def test_a_late_plan_takes_the_cheapest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = sys.modules["oneshot.training.plan"]
    data = chain_world(30)
    places = torch.arange(10)
    early = planner._Planner(data, 1.0, CPU, (), 0)
    sizes = early._sizes(6, places)
    early.started -= 10
    late = early._sizes(6, places)
    assert {(size.dim, size.layers) for size in late} == {(min(sizes).dim, min(sizes).layers)}
    assert {size.entities for size in late} == {size.entities for size in sizes}
    monkeypatch.setattr(planner, "_FEW_FACTS", 0)  # comparing the budgets of a large graph is slow
    assert early._sizes(6, places) == [min(sizes)]
    long = planner._Planner(data, 10.0, CPU, (), 0)
    long.started -= 1000
    assert long._sizes(6, places) == sizes
