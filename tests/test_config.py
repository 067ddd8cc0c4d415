"""Tests of the configuration: what is read, what is written, what is wrong."""

import dataclasses
import math
import os
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot.config import (
    Config,
    PredictorConfig,
    SamplerConfig,
    TrainingConfig,
    from_table,
    read_config,
    to_toml,
)
from oneshot.errors import InputError
from oneshot.reasoner.build import build_sampler, sampler_config
from oneshot.samplers import SAMPLERS, PPRSampler, RandomWalkSampler, Sampler

CHANGED = Config(
    SamplerConfig(
        name="bfs",
        entity_ratio={"default": 0.1, 'is "a"\\⁻¹\n\x00\x7f': 0.25},
        max_edges=1000,
        steps=7,
        keep_unreachable=True,
    ),
    PredictorConfig(message="nbfnet", compose="rotate", dim=6, dropout=0.25, gate=False),
    TrainingConfig(epochs=3, learning_rate=1e-5, fact_ratio=0.995, seed=2**40, loss="bce"),
)


@pytest.mark.parametrize("config", [Config(), CHANGED])
def test_what_is_written_is_read_again(tmp_path: Path, config: Config) -> None:
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert read_config(tmp_path / "config.toml") == config
    table = tomllib.loads(to_toml(config))
    assert table["format"] == 1
    for section in ("sampler", "predictor", "training"):
        part = dataclasses.asdict(getattr(config, section))
        assert table[section] == {key: value for key, value in part.items() if value is not None}


@given(st.text(st.characters(exclude_categories=("Cs",))), st.floats(0.01, 1))
def test_any_name_of_a_relation_can_be_written(name: str, ratio: float) -> None:
    config = Config(SamplerConfig(entity_ratio={name: ratio}))
    assert tomllib.loads(to_toml(config))["sampler"]["entity_ratio"] == {name: ratio}


