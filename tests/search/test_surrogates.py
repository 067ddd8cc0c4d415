"""Tests of the surrogates: what they predict and propose, and that they find a known optimum."""

from typing import Any, get_args

import numpy as np
import pytest
from tests.support.searches import LEVEL, needs_smac, response, trials_to_reach

from oneshot.search.propose import Known, initial_design, propose, quiet, random_proposal
from oneshot.search.settings import Surrogate
from oneshot.search.space import Choice, Range, Space, phase_1_space

SURROGATES: tuple[Surrogate, ...] = get_args(Surrogate)


def known_trials(count: int, seed: int) -> list[Known]:
    space = phase_1_space({}, {})
    return [Known(p.values, 1 - response(p.values)) for p in initial_design(space, count, seed)]


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_a_proposal_follows_from_the_store_alone(surrogate: Surrogate) -> None:
    needs_smac()
    space = phase_1_space({}, {})
    known = known_trials(6, 3)
    first, again = (propose(space, known, 3, 6, surrogate) for _ in range(2))
    assert first == again
    assert first.values not in [k.values for k in known]
    waiting = [*known, Known(first.values, None)]
    assert propose(space, waiting, 3, 6, surrogate).values != first.values


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_proposals_are_variations_of_the_best_in_turn_and_never_the_same(
    surrogate: Surrogate,
) -> None:
    needs_smac()
    space = phase_1_space({}, {})
    known = known_trials(8, 5)
    origins = []
    for number in range(8, 14):
        found = propose(space, known, 5, number, surrogate)
        assert found.values not in [k.values for k in known]
        origins.append(found.origin)
        if found.origin == "variation":
            best = sorted(known, key=lambda k: k.cost or 0.0)[:3]
            shared = [sum(found.values.get(n) == v for n, v in k.values.items()) for k in best]
            # At most three values are others, and what depends on them.
            assert max(shared) >= len(found.values) - 3 - 2
        known.append(Known(found.values, 1 - response(found.values)))
    assert origins[::2] == ["variation"] * 3
    assert "variation" not in origins[1::2]


def test_all_surrogates_choose_among_the_same_variations(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_smac()
    from oneshot.search import surrogates

    asked: dict[Surrogate, Any] = {}
    make = surrogates.make_surrogate

    def watched(surrogate: Surrogate, configspace: Any, seed: int) -> Any:
        model = make(surrogate, configspace, seed)
        predict = model.predict_marginalized

        def noted(rows: Any) -> Any:
            asked[surrogate] = rows
            return predict(rows)

        monkeypatch.setattr(model, "predict_marginalized", noted)
        return model

    monkeypatch.setattr(surrogates, "make_surrogate", watched)
    for surrogate in SURROGATES:
        found = propose(phase_1_space({}, {}), known_trials(8, 5), 5, 8, surrogate)
        assert found.origin == "variation"
    assert len(asked["forest"]) > 300
    for surrogate in SURROGATES[1:]:
        np.testing.assert_array_equal(asked[surrogate], asked["forest"])


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_predictions_follow_the_costs(surrogate: Surrogate) -> None:
    needs_smac()
    import ConfigSpace
    from scipy.stats import spearmanr

    from oneshot.search.surrogates import make_surrogate

    space = phase_1_space({}, {})
    configspace = space.configspace(0)
    drawn = [random_proposal(space, 2, number).values for number in range(160)]
    rows = np.array(
        [ConfigSpace.Configuration(configspace, values=values).get_array() for values in drawn]
    )
    costs = np.array([[1 - response(values)] for values in drawn])
    model = make_surrogate(surrogate, configspace, 0)
    with quiet():
        model.train(rows[:60], costs[:60])
    mean, variance = model.predict_marginalized(rows[60:])
    assert mean.shape == variance.shape == (100, 1)
    assert spearmanr(mean[:, 0], costs[60:, 0]).statistic > 0.6
    # Its own opinion of how far it may be wrong is of the right size.
    assert 0.2 < float(np.mean((mean - costs[60:]) ** 2 / variance)) < 5
    # Costs that are all the same tell nothing, and are no error.
    with quiet():
        model.train(rows[:3], np.full((3, 1), 0.5))
    assert model.predict_marginalized(rows)[0] == pytest.approx(0.5, abs=1e-3)


def test_expected_improvement_is_the_mean_of_what_is_won() -> None:
    needs_smac()
    from oneshot.search.surrogates import expected_improvement

    mean, variance, best = np.array([0.3, 0.5, 0.9]), np.array([0.01, 0.04, 1e-30]), 0.4
    drawn = mean + np.sqrt(variance) * np.random.default_rng(0).normal(size=(200_000, 3))
    won = np.maximum(best - drawn, 0).mean(0)
    assert expected_improvement(mean, variance, best) == pytest.approx(won, abs=1e-3)


def test_columns_of_a_configuration_lie_between_0_and_1() -> None:
    needs_smac()
    import ConfigSpace

    from oneshot.search.surrogates import Encoder

    space = Space.of(
        {
            "predictor.message": Choice(("redgnn", "nbfnet", "drum")),
            "predictor.attention_dim": Choice((2, 4, 8)),
            "predictor.dropout": Range(0.0, 0.5),
        },
        {},
    )
    configspace = space.configspace(0)

    def columns(**values: Any) -> list[float]:
        named = {f"predictor.{name}": value for name, value in values.items()}
        row = ConfigSpace.Configuration(configspace, values=named).get_array()
        found: list[float] = sorted(Encoder(configspace)(row[None])[0].tolist())
        return found

    # Dropout, the place of the attention, and the one of three messages.
    assert columns(message="redgnn", attention_dim=8, dropout=0.1) == [0, 0, 0.2, 1, 1]
    assert columns(message="redgnn", attention_dim=4, dropout=0.1) == [0, 0, 0.2, 0.5, 1]
    assert columns(message="drum", dropout=0.45) == [0, 0, 0.5, 0.9, 1]


@pytest.mark.slow
def test_the_surrogate_finds_a_known_optimum_in_fewer_trials_than_random_search() -> None:
    needs_smac()
    rows = []
    for seed in range(5):
        guided = trials_to_reach(LEVEL, seed, 100, guided=True)
        random = trials_to_reach(LEVEL, seed, 1000, guided=False)
        rows.append((guided, random))
    assert sum(guided < random for guided, random in rows) >= 4, rows
