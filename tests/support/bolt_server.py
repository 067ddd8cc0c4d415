"""A server that speaks Bolt, the protocol of Neo4j, and knows the few queries of our source.

The official driver connects to it over a socket, so that the exchange (handshake, credentials,
routing, transactions, errors) is that of a real server. What a query means is decided here, for an
exact list of queries: a change of a query is seen, but not whether Neo4j agrees with it.
"""

import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

VERSION = bytes([0, 0, 0, 5])  # 5.0
SUCCESS, RECORD, IGNORED, FAILURE = 0x70, 0x71, 0x7E, 0x7F
HELLO, GOODBYE, RESET, RUN, BEGIN, COMMIT, ROLLBACK, DISCARD, PULL, ROUTE = (
    0x01, 0x02, 0x0F, 0x10, 0x11, 0x12, 0x13, 0x2F, 0x3F, 0x66,
)  # fmt: skip
NAME = r"coalesce\({}\.`(?P<name>[^`]*)`, elementId\({}\)\)"
READ_ALL = re.compile(
    r"MATCH \(a\)-\[r\]->\(b\) WHERE coalesce\(r\.source, ''\) <> 'oneshot' RETURN "
    + NAME.format("a", "a")
    + r" AS head, type\(r\) AS relation, coalesce\(b\.`(?P=name)`, elementId\(b\)\) AS tail"
)
FIND_NODES = re.compile(
    r"MATCH \(n\) WHERE toString\("
    + NAME.format("n", "n")
    + r"\) IN \$names RETURN toString\(coalesce\(n\.`(?P=name)`, elementId\(n\)\)\) AS name, "
    r"elementId\(n\) AS id"
)
WRITE = re.compile(
    r"UNWIND \$links AS link MATCH \(a\) WHERE elementId\(a\) = link\.head "
    r"MATCH \(b\) WHERE elementId\(b\) = link\.tail "
    r"OPTIONAL MATCH \(a\)-\[old:`(?P<type>(?:[^`]|``)+)`\]->\(b\) "
    r"WHERE coalesce\(old\.source, ''\) <> 'oneshot' "
    r"WITH a, b, link\.probability AS probability, count\(old\) AS known WHERE known = 0 "
    r"MERGE \(a\)-\[r:`(?P=type)` \{source: 'oneshot'\}\]->\(b\) "
    r"(?P<set>SET r\.probability = probability )?RETURN count\(r\) AS written"
)


class FailureError(Exception):
    """A failure that the server reports: its code and message."""


