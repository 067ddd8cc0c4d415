"""Tests of tab- and comma-separated tables: odd input works, bad input names its line."""

import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oneshot.data.formats import text as text_tables
from oneshot.data.formats.base import header_order
from oneshot.data.formats.text import TextPosition, line_of_row, read_text, read_text_blocks
from oneshot.errors import InputError

Row = tuple[str, str, str]
PATH = Path("facts.tsv")


def rows_of(columns: list[list[str]]) -> list[Row]:
    return list(zip(*columns, strict=True))


def read(text: str | bytes, separator: str = "\t") -> list[Row]:
    data = text.encode() if isinstance(text, str) else text
    return rows_of([column.to_pylist() for column in read_text(data, PATH, separator)])


TWO = [("ann", "knows", "bob"), ("bob", "knows", "eve")]


@pytest.mark.parametrize(
    "text",
    [
        "ann\tknows\tbob\nbob\tknows\teve\n",
        "ann\tknows\tbob\nbob\tknows\teve",
        "ann\tknows\tbob\r\nbob\tknows\teve\r\n",
        "ann\tknows\tbob\rbob\tknows\teve",
        "\ufeffann\tknows\tbob\nbob\tknows\teve\n",
        "\n\nann\tknows\tbob\n\n\nbob\tknows\teve\n\n",
        "ann\tknows\tbob\n   \n\t\t\nbob\tknows\teve\n \t ",
        "# a comment\nann\tknows\tbob\n#another\n## x\nbob\tknows\teve\n# end",
        "# with\ttabs\tinside\r\nann\tknows\tbob\r\n#!x\r\nbob\tknows\teve\r\n",
        "# old line ends\rann\tknows\tbob\r# more\rbob\tknows\teve\r",
        "ann\tknows\tbob\n# mixed line ends\rbob\tknows\teve\n",
        "head\trelation\ttail\nann\tknows\tbob\nbob\tknows\teve\n",
        "\ufeff# x\n\n#Subject\tPredicate\tObject\nann\tknows\tbob\nbob\tknows\teve\n",
        "tail\trel\thead\nbob\tknows\tann\neve\tknows\tbob\n",
    ],
)
def test_odd_but_valid_tables_hold_the_same_facts(text: str) -> None:
    assert read(text) == TWO
    assert read(text.replace("\t", ","), ",") == TWO


def test_names_are_kept_as_they_are_written() -> None:
    facts = [
        ("New York City", 'the "Big Apple"', "'quoted"),
        ("Ünïcödé", "日本語", "🦓"),
        (' padded "', '"', "a,b;c|d\\t"),
        ("#hash", "#", "no\u00a0break\u2028line"),
        ("NULL", "NaN", "None"),
        ("1", "1.0", "true"),
    ]
    assert read("".join("\t".join(fact) + "\n" for fact in facts)) == facts


def test_repeated_facts_and_self_loops_are_kept() -> None:
    assert read("a\tr\ta\na\tr\ta\n") == [("a", "r", "a")] * 2


def test_quoted_csv_values_may_hold_anything() -> None:
    text = '"Rome, Italy","said ""hi""","two\nlines"\n"# no comment",r,"#x"\n'
    facts = [("Rome, Italy", 'said "hi"', "two\nlines"), ("# no comment", "r", "#x")]
    assert read(text, ",") == facts
    assert read("# a comment\n" + text + "#end\n", ",") == facts
    # A line end and a # inside a value, in a file that also has comments.
    assert read('# c\n"a\n# b",r,c\n\n#\nx,r,y\n', ",") == [("a\n# b", "r", "c"), ("x", "r", "y")]


@pytest.mark.parametrize(
    ("text", "separator", "message"),
    [
        ("a\tr\tb\na\tr\n", "\t", "line 2: expected 3 tab-separated columns"),
        ("a\tr\tb\n\n# x\na\tr\tb\tc\n", "\t", "line 4: .* found 4"),
        ("a\tr\tb\r\rx\r", "\t", "line 3: .* found 1"),
        ("a,r,b\n", "\t", "line 1: .* seems to be separated by commas"),
        ("a r b\n", "\t", "line 1: .* seems to be separated by spaces"),
        ("a;r;b\n", ",", "line 1: .* seems to be separated by semicolons"),
        ("a\tr\tb\n", ",", "line 1: .* seems to be separated by tabs"),
        ("a\tr\tb\na\t\tb\n", "\t", "line 2: column 2 is empty"),
        ("a\tr\t \n", "\t", "line 1: column 3 is empty"),
        ("a,r,b\n,r,b\n", ",", "line 2: column 1 is empty"),
        ('a,r,b\nc,r,"d\ne,r,f\n', ",", "line 2: a quoted value is not closed"),
        ('a,r,b\n"c"d,r,e\n', ",", "line 2: ',' expected after '\"'"),
        ('"a\nb",r,c\nd,r\n', ",", "line 3: .* found 2"),
        (b"a\tr\tb\na\tr\t\xff\n", "\t", r"line 2: not valid UTF-8 \(byte 0xff at column 5\)"),
        (b"a,r,b\rx,\xe9,y\r", ",", r"line 2: not valid UTF-8 \(byte 0xe9 at column 3\)"),
        (b"a\tr\tb\n# caf\xe9\n", "\t", "line 2: not valid UTF-8"),
        ("a\tr\tb\n".encode("utf-16"), "\t", "line 1: not valid UTF-8"),
        ("\n \n\r\n", "\t", "the file has no facts"),
        ("# only\n#comments\n", ",", "the file has no facts"),
        ("head\trelation\ttail\n", "\t", "the file has no facts"),
        ("\ufeff", "\t", "the file has no facts"),
    ],
)
def test_bad_tables_name_the_file_and_the_line(
    text: str | bytes, separator: str, message: str
) -> None:
    with pytest.raises(InputError, match=rf"facts\.tsv[,:] {message}"):
        read(text, separator)


