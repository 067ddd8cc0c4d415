"""The service under load: throughput, overload, kill -9, live facts and search on a large graph.

WN18RR (10% of the entities, dim 64, 6 layers) and HsGeneKG, with random parameters: what an
answer costs does not depend on what was learnt. `shipped` measures the pretrained run of WN18RR
(dim 128, 8 layers), also beside explanations. Parts can be named: load shipped overload kill live
search.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import RESULTS, find, write_result

from oneshot.client import Client, ServiceError
from oneshot.config import PredictorConfig
from oneshot.data.load import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.system.devices import find_device

SECONDS = float(os.environ.get("SERVE_SECONDS", "60"))
PARTS = ("load", "shipped", "overload", "kill", "live", "search")
SHIPPED = Path(__file__).resolve().parent.parent / "pretrained" / "WN18RR"
EXPLAINING = 10  # clients that ask for explanations


def make_run(graph: KnowledgeGraph, path: Path, sampler: PPRSampler) -> Path:
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(dim=64, num_layers=6), graph.num_relations)
    graph.origin = None  # saved with the run, which then opens at once
    Reasoner(graph, sampler, predictor).save(path)
    return path


@contextmanager
def served(run: Path, *options: str) -> Any:
    """The command itself, in a process of its own. → (url, process)"""
    command = [sys.executable, "-m", "oneshot", "serve", str(run), "--port", "0", "--json"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.terminate()
        process.wait(30)


class Connection:
    """One kept-alive connection, with as little work as possible on this side."""

    def __init__(self, url: str) -> None:
        self.host, port = url.removeprefix("http://").split(":")
        self.port = int(port)

    async def post(self, path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        if not hasattr(self, "reader"):
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:] if x)}
        content = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, content

    def close(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()


def questions(data: Any) -> list[dict[str, str]]:
    linked = [fact for fact in data.test.tolist() if int(data.graph.degree[fact[0]]) > 0]
    random.Random(0).shuffle(linked)
    names, relations = data.graph.entities, data.graph.relations
    return [{"entity": names[h], "relation": relations[r]} for h, r, _ in linked]


async def clients(url: str, asked: list[dict[str, str]], count: int, seconds: float) -> Any:
    """So many clients, each asking one question after the other. → (latencies, statuses)"""
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    until = time.monotonic() + seconds

    async def one(number: int) -> None:
        connection = Connection(url)
        place = number
        while time.monotonic() < until:
            started = time.monotonic()
            body = {"questions": [asked[place % len(asked)]]}
            status, _, _ = await connection.post("/v1/predict", body)
            statuses[status] += 1
            latencies.append(time.monotonic() - started)
            place += count
        connection.close()

    await asyncio.gather(*(one(number) for number in range(count)))
    return latencies, statuses


def measure_load(run: Path, asked: list[dict[str, str]]) -> dict[str, Any]:
    rows = {}
    latencies: dict[str, list[float]] = {}
    statuses: dict[str, Counter[int]] = {}
    slices = 6
    with served(run) as (batched, _), served(run, "--batch-size", "1") as (unbatched, _):
        places = {"batched": batched, "unbatched": unbatched}
        for url in places.values():
            asyncio.run(clients(url, asked, 16, 5))  # warm
        # In turns: what else the machine has to do then meets both alike.
        for number in range(slices):
            for name, url in places.items():
                moved = asked[97 * number :] + asked[: 97 * number]
                found, counts = asyncio.run(clients(url, moved, 16, SECONDS / slices))
                latencies[name] = latencies.get(name, []) + found
                statuses[name] = statuses.get(name, Counter()) + counts
    for name in places:
        errors = sum(count for status, count in statuses[name].items() if status != 200)
        rows[name] = {
            "questions_per_second": round(len(latencies[name]) / SECONDS, 2),
            "p50_s": round(float(np.percentile(latencies[name], 50)), 3),
            "p99_s": round(float(np.percentile(latencies[name], 99)), 3),
            "errors": errors,
            "slowest_s": round(max(latencies[name]), 3),
        }
    ratio = len(latencies["batched"]) / len(latencies["unbatched"])
    return {"clients": 16, "seconds": SECONDS, **rows, "ratio": round(ratio, 2)}


def measure_shipped(asked: list[dict[str, str]]) -> dict[str, Any]:
    """The shipped run: polite clients, few and many; then queries beside explanations."""
    rows = {}
    with served(SHIPPED, "--read-only") as (url, process):
        asyncio.run(polite(url, asked, 4, 5))
        for count in (16, 150):
            rows[f"{count} clients"] = asyncio.run(polite(url, asked, count, SECONDS))
        before = resident(process.pid)
        alone = asyncio.run(beside(url, asked, 0))
        explained = asyncio.run(beside(url, asked, EXPLAINING))
        time.sleep(2)  # for freed memory to be returned
        rows["explanations"] = {
            "clients": EXPLAINING,
            "alone": alone,
            "beside": explained,
            "resident_mb": [before, resident(process.pid)],
        }
    return rows


async def polite(url: str, asked: list[dict[str, str]], count: int, seconds: float) -> Any:
    """Clients that ask one question after the other, and wait as long as a refusal requests."""
    latencies: list[float] = []
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds

    async def one(number: int) -> None:
        connection = Connection(url)
        place = number
        while (started := time.monotonic()) < until:
            body = {"questions": [asked[place % len(asked)]]}
            status, headers, _ = await connection.post("/v1/predict", body)
            statuses[str(status)] += 1
            place += count
            if status == 200:
                latencies.append(time.monotonic() - started)
            else:
                left = max(until - time.monotonic(), 0)
                await asyncio.sleep(min(float(headers.get("retry-after", 1)), left))
        connection.close()

    await asyncio.gather(*(one(number) for number in range(count)))
    return {
        "seconds": seconds,
        "questions_per_second": round(len(latencies) / seconds, 2),
        "p50_s": round(float(np.percentile(latencies, 50)), 3),
        "p99_s": round(float(np.percentile(latencies, 99)), 3),
        "statuses": dict(statuses),
    }


async def beside(url: str, asked: list[dict[str, str]], explaining: int) -> dict[str, Any]:
    """The time of one query after the other, while others ask for explanations."""
    done = asyncio.Event()
    explained: list[float] = []
    latencies: list[float] = []

    async def explain(number: int) -> None:
        connection = Connection(url)
        place = number
        while not done.is_set():
            question = asked[place % len(asked)]
            place += explaining
            found = await connection.post("/v1/predict", {"questions": [question], "top": 1})
            if found[0] != 200:
                await asyncio.sleep(1)
                continue
            answers = json.loads(found[2])["results"][0]["answers"]
            if answers:
                body = {**question, "answer": answers[0]["entity"]}
                status, _, content = await connection.post("/v1/explain", body)
                if status == 200:
                    explained.append(json.loads(content)["milliseconds"]["explaining"] / 1000)
        connection.close()

    others = [asyncio.ensure_future(explain(number)) for number in range(explaining)]
    connection = Connection(url)
    until = time.monotonic() + SECONDS
    for question in asked[500:]:
        started = time.monotonic()
        if started > until:
            break
        await connection.post("/v1/predict", {"questions": [question]})
        latencies.append(time.monotonic() - started)
    done.set()
    connection.close()
    await asyncio.gather(*others)
    return {
        "queries": len(latencies),
        "p50_s": round(float(np.percentile(latencies, 50)), 3),
        "p99_s": round(float(np.percentile(latencies, 99)), 3),
        "explanations": len(explained),
    }


def resident(process: int) -> int:
    """The resident memory of a process in MB (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def measure_overload(run: Path, asked: list[dict[str, str]]) -> dict[str, Any]:
    """500 connections at once for 10 s, then one question."""

    async def flood(url: str) -> Any:
        statuses: Counter[str] = Counter()
        polite = 0
        until = time.monotonic() + 10

        async def one(number: int) -> None:
            nonlocal polite
            connection = Connection(url)
            while time.monotonic() < until:
                body = {"questions": [asked[number % len(asked)]]}
                try:
                    status, headers, _ = await asyncio.wait_for(
                        connection.post("/v1/predict", body), until + 1 - time.monotonic()
                    )
                except TimeoutError:
                    break  # still waiting for its answer when the flood ends: it leaves
                except (OSError, asyncio.IncompleteReadError) as error:
                    statuses[type(error).__name__] += 1
                    break
                statuses[str(status)] += 1
                if status == 503:
                    polite += "retry-after" in headers
                    await asyncio.sleep(min(1.0, max(until - time.monotonic(), 0)))
            connection.close()

        await asyncio.gather(*(one(number) for number in range(500)))
        return statuses, polite

    with served(run) as (url, _):
        asyncio.run(clients(url, asked, 4, 2))
        statuses, polite = asyncio.run(flood(url))
        started = time.monotonic()
        client = Client(url, retries=0)
        while True:
            try:
                client.predict(asked[0]["entity"], asked[0]["relation"])
                break
            except ServiceError as error:
                if error.status != 503:
                    raise
                time.sleep(0.05)
        healthy = time.monotonic() - started
    return {
        "connections": 500,
        "statuses": dict(statuses),
        "refusals_with_retry_after": polite,
        "healthy_again_s": round(healthy, 2),
    }


def measure_kill(directory: Path, rounds: int = 20, facts: int = 10_000) -> dict[str, Any]:
    """Kill the process in the middle of a stream of facts; count what it had acknowledged."""
    data = load("umls")
    lost, acknowledged, seconds = 0, [], []
    for number in range(rounds):
        run = make_run(data.graph, directory / f"kill-{number}", PPRSampler(0.5))
        relation = data.graph.relations[0]
        generator = random.Random(number)
        after = generator.randint(200, facts - 200)
        command = [sys.executable, "-m", "oneshot", "serve", str(run), "--port", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        client = Client(json.loads(process.stdout.readline())["url"], retries=0)
        kept: list[int] = []
        started = time.monotonic()
        step, place = 0, 0
        killer: threading.Timer | None = None
        try:
            while place < facts:
                size = generator.choice((1, 1, 5, 20))
                batch = list(range(place, min(place + size, facts)))
                if place >= after and killer is None:
                    # While requests go on, so that it hits anywhere.
                    delay = generator.random() * 0.02
                    killer = threading.Timer(delay, os.kill, (process.pid, signal.SIGKILL))
                    killer.start()
                client.add([(f"new {n}", relation, f"new {n + 1}") for n in batch])
                kept += batch
                place += size
                step += 1
        except ServiceError:
            pass
        if killer is not None:
            killer.join()
        seconds.append((time.monotonic() - started) / max(step, 1))
        process.kill()
        process.wait()
        graph = Reasoner.load(run).graph
        there = {tuple(row) for row in graph.facts.tolist()}
        for n in kept:
            ids = graph.entities.get(f"new {n}"), 0, graph.entities.get(f"new {n + 1}")
            lost += ids not in there
        acknowledged.append(len(kept))
    return {
        "rounds": rounds,
        "stream": facts,
        "acknowledged": sum(acknowledged),
        "lost": lost,
        "ms_a_request": round(1e3 * float(np.mean(seconds)), 2),
    }


def measure_live(run: Path) -> dict[str, Any]:
    """HsGeneKG: the time until an added fact is acknowledged, and that it counts at once."""
    relation = None
    with served(run, "--timeout", "120") as (url, process):
        client = Client(url, timeout=120)
        relation = client.relations()[0]
        known = client.search("ENSG00000", 50)
        client.predict(known[0], relation)
        client.search("ENST")
        times, effect, questions_s = [], [], []
        for number in range(60):
            facts = [(f"new gene {number}", relation, known[number % 50])]
            started = time.monotonic()
            assert client.add(facts) == 1
            times.append(time.monotonic() - started)
            if number % 6 == 0:
                asked = {"entity": f"new gene {number}", "relation": relation}
                started = time.monotonic()
                found = client._call("/v1/predict", {"questions": [asked]})["results"][0]
                questions_s.append(time.monotonic() - started)
                # Written to disk and acknowledged, then taken into the adjacency by the question.
                effect.append(times[-1] + found["milliseconds"]["updating"] / 1e3)
                assert found["subgraph"]["entities"] > 1  # what is new has neighbours at once
                assert client.facts(f"new gene {number}") == facts
        resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096
        searches = []
        generator = random.Random(0)
        names = client.search("ENST", 100) + client.search("pmid:1", 100)
        for number in range(300):
            name = generator.choice(names)
            cut = name[: generator.randint(1, len(name))]
            if number % 2:
                place = generator.randrange(len(name))
                cut = name[:place] + generator.choice("abcx019") + name[place + 1 :]
            started = time.monotonic()
            client.search(cut)
            searches.append(time.monotonic() - started)
        text = urllib.request.urlopen(f"{url}/metrics").read().decode()
        steps = {
            line.split('step="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("oneshot_step_seconds_sum")
        }
    return {
        "acknowledged_ms": {
            "p50": round(1e3 * float(np.percentile(times, 50)), 2),
            "largest": round(1e3 * max(times), 2),
        },
        "in_effect_ms": {
            "p50": round(1e3 * float(np.percentile(effect, 50)), 2),
            "largest": round(1e3 * max(effect), 2),
        },
        "question_s": round(float(np.median(questions_s)), 2),
        "resident_gb": round(resident / 2**30, 2),
        "steps_s": {name: round(value, 2) for name, value in steps.items()},
        "search_over_http_ms": {
            "p50": round(1e3 * float(np.percentile(searches, 50)), 1),
            "p99": round(1e3 * float(np.percentile(searches, 99)), 1),
        },
    }


def measure_search(data: Any) -> dict[str, Any]:
    """Beginnings, misspellings and middles of names, drawn from all of them."""
    from oneshot.serve.entity_search import NameSearch

    names = data.graph.entities
    started = time.perf_counter()
    index = NameSearch(names, data.graph.degree.numpy())
    built = time.perf_counter() - started
    generator = random.Random(0)
    times = []
    for number in range(2000):
        name = names[generator.randrange(len(names))]
        place = generator.randrange(len(name))
        text = (
            name[: place + 1],
            name[:place] + generator.choice("abcdefghij0123") + name[place + 1 :],
            name[place : place + generator.randint(2, 8)],
        )[number % 3]
        started = time.perf_counter()
        index.search(text, 10)
        times.append(time.perf_counter() - started)
    return {
        "names": len(names),
        "build_s": round(built, 1),
        "p50_ms": round(1e3 * float(np.percentile(times, 50)), 2),
        "p99_ms": round(1e3 * float(np.percentile(times, 99)), 2),
    }


def main() -> None:
    parts = sys.argv[1:] or PARTS
    name = "serve"
    if torch.cuda.is_available():
        name += "-" + torch.cuda.get_device_name().split()[-1].lower()
    path = RESULTS / f"{name}.json"
    result = json.loads(path.read_text()) if path.is_file() else {}
    result.pop("hardware", None)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        if {"load", "shipped", "overload"} & set(parts):
            data = load(find("WN18RR"))
            asked = questions(data)
            if "shipped" in parts:
                write_result(f"{name}-shipped", measure_shipped(asked), find_device("auto"))
            run = make_run(data.graph, directory / "wn18rr", PPRSampler(0.1))
            if "load" in parts:
                result["load"] = measure_load(run, asked)
            if "overload" in parts:
                result["overload"] = measure_overload(run, asked)
        if "kill" in parts:
            result["kill"] = measure_kill(directory)
        if "live" in parts or "search" in parts:
            large = load(find("HsGeneKG"))
            if "search" in parts:
                result["search"] = measure_search(large)
            if "live" in parts:
                sampler = PPRSampler(max_entities=1000)
                run = make_run(large.graph, directory / "hsgenekg", sampler)
                del large
                result["live"] = measure_live(run)
    if set(parts) - {"shipped"}:
        print(json.dumps(result, indent=2))
        write_result(name, result, find_device("auto"))


if __name__ == "__main__":
    main()
