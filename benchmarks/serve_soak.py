"""The service over a long time: memory, log and health under polite and under hostile clients.

    python -m benchmarks.serve_soak [soak] [fuzz] [versions] [idle] [explaining] [--minutes 20]
        [--fuzz-minutes 10] [--requests 10000] [--idle 1100] [--explanations 30]

`soak`: four clients predict, explain, search, read, add and remove facts, with a short pause after
each request. `fuzz`: twelve clients send requests that are cut, swollen, slow, wrongly encoded, of
unknown methods and paths, with bodies larger than the service accepts, or made to cost much more
than others of their size, beside one that asks ordinary queries. They pause as well, and have a
process of their own, so that the health is not measured beside them in one process. Both use a
small run on the bundled graph `world`, in a process of its own. Every second the health is asked
and its time measured; every ten seconds the memory of the process is read. `versions`: clients ask
about an entity while another adds facts about it and removes them again, so that the number of
known answers tells the version of the graph that answered; it is compared with the version in each
result. `idle`: ordinary queries while idle connections are held open, without and with a token that
these do not have. `explaining`: CPU time of explanations on the shipped run of WN18RR, one at a
time.
Writes `benchmarks/results/serve-soak.json`: each part with the revision that it was measured at;
parts that are not measured keep their results.
"""

import argparse
import dataclasses
import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import write_parts
from benchmarks.serve import SHIPPED, questions

from oneshot.client import Client, ServiceError
from oneshot.config import Config, PredictorConfig, SamplerConfig
from oneshot.data.load import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.build import build_reasoner

NAME = "serve-soak"
PARTS = ("soak", "fuzz", "versions", "idle", "explaining")
TOKEN = "a-token"
SMALL = Config(
    SamplerConfig(max_entities=400), PredictorConfig(num_layers=4, dim=32, attention_dim=5)
)
# What an idle connection has sent: nothing, a part of the head, a head without its body, and a body
# that does not end.
BEGINNINGS = (
    b"",
    b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000\r\n\r\n",
    b"POST /v1/facts HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"fac',
)
REPEATS = 3  # of an explanation
QUERIES_BESIDE = 100  # while connections are idle
PAUSE = 0.05
HOSTILE = 12  # clients of `fuzz`
HOSTILE_PAUSE = 0.1
HOSTILE_PATIENCE = 0.3  # seconds for a response; many requests are never complete
HUGE_SHARE = 0.03  # of the hostile requests
COSTLY_SHARE = 0.03
DRIPPING_SHARE = 0.03
LARGEST = 2 << 20  # bytes of a body that the service accepts
SENT_AT_ONCE = 1 << 16
CHANGED = 50  # facts that are added and removed again
PATHS = (b"/v1/predict", b"/v1/explain", b"/v1/facts", b"/v1/entities", b"/metrics", b"/", b"/x")
METHODS = (b"GET", b"POST", b"DELETE", b"PUT", b"TRACE", b"G\x00T", b"")


