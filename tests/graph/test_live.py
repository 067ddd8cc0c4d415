"""Tests of graphs that change: in memory, on disk, and through the command line."""

import random
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.commands import Command
from tests.support.graphs import random_graph, random_queries
from tests.support.samples import chain_world, tiny_predictor, trained_run, write_world

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph import host as host_graph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live import overlay
from oneshot.graph.live.compaction import compacted, find_facts
from oneshot.graph.live.live_graph import LiveGraph, with_changes
from oneshot.graph.live.store import STORE, Change, FactStore
from oneshot.graph.vocabulary import GrowingVocabulary, Vocabulary
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.reference import TAKING_DATA
from oneshot.runs.run import Run
from oneshot.samplers import SAMPLERS, PPRSampler
from oneshot.samplers._pagerank import pagerank, ppr, ppr_chebyshev


def changed_by_hand(graph: KnowledgeGraph, facts: set[tuple[str, str, str]]) -> KnowledgeGraph:
    """The graph of these facts, built from nothing, with the entities of `graph` first."""
    entities = list(graph.entities)
    for fact in sorted(facts):
        entities += [name for name in (fact[0], fact[2]) if name not in entities]
    number = {name: i for i, name in enumerate(entities)}
    rows = [(number[h], graph.relations.index(r), number[t]) for h, r, t in facts]
    return KnowledgeGraph.from_facts(rows, entities, graph.relations)


def named(graph: KnowledgeGraph) -> set[tuple[str, str, str]]:
    names, labels = graph.entities, graph.relations
    return {(names[h], labels[r], names[t]) for h, r, t in graph.facts.tolist()}


