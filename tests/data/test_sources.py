"""Tests of data sources by address: databases, endpoints, and the way of their facts to a run.

DuckDB and SQLite are real. The SPARQL endpoint is Oxigraph behind Python's HTTP server. Neo4j is
replaced by `tests.support.bolt_server`: the official driver speaks its protocol with it over a
socket, but Cypher is not evaluated there; only our exact queries are known. The slow test
`test_a_server_that_evaluates_cypher` does the same with ArcadeDB, if `arcadedb-embedded` is
installed.
"""

import base64
import importlib.util
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.bolt_server import Server, bolt_server
from tests.support.commands import Command, listing
from tests.support.samples import tiny_predictor
from tests.support.sparql_server import Endpoint, sparql_endpoint

import oneshot
from oneshot.data.sources import (
    SOURCES,
    Link,
    is_address,
    parse_address,
    shown,
    sparql,
    write_links,
)
from oneshot.data.sources import cache as copies
from oneshot.data.sources import duckdb as duckdb_source
from oneshot.errors import InputError, MissingPackageError

SECRET = "open-sesame-17"
IRI = "http://x/"
SETTINGS = (
    "--no-plan",
    "--set", "training.epochs=1",
    "--set", "predictor.dim=8",
    "--set", "predictor.num_layers=2",
    "--set", "sampler.entity_ratio=0.5",
)  # fmt: skip

