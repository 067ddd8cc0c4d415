"""How good `discover`, `audit` and `relations` are, on facts that were held out or injected.

    python -m benchmarks.judged_facts discover NAME=RUN ... [--peer complex] [--minutes 5]
    python -m benchmarks.judged_facts audit DATA ... [--peer complex] [--minutes 5] [--keep DIR]
    python -m benchmarks.judged_facts relations NAME=RUN ... [--pairs 100]
    [--device cpu] [--threads 1]

The commands of a user run in processes of their own, which are measured: `oneshot train`,
`oneshot discover`, `oneshot audit`. Each result is added to `judged-facts.json`, one row per data
set, job and device; other rows are kept.

`discover`: RUN was trained on the data set NAME. The facts of the test split are hidden, and
`--held-out` lists them: it is counted how many of the first 100 and 1,000 facts are among them.
Facts of the validation split, which a training may look at, are no discoveries: they are left out
of every list. All other facts count as wrong. Beside it stand the frequency baseline, which
proposes for each relation the most frequent tails of its most frequent heads, and a PyKEEN model
that scores all triples, by its score and by its logarithm of the softmax, averaged over the two
directions. The sum of the probabilities is compared with the number of validation and test facts
among those of the list.

`audit`: wrong facts are added to the training facts, 1 % with a random tail, and 1 % with a tail
of another fact of the relation ("near"). Reasoner and PyKEEN model are trained on all of them, with
the validation split as it is. The area under the precision-recall curve of finding one type of
wrong facts among the right ones, by the order of the audit, by the score of the model and its
logarithm of the softmax, and by the degree of the entities. With `--keep DIR`, a run that is
already there is audited again instead of trained.

`relations`: the rank of the true relation of test facts among all relations, in both directions,
filtered by the known facts; a relation that is not listed ranks after all that are.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import RESULTS, write_result
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.experiments.bench.measure import hardware
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.runs.run import Run
from oneshot.system.devices import find_device

Fact = tuple[int, int, int]

_FIRST = (100, 1000)
_FREQUENT = 200  # heads and tails of a relation that the frequency baseline combines
_KEPT = 20_000  # best triples of a peer per block


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=("discover", "audit", "relations"))
    parser.add_argument("data", nargs="+", metavar="DATA or NAME=RUN")
    parser.add_argument("--peer", help="model of PyKEEN, such as complex")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each training")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=100, help="pairs of entities for relations")
    parser.add_argument("--wrong", type=float, default=0.01, help="share of wrong facts of a type")
    parser.add_argument("--limit", type=int, help="facts that are audited; default all")
    parser.add_argument("--keep", type=Path, help="directory for data and runs of audits")
    parser.add_argument("--split", default="test", help="of hidden facts; valid for choices")
    parser.add_argument("--name", default="judged-facts", help="of the result file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    jobs = {"discover": discovery, "audit": audit, "relations": relations}
    for given in options.data:
        name = given.partition("=")[0]
        row = {"data": name, "job": options.job, **jobs[options.job](given, options)}
        print(json.dumps(row), flush=True)
        _add(row, options)


def _add(row: dict[str, Any], options: argparse.Namespace) -> None:
    """Add a row to the result file, in place of an earlier one of the same job, data and device."""
    file = RESULTS / f"{options.name}.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    device = find_device(options.device)
    row["device"] = device.type

    def key(one: dict[str, Any]) -> tuple[str, ...]:
        return one["job"], one["data"], one.get("device", "cpu")

    rows = [old for old in rows if key(old) != key(row)]
    row["hardware"], row["threads"] = hardware(device), options.threads
    order = sorted([*rows, row], key=key)
    write_result(options.name, {"rows": order}, device)


def command(*arguments: object, device: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Run `oneshot`; → its JSON value, and time and peak memory of the process."""
    line = [sys.executable, "-m", "oneshot", *map(str, arguments), "--json", "--device", device]
    begun = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(line)}")
    used = {
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gb": round(usage.ru_maxrss / 2**20, 2),
    }
    return json.loads(out), used


# discover -----------------------------------------------------------------------------------------


