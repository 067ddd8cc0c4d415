"""Names with line ends, quotes and other odd letters come through reading, runs and answers."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.commands import Command
from tests.support.samples import chain_world, tiny_predictor, trained_run

from oneshot.batch.answers import answer_queries
from oneshot.data import formats as reading
from oneshot.data.dataset import Dataset
from oneshot.data.formats import text as text_tables
from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import AnswerOptions
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs import layout as run_parts
from oneshot.runs.layout import read_relations
from oneshot.samplers import PPRSampler

# str.splitlines() splits at each of these.
LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
ODD = [
    *(name for end in LINE_ENDS for name in (f"a{end}b", f"a{end}", f"{end}b")),
    "a\tb",
    "\ufeffa",
    '"a"',
    '"',
    "back\\nslash",
    " a ",
    "# a",
    "nul\0l",
    "⁻¹",
]


def graph_of(relations: list[str], entities: list[str] | int = 2) -> KnowledgeGraph:
    return KnowledgeGraph.from_facts(
        [[0, relation, 1] for relation in range(len(relations))], entities, relations
    )


def saved(path: Path, graph: KnowledgeGraph) -> Reasoner:
    predictor = tiny_predictor(num_relations=graph.num_relations).float()
    reasoner = Reasoner(graph, PPRSampler(1.0), predictor)
    reasoner.save(path)
    return reasoner


@given(st.lists(st.text(max_size=6) | st.sampled_from(ODD), min_size=1, max_size=5, unique=True))
@settings(deadline=None)
def test_every_name_comes_back_from_the_file_of_relations(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    path = tmp_path_factory.mktemp("run") / "relations.txt"
    text = "".join(run_parts._as_line(name) + "\n" for name in names)
    path.write_text(text, encoding="utf-8")
    assert list(read_relations(path)) == names
    assert len(text.splitlines()) == len(names)  # for other readers too
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())  # edited elsewhere
    assert list(read_relations(path)) == names


@pytest.mark.parametrize("name", ["", *ODD])
def test_a_run_knows_a_relation_of_any_name(tmp_path: Path, name: str) -> None:
    for number, names in enumerate(([name, "z"], ["z", name])):
        reasoner = saved(tmp_path / str(number), graph_of(names))
        loaded = Reasoner.load(tmp_path / str(number))
        assert list(loaded.graph.relations) == names
        assert loaded.score(0, name, 1) == reasoner.score(0, name, 1)


def test_ordinary_names_stand_in_the_file_as_they_are(tmp_path: Path) -> None:
    names = ["borders", "is a", "größer", "a\tb", "a\\nb", 'so-called "a"', "# a"]
    saved(tmp_path / "run", graph_of(names))
    text = (tmp_path / "run" / "relations.txt").read_text(encoding="utf-8")
    assert text == "\n".join(names) + "\n"
    saved(tmp_path / "run", graph_of(["two\nlines", '"a"']))
    assert (tmp_path / "run" / "relations.txt").read_text() == '"two\\nlines"\n"\\"a\\""\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('next\n"after\n', "relations.txt, line 2: not a name in quotes"),
        ('next\n"after" x\n', "relations.txt, line 2: not a name in quotes"),
        ('next\n"next"\n', "relations.txt: relation 'next' occurs twice"),
        ('next\n"\\ud800"\n', "cannot be written in UTF-8"),
        ("next\n\nafter\n", "relations.txt, line 2: the line is empty"),
    ],
)
def test_a_broken_file_of_relations_is_told(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "relations.txt").write_text(content)
    with pytest.raises(InputError) as error:
        read_relations(tmp_path / "relations.txt")
    assert message in str(error.value)


def odd_facts() -> list[tuple[str, str, str]]:
    """Facts with each odd name as head, relation and tail; none is empty for a reader of text."""
    names = [name for name in ODD if name.strip(" \t\r\n\v\f")]
    return [
        (names[i], names[i], names[(i + step) % len(names)])
        for step in (1, 2, 3)
        for i in range(len(names))
    ]


def facts_in(data: Dataset) -> set[tuple[str, str, str]]:
    entities, relations = data.entities, data.relations
    return {(entities[h], relations[r], entities[t]) for h, r, t in data.known.tolist()}


def write_facts(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(
            pa.table(list(zip(*rows, strict=True)), names=["head", "relation", "tail"]), path
        )
    else:
        text = io.StringIO(newline="")
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        path.write_bytes(text.getvalue().encode())
    return path


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_odd_names_are_read_saved_trained_on_and_asked(
    run: Command, tmp_path: Path, ending: str
) -> None:
    rows = odd_facts()
    path = write_facts(tmp_path / f"facts{ending}", rows)
    data = load(path)
    assert facts_in(data) == set(rows)
    data.save(tmp_path / "saved")
    assert facts_in(load(tmp_path / "saved")) == set(rows)
    trained_run(path, tmp_path / "run", "training.epochs=1")
    for entity, relation, _ in rows[::7]:
        found = run("predict", tmp_path / "run", "--json", "--", entity, relation).json
        assert found["query"] == {"entity": entity, "relation": relation}
    value = run("evaluate", tmp_path / "run", "--split", "train", "--json").json
    assert value["queries"] == 2 * len(data.train)


def test_a_quoted_name_with_line_ends_is_whole_wherever_a_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts of the name look like facts of their own."""
    import pyarrow.csv

    options = pyarrow.csv.ReadOptions
    row = 'e,r,"a\nx,y,z"\n'
    for size in range(2 * len(row), 4 * len(row)):
        monkeypatch.setattr(
            pyarrow.csv,
            "ReadOptions",
            lambda size=size, **given: options(**(given | {"block_size": size})),
        )
        columns = text_tables.read_text(row.encode() * 9, Path("facts.csv"), ",")
        assert columns[2].to_pylist() == ["a\nx,y,z"] * 9, size