@dataclass
class Database:
    """Nodes by id, relationships, and what clients did.

    `nodes`: properties. `relationships`: [start, type, end, properties]. `answers`: the columns and
    rows of further queries. `commits`: the number of relationships written per transaction.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    relationships: list[list[Any]] = field(default_factory=list)
    answers: dict[str, tuple[list[str], list[list[Any]]]] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    databases: set[Any] = field(default_factory=set)
    password: str | None = None

    def add(self, head: str, relation: str, tail: str) -> None:
        for name in (head, tail):
            self.nodes.setdefault(f"4:{name}", {"name": name})
        self.relationships.append([f"4:{head}", relation, f"4:{tail}", {}])

    def name(self, node: str, prop: str) -> Any:
        return self.nodes[node].get(prop, node)

    def run(self, query: str, values: dict[str, Any]) -> tuple[list[str], list[list[Any]], int]:
        """Columns, rows, and the number of written relationships."""
        if query == "RETURN 1":
            return ["1"], [[1]], 0
        if found := READ_ALL.fullmatch(query):
            prop = found["name"]
            rows = [
                [self.name(start, prop), kind, self.name(end, prop)]
                for start, kind, end, about in self.relationships
                if about.get("source") != "oneshot"
            ]
            return ["head", "relation", "tail"], rows, 0
        if found := FIND_NODES.fullmatch(query):
            named = [[str(self.name(node, found["name"])), node] for node in self.nodes]
            return ["name", "id"], [row for row in named if row[0] in values["names"]], 0
        if found := WRITE.fullmatch(query):
            kind = found["type"].replace("``", "`")
            count = sum(self._merge(link, kind, bool(found["set"])) for link in values["links"])
            return ["written"], [[count]], count
        if query in self.answers:
            return (*self.answers[query], 0)
        raise FailureError("Neo.ClientError.Statement.SyntaxError", "Invalid input 'MATHC'")

    def _merge(self, link: dict[str, Any], kind: str, is_set: bool) -> bool:
        for start, other, end, about in self.relationships:
            if (start, other, end) == (link["head"], kind, link["tail"]):
                if about.get("source") != "oneshot":
                    return False
                break
        else:
            about = {"source": "oneshot"}
            self.relationships.append([link["head"], kind, link["tail"], about])
        if is_set:
            about["probability"] = link["probability"]
        return True


class Connection(socketserver.BaseRequestHandler):
    """One connection: a state machine over messages."""

    server: "Server"
    request: socket.socket

    def handle(self) -> None:
        try:
            self._receive(20)  # magic number and proposed versions
            self.request.sendall(VERSION)
            self._converse()
        except (ConnectionError, EOFError):
            pass

    def _converse(self) -> None:
        database = self.server.database
        rows: list[list[Any]] = []
        has_failed = False
        written = 0
        while True:
            tag, values = self._message()
            if tag == GOODBYE:
                return
            if tag == RESET:
                has_failed, rows = False, []
                self._send(SUCCESS, {})
            elif has_failed:
                self._send(IGNORED)
            elif tag == HELLO:
                if database.password not in (None, values[0].get("credentials")):
                    code = "Neo.ClientError.Security.Unauthorized"
                    self._send(FAILURE, {"code": code, "message": "authentication failure"})
                    return
                self._send(SUCCESS, {"server": "Neo4j/5.0.0", "connection_id": "bolt-1"})
            elif tag == ROUTE:
                here = f"127.0.0.1:{self.server.port}"
                servers = [{"addresses": [here], "role": r} for r in ("READ", "WRITE", "ROUTE")]
                name = values[2].get("db") or "neo4j"
                self._send(SUCCESS, {"rt": {"ttl": 300, "db": name, "servers": servers}})
            elif tag in (RUN, BEGIN):
                extra = values[-1]
                database.databases.add(extra.get("db"))
                if tag == BEGIN:
                    written = 0
                    self._send(SUCCESS, {})
                    continue
                try:
                    columns, rows, count = database.run(values[0], values[1])
                except FailureError as error:
                    has_failed = True
                    self._send(FAILURE, {"code": error.args[0], "message": error.args[1]})
                    continue
                written += count
                self._send(SUCCESS, {"fields": columns})
            elif tag in (PULL, DISCARD):
                wanted = values[0]["n"]
                some = rows if wanted < 0 or tag == DISCARD else rows[:wanted]
                rows = rows[len(some) :]
                for row in some if tag == PULL else ():
                    self._send(RECORD, row)
                self._send(SUCCESS, {"has_more": True} if rows else {})
            else:
                if tag == COMMIT:
                    database.commits.append(written)
                self._send(SUCCESS, {})

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.request.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def _message(self) -> tuple[int, list[Any]]:
        data = b""
        while True:
            (size,) = struct.unpack(">H", self._receive(2))
            if size:
                data += self._receive(size)
            elif data:
                return data[1], list(_unpacked_structure(data))

    def _send(self, tag: int, *values: Any) -> None:
        data = bytes([0xB0 + len(values), tag]) + b"".join(map(_packed, values))
        parts = [data[start : start + 0xFFFF] for start in range(0, len(data), 0xFFFF)]
        chunks = b"".join(struct.pack(">H", len(part)) + part for part in parts)
        self.request.sendall(chunks + b"\0\0")


def _packed(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return b"\xcb" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xc1" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xd2" + struct.pack(">I", len(data)) + data
    if isinstance(value, list):
        return b"\xd6" + struct.pack(">I", len(value)) + b"".join(map(_packed, value))
    pairs = b"".join(_packed(part) for pair in value.items() for part in pair)
    return b"\xda" + struct.pack(">I", len(value)) + pairs


def _unpacked_structure(data: bytes) -> Iterator[Any]:
    position = 2

    def number(form: str) -> Any:
        nonlocal position
        (value,) = struct.unpack_from(">" + form, data, position)
        position += struct.calcsize(form)
        return value

    def value() -> Any:
        nonlocal position
        mark = data[position]
        position += 1
        if mark < 0x80 or mark >= 0xF0:
            return mark if mark < 0x80 else mark - 0x100
        if mark in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[mark]
        if mark == 0xC1 or 0xC8 <= mark <= 0xCB:
            return number({0xC1: "d", 0xC8: "b", 0xC9: "h", 0xCA: "i", 0xCB: "q"}[mark])
        if mark < 0xB0:
            form, size = mark & 0xF0, mark & 0x0F
        else:
            form = {0xD0: 0x80, 0xD4: 0x90, 0xD8: 0xA0}[mark & 0xFC]
            size = number("BHI"[mark & 3])
        if form == 0x80:
            position += size
            return data[position - size : position].decode()
        if form == 0x90:
            return [value() for _ in range(size)]
        return {value(): value() for _ in range(size)}

    for _ in range(data[0] & 0x0F):
        yield value()


class Server(socketserver.ThreadingTCPServer):
    """Serves `database` at `port`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.database = Database()
        self.port = int(self.server_address[1])


@contextmanager
def bolt_server() -> Iterator[Server]:
    """A running server; stopped at the end of the block."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()