def discovery(given: str, options: argparse.Namespace) -> dict[str, Any]:
    """Precision of the first facts, and the share of the hidden facts among them."""
    _, _, run = given.partition("=")
    data = Run.open(Path(run)).data
    hidden, seen = _as_set(data.facts(options.split)), _as_set(data.valid)
    if options.split == "valid":  # for choices: the test split stays out of everything
        seen = set()
    top = max(_FIRST) + len(seen)
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "facts.tsv"
        line = ("discover", run, "--held-out", "--top", top, "--out", out)
        value, used = command(*line, device=options.device)
    facts = value["facts"]
    ids = [_ids(data.graph, fact) for fact in facts]
    chances = [fact["probability"] for fact in facts]
    rows = {
        "ours": _precision(ids, seen, hidden),
        "frequency": _precision(_frequent(data), seen, hidden),
    }
    found: dict[str, Any] = {
        "hidden": len(hidden),
        "entities": data.graph.num_entities,
        "relations": data.graph.num_relations,
        "listed": len(ids),
        "used": used,
        "expected": round(sum(chances), 1) if all(c is not None for c in chances) else None,
        "true": sum(fact in hidden or fact in seen for fact in ids),
    }
    if options.peer is not None:
        model = _trained_peer(data, options)
        found["peer"] = model["about"]
        for name, best in _all_triples(model["scorer"], data, top).items():
            rows[f"{options.peer}, {name}"] = _precision(best, seen, hidden)
    return {**found, "rows": rows}


def _precision(facts: Iterable[Fact], seen: set[Fact], hidden: set[Fact]) -> dict[str, float]:
    new = [fact for fact in facts if fact not in seen][: max(_FIRST)]
    hits = np.cumsum([fact in hidden for fact in new] or [False])
    found = {f"precision@{n}": float(hits[min(n, len(hits)) - 1] / n) for n in _FIRST}
    return found | {"share_found": float(hits[-1] / len(hidden))}


def _frequent(data: Dataset) -> list[Fact]:
    """Facts of frequent heads with frequent tails, most frequent first."""
    facts, graph = data.train, data.graph
    known = KnownFacts(facts, graph.num_entities, graph.num_relations)
    best: list[tuple[float, Fact]] = []
    for relation in range(graph.num_relations):
        mine = facts[facts[:, 1] == relation]
        ends = [torch.bincount(mine[:, c], minlength=graph.num_entities) for c in (0, 2)]
        tops = [count.topk(min(_FREQUENT, int((count > 0).sum()))) for count in ends]
        heads, tails = (top.indices for top in tops)
        score = tops[0].values[:, None] * tops[1].values[None] / max(len(mine), 1)
        queries = torch.stack([heads, torch.full_like(heads, relation)], 1)
        new = ~known.holds(queries, tails.expand(len(heads), -1)) & (heads[:, None] != tails[None])
        for row, column in new.nonzero().tolist():
            fact = (int(heads[row]), relation, int(tails[column]))
            best.append((float(score[row, column]), fact))
    return [fact for _, fact in sorted(best, reverse=True)]


