"""Tests of writing: either the old or the new content stands there, and nothing beside it."""

import json
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from oneshot.errors import InputError
from oneshot.system import files
from oneshot.system.files import (
    check_output,
    check_replaceable,
    replacing,
    replacing_directory,
    write_json,
)

CONTENTS = {"mark.json": None, "a.npy": None, "inner": {"b.npy": None}}


def tree(path: Path) -> dict[str, str | None]:
    """All that lies under a path, with the content of the files."""
    return {
        str(entry.relative_to(path)): entry.read_text() if entry.is_file() else None
        for entry in sorted(path.rglob("*"))
    }


def save(path: Path, text: str) -> None:
    with replacing_directory(path, "mark.json", CONTENTS) as directory:
        (directory / "mark.json").write_text(text)
        (directory / "a.npy").write_text(text)


def write_half(block: AbstractContextManager[Path], name: str, error: type[BaseException]) -> None:
    """Write something, then fail."""
    with block as temporary:
        (temporary / name).write_text("half")
        raise error


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sub" / "result.txt"
    for text in ("one", "two"):
        with replacing(path) as temporary:
            assert temporary.parent == path.parent
            assert temporary.suffix == ".txt"
            temporary.write_text(text)
        assert tree(tmp_path / "new" / "sub") == {"result.txt": text}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_stays_as_it_was_if_the_block_fails(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "old.txt").write_text("old")
    for name in ("old.txt", "new.txt"):
        with pytest.raises(error):
            write_half(replacing(tmp_path / name), "", error)
    assert tree(tmp_path) == {"old.txt": "old"}


def test_new_files_and_directories_have_the_usual_permissions(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_json(tmp_path / "file.json", {})
        save(tmp_path / "directory", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file.json").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "directory").stat().st_mode) == 0o750


def test_links_keep_pointing_to_what_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    for name in ("file", "directory"):
        (tmp_path / name).symlink_to(tmp_path / "target" / name)
    for text in ("one", "two"):
        with replacing(tmp_path / "file") as temporary:
            temporary.write_text(text)
        save(tmp_path / "directory", text)
        assert tree(tmp_path / "target") == {
            "file": text,
            "directory": None,
            "directory/mark.json": text,
            "directory/a.npy": text,
        }
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "directory").is_symlink()


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="is not a file"), replacing(path):
            pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]


def test_json_is_readable_and_in_utf8(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "Zoë", "values": [1]})
    text = (tmp_path / "a.json").read_bytes().decode("utf-8")
    assert json.loads(text) == {"name": "Zoë", "values": [1]}
    assert "Zoë" in text
    assert text.endswith("}\n")


def test_a_directory_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "saved"
    for text in ("one", "two"):
        save(path, text)
        assert tree(tmp_path / "sub") == {
            "saved": None,
            "saved/mark.json": text,
            "saved/a.npy": text,
        }
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", "x")
    assert (tmp_path / "empty" / "mark.json").read_text() == "x"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_directory_stays_as_it_was_if_the_block_fails(
    tmp_path: Path, error: type[BaseException]
) -> None:
    save(tmp_path / "old", "old")
    before = tree(tmp_path)
    for name in ("old", "new"):
        block = replacing_directory(tmp_path / name, "mark.json", CONTENTS)
        with pytest.raises(error):
            write_half(block, "mark.json", error)
    assert tree(tmp_path) == before


def test_a_directory_comes_back_if_its_successor_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a system that cannot exchange two directories in one step."""
    monkeypatch.setattr(files, "exchange", lambda one, other: False)
    save(tmp_path / "saved", "old")
    before = tree(tmp_path)
    replace = Path.replace

    def full_disk(source: Path, target: Path) -> Path:
        if target.name == "saved" and not source.name.endswith(".old"):
            raise OSError(28, "No space left on device")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "saved", "new")
    assert tree(tmp_path) == before


def a_file(path: Path) -> None:
    path.write_text("mine")


def strange_files(path: Path) -> None:
    path.mkdir()
    (path / "thesis.doc").write_text("mine")


def strange_files_beside_ours(path: Path) -> None:
    save(path, "old")
    (path / "thesis.doc").write_text("mine")


def strange_files_inside_ours(path: Path) -> None:
    save(path, "old")
    (path / "inner").mkdir()
    (path / "inner" / "notes.txt").write_text("mine")


def a_directory_named_like_a_file_of_ours(path: Path) -> None:
    save(path, "old")
    (path / "a.npy").unlink()
    (path / "a.npy").mkdir()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (a_file, "exists and is not a directory"),
        (strange_files, "exists and was not written by oneshot"),
        (strange_files_beside_ours, r"contains 'thesis\.doc', which was not written by oneshot"),
        (strange_files_inside_ours, r"contains 'inner/notes\.txt', which was not written"),
        (a_directory_named_like_a_file_of_ours, r"contains 'a\.npy', which was not written"),
    ],
)
def test_what_others_wrote_is_never_replaced(
    tmp_path: Path, prepare: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "place"
    prepare(path)
    before = tree(tmp_path)
    with pytest.raises(InputError, match=message):
        save(path, "new")
    with pytest.raises(InputError, match=message):
        check_replaceable(path, "mark.json", CONTENTS)
    assert tree(tmp_path) == before


def test_the_current_directory_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save(Path(), "x")
    assert tree(tmp_path) == {"here": None, "here/mark.json": "x", "here/a.npy": "x"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "No space left on device: '{path}'"),
        # What numpy says when a disk is full.
        (OSError("100 requested and 0 written"), "check the free disk space"),
    ],
)
def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, error: OSError, message: str
) -> None:
    def fail(temporary: Path) -> None:
        (temporary / "half.npy").write_text("half")
        raise error

    path = tmp_path / "saved"
    with (
        pytest.raises(OSError, match=message.format(path=path)) as caught,
        replacing_directory(path, "mark.json", CONTENTS) as temporary,
    ):
        fail(temporary)
    assert caught.value.filename == str(path)
    assert tree(tmp_path) == {}


def test_an_input_is_not_an_output(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("x")
    (tmp_path / "link.tsv").symlink_to(tmp_path / "facts.tsv")
    read = [tmp_path / "facts.tsv", tmp_path / "gone.tsv"]
    for name in ("facts.tsv", "link.tsv", "../" + tmp_path.name + "/facts.tsv"):
        with pytest.raises(InputError, match="is an input of this command"):
            check_output(tmp_path / name, read)
    check_output(tmp_path / "gone.tsv", read)
    check_output(tmp_path / "other.tsv", read)
