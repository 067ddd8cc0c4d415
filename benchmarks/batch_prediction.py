"""Batch prediction of 100,000 WN18RR questions with two Dask workers, one of them killed half-way.

    python -m benchmarks.batch_prediction [--questions 100000]

A small reasoner is trained in the script for a minute or so: what is measured is whether every
question is answered, once, and as a single process answers it. The worker is stopped, asked which
part it has open, and killed. Writes `benchmarks/results/batch-prediction.json`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

import numpy as np  # noqa: E402
import psutil  # type: ignore[import-untyped]  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
from benchmarks.common import find, write_result  # noqa: E402

import oneshot  # noqa: E402
from oneshot.data.dataset import both_directions  # noqa: E402

SEED = 0
# Small, but it tells answers apart (`norm` keeps the scores from running into each other): equal
# scores would be put in the order of ids by anybody, and a comparison would show nothing.
PREDICTOR = {"dim": 16, "num_layers": 3, "attention_dim": 4, "norm": True}
SAMPLER = {"max_entities": 100}
TRAINING = {
    "epochs": 1,
    "batch_size": 32,
    "learning_rate": 3e-3,
    "fact_ratio": 0.8,
    "query_share": 0.5,
}
TOP = 10
SAMPLE = 1_000  # questions that a single process answers too

Pairs = list[tuple[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100_000)
    count = parser.parse_args().questions
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        reasoner, mrr, training = train(place / "run")
        asked = write_questions(reasoner, count, place / "questions.parquet")
        words = ["predict", place / "run", "--queries", place / "questions.parquet"]
        words += ["--out", place / "answers", "--top", TOP, "--device", "cpu", "--json"]
        answered = run_and_kill([*words, "--workers", 2], place / "answers")
        checked = check(reasoner, asked, place / "answers", answered.pop("stamps"))
        again = json.loads(subprocess.check_output(command(words)))
    result = {
        "data": "WN18RR",
        "questions": count,
        "top": TOP,
        "workers": 2,
        "predictor": PREDICTOR,
        "sampler": SAMPLER,
        "training": {**TRAINING, "seconds": round(training, 1)},
        "test_mrr_of_500_queries": round(mrr, 3),
        "seed": SEED,
        **answered,
        **checked,
        "second_call": {
            "already_finished": again["already_finished"],
            "seconds": round(again["seconds"], 2),
        },
        "load_15_minutes": round(os.getloadavg()[2], 2),
    }
    print(json.dumps(result, indent=2))
    write_result("batch-prediction", result)


def train(path: Path) -> tuple[oneshot.Reasoner, float, float]:
    """Train a small reasoner into a run. → it, its MRR, and the seconds"""
    data = oneshot.load(find("WN18RR"))
    torch.manual_seed(SEED)
    config = oneshot.PredictorConfig(**PREDICTOR)  # type: ignore[arg-type]
    sampler = oneshot.PPRSampler(max_entities=SAMPLER["max_entities"], keep_unreachable=False)
    predictor = oneshot.Predictor(config, data.graph.num_relations)
    reasoner = oneshot.Reasoner(data.graph, sampler, predictor)
    started = time.perf_counter()
    settings = oneshot.TrainingConfig(**TRAINING, valid_limit=500, seed=SEED)  # type: ignore[arg-type]
    oneshot.fit(reasoner, data, settings)
    seconds = time.perf_counter() - started
    report = oneshot.evaluate(reasoner, data.test, known=data.known, limit=500, seed=SEED)
    reasoner.save(path)
    return reasoner, report.mrr, seconds


def write_questions(reasoner: oneshot.Reasoner, count: int, path: Path) -> Pairs:
    """Different questions that the training facts are answers to, in both directions."""
    graph = reasoner.graph
    queries, _ = both_directions(graph.facts.long(), graph.num_relations)
    different = queries.unique(dim=0)
    order = torch.randperm(len(different), generator=torch.Generator().manual_seed(SEED))
    ids = different[order[:count]].tolist()
    if len(ids) < count:
        sys.exit(f"there are only {len(ids):,} different questions")
    pairs = [(graph.entities[entity], graph.relation_name(relation)) for entity, relation in ids]
    entities, relations = zip(*pairs, strict=True)
    pq.write_table(
        pa.table({"entity": entities, "relation": relations}), path, row_group_size=10_000
    )
    return pairs


def command(words: list[Any]) -> list[str]:
    return [sys.executable, "-m", "oneshot", *map(str, words)]


def run_and_kill(words: list[Any], out: Path) -> dict[str, Any]:
    """Run a prediction, and kill one of its workers when half of the parts are there."""
    process = subprocess.Popen(command(words), stdout=subprocess.PIPE, text=True)
    memory = Memory(process.pid)
    memory.start()
    half = None
    while process.poll() is None:
        time.sleep(0.05)
        if half is None and (out / "_oneshot-answers.json").exists():
            about = json.loads((out / "_oneshot-answers.json").read_text())
            half = -(-about["questions"] // about["partition"]) // 2
        if half is not None and len(stamps(out)) >= half:
            break
    killed = kill_worker(process.pid)
    before = stamps(out)
    output, _ = process.communicate()
    memory.ended.set()
    memory.join()
    if process.returncode:
        sys.exit(f"the prediction ended with {process.returncode}")
    value = json.loads(output)
    return {
        "seconds": round(value["seconds"], 1),
        "questions_per_second": round(value["queries"] / value["seconds"]),
        "parts": value["parts"],
        "parts_at_the_kill": len(before),
        "part_that_the_killed_worker_had_open": killed,
        "unanswered": value["unanswered"],
        "peak_mb": memory.peaks,
        "stamps": before,
    }


def kill_worker(pid: int) -> str:
    """Kill a worker with a part open. → the name of that part"""
    while True:
        for child in workers_of(pid):
            child.send_signal(signal.SIGSTOP)
            names = [Path(file.path).name for file in child.open_files()]
            parts = [name for name in names if name.startswith(".part-")]
            if parts:
                child.kill()
                return parts[0][1:].partition(".parquet")[0] + ".parquet"
            child.send_signal(signal.SIGCONT)
        time.sleep(0.02)


def workers_of(pid: int) -> list[psutil.Process]:
    """The processes that Dask has started for a prediction."""
    children = psutil.Process(pid).children()
    return [child for child in children if any("spawn_main" in word for word in child.cmdline())]


class Memory(threading.Thread):
    """Notes the most memory that a prediction and its workers take, five times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.peaks = {"own": 0, "worker": 0}
        self._pid = pid

    def run(self) -> None:
        while not self.ended.wait(0.2):
            try:
                own = psutil.Process(self._pid).memory_info().rss
                workers = [child.memory_info().rss for child in workers_of(self._pid)]
            except psutil.Error:
                continue
            for name, value in (("own", own), ("worker", max(workers, default=0))):
                self.peaks[name] = max(self.peaks[name], value >> 20)


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """What changes when a part is written again."""
    found = {path.name: path.stat() for path in out.glob("part-*.parquet")}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in found.items()}


