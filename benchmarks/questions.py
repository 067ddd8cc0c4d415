"""Answering on a processor: WN18RR, dim 64, 6 layers, 10% of the entities.

The predictor has random parameters: what it costs does not depend on what it has learnt.
"""

import statistics
import tempfile
import time

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

import torch  # noqa: E402
from benchmarks.common import find, write_result  # noqa: E402

from oneshot.config import PredictorConfig  # noqa: E402
from oneshot.data.load import load  # noqa: E402
from oneshot.evaluation.evaluate import evaluate  # noqa: E402
from oneshot.predictor import Predictor  # noqa: E402
from oneshot.reasoner.reasoner import Reasoner  # noqa: E402
from oneshot.samplers import PPRSampler  # noqa: E402


def main() -> None:
    data = load(find("WN18RR"))
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(dim=64, num_layers=6), data.graph.num_relations)
    with tempfile.TemporaryDirectory() as directory:
        Reasoner(data.graph, PPRSampler(0.1), predictor).save(f"{directory}/run")
        reasoner = Reasoner.load(f"{directory}/run")
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))
    questions = [q for q in data.test[order].tolist() if int(data.graph.degree[q[0]]) > 0][:110]
    seconds = []
    for head, relation, _ in questions:
        started = time.perf_counter()
        reasoner.predict(head, relation)
        seconds.append(time.perf_counter() - started)
    seconds = sorted(seconds[10:])
    report = evaluate(reasoner, data.test, data.known, limit=500)
    result = {
        "data": "WN18RR",
        "questions": len(seconds),
        "median_ms": round(statistics.median(seconds) * 1e3, 1),
        "slowest_ms": round(seconds[-1] * 1e3, 1),
        "evaluated_queries": report.queries,
        "evaluation_seconds": round(report.seconds, 1),
    }
    print(result)
    write_result("questions", result)


if __name__ == "__main__":
    main()