def test_files_are_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    config = Config(SamplerConfig(entity_ratio={"default": 0.1, "größer": 0.25}))
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    code = (
        "from pathlib import Path; from oneshot.config import read_config\n"
        "print(ascii(read_config(Path('config.toml')).sampler.entity_ratio))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout.strip(), done.stderr) == (ascii(config.sampler.entity_ratio), "")


def test_settings_change_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[predictor]\ndim = 32\nnum_layers = 4\n[training]\nlearning_rate = 1\n")
    config = read_config(
        path,
        [
            "predictor.dim=16",
            "predictor.message = nbfnet",
            "sampler.entity_ratio={default=0.1, born_in=0.5}",
            'training.loss="bce"',
            "predictor.gate=false",
        ],
    )
    assert (config.predictor.dim, config.predictor.num_layers) == (16, 4)
    assert (config.predictor.message, config.predictor.gate) == ("nbfnet", False)
    assert config.sampler.entity_ratio == {"default": 0.1, "born_in": 0.5}
    assert (config.training.loss, config.training.learning_rate) == ("bce", 1.0)
    assert isinstance(config.training.learning_rate, float)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("predictor.dmi=3", "unknown option predictor.dmi; did you mean predictor.dim?"),
        ("predictr.dim=3", "unknown option predictr; did you mean predictor?"),
        ("predictor.xyz=3", "unknown option predictor.xyz"),
        ("predictor.dim=large", "predictor.dim must be an integer, not 'large'"),
        ("predictor.dim=3.5", "predictor.dim must be an integer, not 3.5"),
        ("predictor.dim=true", "predictor.dim must be an integer, not True"),
        ("predictor.gate=1", "predictor.gate must be true or false, not 1"),
        ("predictor.message=red", "must be one of redgnn, nbfnet, drum, not 'red'; did you mean"),
        ("predictor.message=[1]", "must be one of redgnn, nbfnet, drum, not [1]"),
        ("predictor.dropout=1", "predictor.dropout must be below 1"),
        ("predictor.dropout=nan", "predictor.dropout must be at least 0, not nan"),
        ("predictor.dim=0", "predictor.dim must be at least 1, not 0"),
        ("predictor.compose=rotate", 'compose "rotate" needs message "nbfnet"'),
        ("sampler.entity_ratio=much", "must be a number or a table by relation name, not 'much'"),
        ("sampler.max_entities={a=0.5}", "must be an integer or a table by relation name"),
        ("sampler.name=3", "sampler.name must be a string, not 3"),
        ("training.learning_rate=0", "training.learning_rate must be above 0"),
        ("training.learning_rate=inf", "training.learning_rate must be at most 1,000, not inf"),
        ("training.learning_rate=1e300", "training.learning_rate must be at most 1,000"),
        ("training.learning_rate=nan", "training.learning_rate must be at most 1,000, not nan"),
        ("training.learning_rate=1" + "0" * 400, "training.learning_rate must be a number"),
        ("training.seed=1" + "0" * 30, "training.seed must be at most 9,223,372,036,854,775,807"),
        ("training.seed=-1", "training.seed must be at least 0"),
        ("training.batch_size=1" + "0" * 20, "training.batch_size must be at most 1,000,000"),
        ("predictor.dim=1" + "0" * 22, "predictor.dim must be at most 65,536"),
        ("predictor.dim=1" + "0" * 5000, "setting predictor.dim: not a value"),
        ("predictor.dim=0x" + "f" * 5000, "predictor.dim must be an integer, not the given value"),
        ("predictor.message=0x" + "f" * 5000, "predictor.message must be one of redgnn"),
        ("predictor.dim=" + "[" * 100_000, "setting predictor.dim: not a value"),
        ("predictor.attention_dim=1" + "0" * 11, "predictor.attention_dim must be at most 65,536"),
        ("predictor.num_layers=100000", "predictor.num_layers must be at most 1,000"),
        ("sampler.walks=1" + "0" * 20, "sampler.walks must be at most 1,000,000"),
        ("sampler.length=0", "sampler.length must be at least 1"),
        ("sampler.steps=1" + "0" * 20, "sampler.steps must be at most 100,000"),
        ("sampler.steps=0", "sampler.steps must be at least 1"),
        ("sampler.ball_factor=nan", "sampler.ball_factor must be at least 1, not nan"),
        ("sampler.ball_factor=inf", "sampler.ball_factor must be at least 1, not inf"),
        ("training.fact_ratio=1", "training.fact_ratio must be below 1"),
        ("training.fact_ratio=0", "training.fact_ratio must be above 0"),
        ("training.weight_decay=-1", "training.weight_decay must be at least 0"),
        ("training.epochs", "setting 'training.epochs': write section.key=value"),
        ("epochs=3", "setting 'epochs=3': write section.key=value"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_table({}, [setting])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[predictor", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"format = 2", "format 2 is unknown"),
        (b"predictor = 3", "predictor must be a table of options"),
        (b"[predictor]\ndim = '3'", "predictor.dim must be an integer"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    with pytest.raises(InputError, match=r"missing\.toml: No such file"):
        read_config(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    "sampler",
    [
        PPRSampler(0.2, {"default": 0.5}, restart=0.3, method="power", steps=4, transition="paper"),
        PPRSampler(max_entities=10, ball_factor=2.0, edge_score="sum", keep_unreachable=False),
        RandomWalkSampler(0.1, walks=7, length=3, seed=5),
        *(kind(0.3) for kind in SAMPLERS.values()),
    ],
    ids=lambda sampler: sampler.name,
)
def test_a_sampler_and_its_configuration_say_the_same(sampler: Sampler) -> None:
    built = build_sampler(sampler_config(sampler), sampler.seed)
    assert type(built) is type(sampler)
    assert vars(built) == vars(sampler)


def test_a_sampler_of_ones_own_has_no_name() -> None:
    class Mine(PPRSampler):
        pass

    with pytest.raises(InputError, match="type Mine is not registered"):
        sampler_config(Mine())


def test_defaults_of_the_configuration_are_those_of_the_samplers() -> None:
    config = SamplerConfig(keep_unreachable=True)
    assert vars(build_sampler(config)) == vars(PPRSampler())
    assert math.isclose(config.restart, 0.15)


def test_the_configuration_needs_no_torch() -> None:
    code = "import sys, oneshot.config; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_configuration_has_values_and_names_of_ours_alone() -> None:
    """Its strings choose among our parts; none of them is a path or code."""
    for section in dataclasses.fields(Config):
        cls = type(getattr(Config(), section.name))
        for name, hint in typing.get_type_hints(cls).items():
            kinds = {one for one in (typing.get_args(hint) or (hint,)) if not isinstance(one, str)}
            numbers = {int, float, bool, type(None), dict[str, int], dict[str, float]}
            if kinds <= numbers:
                continue  # numbers, or one of a few given strings
            assert kinds == {str}, (name, hint)
            table = {section.name: {name: "/etc/passwd"}}
            with pytest.raises(InputError, match=r"/etc/passwd|must be one of"):
                build_sampler(from_table(table).sampler)
