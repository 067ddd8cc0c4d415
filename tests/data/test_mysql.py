"""MySQL for real: a MariaDB server of this machine, read through DuckDB's extension.

Skipped where there is no server, or where the extension is not installed; the parameters of the
connection and the errors without an extension are tested in `test_sources`.
"""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Command, listing

PASSWORD = 'p"w d'
FACTS = [(f"e{n}", f"r{n % 2}", f"e{(3 * n + 1) % 20}") for n in range(60)]


def check_extension() -> None:
    """Skip if DuckDB cannot load its extension without a download."""
    duckdb = pytest.importorskip("duckdb", reason="the extra `databases` is not installed")
    try:
        duckdb.connect().execute("LOAD mysql")
    except duckdb.Error:
        pytest.skip("DuckDB's extension mysql is not installed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a database `kg` with a table `facts`, for a user who may only read."""
    server, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    client = shutil.which("mariadb")
    if server is None or install is None or client is None:
        pytest.skip("no MariaDB server on this machine")
    check_extension()
    user = [f"--user={getpass.getuser()}"]
    with tempfile.TemporaryDirectory(prefix="oneshot-mysql-") as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        home, own = Path(place), f"{place}/server.sock"
        data = [f"--datadir={home / 'data'}", *user]
        method = "--auth-root-authentication-method=normal"
        subprocess.run([install, *data, method], check=True, capture_output=True)
        options = ["--no-defaults", *data, "--bind-address=127.0.0.1", f"--port={port}"]
        with (home / "log").open("w") as log:
            process = subprocess.Popen(
                [server, *options, f"--socket={own}", f"--pid-file={home / 'pid'}"],
                stdout=log,
                stderr=log,
            )
        try:
            rows = ", ".join(f"('{h}', '{r}', '{t}')" for h, r, t in FACTS)
            text = f"""CREATE DATABASE kg;
                CREATE TABLE kg.facts (head varchar(9), relation varchar(9), tail varchar(9));
                INSERT INTO kg.facts VALUES {rows};
                CREATE USER 'me'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
                GRANT SELECT ON kg.* TO 'me'@'127.0.0.1';"""
            line = [client, "--no-defaults", "-S", own, "-u", "root", "-e", text]
            for _ in range(300):
                if subprocess.run(line, capture_output=True).returncode == 0:
                    break
                assert process.poll() is None, (home / "log").read_text()
                time.sleep(0.1)
            yield f"mysql://me:p%22w%20d@127.0.0.1:{port}/kg"
        finally:
            process.terminate()
            process.wait()


def test_from_a_server_to_a_prediction(
    address: str, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    value = run("data", f"{address}?table=facts", "--json").json
    assert value["train"] + value["valid"] + value["test"] == len(set(FACTS))
    few = run("data", f"{address}?query=SELECT * FROM facts WHERE relation = 'r0'", "--json").json
    assert few["relations"] == 1
    settings = ("--set", "training.epochs=1", "--set", "predictor.dim=8", "--device", "cpu")
    out = tmp_path / "run"
    trained = run("train", f"{address}?table=facts", "--out", out, *settings, "--json")
    assert trained.code == 0, trained.err
    answers = run("predict", out, "e1", "r1", "--json").json["answers"]
    names = {name for h, _, t in FACTS for name in (h, t)}
    assert answers
    assert {answer["entity"] for answer in answers} <= names
    content = b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    assert PASSWORD.encode() not in content
    assert b"p%22w" not in content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("p%22w%20d", "wrong"), "Access denied"),
        (("/kg", "/other"), "Access denied"),
        (("?table=facts", "?table=nothing"), "has no table 'nothing'; there are: facts"),
        (("?table=facts", "?query=SELECT 1 FROM"), "Parser Error"),
        (("?table=facts", "?query=DELETE FROM facts"), "only a single SELECT query is allowed"),
        (("?table=facts", "?query=SELECT head, tail FROM facts"), "expected the columns"),
    ],
)
def test_bad_addresses(
    address: str,
    run: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
    message: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run("train", f"{address}?table=facts".replace(*change), "--out", tmp_path / "run")
    assert (result.code, result.out, result.err.count(os.linesep)) == (2, "", 1), result.err
    assert message in result.err
    assert PASSWORD not in result.err
    assert listing(tmp_path) == []