def test_an_unclosed_quote_does_not_swallow_the_rest_of_the_file() -> None:
    with pytest.raises(InputError, match="line 1: "):
        read('a,r,"b\n' + "x,r,y\n" * 100, ",")


@pytest.mark.parametrize(
    ("row", "order"),
    [
        (["head", "relation", "tail"], [0, 1, 2]),
        (["Tail", " REL ", "#Head"], [2, 1, 0]),
        (["h", "r", "t"], [0, 1, 2]),
        (["id", "subject", "predicate", "object", "weight"], [1, 2, 3]),
        (["head", "relation", "berlin"], None),
        (["head", "source", "relation", "tail"], None),
        ([], None),
    ],
)
def test_headers_are_recognised_by_their_names(row: list[str], order: list[int] | None) -> None:
    assert header_order(row) == order


def test_a_row_is_found_again_by_its_line() -> None:
    data = b"# c\nhead\trelation\ttail\n\na\tr\tb\n \n#\nc\tr\td\n"
    assert [line_of_row(data, PATH, "\t", row) for row in (0, 1)] == [4, 7]
    data = b'"a\nb",r,c\n\nd,r,e\n'
    assert [line_of_row(data, PATH, ",", row) for row in (0, 1)] == [1, 4]


def pieces(separator: str) -> st.SearchStrategy[str]:
    """Texts of what may matter to a reader: separators, quotes, line ends, comments."""
    tokens = [separator, "a", "é", '"', '""', "#", "# ", "\r", "\n", "\r\n", " ", "\t", ",", "\0"]
    tokens += ["\x1c", "\u2028", "\v", "\ufeff", "head", '"x"', f"a{separator}r{separator}b\n"]
    rows = [f'"a"{separator}r{separator}"b"\n', f"head{separator}rel{separator}tail\n"]
    return st.lists(st.sampled_from(tokens + rows), max_size=12).map("".join)


@pytest.mark.parametrize("separator", ["\t", ","])
def test_the_fast_and_the_exact_reader_agree(separator: str) -> None:
    seen = set()

    @settings(max_examples=400, deadline=None)
    @given(pieces(separator), st.sampled_from([b"", b"\xff", b"\xc3"]))
    @example(f"a{separator}r{separator}b\n", b"")
    @example(f"a{separator}r{separator}", b"\xff")
    def check(text: str, end: bytes) -> None:
        data = text.encode() + end
        fast = text_tables._read_fast(data, separator)
        seen.add(fast is None)
        if fast is not None:
            exact = text_tables._read_by_line(data, PATH, separator, TextPosition())
            assert [c.to_pylist() for c in fast[0]] == [c.to_pylist() for c in exact[0]]
            assert fast[1] == exact[1]

    check()
    assert seen == {True, False}


@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_table_in_blocks_is_the_same_table(separator: str) -> None:
    seen = set()

    @settings(max_examples=400, deadline=None)
    @given(pieces(separator), st.sampled_from([b"", b"\xff"]), st.integers(1, 40))
    @example(f'tail{separator}r{separator}head\n#\n"x"{separator}r{separator}"a\nb"\n', b"", 9)
    @example(f"\ufeff\ra{separator}r{separator}b\n", b"", 1)
    def check(text: str, end: bytes, size: int) -> None:
        data = text.encode() + end
        place = TextPosition()
        rows: list[Row] = []
        try:
            while True:  # each block by a reader of its own that goes on where the last one ended
                blocks = read_text_blocks(io.BytesIO(data), PATH, separator, place, size)
                found = next(
                    ((c, p) for c, p in blocks if len(c[0]) or p.offset == len(data)), None
                )
                if found is None:
                    break
                before = len(rows)
                rows += rows_of([column.to_pylist() for column in found[0]])
                lines = [
                    line_of_row(data[place.offset : found[1].offset], PATH, separator, row, place)
                    for row in range(len(rows) - before)
                ]
                whole = [line_of_row(data, PATH, separator, row) for row in range(len(rows))]
                assert lines == whole[before:]
                place = found[1]
            outcome: object = rows or "the file has no facts"
        except InputError as error:
            outcome = str(error)
        try:
            expected: object = read(data, separator)
        except InputError as error:
            expected = str(error)
        assert outcome == expected or (
            isinstance(outcome, str) and isinstance(expected, str) and outcome in expected
        )
        seen.add(type(outcome))

    check()
    assert seen == {str, list}
