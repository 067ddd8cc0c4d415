"""Tests of the space of the search: its conditions, and how TOML changes it."""

from pathlib import Path

import pytest
from tests.support.samples import tiny_batch

from oneshot.config import Config, SamplerConfig
from oneshot.errors import InputError
from oneshot.predictor import Predictor
from oneshot.search.propose import nearest
from oneshot.search.sampler_phase import budget_space
from oneshot.search.settings import SearchSettings
from oneshot.search.space import (
    Choice,
    Range,
    Space,
    Value,
    configured,
    phase_1_space,
    phase_2_space,
    plain,
)
from oneshot.search.space_file import read_space

NAMED = (
    "message aggregate activation dropout dim attention_dim num_layers initial shortcut concat "
    "readout gate learning_rate weight_decay schedule fact_ratio batch_size "
    "priors reinject aggregate_over relation_rank split"
)


def from_text(tmp_path: Path, text: str) -> Space:
    (tmp_path / "space.toml").write_text(text)
    return phase_1_space(*read_space(tmp_path / "space.toml"))


def test_every_dimension_of_the_predictor_and_of_the_sampler_is_there() -> None:
    options = {name.partition(".")[2] for name in phase_1_space({}, {}).dimensions}
    assert set(NAMED.split()) <= options
    later = {name.partition(".")[2] for name in phase_2_space({}, {}, 0.1).dimensions}
    assert later == {"entity_ratio", "edge_ratio", "restart", "mixture", "context", "limit", "mass"}


def test_every_random_configuration_is_a_valid_one() -> None:
    pytest.importorskip("ConfigSpace", reason="the extra `search` is not installed")
    space = phase_1_space({}, {})
    for drawn in space.configspace(0).sample_configuration(300):
        values = plain(space, drawn)
        config = configured(Config(), values)  # raises if two options do not go together
        assert config.predictor.dim == values["predictor.dim"]
        is_attentive = values["predictor.message"] == "redgnn"
        assert ("predictor.attention_dim" in values) == is_attentive
        assert ("predictor.compose" in values) == (values["predictor.message"] != "drum")
        assert ("predictor.relation_rank" in values) == (values["predictor.message"] == "nbfnet")
        assert ("predictor.aggregate_over" in values) == (values["predictor.aggregate"] != "sum")
        assert ("training.fact_ratio" in values) == (values["training.split"] == "epoch")


def test_predictors_of_random_configurations_can_be_trained() -> None:
    """All parts go together: scores and gradients are finite."""
    pytest.importorskip("ConfigSpace", reason="the extra `search` is not installed")
    space = phase_1_space({"predictor.dim": Choice((4, 8))}, {"predictor.num_layers": 2})
    _, batch = tiny_batch()
    readouts = set()
    for drawn in space.configspace(1).sample_configuration(60):
        config = configured(Config(), space.whole(plain(space, drawn)))
        predictor = Predictor(config.predictor, 3)
        predictor(batch).square().sum().backward()
        for parameter in predictor.parameters():
            assert parameter.grad is None or bool(parameter.grad.isfinite().all())
        readouts.add((config.predictor.readout, config.predictor.message))
    assert len(readouts) == 9


@pytest.mark.parametrize("split", ["epoch", "leave_out"])
def test_a_fixed_split_decides_about_the_share_of_facts(tmp_path: Path, split: str) -> None:
    space = from_text(tmp_path, f'[training]\nsplit = "{split}"\n')
    assert ("training.fact_ratio" in space.dimensions) == (split == "epoch")


def test_the_share_of_context_is_searched_for_fitted_samplers_alone() -> None:
    def names(sampler: SamplerConfig, **given: Value) -> set[str]:
        settings = SearchSettings(test_space={f"test_sampler.{n}": v for n, v in given.items()})
        space = budget_space(settings, sampler, 0.1)
        assert "test_sampler.context" not in nearest(space, {})  # as trained
        return {name.partition(".")[2] for name in space.dimensions}

    assert {"mixture", "context"} <= names(SamplerConfig(name="fitted"))
    assert not {"mixture", "context"} & names(SamplerConfig(name="ppr"))
    assert "context" not in names(SamplerConfig(name="ppr"), context=0.3)
    settings = SearchSettings(test_space={"test_sampler.context": 0.3})
    space = budget_space(settings, SamplerConfig(name="fitted"), 0.1)
    assert space.whole({})["test_sampler.context"] == 0.3


