"""Tests of the errors: one line, with what a user needs to go on."""

import pytest

from oneshot.errors import InputError, MissingPackageError, UnknownNameError, require


def test_a_message_is_one_line_even_if_another_library_wrote_several() -> None:
    error = InputError("file.parquet: not readable (Invalid:\n  bad footer\r\n)")
    assert str(error) == "file.parquet: not readable (Invalid: bad footer )"


@pytest.mark.parametrize(
    ("nearest", "hint"),
    [
        ([], ""),
        (["ann"], "; did you mean 'ann'?"),
        (["ann", "bob"], "; did you mean 'ann' or 'bob'?"),
        (["ann", "bob", "it's"], "; did you mean 'ann', 'bob' or \"it's\"?"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_ones(nearest: list[str], hint: str) -> None:
    error = UnknownNameError("entity", "anm", nearest, where="train.tsv, line 3")
    assert str(error) == f"train.tsv, line 3: unknown entity 'anm'{hint}"
    assert isinstance(error, InputError)
    assert isinstance(error, KeyError)


def test_a_missing_package_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(MissingPackageError) as caught:
        require("no_such_package", "rdf", "reading graph.ttl")
    assert "reading graph.ttl needs the package 'no_such_package'" in str(caught.value)
    assert "pip install 'one-shot-subgraph[rdf]'" in str(caught.value)


def test_an_installed_package_is_returned() -> None:
    assert require("json", "rdf", "nothing").dumps([1]) == "[1]"