def draw_fact(generator: np.random.Generator, graph: KnowledgeGraph) -> tuple[str, str, str]:
    """A fact that may be there or not, sometimes about a new entity."""
    pool = [*graph.entities, "new a", "new b", "new c"]
    facts = sorted(named(graph))
    if facts and generator.random() < 0.4:
        return facts[generator.integers(len(facts))]
    head, tail = (pool[i] for i in generator.integers(len(pool), size=2))
    return head, graph.relations[int(generator.integers(graph.num_relations))], tail


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_changed_graph_is_the_graph_of_its_facts(seed: int) -> None:
    """Whatever is changed in whatever order: sampling is as on a graph built from nothing."""
    generator = np.random.default_rng(seed)
    base = random_graph(seed, 12, 20, 2)
    live = LiveGraph(base)
    facts = named(base)
    for _ in range(int(generator.integers(1, 6))):
        some = [draw_fact(generator, base) for _ in range(int(generator.integers(1, 5)))]
        if generator.random() < 0.6:
            assert live.add(some) == len(set(some) - facts)
            facts |= set(some)
        else:
            assert live.remove(some) == len(set(some) & facts)
            facts -= set(some)
        graph = live.graph()
    assert (graph.num_facts, live.num_facts) == (len(facts), len(facts))
    plain = KnowledgeGraph.from_facts(
        [
            (live.entities.get(h), base.relations.index(r), live.entities.get(t))
            for h, r, t in facts
        ],
        live.entities.settled(),
        base.relations,
    )
    assert graph.num_entities == plain.num_entities
    assert torch.equal(graph.degree, plain.degree)
    assert torch.equal(graph.neighbours.degree, plain.neighbours.degree)
    everyone = torch.arange(plain.num_entities)
    for function in (ppr, ppr_chebyshev):
        torch.testing.assert_close(function(graph, everyone), function(plain, everyone))
    torch.testing.assert_close(pagerank(graph), pagerank(plain))
    queries = random_queries(plain, 6, seed)
    for sampler in (PPRSampler(0.6, 0.7, method="push"), *(s(1.0) for s in SAMPLERS.values())):
        one, other = sampler.sample(graph, queries), sampler.sample(plain, queries)
        assert torch.equal(one.entities, other.entities)
        assert torch.equal(one.edges, other.edges)
    assert graph.fingerprint == plain.fingerprint
    assert graph.to("cpu").packed
    some_facts = torch.arange(graph.num_facts) % 2 == 0
    assert graph.subset(some_facts).num_facts == int(some_facts.sum())
    for entity in range(plain.num_entities):
        found, total, _ = live.facts_of(entity, 100)
        mine = {fact for fact in facts if live.entities[entity] in (fact[0], fact[2])}
        assert ({live.names(fact) for fact in found}, total) == (mine, len(mine))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_components_of_a_changed_graph_are_those_of_a_new_one(seed: int) -> None:
    """Few facts, so that components are joined and divided all the time."""
    generator = np.random.default_rng(seed)
    base = random_graph(seed, 16, int(generator.integers(8, 24)), 2)
    live = LiveGraph(base)
    facts = named(base)
    for _ in range(int(generator.integers(1, 8))):
        some = [draw_fact(generator, base) for _ in range(int(generator.integers(1, 4)))]
        if generator.random() < 0.4:
            live.add(some)
            facts |= set(some)
        else:
            some += sorted(facts)[:: int(generator.integers(2, 6))]
            live.remove(some)
            facts -= set(some)
        graph = live.graph()
        if generator.random() < 0.5:
            graph.components.heads(torch.arange(graph.num_entities), 3)
    rows = [[live.entities.index(h), 0, live.entities.index(t)] for h, _, t in facts]
    plain = KnowledgeGraph.from_facts(rows, live.entities.settled(), 1)
    everyone = torch.arange(plain.num_entities)
    ours, expected = graph.components, plain.components
    labels = ours.component_of(everyone).tolist(), expected.component_of(everyone).tolist()
    assert len(set(zip(*labels, strict=True))) == len(set(labels[0])) == len(set(labels[1]))
    for most in (1, 4, 100):
        one, other = ours.heads(everyone, most), expected.heads(everyone, most)
        assert torch.equal(one.volume, other.volume)
        assert torch.equal(one.size, other.size)
        for entity in range(plain.num_entities):
            lists = [
                h.entities[int(h.begin[entity]) : int(h.end[entity])].tolist() for h in (one, other)
            ]
            assert lists[0] == lists[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", range(4))
def test_a_graph_changes_alike_on_every_device(seed: int) -> None:
    generator = np.random.default_rng(seed)
    base = random_graph(seed, 12, 20, 2)
    here, there = LiveGraph(base), LiveGraph(base, device="cuda")
    for _ in range(4):
        some = [draw_fact(generator, base) for _ in range(4)]
        change = "add" if generator.random() < 0.6 else "remove"
        assert getattr(here, change)(some) == getattr(there, change)(some)
        graph, other = here.graph(), there.graph()
        assert other.device.type == "cuda"
        queries = random_queries(graph, 6, seed)
        for method in ("chebyshev", "push"):
            sampler = PPRSampler(1.0, method=method)
            one, two = sampler.sample(graph, queries), sampler.sample(other, queries.cuda())
            assert torch.equal(one.entities, two.entities.cpu())
            assert torch.equal(one.edges, two.edges.cpu())


@pytest.mark.parametrize("seed", range(4))
def test_compaction_sorts_as_building_does(seed: int) -> None:
    graph = random_graph(seed)
    generator = np.random.default_rng(seed)
    removed = graph.facts.numpy()[generator.choice(graph.num_facts, 7, replace=False)]
    new = np.array([[0, 0, 30], [30, 1, 31], [31, 2, 31], [5, 1, 5]], np.int64)
    new = new[find_facts(graph, new) < 0]
    entities = graph.entities.extended(["x", "y"])
    found = compacted(graph, new, removed.astype(np.int64), entities)
    kept = [row for row in graph.facts.tolist() if row not in removed.tolist()]
    plain = KnowledgeGraph.from_facts(kept + new.tolist(), entities, graph.relations)
    assert found.fingerprint == plain.fingerprint
    assert torch.equal(found.facts, plain.facts)
    for name in ("indptr", "source", "relation", "fact"):
        assert torch.equal(getattr(found.edges, name), getattr(plain.edges, name))
    for name in ("indptr", "index", "pair"):
        assert torch.equal(getattr(found.neighbours, name), getattr(plain.neighbours, name))


def test_facts_are_found_where_they_stand() -> None:
    graph = random_graph(3)
    facts = graph.facts.numpy().astype(np.int64)
    places = find_facts(graph, facts)
    assert torch.equal(graph.edges.fact[torch.from_numpy(places)].long(), torch.arange(len(facts)))
    absent = np.array([[0, 0, 99], [99, 0, 0], [29, 2, 29]], np.int64)
    assert find_facts(graph, absent).tolist() == [-1, -1, -1]
    nothing = KnowledgeGraph.from_facts(np.empty((0, 3), np.int64), 0, 1)
    assert find_facts(nothing, absent).tolist() == [-1, -1, -1]


def test_many_changes_get_a_new_base_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        overlay.Overlay, "needs_compaction", property(lambda self: len(self.touched) > 40)
    )
    base = chain_world(300).graph
    live = LiveGraph(base)
    facts = named(base)
    for step in range(120):
        fact = (f"new {step}", "next", f"link {step}")
        gone = (f"link {step}", "before", f"link {step - 1}")
        facts = facts - {gone} | {fact}
        live.add([fact])
        live.remove([gone])
        graph = live.graph()
        assert live.entities[-1] == f"new {step}"
        assert int(graph.degree[live.entities.index(f"new {step}")]) == 1
    live.close()
    graph = live.graph()
    assert live._base.num_entities > base.num_entities
    assert named(graph.to("cpu")) == facts