def test_names_in_files_beside_the_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    """One name a line, without quoting: a quote there is part of the name."""
    path = tmp_path / "relations.txt"
    path.write_bytes('"a"\nb\\n\nu\u2028v\nc\rd\n'.encode())
    names = ['"a"', "b\\n", "u\u2028v", "c\rd"]
    assert list(reading.read_names(path, "relation")) == names


def test_a_name_that_the_names_file_cannot_hold_is_unknown(run: Command, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write_facts(tmp_path / f"{split}.parquet", [("a", "two\nlines", "b")])
    (tmp_path / "relations.txt").write_text("two\nlines\n")
    result = run("data", tmp_path)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "unknown relation 'two\\nlines'" in result.err


@pytest.mark.parametrize("end", LINE_ENDS)
def test_answers_with_odd_names_are_one_row_each(tmp_path: Path, end: str) -> None:
    entities = [f"a{end}b", f'"c{end}', "d"]
    reasoner = saved(tmp_path / "run", graph_of([f"r{end}"], entities))
    asked = tmp_path / "q.parquet"
    pq.write_table(pa.table({"entity": entities[:2], "relation": [f"r{end}"] * 2}), asked)
    answer_queries(reasoner, asked, tmp_path / "a.jsonl", AnswerOptions(top=2))
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["query"]["entity"] for line in lines] == entities[:2]
    for name in ("a.tsv", "a.csv"):
        if name == "a.tsv" and ("\n" in end or "\r" in end):
            with pytest.raises(InputError, match=r"a newline|a carriage return"):
                answer_queries(reasoner, asked, tmp_path / name, AnswerOptions(top=2))
            continue
        answer_queries(reasoner, asked, tmp_path / name, AnswerOptions(top=2))
        text = (tmp_path / name).read_bytes().decode()
        if name == "a.tsv":
            header, *rows = (line.split("\t") for line in text.split("\n")[:-1])
        else:
            header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        assert [row[:2] for row in rows] == [[e, f"r{end}"] for e in entities[:2] for _ in range(2)]
        assert {row[3] for row in rows} <= set(entities)
        assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("command", ["discover", "audit", "predict"])
def test_a_name_with_a_tab_is_refused_before_a_tsv_is_begun(
    run: Command, tmp_path: Path, command: str
) -> None:
    saved(tmp_path / "run", graph_of(["r"], ["a\tb", "c"]))
    (tmp_path / "q.csv").write_text('"c",r\n')
    asked = ["--queries", tmp_path / "q.csv"] if command == "predict" else []
    result = run(command, tmp_path / "run", *asked, "--out", tmp_path / "x.tsv")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "the name 'a\\tb' contains a tab" in result.err
    assert not (tmp_path / "x.tsv").exists()
    assert run(command, tmp_path / "run", *asked, "--out", tmp_path / "x.csv").code == 0


def test_names_with_quotes_and_spaces_are_exported_as_they_are(
    run: Command, tmp_path: Path
) -> None:
    saved(tmp_path / "run", graph_of(['is "kin" of'], ['"a"', " b"]))
    assert run("facts", tmp_path / "run", "export").out == '"a"\tis "kin" of\t b\n'
    assert run("facts", tmp_path / "run", "export", "--out", tmp_path / "x.tsv").code == 0
    added = run("facts", tmp_path / "run", "add", "--file", tmp_path / "x.tsv", "--json").json
    assert (added["added"], added["facts"]) == (0, 1)


def test_ratios_by_odd_relation_names_are_kept(tmp_path: Path) -> None:
    relations = ["two\nlines", "u\u2028v", "end\r"]
    graph = graph_of(relations)
    sampler = PPRSampler({"default": 0.5} | dict.fromkeys(relations, 1.0))
    Reasoner(graph, sampler, tiny_predictor(num_relations=3).float()).save(tmp_path / "run")
    assert Reasoner.load(tmp_path / "run").sampler.budget == sampler.budget


def test_another_graph_is_matched_by_odd_names(tmp_path: Path) -> None:
    world = chain_world(12)
    names = ["next\n", "after\r", "\ufeffbefore"]
    facts, entities = world.graph.facts, world.graph.entities
    graph = KnowledgeGraph.from_facts(facts, entities, names)
    reasoner = saved(tmp_path / "run", graph)
    turned = torch.stack([facts[:, 0], 2 - facts[:, 1], facts[:, 2]], dim=1)
    other = KnowledgeGraph.from_facts(
        turned, entities, Vocabulary.from_names(names[::-1], "relation")
    )
    loaded = Reasoner.load(tmp_path / "run", graph=other)
    question = ("link 1", "after\r")
    assert loaded.predict(*question) == reasoner.predict(*question)
