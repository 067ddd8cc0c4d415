"""Tests of the search as a whole, through its command."""

from pathlib import Path

from tests.support.commands import Command
from tests.support.samples import chain_world, write_world
from tests.support.searches import arguments, needs_smac

from oneshot.config import read_config
from oneshot.runs.run import Run
from oneshot.search.search import may_begin, stored_effort, stored_settings
from oneshot.search.settings import Effort
from oneshot.search.space import phase_1_space
from oneshot.search.store import Store, only_one


def test_a_search_from_data_to_budgets(tmp_path: Path, run: Command) -> None:
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    out = tmp_path / "search"
    more = ("--trials", 6, "--sampler-trials", 5, "--random", 1)
    found = run(*arguments(data, out, *more), "--json").json
    assert (found["trials"], found["sampler_trials"], found["random_searches"]) == (6, 5, 1)
    assert 0 < found["valid"] <= 1
    assert set(found["best"]) == {"sampler", "predictor", "training", "factors"}
    assert found["phase_2"]["after"]["entities"] <= found["phase_2"]["before"]["entities"]
    assert found["phase_2"]["per_relation"].keys() == {"after", "after⁻¹"}
    assert found["test"]["mrr"] > 0
    assert len(found["importance"]) == len(phase_1_space({}, {}).dimensions)
    names = {entry.name for entry in out.iterdir()}
    assert {"trials.sqlite", "config.toml", "run", "best", "search.json"} <= names
    assert read_config(out / "config.toml").predictor.dim == found["best"]["predictor"]["dim"]
    assert Run(out / "best").reasoner.predict("link 1", "next")
    # Shown again, it is the same, also for people.
    shown = run("search", "--show", out, "--json").json
    assert shown == found
    # While it runs, and where nothing can be written, it is shown all the same.
    with only_one(out):
        busy = run("search", "--show", out, "--json")
    assert "another process is running this search" in busy.err
    assert busy.json["trials"] == 6
    (tmp_path / "mine").write_text("precious")
    (out / "search.json").unlink()
    (out / "search.json").symlink_to(tmp_path / "mine")
    assert "is a symbolic link" in run("search", "--show", out).err
    assert (tmp_path / "mine").read_text() == "precious"
    (out / "search.json").unlink()
    text = run("search", "--show", out)
    assert "Importance of the dimensions" in text.out
    assert "Budgets per relation" in text.out
    # A finished search, asked for the same, has nothing left to do; asked for more, it goes on.
    assert run("search", data, "--out", out, "--trials", 6).code == 2
    before = Store(out).trials("predictor")
    again = run(
        "search", data, "--out", out, "--resume", "--trials", 7, "--no-final", "--json"
    ).json
    assert again["trials"] == 7
    assert Store(out).trials("predictor")[:6] == before
    wrong = run("search", data, "--out", out, "--resume", "--target", "hits@1")
    assert (wrong.code, "was started with target mrr" in wrong.err) == (2, True)


def test_a_search_in_slices_of_time(tmp_path: Path, run: Command) -> None:
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    out = tmp_path / "search"
    more = ("--trials", 2, "--sampler-trials", 3, "--random", 1, "--minutes", 0, "--json")
    first = run(*arguments(data, out, *more)).json
    assert (first["trials"], first["finished"], first["best"]) == (0, False, None)
    # Resumed, it does what it was begun for.
    assert stored_effort(out) == Effort(2, 3, 1, True)
    rest = run("search", "--out", out, "--resume", "--json").json  # it knows its data
    assert (rest["trials"], rest["sampler_trials"], rest["random_searches"]) == (2, 3, 1)
    assert rest["finished"]
    assert len(rest["session_seconds"]) == 2
    assert rest["trained"]["trial"] == rest["best_trial"]
    # The whole of it is there: nothing is done again, the test split is not asked again.
    before = Store(out).about("final")
    again = run("search", data, "--out", out, "--resume", "--minutes", 0, "--json").json
    assert again["finished"]
    assert Store(out).about("final") == before