def _trained_peer(data: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """A model of PyKEEN, trained as `oneshot compare` does."""
    from oneshot.experiments.baselines.embedding import train_embedding
    from oneshot.experiments.baselines.pykeen_models import RECIPES
    from oneshot.training.time_budget import TimeBudget

    device, cpu = find_device(options.device), time.process_time()
    budget = TimeBudget(options.minutes)
    trained = train_embedding(RECIPES[options.peer], data, device, budget=budget)
    about = {
        "model": options.peer,
        "epochs": trained.epochs,
        "valid_mrr": trained.valid_mrr,
        "stopped": trained.stopped,
        "seconds": round(trained.seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    return {"scorer": trained.scorer, "about": about}


def _all_triples(scorer: Any, data: Dataset, top: int) -> dict[str, list[Fact]]:
    """The best of all triples that are no training facts, by score and by mean log softmax."""
    graph = data.graph
    size, known = (
        graph.num_entities,
        KnownFacts(data.train, graph.num_entities, graph.num_relations),
    )
    best: dict[str, list[tuple[float, Fact]]] = {"score": [], "log softmax": []}
    for relation in range(graph.num_relations):
        # Of each head and each tail, the logarithm of the sum over all answers.
        totals = [
            torch.cat([scorer(part).logsumexp(1) for part in _queries(size, label)])
            for label in (relation, relation + graph.num_relations)
        ]
        for queries in _queries(size, relation):
            scores = scorer(queries).clone()
            row, entity = known.answers(queries)
            scores[row, entity] = -torch.inf
            scores[torch.arange(len(queries)), queries[:, 0]] = -torch.inf
            total = (totals[0][queries[:, 0]][:, None] + totals[1][None]) / 2
            for name, values in (("score", scores), ("log softmax", scores - total)):
                found = values.flatten().topk(min(_KEPT, values.numel()))
                heads = queries[found.indices // size, 0]
                tails = found.indices % size
                best[name] += [
                    (value, (head, relation, tail))
                    for value, head, tail in zip(
                        found.values.tolist(), heads.tolist(), tails.tolist(), strict=True
                    )
                ]
                best[name] = sorted(best[name], reverse=True)[: 2 * top]
    return {name: [fact for _, fact in some] for name, some in best.items()}


def _queries(size: int, label: int) -> Iterator[Tensor]:
    """The queries of all entities and one relation, in blocks [n, 2]."""
    for block in torch.arange(size).split(512):
        yield torch.stack([block, torch.full_like(block, label)], dim=1)


# relations ----------------------------------------------------------------------------------------


def relations(given: str, options: argparse.Namespace) -> dict[str, Any]:
    """MRR of the true relation of test facts; other facts between the two are left out."""
    run = Run.open(Path(given.partition("=")[2]))
    data, reasoner = run.data, run.reasoner.to(find_device(options.device))
    facts, graph = data.facts(options.split), data.graph
    order = torch.randperm(len(facts), generator=torch.Generator().manual_seed(0))
    true = _as_set(data.known)
    ranks, times, cpu = [], [], time.process_time()
    for head, relation, tail in facts[order[: options.pairs]].tolist():
        begun = time.perf_counter()
        found = reasoner.relations(head, tail)
        times.append(time.perf_counter() - begun)
        wrong, rank = 0, 2 * graph.num_relations
        for answer in found:
            label = graph.relations.index(answer.relation)
            fact = (tail, label, head) if answer.inverse else (head, label, tail)
            if fact == (head, relation, tail):
                rank = wrong + 1
                break
            wrong += fact not in true
        ranks.append(rank)
    return {
        "mrr": float(np.mean([1 / rank for rank in ranks])),
        "hits@1": float(np.mean([rank == 1 for rank in ranks])),
        "pairs": len(ranks),
        "relations": 2 * graph.num_relations,
        "frequency_mrr": _frequency_mrr(data, facts[order[: options.pairs]], true),
        "seconds_per_pair": statistics.median(times),
        "cpu_seconds_per_pair": (time.process_time() - cpu) / len(ranks),
    }


def _frequency_mrr(data: Dataset, facts: Tensor, true: set[Fact]) -> float:
    """The same, if relations are ranked by how many facts they have with these ends."""
    train, count = data.train, data.graph.num_relations
    size = data.graph.num_entities
    heads, tails = (
        torch.bincount(train[:, c] * count + train[:, 1], minlength=size * count).view(size, count)
        for c in (0, 2)
    )
    found = []
    for head, relation, tail in facts.tolist():
        scores = torch.cat(
            [(heads[h] + 0.01) * (tails[t] + 0.01) for h, t in ((head, tail), (tail, head))]
        )
        for other in range(2 * count):
            pair = (head, other, tail) if other < count else (tail, other - count, head)
            if pair in true and other != relation:
                scores[other] = -1
        own = scores[relation]
        rank = 1 + int((scores > own).sum()) + (int((scores == own).sum()) - 1) / 2
        found.append(1 / rank)
    return float(np.mean(found))


# audit --------------------------------------------------------------------------------------------


def audit(given: str, options: argparse.Namespace) -> dict[str, Any]:
    """Area under the precision-recall curve for injected wrong facts."""
    data = load(given)
    generator = torch.Generator().manual_seed(1)
    count = max(int(options.wrong * len(data.train)), 1)
    graph = data.graph
    known = KnownFacts(data.known, graph.num_entities, graph.num_relations)
    wrong = {kind: _wrong_facts(data, count, known, kind, generator) for kind in ("random", "near")}
    facts = torch.cat([data.train, *wrong.values()]).unique(dim=0)
    noisy = KnowledgeGraph.from_facts(facts, graph.entities, graph.relations)
    changed = Dataset(f"{data.name} with wrong facts", noisy, data.valid, data.test)
    sets = {kind: _as_set(some) for kind, some in wrong.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = (options.keep or Path(place)) / data.name
        source, run = folder / "data", folder / "run"
        if not source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            changed.save(source)
        trained: dict[str, Any] = {}
        if not (run / "result.json").exists():
            value, trained = command(
                "train", source, "--out", run, "--minutes", options.minutes, device=options.device
            )
            trained["test_mrr"] = value["test"]["mrr"]
        limit = () if options.limit is None else ("--limit", options.limit)
        value, used = command("audit", run, "--top", len(facts), *limit, device=options.device)
    places = {fact: number for number, fact in enumerate(_ids(noisy, f) for f in value["facts"])}
    degree = noisy.degree.log1p()
    doubts = {
        "ours": {fact: -float(number) for fact, number in places.items()},
        "degree": {fact: -float(degree[fact[0]] + degree[fact[2]]) for fact in places},
    }
    found: dict[str, Any] = {}
    if options.peer is not None:
        model = _trained_peer(changed, options)
        found["peer"] = model["about"]
        for name, doubt in _scored(model["scorer"], list(places), noisy.num_relations).items():
            doubts[f"{options.peer}, {name}"] = doubt
    return {
        "facts": len(places),
        "wrong": {kind: len(some & places.keys()) for kind, some in sets.items()},
        "minutes": options.minutes,
        "trained": trained,
        "used": used,
        **found,
        "area": {
            kind: {name: _area(doubt, some, sets) for name, doubt in doubts.items()}
            for kind, some in sets.items()
        },
    }


def _wrong_facts(
    data: Dataset, count: int, known: KnownFacts, kind: str, generator: torch.Generator
) -> Tensor:
    """Facts that no split has; "near": their tail is one of the relation."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        rows = torch.randint(len(data.train), (2 * count,), generator=generator)
        some = data.train[rows].clone()
        if kind == "random":
            some[:, 2] = torch.randint(data.graph.num_entities, (len(some),), generator=generator)
        else:
            for relation in some[:, 1].unique().tolist():
                mine = some[:, 1] == relation
                tails = data.train[data.train[:, 1] == relation, 2]
                drawn = torch.randint(len(tails), (int(mine.sum()),), generator=generator)
                some[mine, 2] = tails[drawn]
        is_new = ~known.holds(some[:, :2], some[:, 2:]).squeeze(1) & (some[:, 0] != some[:, 2])
        found.append(some[is_new])
    every = torch.cat(found).unique(dim=0)
    chosen: Tensor = every[torch.randperm(len(every), generator=generator)[:count]]
    return chosen


def _scored(scorer: Any, facts: list[Fact], num_relations: int) -> dict[str, dict[Fact, float]]:
    """How doubtful a model finds the facts, by its score and by the mean log softmax."""
    table = torch.tensor(facts)
    doubts, shares = [], []
    for part in table.split(256):
        rows = torch.arange(len(part))
        ahead = scorer(part[:, :2]).cpu()
        turned = torch.stack([part[:, 2], part[:, 1] + num_relations], dim=1)
        back = scorer(turned).cpu()
        doubts.append(-ahead[rows, part[:, 2]])
        both = ahead.log_softmax(1)[rows, part[:, 2]] + back.log_softmax(1)[rows, part[:, 0]]
        shares.append(-both / 2)
    found = {"score": doubts, "log softmax": shares}
    return {
        name: dict(zip(facts, torch.cat(some).tolist(), strict=True))
        for name, some in found.items()
    }


def _area(doubt: dict[Fact, float], wrong: set[Fact], every: dict[str, set[Fact]]) -> float:
    """Average precision of finding one type of wrong facts among the right ones by doubt."""
    others = set().union(*every.values()) - wrong
    order = sorted((fact for fact in doubt if fact not in others), key=lambda f: -doubt[f])
    hits = np.array([fact in wrong for fact in order])
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[hits].mean()) if hits.any() else 0.0


def _as_set(facts: Tensor) -> set[Fact]:
    return {(head, relation, tail) for head, relation, tail in facts.tolist()}


def _ids(graph: KnowledgeGraph, fact: dict[str, Any]) -> Fact:
    entities = graph.entities
    head, tail = entities.index(fact["head"]), entities.index(fact["tail"])
    return head, graph.relations.index(fact["relation"]), tail


if __name__ == "__main__":
    main()