class Watched:
    """The service in a process of its own, with its memory, log and the time of its health."""

    def __init__(self, run: Path, log: Path, *options: str, token: str | None = None) -> None:
        command = [sys.executable, "-m", "oneshot", "serve", str(run), "--port", "0", "--json"]
        variables = os.environ | ({} if token is None else {"ONESHOT_TOKEN": token})
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=stderr, env=variables
            )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        host, port = self.url.removeprefix("http://").split(":")
        self.address = (host, int(port))
        self.health: list[float] = []
        self.memory: list[float] = []
        self.failures = 0
        self.statuses: Counter[str] = Counter()

    def watch(self, until: float) -> None:
        """Ask for the health and read the memory until a time by `time.monotonic`."""
        read = 0.0
        while time.monotonic() < until:
            begun = time.monotonic()
            try:
                connection = http.client.HTTPConnection(*self.address, timeout=30)
                connection.request("GET", "/v1/healthz")
                self.failures += connection.getresponse().status != 200
                connection.close()
            except OSError:
                self.failures += 1
            self.health.append(time.monotonic() - begun)
            if begun - read >= 10:
                self.memory.append(self._megabytes())
                read = begun
            time.sleep(max(1 - (time.monotonic() - begun), 0))

    def cpu_seconds(self) -> float:
        """The CPU time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        """End the service. → its exit code"""
        self.process.terminate()
        return self.process.wait(60)

    def _megabytes(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def report(self, minutes: float) -> dict[str, Any]:
        code = self.stop()
        third = max(len(self.memory) // 3, 1)
        return {
            "minutes": minutes,
            "statuses": dict(self.statuses.most_common()),
            "health_seconds": {
                "median": round(statistics.median(self.health), 4),
                "most": round(max(self.health), 4),
                "failures": self.failures,
            },
            # The first third includes what is loaded on first use.
            "memory_megabytes": {
                "start": round(self.memory[0], 1),
                "second_third": round(
                    statistics.mean(self.memory[third : 2 * third] or self.memory), 1
                ),
                "last_third": round(statistics.mean(self.memory[2 * third :] or self.memory), 1),
                "most": round(max(self.memory), 1),
            },
            "log_bytes": self._log.stat().st_size,
            "exit_code": code,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--fuzz-minutes", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=10_000, help="of `versions`")
    parser.add_argument("--idle", type=int, default=1100, help="connections of `idle`")
    parser.add_argument("--explanations", type=int, default=30, help="of `explaining`")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"{part}: is none of {', '.join(PARTS)}")
    for part in options.parts:
        result = measured(part, options)
        print(json.dumps({part: result}), flush=True)
        write_parts(NAME, {part: result})


def measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / part
        if part == "versions":
            return measure_versions(run, options.requests)
        if part == "explaining":
            return measure_explaining(run, options.explanations)
        build_reasoner(load("world").graph, SMALL).save(run)
        if part == "idle":
            return measure_idle(run, options.idle)
        if part == "soak":
            return measure(run, options.minutes, ordinary=5)
        return measure(run, options.fuzz_minutes, ordinary=1, hostile=HOSTILE)


def measure(run: Path, minutes: float, ordinary: int, hostile: int = 0) -> dict[str, Any]:
    """Let so many clients work on a service for some minutes."""
    # Started before the measurement: it imports as much as the service.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(os.getpid).result()
        watched = Watched(run, run.with_suffix(".log"))
        until = time.monotonic() + 60 * minutes
        attacked = pool.submit(attack, watched.address, hostile, until)
        threads = [
            threading.Thread(target=polite, args=(watched, number, until))
            for number in range(ordinary)
        ]
        for thread in threads:
            thread.start()
        watched.watch(until)
        for thread in threads:
            thread.join(60)
        watched.statuses.update(attacked.result())
    huge, costly = watched.statuses.pop("huge", 0), watched.statuses.pop("costly", 0)
    made = {"huge_bodies": huge, "costly": costly} if hostile else {}
    return watched.report(minutes) | made


def measure_versions(run: Path, requests: int) -> dict[str, Any]:
    """Ask about an entity while its facts change, and count results with a wrong version."""
    names = [f"link {number}" for number in range(30)]
    facts = [[number, 0, number + 1] for number in range(29)]
    graph = KnowledgeGraph.from_distinct(
        np.array(facts),
        Vocabulary.from_names(names, "entity"),
        Vocabulary.from_names(["next"], "relation"),
    )
    config = dataclasses.replace(SMALL, sampler=SamplerConfig(entity_ratio=1.0))
    build_reasoner(graph, config).save(run)
    watched = Watched(run, run.with_suffix(".log"))
    stop, left, lock = threading.Event(), [requests], threading.Lock()
    counts: Counter[str] = Counter()

    def change() -> None:
        client, number = Client(watched.url), 0
        while not stop.is_set():
            place = number % (2 * CHANGED)
            fact = ("link 1", "next", f"new {place % CHANGED}")
            (client.add if place < CHANGED else client.remove)([fact])
            number += 1
        counts["changes"] = number

    def ask() -> None:
        connection = http.client.HTTPConnection(*watched.address, timeout=60)
        question = {"entity": "link 1", "relation": "next"}
        body = json.dumps({"questions": [question] * 2, "top": 1000})
        while True:
            with lock:
                if not left[0]:
                    return
                left[0] -= 1
            connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = json.loads(response.read())
            with lock:
                counts[f"status {response.status}"] += 1
                for result in reply.get("results", []):
                    place = result["version"] % (2 * CHANGED)
                    expected = 1 + (place if place <= CHANGED else 2 * CHANGED - place)
                    known = sum(answer["known"] for answer in result["answers"])
                    counts["results"] += 1
                    counts["wrong"] += known != expected or result["version"] != reply["version"]

    writer = threading.Thread(target=change)
    readers = [threading.Thread(target=ask) for _ in range(4)]
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    stop.set()
    writer.join()
    return {"requests": requests, "wrong": 0, **counts, "exit_code": watched.stop()}


def measure_idle(run: Path, count: int) -> dict[str, Any]:
    """Ordinary queries while connections are idle, which are opened again when they are closed."""
    found: dict[str, Any] = {"connections": count}
    for name, token in (("without a token", None), ("with a token", TOKEN)):
        watched = Watched(run, run.with_suffix(f".{len(found)}.log"), token=token)
        stop, opened = threading.Event(), Counter[str]()

        def hold(watched: Watched = watched, stop: Any = stop, opened: Any = opened) -> None:
            held: list[socket.socket] = []
            while not stop.is_set():
                while len(held) < count:
                    with suppress(OSError):
                        one = socket.create_connection(watched.address, timeout=5)
                        one.sendall(BEGINNINGS[opened["connections"] % len(BEGINNINGS)])
                        one.setblocking(False)
                        held.append(one)
                    opened["connections"] += 1
                    if stop.is_set():
                        break
                opened["full"] = 1
                held = [one for one in held if not _is_closed(one)]
                stop.wait(1.0)
            for one in held:
                one.close()

        holder = threading.Thread(target=hold)
        holder.start()
        while not opened["full"]:
            time.sleep(0.1)
        seconds = []
        client = Client(watched.url, token=token)
        for _ in range(QUERIES_BESIDE):
            begun = time.monotonic()
            client.predict("Bolivia", "borders")
            seconds.append(time.monotonic() - begun)
            client.close()  # the next one needs a connection of its own
            time.sleep(0.1)
        stop.set()
        holder.join()
        found[name] = {
            "opened": opened["connections"],
            "queries": len(seconds),
            "p50_s": round(statistics.median(seconds), 4),
            "most_s": round(max(seconds), 4),
            "log_bytes": watched._log.stat().st_size,
            "exit_code": watched.stop(),
        }
    return found


def _is_closed(connection: socket.socket) -> bool:
    """Whether the service has closed a connection, after a response or without one."""
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def measure_explaining(log: Path, count: int) -> dict[str, Any]:
    """CPU time of explanations of the best answers, one at a time; all threads of the service.

    The least of some repeats of each: other processes on the machine slow down the CPU.
    """
    watched = Watched(SHIPPED, log, "--read-only", "--timeout", "120")
    client = Client(watched.url)
    seconds = []
    for number, asked in enumerate(questions(load("WN18RR"))[: count + 3]):
        (answer, *_) = client.predict(asked["entity"], asked["relation"], top=1)
        times = []
        for _ in range(REPEATS):
            begun = watched.cpu_seconds()
            client.explain(asked["entity"], asked["relation"], answer.entity)
            times.append(watched.cpu_seconds() - begun)
        if number >= 3:  # after what is loaded on first use
            seconds.append(min(times))
    return {
        "explanations": len(seconds),
        "repeats": REPEATS,
        "cpu_seconds": {
            "median": round(statistics.median(seconds), 2),
            "p90": round(float(np.quantile(seconds, 0.9)), 2),
            "most": round(max(seconds), 2),
        },
        "exit_code": watched.stop(),
    }


def polite(watched: Watched, number: int, until: float) -> None:
    """Ordinary requests of all sorts, one after the other."""
    draw = random.Random(number)
    client, names = Client(watched.url), list(load("world").graph.entities)
    while time.monotonic() < until:
        one, other = draw.choice(names), draw.choice(names)
        fact = (one, "borders", f"place {draw.randrange(200)}")
        work: tuple[Callable[[], Any], ...] = (
            lambda one=one: client.predict(one, "borders"),  # type: ignore[misc]
            lambda one=one, other=other: client.explain(one, "borders", other),  # type: ignore[misc]
            lambda one=one: client.search(one[:3]),  # type: ignore[misc]
            lambda one=one: client.facts(one),  # type: ignore[misc]
            lambda fact=fact: client.add([fact]),  # type: ignore[misc]
            lambda fact=fact: client.remove([fact]),  # type: ignore[misc]
        )
        try:
            draw.choices(work, (8, 1, 4, 4, 1, 1))[0]()
            watched.statuses["answered"] += 1
        except ServiceError as error:
            watched.statuses[str(error.status)] += 1
        except OSError as error:
            watched.statuses[type(error).__name__] += 1
        time.sleep(PAUSE)


def attack(address: tuple[str, int], clients: int, until: float) -> Counter[str]:
    """Hostile clients until a time by `time.monotonic`. → what became of their requests

    `huge`: how many of them had a body that is larger than accepted; `costly`: how many were made
    to take the service a long time.
    """
    counts: list[Counter[str]] = [Counter() for _ in range(clients)]

    def client(number: int) -> None:
        draw, found = random.Random(1000 + number), counts[number]
        while time.monotonic() < until:
            chance = draw.random()
            if chance < HUGE_SHARE:
                found["huge"] += 1
                request: Iterable[bytes] = huge_request(draw)
            elif chance < HUGE_SHARE + COSTLY_SHARE:
                found["costly"] += 1
                request = [draw.choice(COSTLY)()]
            else:
                request = broken_request(draw)
            found[exchange(address, request, draw)] += 1
            time.sleep(HOSTILE_PAUSE * draw.random())

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts, Counter())


def exchange(address: tuple[str, int], pieces: Iterable[bytes], draw: random.Random) -> str:
    """Send a request on a connection of its own. → the status, or how it ended"""
    try:
        connection = socket.create_connection(address, timeout=HOSTILE_PATIENCE)
    except OSError:
        return "no connection"
    with connection:
        is_cut, drips = False, draw.random() < DRIPPING_SHARE
        try:
            for piece in pieces:
                connection.sendall(piece)
                if drips and draw.random() < 0.02:
                    time.sleep(draw.random())
        except OSError:
            is_cut = True  # it may have been answered
        if not is_cut and draw.random() >= 0.8:
            return "left"
        try:
            start = connection.recv(64)
        except TimeoutError:  # the rest of the request is waited for
            return "left unfinished"
        except OSError:
            return "cut off"
        return start[9:12].decode("latin-1") or "closed"


def huge_request(draw: random.Random) -> Iterator[bytes]:
    """The pieces of a request whose body is larger than accepted, with a length or in chunks."""
    size = draw.randrange(LARGEST + 1, 5 * LARGEST)
    unit = draw.choice((b" ", b"[", b'{"a":', b"[],", b'"x",', b"\xff"))
    path = draw.choice((b"/v1/facts", b"/v1/predict", b"/v1/predict/stream", b"/x"))
    is_chunked = draw.random() < 0.5
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % size
    yield (
        b"POST "
        + path
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        + framing
        + b"\r\n\r\n"
    )
    for start in range(0, size, SENT_AT_ONCE):
        count = min(SENT_AT_ONCE, size - start)
        piece = (unit * (count // len(unit) + 1))[:count]
        yield b"%x\r\n%s\r\n" % (count, piece) if is_chunked else piece
    if is_chunked:
        yield b"0\r\n\r\n"


def _post(body: bytes, framing: bytes = b"") -> bytes:
    framing = framing or b"Content-Length: %d" % len(body)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head + framing + b"\r\n\r\n" + body


def _questions(names: Iterable[str]) -> bytes:
    return json.dumps(
        {"questions": [{"entity": name, "relation": "borders"} for name in names]}
    ).encode()


# Requests that cost more than others of their size: small chunks, extensions of chunks, many keys,
# long unknown names, many requests at once on one connection, deep nesting.
COSTLY: tuple[Callable[[], bytes], ...] = (
    lambda: _post(50_000 * b"1\r\n \r\n" + b"0\r\n\r\n", b"Transfer-Encoding: chunked"),
    lambda: _post(100 * (b"1;" + 4000 * b"a" + b"\r\n \r\n"), b"Transfer-Encoding: chunked"),
    lambda: _post(b"{" + b",".join(b'"k%d":0' % key for key in range(180_000)) + b"}"),
    lambda: _post(_questions(f"{number} {260 * 'Bolivia '}"[:260] for number in range(64))),
    lambda: 200 * b"GET /reference HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    lambda: _post(900_000 * b"[" + 900_000 * b"]"),
)


def broken_request(draw: random.Random) -> Iterable[bytes]:
    """The pieces of a request with something wrong in it."""
    body = json.dumps({"questions": [{"entity": "Bolivia", "relation": "borders"}]}).encode()
    body = draw.choice((body, body[:-3], b"[" * 5000, b"\xff" * 200, b"{}" * 3000, b"null", b""))
    if draw.random() < 0.3:
        place = draw.randrange(len(body) + 1)
        body = body[:place] + draw.randbytes(draw.randrange(1, 40)) + body[place:]
    length = draw.choice((len(body), len(body) + 1000, -1, 10**18, 0))
    path = draw.choice(PATHS) + draw.choice((b"", b"%0A", b"?limit=-1", b"/../..", b"\xc3\x28"))
    lines = [
        draw.choice(METHODS) + b" " + path + draw.choice((b" HTTP/1.1", b" HTTP/9.9", b"")),
        b"Host: " + draw.choice((b"127.0.0.1", b"evil.example", b"", b"a" * 9000)),
        b"Content-Type: " + draw.choice((b"application/json", b"text/plain", b"\x00")),
        b"Content-Length: " + str(length).encode(),
    ]
    if draw.random() < 0.2:
        lines.append(b"Transfer-Encoding: chunked")
    if draw.random() < 0.2:
        lines += [b"X-%d: %s" % (line, draw.randbytes(20).hex().encode()) for line in range(300)]
    head, fields = lines[0], lines[1:]
    draw.shuffle(fields)
    request = b"\r\n".join([head, *fields]) + b"\r\n\r\n" + body
    cut = draw.randrange(len(request)) if draw.random() < 0.3 else len(request)
    size = draw.choice((7, 100, 100_000))
    return [request[i : min(i + size, cut)] for i in range(0, cut, size)]


if __name__ == "__main__":
    main()