def test_a_base_that_cannot_be_made_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overlay.Overlay, "needs_compaction", property(lambda self: True))
    monkeypatch.setattr("oneshot.graph.live.live_graph._COMPACTION_PAUSE", 0.0)
    base = chain_world(30).graph
    live = LiveGraph(base)
    with monkeypatch.context() as broken:
        broken.setattr("oneshot.graph.live.live_graph.compacted", lambda *_: 1 / 0)
        live.add([("new a", "next", "link 1")])
        live.graph()
        live.close()
        assert live._base is base
    assert "compaction of the graph failed" in caplog.text
    live.add([("new b", "next", "link 1")])
    live.graph()
    live.close()
    graph = live.graph()
    assert live._base.num_entities == base.num_entities + 2
    assert named(graph.to("cpu")) == named(base) | {
        (f"new {name}", "next", "link 1") for name in "ab"
    }


def test_who_looks_does_not_wait_for_who_writes(saved: Path) -> None:
    live, other = opened(saved), FactStore(saved / STORE, Run(saved).reference.fingerprint)
    writer = threading.Thread(target=live.add, args=([("a", "next", "b")],))
    with other.writing():
        writer.start()
        for _ in range(3):
            assert live.graph().num_facts == live.num_facts  # would hang
            assert live.facts_of(0, 5)[1] > 0
        assert writer.is_alive()
    writer.join()
    assert ("a", "next", "b") in named(live.graph().to("cpu"))
    assert live.version == 1


def test_a_look_changes_nothing(saved: Path) -> None:
    look = Run(saved).live_graph(read_only=True)
    assert not (saved / STORE).exists()
    with pytest.raises(InputError, match="read-only"):
        look.add([("a", "next", "b")])
    opened(saved).add([("a", "next", "b")])
    look = Run(saved).live_graph(read_only=True)
    assert look.changes() == [(("a", "next", "b"), True)]
    with pytest.raises(InputError, match="read-only"):
        look.add([("b", "next", "c")])


def test_a_graph_too_large_for_its_device_changes_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_graph, "available_memory", lambda _: 0)
    base = chain_world(30).graph
    live = LiveGraph(base, device="meta")
    assert live.graph().host is base
    live.add([("new", "next", "link 1")])
    graph = live.graph()
    assert (graph.device.type, graph.num_facts) == ("meta", base.num_facts + 1)
    assert graph.host is not None
    assert named(graph.host.to("cpu")) == named(base) | {("new", "next", "link 1")}