def test_a_training_ends_with_the_time_and_goes_on_later(tmp_path: Path, run: Command) -> None:
    """The full training is left between two epochs and ends as if it had not been."""
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    outs = [tmp_path / name for name in ("whole", "parts")]
    for out in outs:
        run(*arguments(data, out, "--trials", 1, "--sampler-trials", 1, "--no-final"))
    whole = run("search", data, "--out", outs[0], "--resume", "--final", "--json").json
    for epoch in (1, 2):
        part = run(
            "search", data, "--out", outs[1], "--resume", "--final", "--minutes", 0, "--json"
        ).json
        assert not part["finished"]
        lines = (outs[1] / "run" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == epoch
    rest = run("search", data, "--out", outs[1], "--resume", "--json").json
    assert rest["finished"]
    assert rest["test"] == whole["test"]


def test_a_search_killed_at_its_very_beginning_can_begin_again(tmp_path: Path) -> None:
    assert may_begin(tmp_path / "nowhere")
    with only_one(tmp_path):
        pass
    assert may_begin(tmp_path)
    Store(tmp_path, create=True).close()
    assert may_begin(tmp_path)
    assert stored_settings(tmp_path) is None
    (tmp_path / "letter.txt").write_text("dear")
    assert not may_begin(tmp_path)
    assert not may_begin(tmp_path / "letter.txt")


def test_what_is_set_is_not_searched(tmp_path: Path, run: Command) -> None:
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    more = ("--trials", 1, "--minutes", 0, "--set", "predictor.readout=dot", "--json")
    assert run(*arguments(data, tmp_path / "out", *more)).code == 0
    settings = stored_settings(tmp_path / "out")
    assert settings is not None
    assert settings.space.fixed == {"predictor.readout": "dot"}
    assert "predictor.readout" not in settings.space.dimensions
    twice = run(*arguments(data, tmp_path / "other", "--set", "predictor.dim=4"))
    assert (twice.code, "both by --set and in" in twice.err) == (2, True)


def test_a_search_with_another_surrogate(tmp_path: Path, run: Command) -> None:
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    out = tmp_path / "out"
    more = ("--trials", 6, "--no-final", "--surrogate", "gaussian", "--json")
    assert run(*arguments(data, out, *more)).json["trials"] == 6
    settings = stored_settings(out)
    assert settings is not None
    assert settings.surrogate == "gaussian"
    origins = [trial.origin for trial in Store(out).trials("predictor")]
    assert origins[:2] == ["initial", "initial"]
    assert origins[2::2] == ["variation", "variation"]
    other = run("search", data, "--out", out, "--resume", "--surrogate", "mlp")
    assert (other.code, "was started with surrogate gaussian" in other.err) == (2, True)


def test_wrong_use_is_told(tmp_path: Path, run: Command) -> None:
    assert "give a data set" in run("search").err
    assert "contains no search" in run("search", "--show", tmp_path).err
    assert "--show cannot be combined" in run("search", "--show", tmp_path, "--trials", 3).err
    needs_smac()
    wrong = run("search", tmp_path / "no data", "--out", tmp_path / "s", "--target", "hits@7")
    assert "target must be one of mrr" in wrong.err  # said before the data are looked for
    wrong = run("search", tmp_path / "no data", "--out", tmp_path / "s", "--surrogate", "tree")
    assert "surrogate must be one of forest, gaussian, mlp" in wrong.err
    wrong = run("search", "umls", "--out", tmp_path / "s", "--minutes", 0)
    assert (wrong.code, "--minutes must be above 0" in wrong.err) == (2, True)
    assert not (tmp_path / "s").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    refused = run("search", "umls", "--out", tmp_path / "mine", "--device", "cpu")
    assert (refused.code, "choose another directory" in refused.err) == (2, True)