Fact = tuple[str, str, str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("NEO4J_USERNAME", "NEO4J_PASSWORD", "SPARQL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "oneshot"


@pytest.fixture(scope="module")
def facts() -> list[Fact]:
    """A small graph."""
    names = sorted(names_of(oneshot.load("family:100", seed=1)))
    people = set(sorted({head for head, _, _ in names})[:30])
    return [fact for fact in names if {fact[0], fact[2]} <= people]


def names_of(data: oneshot.Dataset) -> set[Fact]:
    rows = data.known.tolist()
    return {(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in rows}


def duckdb_file(path: Path, *commands: str, rows: list[Fact] | None = None) -> Path:
    duckdb = pytest.importorskip("duckdb", reason="needs the extra databases")
    with duckdb.connect(str(path)) as connection:
        for command in commands:
            connection.execute(command)
        if rows:
            connection.executemany("INSERT INTO facts VALUES (?, ?, ?)", rows)
    return path


def sqlite_file(path: Path, *commands: str, rows: list[Fact] | None = None) -> Path:
    connection = sqlite3.connect(path)
    for command in commands:
        connection.execute(command)
    if rows:
        connection.executemany("INSERT INTO facts VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


TABLE = "CREATE TABLE facts (head TEXT, relation TEXT, tail TEXT)"
FILES = {"duckdb": duckdb_file, "sqlite": sqlite_file}
both = pytest.mark.parametrize("scheme", FILES)


@pytest.fixture
def endpoint(facts: list[Fact], monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    oxigraph = pytest.importorskip("pyoxigraph", reason="needs the extra rdf")
    monkeypatch.setattr(sparql, "PAUSE", 0.001)
    monkeypatch.setattr(sparql, "PAGE_ROWS", 50)
    store = oxigraph.Store()
    nodes = oxigraph.NamedNode
    for fact in facts:
        store.add(oxigraph.Quad(*(nodes(IRI + name.replace(" ", "_")) for name in fact)))
    for number in range(7):
        store.add(
            oxigraph.Quad(nodes(f"{IRI}a"), nodes(f"{IRI}age"), oxigraph.Literal(str(number)))
        )
    store.add(oxigraph.Quad(nodes(f"{IRI}a"), nodes(f"{IRI}r"), oxigraph.BlankNode()))
    with sparql_endpoint(store) as running:
        yield running


@pytest.fixture
def bolt(facts: list[Fact]) -> Iterator[Server]:
    pytest.importorskip("neo4j", reason="needs the extra neo4j")
    with bolt_server() as running:
        for fact in facts:
            running.database.add(*fact)
        running.database.password = SECRET
        yield running


def in_iris(facts: list[Fact]) -> set[Fact]:
    return {tuple(IRI + name.replace(" ", "_") for name in fact) for fact in facts}  # type: ignore[misc]


# From a source to a prediction -------------------------------------------------------------------


def train_and_predict(run: Command, address: str, path: Path, fact: Fact) -> dict[str, Any]:
    """Train on an address, then predict without the source."""
    trained = run("train", address, "--out", path, *SETTINGS, "--json")
    assert trained.json["test"]["queries"] > 0
    found = run("predict", path, fact[0], fact[1], "--top", "3", "--json").json
    assert len(found["answers"]) == 3
    reference: dict[str, Any] = json.loads((path / "graph.json").read_text())
    return reference


@both
def test_a_run_of_a_table(run: Command, tmp_path: Path, facts: list[Fact], scheme: str) -> None:
    file = FILES[scheme](tmp_path / "facts.db", TABLE, rows=facts)
    before = file.read_bytes()
    reference = train_and_predict(run, f"{scheme}:{file}?table=facts", tmp_path / "run", facts[0])
    assert reference["origin"]["address"] == f"{scheme}:{file}?table=facts"
    assert file.read_bytes() == before
    # The run uses its copy: it opens again without the database, and with a changed one.
    file.unlink()
    report = run("evaluate", tmp_path / "run", "--json").json
    assert report["data"] == f"{scheme}:{file}"
    copy = Path(reference["origin"]["source"])
    assert listing(copy) == ["facts.parquet", "source.json", "used-by"]
    assert (copy / "used-by").read_text() == f"{tmp_path / 'run' / 'graph.json'}\n"
    assert copy.is_relative_to(tmp_path / "cache")


def test_a_run_of_an_endpoint(
    run: Command, tmp_path: Path, facts: list[Fact], endpoint: Endpoint
) -> None:
    address = f"sparql:{endpoint.url}"
    fact = sorted(in_iris(facts))[0]
    reference = train_and_predict(run, address, tmp_path / "run", fact)
    assert reference["origin"]["address"] == address
    # All facts are known, each from one page.
    assert names_of(oneshot.load(reference["origin"]["source"])) == in_iris(facts)


def test_a_run_of_neo4j_without_its_password(
    run: Command, tmp_path: Path, facts: list[Fact], bolt: Server, cache: Path
) -> None:
    address = f"neo4j://neo4j:{SECRET}@127.0.0.1:{bolt.port}/people"
    reference = train_and_predict(run, address, tmp_path / "run", facts[0])
    assert reference["origin"]["address"] == f"neo4j://127.0.0.1:{bolt.port}/people"
    assert bolt.database.databases == {"people"}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 8
    assert {"graph.json", "source.json"} <= {path.name for path in written}
    for path in written:
        assert SECRET.encode() not in path.read_bytes(), path
    assert not bolt.database.commits  # reading changes nothing


# Tables and queries ------------------------------------------------------------------------------


@both
def test_tables_queries_and_column_names(tmp_path: Path, scheme: str) -> None:
    file = FILES[scheme](
        tmp_path / "x.db",
        "CREATE TABLE facts (id INTEGER, object TEXT, subject TEXT, predicate TEXT)",
        "INSERT INTO facts VALUES (1, 'c', 'a', 'r'), (2, 'a%b', '7', 's & t')",
        'CREATE TABLE "odd \'name" (x INTEGER, y TEXT, z TEXT)',
        "INSERT INTO \"odd 'name\" VALUES (1, 'r', 'b')",
    )
    expected = {("a", "r", "c"), ("7", "s & t", "a%b")}
    assert names_of(oneshot.load(f"{scheme}:{file}?table=facts")) == expected
    assert names_of(oneshot.load(f"{scheme}:{file}?table=odd%20'name")) == {("1", "r", "b")}
    query = "SELECT subject, predicate, object FROM facts WHERE object LIKE '%ab' OR 1 = 1;"
    assert names_of(oneshot.load(f"{scheme}:{file}?query={query}")) == expected
    query = "SELECT%20subject,predicate,object%20FROM%20facts%20WHERE%20id%20=%201"
    assert names_of(oneshot.load(f"{scheme}:{file}?query={query}")) == {("a", "r", "c")}


@both
def test_the_only_table_needs_no_name(tmp_path: Path, facts: list[Fact], scheme: str) -> None:
    file = FILES[scheme](tmp_path / "x.db", TABLE, rows=facts)
    assert names_of(oneshot.load(f"{scheme}:{file}")) == set(facts)


@both
def test_the_same_facts_in_another_order_are_the_same_data(
    tmp_path: Path, facts: list[Fact], scheme: str
) -> None:
    """A server may send its facts in any order; splits and copies do not depend on it."""
    file = FILES[scheme](tmp_path / "x.db", TABLE, rows=facts)
    one = oneshot.load(f"{scheme}:{file}?table=facts")
    again = oneshot.load(f"{scheme}:{file}?table=facts")
    assert one.graph.origin == again.graph.origin
    ordered = oneshot.load(f"{scheme}:{file}?query=SELECT * FROM facts ORDER BY tail DESC")
    assert ordered.graph.fingerprint == one.graph.fingerprint
    assert ordered.test.tolist() == one.test.tolist()


@both
def test_many_facts_are_read_in_batches_and_not_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(copies, "SORTED_BYTES", 1 << 12)
    rows = [(f"e{n}", "r", f"e{n + 1}") for n in range(3000, 0, -1)]
    commands = (TABLE, f"INSERT INTO facts VALUES {', '.join(map(str, rows))}")
    file = FILES[scheme](tmp_path / "x.db", *commands)
    monkeypatch.setattr(f"oneshot.data.sources.{scheme}.BATCH_ROWS", 1000)
    counts: list[int] = []
    path = copies.fetch(parse_address(f"{scheme}:{file}"), counts.append)
    assert counts[-1] == 3000
    assert len(counts) > 1 or scheme == "duckdb"  # its batches have at least 2,048 rows
    assert names_of(oneshot.load(path)) == set(rows)


def test_duckdb_reads_files_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="needs the extra databases")
    (tmp_path / "f.csv").write_text("h,r,t\na,x,b\nb,x,c\n")
    query = f"SELECT h, r, t FROM '{tmp_path / 'f.csv'}'"
    data = oneshot.load(f"duckdb::memory:?query={query}")
    assert names_of(data) == {("a", "x", "b"), ("b", "x", "c")}


def test_large_copies_are_built_on_disk(
    run: Command, tmp_path: Path, facts: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oneshot.data.load.LARGE_SOURCE", 1)
    file = sqlite_file(tmp_path / "x.db", TABLE, rows=facts)
    saved = run("data", f"sqlite:{file}", "--save", tmp_path / "saved", "--json").json
    assert saved["name"] == f"sqlite:{file}"
    assert saved["fingerprint"] == oneshot.load(f"sqlite:{file}").graph.fingerprint


@both
@pytest.mark.parametrize(
    ("commands", "options", "message"),
    [
        ((), "?table=facts", "has no table 'facts'; there are: none"),
        ((TABLE,), "?table=fact", "has no table 'fact'; did you mean 'facts'?"),
        ((TABLE,), "?table=facts", "the result has no facts"),
        ((TABLE,), "?query=SELECT * FROM facts WHERE 1 = 0", "the result has no facts"),
        ((TABLE, "CREATE TABLE more (a TEXT)"), "", "?table=NAME; there are: facts, more"),
        ((TABLE,), "?tabel=facts", "unknown option 'tabel'; did you mean 'table'?"),
        ((TABLE,), "?table=facts&query=SELECT 1", "give a table or a query, not both"),
        ((TABLE,), "?query=", "the query is empty"),
        ((TABLE,), "?query=SELEC head FROM facts", 'near "SELEC"'),
        ((TABLE,), "?query=SELECT nothing FROM facts", "nothing"),
        ((TABLE,), "?query=DELETE FROM facts", "SELECT quer"),
        (
            ("CREATE TABLE two AS SELECT 'a' AS head, 'b' AS tail",),
            "?table=two",
            "found head, tail",
        ),
        (
            (TABLE, "INSERT INTO facts VALUES ('a', 'r', 'b'), ('a', NULL, 'c')"),
            "?table=facts",
            ", fact 2: 'relation' is null",
        ),
        ((TABLE,), "?SELECT 1", ": 'SELECT 1' is no option; expected"),
        (
            (TABLE, "INSERT INTO facts VALUES ('a', 'r', '')"),
            "?table=facts",
            ", fact 1: 'tail' is empty",
        ),
    ],
)
def test_bad_databases(
    run: Command,
    tmp_path: Path,
    cache: Path,
    scheme: str,
    commands: tuple[str, ...],
    options: str,
    message: str,
) -> None:
    file = FILES[scheme](tmp_path / "x.db", *commands)
    before = file.read_bytes()
    done = run("train", f"{scheme}:{file}{options}", "--out", tmp_path / "run")
    assert (done.code, done.out) == (2, "")
    assert message.lower() in done.err.lower()
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert listing(tmp_path) == ["x.db"]
    assert file.read_bytes() == before


@both
def test_files_that_are_no_databases(run: Command, tmp_path: Path, scheme: str) -> None:
    FILES[scheme](tmp_path / "x.db")  # skips without its package
    (tmp_path / "text").write_text("no database " * 100)
    for name, message in (("text", "database"), ("nowhere", "No such file"), (".", "directory")):
        done = run("data", f"{scheme}:{tmp_path / name}?table=facts")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert message in done.err
    done = run("data", f"{scheme}:")
    assert (done.code, done.err) == (2, f"error: {scheme}:: the address names no file\n")


def test_sqlite_values_that_are_no_names(tmp_path: Path) -> None:
    file = sqlite_file(tmp_path / "x.db", TABLE, "INSERT INTO facts VALUES ('a', 'r', x'00ff')")
    with pytest.raises(InputError, match=r"fact 1: 'tail' is no name, but bytes"):
        oneshot.load(f"sqlite:{file}")


def test_an_output_does_not_replace_the_database(run: Command, tmp_path: Path) -> None:
    file = sqlite_file(tmp_path / "x.png", TABLE, "INSERT INTO facts VALUES ('a', 'r', 'b')")
    done = run("coverage", f"sqlite:{file}", "--plot", file)
    assert (done.code, "is an input of this command" in done.err) == (2, True)


def test_servers_without_their_extension(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL and MySQL need extensions of DuckDB, which tests do not download."""
    duckdb = pytest.importorskip("duckdb", reason="needs the extra databases")
    connect = duckdb.connect

    def offline(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        connection.execute("SET custom_extension_repository = '/nowhere'")
        connection.execute(f"SET extension_directory = '{tmp_path}'")
        return connection

    monkeypatch.setattr(duckdb, "connect", offline)
    for scheme, extension in (("mysql", "mysql"), ("postgresql", "postgres")):
        done = run("data", f"{scheme}://u:{SECRET}@127.0.0.1:1/db?table=facts")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert f"needs DuckDB's extension '{extension}', which cannot be loaded" in done.err
        assert SECRET not in done.err


def test_connections_to_servers() -> None:
    postgres = parse_address("postgres://u:a%20'b@h:5/db?table=facts&sslmode=require")
    assert duckdb_source._postgres_target(postgres) == (
        r"host='h' port='5' dbname='db' user='u' password='a \'b' connect_timeout='15' "
        "sslmode='require'"
    )
    assert postgres.public == "postgres://h:5/db?table=facts"
    mysql = parse_address("mysql://u:a%22b@h/db?table=facts")
    assert duckdb_source._mysql_target(mysql) == (
        r'host="h" database="db" user="u" password="a\"b"'
    )


# SPARQL ------------------------------------------------------------------------------------------


def test_pages_literals_and_blank_nodes(facts: list[Fact], endpoint: Endpoint) -> None:
    endpoint.cap = 30  # fewer than requested, as public endpoints do
    endpoint.failures = [503, 429]
    data = oneshot.load(f"sparql:{endpoint.url}")
    assert names_of(data) == in_iris(facts)
    address = f"sparql:{endpoint.url}"
    assert list(data.notes)[:2] == [
        f"{address}: skipped 7 facts with a literal",
        f"{address}: skipped 1 facts with a blank node",
    ]
    pages = [query for query in endpoint.asked if "OFFSET" in query]
    assert len(pages) == -(-(len(facts) + 8) // 30) + 1
    assert all("ORDER BY ?s ?p ?o" in query for query in pages)


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("PREFIX : <http://x/#> SELECT ?o ?p ?s WHERE { ?s ?p ?o FILTER(isIRI(?o)) }", None),
        ("SELECT ?o ?s ?p WHERE { ?s ?p ?o } ORDER BY ?o # LIMIT 1", None),
        ("SELECT * { ?s ?p ?o FILTER(isIRI(?o) && STR(?p) != 'LIMIT') } LIMIT 100000", 1),
        ("BASE <http://select/> CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }", 1),
        ("SELECT ?s ?p ?o { ?s ?p ?o " + "FILTER(isIRI(?s)) " * 150 + "}", None),
    ],
)
def test_own_queries(
    facts: list[Fact], endpoint: Endpoint, query: str, requests: int | None
) -> None:
    data = oneshot.load(f"sparql:{endpoint.url}?query={query}")
    assert names_of(data) == in_iris(facts)
    assert requests is None or len(endpoint.asked) == requests


def test_tokens_and_passwords_stay_secret(
    run: Command, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.authorization = f"Bearer {SECRET}"
    address = f"sparql:{endpoint.url}?apikey={SECRET}"
    done = run("data", address)
    assert done.code == 2
    assert "401 Unauthorized; check the password, or set SPARQL_TOKEN" in done.err
    monkeypatch.setenv("SPARQL_TOKEN", SECRET)
    told = run("data", address, "--save", tmp_path / "saved", "--json")
    assert told.json["name"] == f"sparql:{endpoint.url}"
    endpoint.authorization = "Basic " + base64.b64encode(f"u:{SECRET}".encode()).decode()
    named = address.replace("//", f"//u:{SECRET}@")
    assert run("data", named).code == 0
    # After a redirection to another server the token is not sent again.
    with sparql_endpoint(endpoint.store) as other:
        endpoint.moved = other.url
        assert run("data", address).code == 0
        assert set(other.authorizations) == {None}
    assert SECRET not in done.err + told.out + told.err
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    far = run("data", f"sparql:http://u:{SECRET}@example.org/sparql")
    assert (far.code, SECRET in far.err) == (2, False)
    assert "sent only over https" in far.err


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT ?s ?p ?o { ?s ?p ?o", "400 Bad Request"),
        ("ASK { ?s ?p ?o }", "expected a SELECT or CONSTRUCT query, not ASK"),
        ("DELETE WHERE { ?s ?p ?o }", "expected a SELECT or CONSTRUCT query, not DELETE"),
        ("SELECT ?s ?o { ?s ?p ?o }", "expected the columns head, relation, tail, found s, o"),
        ("SELECT ?s ?p ?o { ?s ?p ?x OPTIONAL { ?x ?p ?o } }", "?o is null"),
        ("SELECT ?s ?p ?o { ?s ?p ?o FILTER(false) }", "the result has no facts"),
        (
            "SELECT ?s ?p ?o { ?s ?p ?o FILTER(isLiteral(?o)) }",
            "the result has no facts; skipped 7 facts with a literal",
        ),
    ],
)
def test_bad_sparql_queries(
    run: Command, tmp_path: Path, endpoint: Endpoint, query: str, message: str
) -> None:
    done = run("train", f"sparql:{endpoint.url}?query={query}", "--out", tmp_path / "run")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert listing(tmp_path) == []


def test_bad_endpoints(
    run: Command, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(address: str) -> str:
        done = run("data", address)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert listing(tmp_path) in ([], ["cache", "cache/oneshot", "cache/oneshot/sources"])
        return done.err

    address = f"sparql:{endpoint.url}"
    assert "the server cannot be reached" in fault("sparql:http://127.0.0.1:9/sparql")
    assert "expected sparql:https://HOST" in fault("sparql:localhost")
    assert "form sparql:https://HOST/PATH" in fault("sparql:ftp://localhost/x")
    endpoint.failures = [503] * sparql.ATTEMPTS
    assert f"no response after {sparql.ATTEMPTS} attempts" in fault(address)
    for raw in (b"<html>", b"[]", b'{"boolean": true}', b'{"head": {"vars": []}, "results": {}}'):
        endpoint.raw = raw
        assert "not a table of SPARQL results" in fault(address)
    endpoint.raw = b"<a> <b> c"
    message = fault(f"{address}?query=CONSTRUCT {{ ?s ?p ?o }} WHERE {{ ?s ?p ?o }}")
    assert "line 1 of the response is not N-Triples" in message
    endpoint.raw, endpoint.ignores_offset = None, True
    assert "it ignores OFFSET" in fault(address)
    endpoint.ignores_offset = False
    monkeypatch.setattr(sparql, "MAX_PAGES", 1)
    assert "more than 50 results in 1 requests" in fault(address)
    monkeypatch.setenv("ONESHOT_OFFLINE", "1")
    assert "$ONESHOT_OFFLINE forbids connections" in fault(address)


# Neo4j -------------------------------------------------------------------------------------------


@pytest.fixture
def neo4j_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEO4J_USERNAME", "neo4j")
    monkeypatch.setenv("NEO4J_PASSWORD", SECRET)


@pytest.mark.usefixtures("neo4j_user")
def test_discovered_facts_are_written_back(
    run: Command, tmp_path: Path, facts: list[Fact], bolt: Server
) -> None:
    address = f"bolt://127.0.0.1:{bolt.port}"
    path, database = tmp_path / "run", bolt.database
    assert run("train", address, "--out", path, *SETTINGS).code == 0
    before = [list(row) for row in database.relationships]
    listed = run("discover", path, "--top", "60", "--json").json["facts"]
    assert not {(fact["head"], fact["relation"], fact["tail"]) for fact in listed} & set(facts)
    options = ("--held-out", "--top", "60", "--out", address)
    found = run("discover", path, *options, "--json").json
    assert found["out"] == address
    assert database.relationships[: len(before)] == before  # nothing is removed or changed
    new = database.relationships[len(before) :]
    # Held-out facts are not in the graph of the run, but they are in the database.
    expected = {
        (fact["head"], fact["relation"], fact["tail"]): fact["probability"]
        for fact in found["facts"]
        if (fact["head"], fact["relation"], fact["tail"]) not in facts
    }
    assert 0 < len(expected) < 60
    written = {(start[2:], kind, end[2:]): about for start, kind, end, about in new}
    assert written == {
        fact: {"source": "oneshot", "probability": probability}
        for fact, probability in expected.items()
    }
    assert (found["links"], database.commits) == (len(new), [len(new)])
    # A second time, nothing is doubled; and what was predicted is not read as a fact.
    assert run("discover", path, *options).code == 0
    assert len(database.relationships) == len(before) + len(new)
    assert names_of(oneshot.load(address)) == set(facts)


@pytest.mark.usefixtures("neo4j_user")
def test_answers_to_queries_are_written_back(
    run: Command,
    tmp_path: Path,
    facts: list[Fact],
    bolt: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"bolt://127.0.0.1:{bolt.port}"
    path, queries = tmp_path / "run", tmp_path / "queries.tsv"
    assert run("train", address, "--out", path, *SETTINGS).code == 0
    (head, relation, _), (_, inverse, tail) = facts[0], facts[-1]
    queries.write_text(f"{head}\t{relation}\n{tail}\t{inverse}⁻¹\n")
    before = len(bolt.database.relationships)
    options = ("--queries", queries, "--top", "4", "--exclude-known", "--out", address)
    done = run("predict", path, *options, "--json").json
    assert (done["queries"], done["links"], done["out"]) == (2, 8, address)
    new = bolt.database.relationships[before:]
    assert [row[:2] for row in new[:4]] == [[f"4:{head}", relation]] * 4
    assert [row[1:3] for row in new[4:]] == [[inverse, f"4:{tail}"]] * 4
    refused = run("predict", path, *options, "--workers", "2")
    assert (refused.code, "--workers needs a directory" in refused.err) == (2, True)
    for command in ("audit", "discover"):
        other = f"neo4j://u:{SECRET}@127.0.0.1:1" if command == "audit" else "sqlite:x.db"
        refused = run(command, path, "--out", other)
        assert (refused.code, SECRET in refused.err) == (2, False)
        assert "file" in refused.err
    monkeypatch.setenv("ONESHOT_OFFLINE", "1")
    refused = run("predict", path, *options)
    assert (refused.code, "$ONESHOT_OFFLINE forbids connections" in refused.err) == (2, True)


@pytest.mark.usefixtures("neo4j_user")
def test_many_links_are_written_in_transactions(bolt: Server) -> None:
    database, count = bolt.database, 2_100
    database.relationships = []
    database.nodes = {f"4:{n}": {"id": n} for n in range(count)}
    links = [Link(str(n), "odd `type`", str((n * 7 + 1) % count), None) for n in range(count)]
    address = parse_address(f"bolt://127.0.0.1:{bolt.port}?name=id")
    done: list[int] = []
    assert write_links(address, lambda: links, done.append) == count
    assert (database.commits, done) == ([1000, 1000, 100], [1000, 2000, 2100])
    assert database.relationships[1] == ["4:1", "odd `type`", "4:8", {"source": "oneshot"}]
    # Unless every entity is exactly one node, nothing is written.
    database.commits.clear()
    unknown = [*links, Link("1", "r", "nobody", 0.5)]
    with pytest.raises(InputError, match=r"no node has the name 'nobody'; nothing was written"):
        write_links(address, lambda: unknown)
    database.nodes["4:double"] = {"id": 5}
    with pytest.raises(InputError, match=r"several nodes have the name '5'"):
        write_links(address, lambda: links)
    assert database.commits == []


def test_nodes_without_name_and_own_cypher(bolt: Server) -> None:
    address = f"bolt://neo4j:{SECRET}@127.0.0.1:{bolt.port}"
    database = bolt.database
    database.nodes = {"4:1": {"name": "a"}, "4:2": {"title": "b"}, "4:3": {"name": 7}}
    database.relationships = [["4:1", "R", "4:2", {}], ["4:2", "R", "4:3", {"source": 3}]]
    assert names_of(oneshot.load(address)) == {("a", "R", "4:2"), ("4:2", "R", "7")}
    assert names_of(oneshot.load(f"{address}?name=title")) == {("4:1", "R", "b"), ("b", "R", "4:3")}
    query = "MATCH (a)-->(b) RETURN b.x AS tail, a.x AS head, 'to' AS relation"
    rows = [[f"t{n}", f"h{n}", "to"] for n in range(25)]
    database.answers[query] = (["tail", "head", "relation"], rows)
    assert len(names_of(oneshot.load(f"{address}?query={query}"))) == 25


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (None, [], "Invalid input 'MATHC'"),
        (["a", "b"], [["x", "y"]], "expected the columns head, relation, tail, found a, b"),
        (["h", "r", "t"], [["x", "y", None]], "fact 1: 't' is null"),
        (["h", "r", "t"], [["x", "y", ["z"]]], "fact 1: 't' is no name, but list"),
        (["h", "r", "t"], [], "the result has no facts"),
    ],
)
def test_bad_cypher(
    run: Command,
    tmp_path: Path,
    bolt: Server,
    columns: list[str] | None,
    rows: list[list[Any]],
    message: str,
) -> None:
    if columns is not None:
        bolt.database.answers["MATCH all"] = (columns, rows)
    address = f"bolt://neo4j:{SECRET}@127.0.0.1:{bolt.port}?query=MATCH all"
    done = run("train", address, "--out", tmp_path / "run")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert SECRET not in done.err
    assert listing(tmp_path) == []


def test_warnings_of_the_driver_are_not_printed() -> None:
    """In a process of its own: pytest has handlers for all loggers."""
    pytest.importorskip("neo4j", reason="the extra `neo4j` is not installed")
    command = [sys.executable, "-m", "oneshot", "data", "neo4j://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: neo4j://127.0.0.1:9: the server cannot be reached")


def test_bad_neo4j_servers(run: Command, tmp_path: Path, bolt: Server) -> None:
    here = f"127.0.0.1:{bolt.port}"
    for address, message in (
        (f"bolt://neo4j:{SECRET}x@{here}", "does not accept user and password"),
        (f"neo4j://{here}", "does not accept user and password"),
        (f"bolt://neo4j:{SECRET}@127.0.0.1:9", "the server cannot be reached"),
        (f"neo4j://neo4j:{SECRET}@127.0.0.1:9", "the server cannot be reached"),
        (f"neo4j://neo4j:{SECRET}@{here}/a/b", "expected at most one name, the database"),
        (f"neo4j://neo4j:{SECRET}/1@{here}", "the address cannot be read; percent-encode"),
        (f"neo4j://neo4j:{SECRET}?1@{here}", "the address cannot be read; percent-encode"),
        (f"neo4j://neo4j:7/{SECRET}@{here}", "the address cannot be read; percent-encode"),
        (f"neo4j://neo4j:7?{SECRET}@{here}", "the address cannot be read; percent-encode"),
        (f"neo4k://neo4j:{SECRET}@{here}", "unknown scheme 'neo4k'; did you mean 'neo4j'"),
        (f"ldap://neo4j:{SECRET}@{here}", "unknown scheme 'ldap'; known: duckdb, sqlite"),
        ("sqlit:x.db", "unknown scheme 'sqlit'; did you mean 'sqlite'"),
        (f"neo4j:{SECRET}", "the address has no host; expected neo4j://HOST"),
    ):
        done = run("data", address)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert message in done.err, address
        assert SECRET not in done.err
    assert listing(tmp_path) == []


@pytest.fixture
def arcadedb(tmp_path: Path) -> Iterator[int]:
    """The Bolt port of a database `people`, whose user root has the password `SECRET`."""
    pytest.importorskip("neo4j", reason="needs the extra neo4j")
    spec = importlib.util.find_spec("arcadedb_embedded")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package arcadedb-embedded")
    package = Path(spec.origin).parent
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, web = free.getsockname()[1], other.getsockname()[1]
    settings = {
        "bolt.host": "127.0.0.1",
        "bolt.port": port,
        "server.httpIncomingHost": "127.0.0.1",
        "server.httpIncomingPort": web,
        "server.rootPassword": SECRET,
        "server.plugins": "Bolt:com.arcadedb.bolt.BoltProtocolPlugin",
        "server.defaultDatabases": "people[root]",
    }
    home = tmp_path / "arcadedb"
    home.mkdir()
    process = subprocess.Popen(
        [
            str(package / "jre" / "bin" / "java"),
            *("-Xmx512m", "-cp", str(package / "jars" / "*")),
            *(f"-Darcadedb.{name}={value}" for name, value in settings.items()),
            "com.arcadedb.server.ArcadeDBServer",
        ],
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "ArcadeDB Server started" in line:
                break
        else:
            pytest.fail("the server did not start")
        yield port
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("neo4j_user")
def test_a_server_that_evaluates_cypher(
    run: Command,
    tmp_path: Path,
    facts: list[Fact],
    arcadedb: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import neo4j

    monkeypatch.setenv("NEO4J_USERNAME", "root")
    address, path = f"neo4j://127.0.0.1:{arcadedb}/people", tmp_path / "run"
    with neo4j.GraphDatabase.driver(
        f"bolt://127.0.0.1:{arcadedb}", auth=("root", SECRET)
    ) as driver:

        def asked(query: str, **values: Any) -> list[list[Any]]:
            with driver.session(database="people") as session:
                return [record.values() for record in session.run(query, **values)]

        for head, relation, tail in facts:
            query = "MERGE (a:P {name: $a}) MERGE (b:P {name: $b}) CREATE (a)-[:`%s`]->(b)"
            asked(query % relation, a=head, b=tail)
        assert run("train", address, "--out", path, *SETTINGS).code == 0
        found = run("discover", path, "--top", "60", "--out", address, "--json").json
        expected = {
            (fact["head"], fact["relation"], fact["tail"]): fact["probability"]
            for fact in found["facts"]
            if (fact["head"], fact["relation"], fact["tail"]) not in facts
        }
        assert run("discover", path, "--top", "60", "--out", address).code == 0
        predicted = asked(
            "MATCH (a)-[r {source: 'oneshot'}]->(b) RETURN a.name, type(r), b.name, r.probability"
        )
        assert len(predicted) == len(expected) == found["links"]
        assert {(h, r, t): p for h, r, t, p in predicted} == pytest.approx(expected)
        assert names_of(oneshot.load(address)) == set(facts)


# Copies and addresses ----------------------------------------------------------------------------


def test_a_missing_copy_is_reported_with_its_address(
    run: Command, tmp_path: Path, facts: list[Fact]
) -> None:
    file = sqlite_file(tmp_path / "x.db", TABLE, rows=facts)
    assert run("train", f"sqlite:{file}", "--out", tmp_path / "run", *SETTINGS).code == 0
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    done = run("evaluate", tmp_path / "run")
    assert done.code == 2
    assert f"(a copy of sqlite:{file}) was not found" in done.err
    assert run("evaluate", tmp_path / "run", "--data", f"sqlite:{file}").code == 0


def test_copies_do_not_pile_up(tmp_path: Path, facts: list[Fact]) -> None:
    files = [sqlite_file(tmp_path / f"{n}.db", TABLE, rows=facts[n:]) for n in range(5)]
    found = [copies.fetch(parse_address(f"sqlite:{file}")) for file in files[:4]]
    unused, used, opened, earlier = found
    run = tmp_path / "run" / "graph.json"
    run.parent.mkdir()
    run.write_text(str(used))
    copies.keep_copy(used, run)
    copies.keep_copy(used, run)
    assert (used / "used-by").read_text().count("\n") == 1
    (earlier / "used-by").unlink()  # an earlier version did not know who used it
    long_ago = time.time() - 31 * 24 * 3600
    for copy in found:
        os.utime(copy / "source.json", (long_ago, long_ago))
    assert copies.copy_at(opened) is not None  # as `load` does
    newest = copies.fetch(parse_address(f"sqlite:{files[4]}"))
    left = {path.name for path in newest.parent.iterdir()}
    assert left == {path.name for path in (used, opened, earlier, newest)}
    assert unused.name not in left
    # Once the run is gone, or trained on something else, its copy may go, too.
    run.write_text("something else")
    os.utime(used / "source.json", (long_ago, long_ago))
    copies.fetch(parse_address(f"sqlite:{files[4]}"))
    assert not used.exists()


def test_reading_a_run_of_others_writes_nothing_elsewhere(tmp_path: Path) -> None:
    """It may name a directory that looks like a copy, with a link to any file in it."""
    looks_like = tmp_path / "source"
    looks_like.mkdir()
    (looks_like / "facts.tsv").write_text("a\tnext\tb\nb\tnext\tc\nc\tnext\ta\n")
    (looks_like / "source.json").write_text('{"address": "sqlite:x.db", "notes": []}')
    target = tmp_path / "profile"
    target.write_text("mine")
    (looks_like / "used-by").symlink_to(target)
    data = oneshot.load(looks_like)
    predictor = tiny_predictor(num_relations=1).float()
    oneshot.Reasoner(data.graph, oneshot.PPRSampler(0.5), predictor).save(tmp_path / "run")
    os.utime(looks_like / "source.json", (1, 1))
    found = oneshot.Reasoner.load(tmp_path / "run")
    assert found.graph.origin is not None
    assert found.graph.origin["source"] == str(looks_like)
    assert target.read_text() == "mine"
    assert (looks_like / "source.json").stat().st_mtime == 1


def test_a_run_of_others_opens_no_address(
    run: Command, tmp_path: Path, facts: list[Fact], endpoint: Endpoint
) -> None:
    """Only the command line names addresses: a run, answers or a search cannot cause a request."""
    from oneshot.batch.manifest import MANIFEST, read_manifest
    from oneshot.search.search import stored_source
    from oneshot.search.store import Store
    from oneshot.system.checksums import read_sealed_json, write_sealed_json

    file = sqlite_file(tmp_path / "x.db", TABLE, rows=facts)
    path, queries, out = tmp_path / "run", tmp_path / "q.tsv", tmp_path / "answers"
    assert run("train", f"sqlite:{file}", "--out", path, *SETTINGS).code == 0
    queries.write_text(f"{facts[0][0]}\t{facts[0][1]}\n")
    options = ("--queries", queries, "--out", out)
    assert run("predict", path, *options, "--data", f"sqlite:{file}").code == 0
    kept = read_manifest(out)
    assert kept is not None
    assert str(kept.data).startswith(str(tmp_path / "cache"))
    about = json.loads((out / MANIFEST).read_text())
    (out / MANIFEST).write_text(json.dumps(about | {"data": f"sparql:{endpoint.url}"}))
    assert "not written by oneshot" in run("predict", path, *options, "--resume").err
    store = Store(tmp_path / "search", create=True)
    store.set_about("data", {"origin": {"source": f"sparql:{endpoint.url}"}})
    store.close()
    assert stored_source(tmp_path / "search") is None
    reference = read_sealed_json(path / "graph.json")
    reference["origin"]["source"] = f"sparql:{endpoint.url}"
    write_sealed_json(path / "graph.json", reference)
    done = run("evaluate", path)
    assert (done.code, "was not found" in done.err) == (2, True)
    assert endpoint.asked == []


def test_addresses() -> None:
    assert {"duckdb", "sqlite", "postgres", "mysql", "sparql", "neo4j", "bolt"} <= set(SOURCES)
    assert not any(map(is_address, ("world", "family:10", "C:\\facts.tsv", "facts.tsv", "x:y")))
    address = parse_address("NEO4J://me:p%40ss@[::1]:77/db?name=a%26b&query=MATCH (n) RETURN n ?")
    assert (address.user, address.password) == ("me", "p@ss")
    assert (address.host, address.port, address.path) == ("::1", 77, "db")
    assert address.options == {"name": "a&b", "query": "MATCH (n) RETURN n ?"}
    assert address.public == "neo4j://[::1]:77/db?name=a%26b&query=MATCH (n) RETURN n ?"
    assert shown("neo4j://me:pass@host") == "neo4j://host"
    assert shown("facts.tsv") == "facts.tsv"
    odd = parse_address("postgres://me:a%27b%5C%22c@host/db")
    for form in ("a'b\\\"c", "a\\'b\\\\\"c", "a''b\\\"c", "a'b\\\\\\\"c", "a%27b%5C%22c"):
        assert str(odd.error(f"<{form}>")) == "postgres://host/db: <***>", form
    for text in (str(address), repr(address), str(address.error("no p@ss, no p%40ss"))):
        assert "p@ss" not in text
        assert "p%40ss" not in text


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [("duckdb::memory:", "duckdb", "databases"), ("neo4j://localhost", "neo4j", "neo4j")],
)
def test_without_its_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str, package: str, extra: str
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("oneshot.errors.importlib.import_module", absent)
    with pytest.raises(MissingPackageError, match=rf"needs the package '{package}'.*\[{extra}\]"):
        oneshot.load(address)