def test_what_is_fixed_takes_along_what_depends_on_it(tmp_path: Path) -> None:
    space = from_text(tmp_path, '[predictor]\nmessage = "drum"\n')
    assert space.fixed == {"predictor.message": "drum"}
    assert not {"predictor.compose", "predictor.attention_dim"} & space.dimensions.keys()
    space = from_text(tmp_path, '[predictor]\nmessage = "redgnn"\n')
    assert space.dimensions["predictor.compose"] == Choice(("multiply", "add"))
    space = from_text(tmp_path, '[predictor]\nmessage = ["drum", "nbfnet"]\n')
    assert "predictor.attention_dim" not in space.dimensions
    pytest.importorskip("ConfigSpace", reason="the extra `search` is not installed")
    space.configspace(0).sample_configuration(50)


def test_what_is_fixed_is_left_out_where_it_plays_no_part(tmp_path: Path) -> None:
    space = from_text(tmp_path, '[predictor]\ncompose = "rotate"\n')
    assert space.dimensions["predictor.message"] == Choice(("nbfnet", "drum"))
    with_it = space.whole({"predictor.message": "nbfnet"})
    assert configured(Config(), with_it).predictor.compose == "rotate"
    without = space.whole({"predictor.message": "drum"})
    assert configured(Config(), without).predictor.message == "drum"


def test_ranges_are_narrowed_and_widened(tmp_path: Path) -> None:
    space = from_text(
        tmp_path,
        "[predictor]\ndim = [256, 8, 8]\nnum_layers = { low = 2, high = 3 }\n"
        "[training]\nlearning_rate = 0.003\nclip = [0.0, 1.0]\n"
        "[sampler]\nentity_ratio = { low = 0.1, high = 0.5, log = true }\n",
    )
    assert space.dimensions["predictor.dim"] == Choice((8, 256))
    assert space.dimensions["predictor.num_layers"] == Range(2, 3)
    assert space.dimensions["sampler.entity_ratio"] == Range(0.1, 0.5, log=True)
    assert space.dimensions["training.clip"] == Choice((0.0, 1.0))
    assert space.fixed == {"training.learning_rate": 0.003}
    assert "training.learning_rate" not in space.dimensions
    assert Space.from_table(space.as_table()) == space


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[predictor]\ndims = [8]\n", "predictor.dims cannot be searched; did you mean dim"),
        ("[training]\nepochs = [8, 9]\n", "training.epochs cannot be searched"),
        ("[prediktor]\ndim = [8]\n", "unknown section 'prediktor'"),
        ("[predictor]\ndim = []\n", "predictor.dim: the list is empty"),
        ("[predictor]\ndim = ['a', 'b']\n", "predictor.dim must be an integer"),
        ("[predictor]\nmessage = ['redgn']\n", "did you mean 'redgnn'"),
        ("[training]\nlearning_rate = { low = 1.0 }\n", "a range is"),
        ("[training]\nlearning_rate = { low = 1.0, high = 0.1 }\n", "low must be below high"),
        ("[training]\nweight_decay = { low = 0.0, high = 0.1, log = true }\n", "above 0 with log"),
        ("[test_sampler]\nwalks = [1, 2]\n", "test_sampler.walks cannot be searched"),
        ("[predictor]\ndim = [0, 8]\n", "predictor: dim must be at least 1"),
        (
            "[test_sampler]\nmass = { low = 0.5, high = 1.5 }\n",
            "mass must be above 0 and at most 1",
        ),
        ("[training]\nlearning_rate = [nan, 0.1]\n", "learning_rate must be"),
        ("[predictor]\nmessage = 'redgnn'\ncompose = 'rotate'\n", "is incompatible with"),
        ("[predictor\n", "not valid TOML"),
    ],
)
def test_wrong_spaces_are_named_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_text(tmp_path, text)


def test_values_from_elsewhere_are_drawn_into_the_ranges() -> None:
    space = phase_1_space({"training.clip": Range(0.5, 1.0)}, {})
    found = nearest(space, {"predictor.dim": 50, "predictor.message": "drum", "training.clip": 9.0})
    assert (found["predictor.dim"], found["training.clip"]) == (64, 1.0)
    assert "predictor.attention_dim" not in found
    assert found.keys() <= space.dimensions.keys()