def test_rows_outgrow_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "_SPARE_ENTRIES", 3)
    monkeypatch.setattr(overlay, "_SPARE_ROWS", 1)
    base = chain_world(10).graph
    live = LiveGraph(base)
    facts = named(base)
    for step in range(60):
        fact = ("link 0", "after", f"leaf {step}")
        facts.add(fact)
        live.add([fact])
        graph = live.graph()
    assert named(graph.to("cpu")) == facts
    assert int(graph.degree[0]) == int(base.degree[0]) + 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live")
    write_world(path / "data", chain_world(20))
    return trained_run(path / "data", path / "run")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run that was saved from Python, its graph within it."""
    reasoner = Reasoner(chain_world(20).graph, PPRSampler(0.5), tiny_predictor().float())
    reasoner.save(tmp_path / "run")
    return tmp_path / "run"


def opened(run: Path) -> LiveGraph:
    return Run(run).live_graph()


def test_facts_and_relations_of_an_entity_are_those_of_the_graph() -> None:
    """Page by page, with added and removed facts, self-loops and a compacted base."""
    generator = random.Random(3)
    names = [f"link {n}" for n in range(8)] + ["new 1", "new 2"]
    live = LiveGraph(chain_world(8).graph)
    for step in range(40):
        some = [
            (generator.choice(names), generator.choice(["next", "after"]), generator.choice(names))
            for _ in range(4)
        ]
        live.change(some, generator.random() < 0.6)
        graph = live.graph()
        entity = step % graph.num_entities
        rows = [tuple(row) for row in graph.facts.tolist()]
        wanted = [row for row in rows if entity in (row[0], row[2])]
        pages = [live.facts_of(entity, 3, start)[0] for start in range(0, len(wanted) + 3, 3)]
        assert sorted(fact for page in pages for fact in page) == sorted(wanted)
        assert live.facts_of(entity, 0)[1] == len(wanted)
        counts, _ = live.relations_of(entity)
        for relation in range(graph.num_relations):
            heads = sum(row[:2] == (entity, relation) for row in wanted)
            tails = sum(row[1:] == (relation, entity) for row in wanted)
            assert counts[[relation, graph.num_relations + relation]].tolist() == [heads, tails]
        assert live.relation_counts()[0].sum() == graph.num_facts


def test_changes_outlive_the_process(saved: Path) -> None:
    before = Reasoner.load(saved).graph
    live = opened(saved)
    assert live.add([("link 1", "next", "Zoë\n\0"), ("link 0", "next", "link 1")]) == 1
    assert live.remove([("link 0", "next", "link 1"), ("nobody", "next", "link 3")]) == 1
    assert live.add([("gone", "next", "link 2")]) == 1
    assert live.remove([("gone", "next", "link 2")]) == 1
    assert (live.version, len(live.changes()), live.num_facts) == (4, 2, before.num_facts)
    # Not closed, as a killed process does not close either.
    again = opened(saved)
    assert (again.version, again.num_facts) == (4, before.num_facts)
    assert again.changes() == live.changes()
    graph = Reasoner.load(saved).graph
    assert named(graph) == named(live.graph().to("cpu"))
    assert graph.entities[:20] == list(before.entities)  # ids stay as they were
    assert ("link 1", "next", "Zoë\n\0") in named(graph)
    assert again.add([("link 0", "next", "link 1")]) == 1  # back again: no change any more
    assert len(again.changes()) == 1


def test_processes_see_each_others_changes(saved: Path) -> None:
    one, other = opened(saved), opened(saved)
    one.add([("a", "next", "b")])
    one.add([("b", "next", "c")])
    assert ("b", "next", "c") in named(other.graph().to("cpu"))
    assert other.add([("a", "next", "b")]) == 0
    other.add([("d", "next", "a")])
    one.remove([("a", "next", "b")])
    assert named(one.graph().to("cpu")) == named(other.graph().to("cpu"))
    assert list(one.entities) == list(other.entities)


def test_threads_change_at_the_same_time(saved: Path) -> None:
    live = opened(saved)
    before = live.num_facts

    def work(thread: int) -> None:
        for step in range(20):
            live.add([(f"{thread}", "next", f"{step}"), ("shared", "next", f"{step}")])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        live.graph()
    for thread in threads:
        thread.join()
    assert live.graph().num_facts == before + 4 * 20 + 20


def test_a_store_of_another_graph_or_a_broken_one_is_told(saved: Path, tmp_path: Path) -> None:
    FactStore(saved / STORE, "other").close()
    with pytest.raises(InputError, match="contains changes of a different graph"):
        opened(saved)
    (saved / STORE).write_bytes(b"no database, but long enough to be read as one" * 100)
    for action in (opened, Reasoner.load):
        with pytest.raises(InputError, match="not a whole store of facts"):
            action(saved)
    other = tmp_path / "newer.sqlite"
    FactStore(other, "x").close()
    with sqlite3.connect(other) as connection:
        connection.execute("UPDATE about SET value = '9' WHERE key = 'format'")
    with pytest.raises(InputError, match="format 9, this version reads 1; update oneshot"):
        FactStore(other, "x")


def test_a_replaced_run_takes_no_more_facts(saved: Path) -> None:
    live = opened(saved)
    (saved / STORE).rename(saved / "moved")
    with pytest.raises(InputError, match="the run was replaced"):
        live.add([("a", "next", "b")])


def test_a_run_on_a_read_only_disk_is_read(saved: Path) -> None:
    live = opened(saved)
    live.add([("a", "next", "b")])
    live.close()
    with sqlite3.connect(saved / STORE) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    saved.chmod(0o555)
    try:
        assert "a" in Reasoner.load(saved).graph.entities
    finally:
        saved.chmod(0o755)


def test_wrong_facts_are_refused(saved: Path) -> None:
    live = opened(saved)
    with pytest.raises(UnknownNameError, match="unknown relation 'nxt'; did you mean 'next'"):
        live.add([("a", "next", "b"), ("a", "nxt", "b")])
    for fact in (("", "next", "b"), ("a", "next", "\ud800"), ("a", "next"), ("a", "next", 3)):
        with pytest.raises(InputError):
            live.add([fact])  # type: ignore[list-item]
    assert live.version == 0


def test_a_changed_run_is_not_replaced(saved: Path, tmp_path: Path) -> None:
    opened(saved).add([("a", "next", "link 0")])
    reasoner = Reasoner.load(saved)
    with pytest.raises(InputError, match="contains added or removed facts"):
        reasoner.save(saved)
    reasoner.save(tmp_path / "copy")  # with the changes in its own graph
    copy = Reasoner.load(tmp_path / "copy")
    assert named(copy.graph) == named(reasoner.graph)
    live = opened(tmp_path / "copy")
    Reasoner.load(tmp_path / "copy").save(tmp_path / "copy")  # nothing would be lost
    live.close()


def test_growing_names() -> None:
    names = GrowingVocabulary(Vocabulary.from_names(["a", "b"], "entity"))
    assert (names.add("b"), names.add("c"), names.add("c"), names.get("d")) == (1, 2, 2, None)
    plain = names.settled()
    assert list(names) == list(plain) == ["a", "b", "c"]
    assert names[2] == names[-1] == "c"
    assert [plain.get(name) for name in "abcd"] == [0, 1, 2, None]
    assert names == plain
    assert names.nearest("xyz") == []
    names.add("wolverine")
    assert names.nearest("wolferine") == ["wolverine"]
    with pytest.raises(UnknownNameError):
        names.index("wolferine")


def test_facts_on_the_command_line(run: Command, trained: Path, tmp_path: Path) -> None:
    total = chain_world(20).graph.num_facts
    told = run("facts", trained, "add", "rookie", "next", "link 3", "--json").json
    assert told == {"facts": total + 1, "added": 1, "version": 1}
    assert run("facts", trained, "add", "rookie", "next", "link 3", "--json").json["added"] == 0
    answers = run("predict", trained, "rookie", "next", "--json").json["answers"]
    assert [a["known"] for a in answers if a["entity"] == "link 3"] == [True]
    file = tmp_path / "more.tsv"
    file.write_text("rookie\tafter\tlink 4\nlink 3\tbefore\trookie\n")
    assert run("facts", trained, "add", "--file", file, "--json").json["added"] == 2
    report = run("evaluate", trained, "--json").json
    assert report["queries"] == 2 * len(chain_world(20).test)
    exported = run("facts", trained, "export", "--changes", "--json").json["facts"]
    assert ["rookie", "after", "link 4", "added"] in exported
    assert len(exported) == 3
    out = tmp_path / "all.tsv"
    assert run("facts", trained, "export", "--out", out, "--json").json["facts"] == total + 3
    assert "link 3\tbefore\trookie\n" in out.read_text()
    told = run("train", trained.parent / "data", "--out", trained)
    assert told.code == 2
    assert "added or removed facts" in told.err
    told = run("facts", trained, "remove", "--file", file)
    assert "removed 2 facts" in told.err
    assert run("facts", trained, "remove", "rookie", "next", "link 3", "--json").json == {
        "facts": total,
        "removed": 1,
        "version": 4,
    }
    assert Run(trained).graph.fingerprint == Run(trained).reference.fingerprint
    shown = run("facts", trained, "export")
    assert shown.out.count("\n") == total


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add",), "give a fact as HEAD RELATION TAIL, or a file of facts with --file"),
        (("add", "a", "next"), "give a fact as HEAD RELATION TAIL"),
        (("add", "a", "nxt", "b"), "unknown relation 'nxt'; did you mean 'next'?"),
        (("swap", "a", "next", "b"), "unknown action 'swap'"),
        (("export", "a", "next", "b"), "export takes neither a fact"),
        (("add", "a", "next", "b", "--out", "x"), "--out works only with export"),
        (("add", "--file", "nowhere.tsv"), "nowhere.tsv"),
    ],
)
def test_wrong_use_of_facts(
    run: Command, trained: Path, arguments: list[str], message: str
) -> None:
    told = run("facts", trained, *arguments)
    assert told.code == 2
    assert message in told.err
    assert run("facts", trained / "nothing", "export").code == 2
    # Options are recommended with the commands that have them.
    refused = run("facts", "foundation", "export")
    assert "foundation is pre-trained and has no graph of its own" in refused.err
    assert f"give one with --data ({TAKING_DATA})" in refused.err


def test_a_store_without_changes_changes_nothing(saved: Path) -> None:
    graph = Run(saved).base_graph
    assert with_changes(saved, graph, Run(saved).reference.fingerprint) is graph
    opened(saved).close()
    assert with_changes(saved, graph, Run(saved).reference.fingerprint) is graph
    store = FactStore(saved / STORE, Run(saved).reference.fingerprint)
    with store.writing():
        store.write([Change("link 0", "next", "link 1", True, True)])
    assert with_changes(saved, graph, Run(saved).reference.fingerprint) is graph


def test_a_snapshot_has_the_facts_of_its_version(tmp_path: Path) -> None:
    """While another process adds facts, one per version."""
    base = chain_world(8).graph
    live, other = (LiveGraph(base, tmp_path, base.fingerprint) for _ in range(2))
    done = threading.Event()

    def add() -> None:
        for number in range(150):
            other.add([(f"new {number}", "next", "link 1")])
        done.set()

    adding = threading.Thread(target=add)
    adding.start()
    seen = set()
    while True:
        is_last = done.is_set()
        graph, version = live.snapshot()
        assert graph.num_facts == base.num_facts + version
        assert live.size()[1] >= base.num_facts + version
        seen.add(version)
        if is_last:
            break
    adding.join()
    assert max(seen) == 150
    assert live.change([("new 3", "next", "link 1")], True) == (0, 150)
    assert live.change([("new 3", "next", "link 1")], False) == (1, 151)
    live.close()
    other.close()
