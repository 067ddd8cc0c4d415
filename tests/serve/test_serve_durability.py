"""What a service has acknowledged is there after it was killed, whenever that was."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.services import saved_run

import oneshot

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")


def kill_in_the_middle(run: Path, facts: int, seed: int) -> int:
    """Add facts one request after the other and kill the process somewhere. → acknowledged"""
    command = [sys.executable, "-m", "oneshot", "serve", run, "--port", "0", "--json"]
    generator = random.Random(seed)
    kept: list[tuple[str, str, str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        client = oneshot.Client(json.loads(process.stdout.readline())["url"], retries=0)
        stop_after = generator.randint(facts // 20, facts - facts // 20)
        begun = threading.Event()

        def kill() -> None:
            begun.wait()
            time.sleep(generator.random() * 0.01)  # at any point within a request
            os.kill(process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while len(kept) < facts:
                size = generator.choice((1, 2, 20))
                first = len(kept)
                some = [
                    (f"{seed} {n}", "next", f"{seed} {n + 1}") for n in range(first, first + size)
                ]
                if first >= stop_after:
                    begun.set()
                client.add(some)
                kept += some
        except oneshot.ServiceError:
            pass
        begun.set()
        killer.join()
    graph = oneshot.Reasoner.load(run).graph
    there = {tuple(row) for row in graph.facts.tolist()}
    relation = graph.relations.index("next")
    for head, _, tail in kept:
        assert (graph.entities.get(head), relation, graph.entities.get(tail)) in there
    return len(kept)


def test_a_killed_service_loses_nothing(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", 8)
    assert kill_in_the_middle(run, 300, 0) > 0


@pytest.mark.slow
def test_twenty_killed_services_lose_nothing(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", 8)
    for seed in range(20):
        assert kill_in_the_middle(run, 10_000, seed) > 0