def check(
    reasoner: oneshot.Reasoner, asked: Pairs, out: Path, before: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """Compare the answers with the questions, and some with those of a single process."""
    table = pq.read_table(out)
    question = table["question"].to_numpy()
    rank = table["rank"].to_numpy()
    keys = question * TOP + rank - 1
    entities, relations = zip(*asked, strict=True)
    rightly = np.array(table["entity"].to_pylist()) == np.array(entities)[question]
    rightly &= np.array(table["relation"].to_pylist()) == np.array(relations)[question]
    after = stamps(out)
    return {
        "rows": table.num_rows,
        "questions_with_answers": len(np.unique(question)),
        "answers_twice": len(keys) - len(np.unique(keys)),
        "rows_of_another_question": int((~rightly).sum()),
        "finished_parts_written_again": sum(after[name] != state for name, state in before.items()),
        "compared": compare(reasoner, asked, table.sort_by([("question", "ascending")])),
    }


def compare(reasoner: oneshot.Reasoner, asked: Pairs, table: Any) -> dict[str, Any]:
    """A sample of the answers beside those of `Reasoner.predict`, one question at a time."""
    question = table["question"].to_numpy()
    same = 0
    gaps: list[float] = []
    spreads: list[float] = []
    for number in np.random.default_rng(SEED).choice(len(asked), SAMPLE, replace=False):
        start, end = np.searchsorted(question, (number, number + 1))
        rows = sorted(table.slice(start, end - start).to_pylist(), key=lambda row: row["rank"])
        found = reasoner.predict(*asked[number], top=TOP)
        same += [row["answer"] for row in rows] == [one.entity for one in found]
        gaps += [abs(row["score"] - one.score) for row, one in zip(rows, found, strict=True)]
        spreads.append(found[0].score - found[-1].score)
    # NaN, which is larger than nothing, counts as different.
    close = np.array(gaps) <= 1e-4
    return {
        "questions": SAMPLE,
        "same_answers_in_the_same_order": same,
        "scores": len(gaps),
        "different_scores": int((~close).sum()),
        "largest_difference_of_scores": float(f"{np.max(gaps):.2g}"),
        "median_score_of_the_first_over_the_last_answer": float(f"{np.median(spreads):.2g}"),
    }


if __name__ == "__main__":
    main()
