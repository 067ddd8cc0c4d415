"""The engine of a service: two worker threads with a bounded queue.

One answers queries: those that wait at the same time in one batch, and all of a request on one
snapshot of the graph. Between batches, it runs tasks: other work on the graph of the moment. The
other explains answers, each on the subgraph that the first has sampled,
so that queries do not wait for explanations. Queries and explanations are refused if, at the recent
pace, they would not be ready before their deadline. They are dropped if their deadline has passed
or their client has disconnected, an explanation also while it is computed.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from oneshot.errors import OneshotError
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.reasoner.answers import AnswerOptions, Prediction
from oneshot.reasoner.explanation import Explanation, explain
from oneshot.reasoner.reasoner import Reasoner
from oneshot.serve.metrics import Metrics
from oneshot.serve.settings import ServeSettings
from oneshot.subgraph import SubgraphBatch
from oneshot.system.process import return_freed_memory, yield_to_other_threads

_SHARE_OF_TIME = 0.6  # of the time until its deadline, in which a query is expected to be ready
_BATCH_SECONDS = 1.0  # target time of a batch, estimated from recent batches
_RETURN_MEMORY_AFTER = 1.0  # seconds without an explanation: collecting garbage takes time
_EXPLAINING_NICE = 10  # a third of the weight of queries where cores are short

Result = TypeVar("Result")
Task = Callable[[Reasoner, Callable[[], None]], Result]
"""Work on the reasoner of the moment. It calls its second argument between steps, which raises if
its client does not wait any more."""


class OverloadedError(OneshotError):
    """The queue is full."""


class ExpiredError(OneshotError):
    """A query's deadline passed while it was in the queue."""


@dataclass(frozen=True)
class Question:
    """A query by ids, with the options of its answers."""

    entity: int
    relation: int
    options: AnswerOptions = field(default_factory=AnswerOptions)


@dataclass(frozen=True)
class Sampled:
    """The subgraph of a query for its explanation, which reads nothing else of the graph.

    `known` int64 [m]: the answers that the graph contains; `version`: that of the graph;
    `reasoner`: the snapshot that explains it, which later changes do not affect.
    """

    subgraph: SubgraphBatch = field(repr=False)
    known: Tensor = field(repr=False)
    version: int
    reasoner: Reasoner = field(repr=False)


@dataclass(frozen=True)
class Answered:
    """The answers to a query, and the time of each step in milliseconds.

    The times of updating (applying changes to the graph) and sampling are those of the whole batch
    of `batch` queries; on a GPU, so are all other times. `version`: that of the graph. `sampled`:
    kept if the answers are to be explained.
    """

    prediction: Prediction
    milliseconds: dict[str, float]
    batch: int
    version: int
    sampled: Sampled | None = field(default=None, repr=False)


@dataclass(eq=False)
class _Waiting:
    deadline: float
    future: "Future[Any]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _WaitingQuestion(_Waiting):
    question: Question = field(kw_only=True)
    request: object = field(kw_only=True)


@dataclass(eq=False)
class _WaitingExplanation(_Waiting):
    question: Question = field(kw_only=True)
    answer: int = field(kw_only=True)
    paths: int = field(kw_only=True)
    sampled: Sampled | None = field(kw_only=True)


@dataclass(eq=False)
class _WaitingTask(_Waiting):
    task: Task[Any] = field(kw_only=True)


class Engine:
    """Answers queries and explains answers with one reasoner, in its own threads."""

    def __init__(
        self, reasoner: Reasoner, live: LiveGraph, settings: ServeSettings, metrics: Metrics
    ) -> None:
        self._reasoner, self._live = reasoner, live
        self._settings, self._metrics = settings, metrics
        self._questions: deque[_WaitingQuestion] = deque()
        # Explanations that are not sampled yet, and tasks.
        self._explanations: deque[_WaitingExplanation | _WaitingTask] = deque()
        self._sampled: deque[_WaitingExplanation] = deque()
        self._changed = threading.Condition()
        self._running: list[_Waiting] = []  # the batch or task, and the explanation in progress
        self._stopping = False
        self._pace = 0.0  # recent seconds per query
        self._explaining_pace = 0.0  # recent seconds per explanation
        self._version = 0  # of the graph of the reasoner
        self._is_outdated = True  # whether the next batch gets a new snapshot
        self._unfinished: object = None  # the request that the last batch did not complete
        self._threads = torch.get_num_threads()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="oneshot-engine", daemon=True)
        self._explainer = threading.Thread(
            target=self._explain_all, name="oneshot-explainer", daemon=True
        )

    def start(self, pace: float = 0.0) -> None:
        """Start the threads; `pace`: measured seconds per query, 0 if unknown."""
        self._pace = pace
        self._explainer.start()
        self._started.wait()
        self._thread.start()

    def refuse(self) -> None:
        """Refuse everything that is queued or being computed; nothing is accepted any more."""
        with self._changed:
            self._stopping = True
            lines = (self._questions, self._explanations, self._sampled, self._running)
            for item in [item for line in lines for item in line]:
                _fail(item, OverloadedError("the service is stopping"))
            self._changed.notify_all()

    def stop(self) -> None:
        """Finish the current batch and refuse everything that is still queued."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in (self._thread, self._explainer):
            if thread.is_alive():
                thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self._explainer.is_alive() and not self._stopping

    @property
    def waiting(self) -> int:
        """Number of queries and explanations in the queue."""
        return len(self._questions) + len(self._explanations) + len(self._sampled)

    @property
    def full(self) -> bool:
        """Whether another query would be refused; checked before a request is read."""
        if not self._lacks_room(1, self._settings.timeout):
            return False
        with self._changed:
            self._forget_gone()
            return self._lacks_room(1, self._settings.timeout)

    @property
    def patience(self) -> int:
        """Seconds after which a refused client should retry: half the time of the queue."""
        return min(max(math.ceil(self._seconds(0) / 2), 1), 30)

    def explaining_seconds(self, count: int) -> float:
        """The time that explanations are expected to take; 0 before the first one."""
        return count * self._explaining_pace

    def _seconds(self, more: int) -> float:
        """The time after which the queue, with further queries, is expected to be empty."""
        return (len(self._questions) + more) * self._pace

    def _lacks_room(self, more: int, seconds: float) -> bool:
        """Whether further queries do not fit into the queue, or not into their time."""
        # A request larger than the queue is accepted if the queue is empty.
        if not self.waiting:
            return False
        needed = self._seconds(more)  # 0 if the pace is unknown
        is_late = needed > max(_SHARE_OF_TIME * seconds, 0.0)
        return self.waiting + more > self._settings.queue or is_late

    def ask(self, questions: Sequence[Question], deadline: float) -> "list[Future[Answered]]":
        """Enqueue the queries of a request; raises `OverloadedError` if they are refused.

        `deadline`: when the client stops waiting, as `time.monotonic`. All of them are answered on
        one snapshot of the graph.
        """
        request = object()
        items = [
            _WaitingQuestion(deadline, question=question, request=request) for question in questions
        ]
        self._enqueue(self._questions, items)
        return [item.future for item in items]

    def explain(
        self,
        question: Question,
        answer: int,
        paths: int,
        deadline: float,
        sampled: Sampled | None = None,
    ) -> "Future[tuple[Explanation, int]]":
        """Enqueue an explanation; its result includes the version of the graph.

        `sampled`: the subgraph of the answer; if None, the query is sampled again.
        """
        item = _WaitingExplanation(
            deadline, question=question, answer=answer, paths=paths, sampled=sampled
        )
        self._enqueue(self._explanations if sampled is None else self._sampled, [item])
        return item.future

    def run(self, task: "Task[Result]", deadline: float) -> "Future[tuple[Result, int]]":
        """Enqueue a task; its result includes the version of the graph."""
        item = _WaitingTask(deadline, task=task)
        self._enqueue(self._explanations, [item])
        return item.future

    def _enqueue(self, line: "deque[Any]", items: Sequence[_Waiting]) -> None:
        with self._changed:
            if self._stopping:
                raise OverloadedError("the service is stopping")
            seconds = items[0].deadline - time.monotonic() if items else 0.0
            if self._is_refused(line, len(items), seconds):
                self._forget_gone()
                if self._is_refused(line, len(items), seconds):
                    self._metrics.questions("refused", len(items))
                    raise OverloadedError("too many queries are waiting; retry in a moment")
            line.extend(items)
            self._changed.notify_all()

    def _is_refused(self, line: "deque[Any]", count: int, seconds: float) -> bool:
        if line is self._questions:
            return self._lacks_room(count, seconds)
        ahead = len(self._explanations) + len(self._sampled)
        needed = (ahead + 1) * self._explaining_pace if ahead else 0.0
        is_late = needed > max(_SHARE_OF_TIME * seconds, 0.0)
        return is_late or self.waiting + count > self._settings.queue

    def _forget_gone(self) -> None:
        for line in (self._questions, self._explanations, self._sampled):
            kept = [item for item in line if not item.future.cancelled()]
            line.clear()
            line.extend(kept)  # type: ignore[arg-type]

    def _work(self) -> None:
        torch.set_num_threads(self._threads)  # of this thread; the other one uses fewer
        sample_next = False
        while True:
            with self._changed:
                while not (self._questions or self._explanations or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    for item in (*self._questions, *self._explanations):
                        _fail(item, OverloadedError("the service is stopping"))
                    return
                # Tasks and sampling for explanations alternate with batches of queries.
                other = None
                is_free = not self._questions or (sample_next and self._unfinished is None)
                if self._explanations and is_free:
                    other = self._explanations.popleft()
            sample_next = other is None
            if other is not None:
                if isinstance(other, _WaitingExplanation):
                    if self._is_wanted(other):
                        self._sample(other)
                elif self._is_wanted(other):
                    with self._in_progress(other):
                        self._run(other)
                del other  # and its result, while this thread waits
                continue
            batch = self._gather()
            if batch:
                with self._in_progress(*batch):
                    self._answer(batch)
                self._refuse_late()

    def _refuse_late(self) -> None:
        """Refuse queued queries that, at the latest pace, will not be answered in time.

        They were accepted at a better pace; their clients learn it at once, not at their deadline.
        """
        now = time.monotonic()
        with self._changed:
            kept: list[_WaitingQuestion] = []
            for item in self._questions:
                if now + (len(kept) + 1) * self._pace <= item.deadline or item.future.cancelled():
                    kept.append(item)
                else:
                    self._metrics.questions("refused")
                    _fail(item, OverloadedError("too many queries are waiting; retry in a moment"))
            self._questions.clear()
            self._questions.extend(kept)

    @contextlib.contextmanager
    def _in_progress(self, *items: _Waiting) -> Iterator[None]:
        with self._changed:
            self._running += items
        try:
            yield
        finally:
            with self._changed:
                self._running = [item for item in self._running if item not in items]

    def _gather(self) -> list[_WaitingQuestion]:
        """The queries of the next batch; waits up to `batch_wait` seconds for more."""
        size = self._settings.batch_size
        if self._pace > 0:
            # A query that arrives during a batch waits for all of it, so a batch must be short.
            size = min(max(int(_BATCH_SECONDS / self._pace), 1), size)
        with self._changed:
            if self._questions:
                until = self._questions[0].since + self._settings.batch_wait
                while len(self._questions) < size and not self._stopping:
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
            unfinished = self._unfinished
            if unfinished is not None and not any(
                item.request is unfinished for item in self._questions
            ):
                unfinished = None  # its client has left
            taken: list[_WaitingQuestion] = []
            while self._questions and len(taken) < size:
                # The rest of a request is answered on the graph of its beginning, without others:
                # otherwise the graph of a busy service would never be updated.
                if unfinished is not None and self._questions[0].request is not unfinished:
                    break
                taken.append(self._questions.popleft())
            if unfinished is None:
                self._is_outdated = True
            is_split = taken and self._questions and self._questions[0].request is taken[-1].request
            self._unfinished = taken[-1].request if is_split else None
        return [item for item in taken if self._begins(item)]

    def _is_wanted(self, item: _Waiting) -> bool:
        """Whether the client of an item still waits; it can still be cancelled afterwards."""
        if item.future.cancelled():
            self._metrics.questions("abandoned")
            return False
        if time.monotonic() > item.deadline:
            self._metrics.questions("expired")
            _fail(item, ExpiredError("the explanation waited too long; retry later"))
            return False
        return True

    def _begins(self, item: _Waiting) -> bool:
        """Mark an item as running, unless its client has left or its deadline has passed."""
        if not item.future.set_running_or_notify_cancel():
            self._metrics.questions("abandoned")
            return False
        if time.monotonic() > item.deadline:
            self._metrics.questions("expired")
            _fail(item, ExpiredError("the query waited too long; retry later"))
            return False
        return True

    def _answer(self, batch: list[_WaitingQuestion]) -> None:
        try:
            for item, answered in zip(batch, self._answers(batch), strict=True):
                _finish(item, answered)
        except Exception as error:  # its client gets the error, and other queries continue
            undone = [item for item in batch if not item.future.done()]
            if len(batch) > 1:
                for item in undone:
                    self._answer([item])
            else:
                self._metrics.questions("failed")
                _fail(batch[0], error)

    def _answers(self, batch: list[_WaitingQuestion]) -> Iterator[Answered]:
        """Yield the answers of a batch one by one."""
        reasoner = self._reasoner
        begun = time.monotonic()
        self._update()
        version = self._version
        updated = self._now()
        asked = [item.question for item in batch]
        queries = torch.tensor([(q.entity, q.relation) for q in asked], device=reasoner.device)
        subgraphs = reasoner.sampler.sample(reasoner.graph, queries)
        sampled = self._now()
        self._metrics.batch(len(batch))
        shared = {"updating": updated - begun, "sampling": sampled - updated}
        for name, seconds in shared.items():
            self._metrics.step(name, seconds)
        # Sampling a whole batch is several times as fast on any device. The predictor gains on a
        # GPU only: on a CPU, one subgraph fits into the cache and many do not.
        size = 1 if reasoner.device.type == "cpu" else len(batch)
        for start, part in zip(range(0, len(batch), size), subgraphs.split(size), strict=True):
            items = batch[start : start + size]
            clock = [self._now()]
            scores = reasoner.scores(part)
            clock.append(self._now())
            wanted = [item.question.options for item in items]
            found = list(reasoner.predictions(part, scores, wanted))
            clock.append(self._now())
            steps = {"reasoning": clock[1] - clock[0], "ranking": clock[2] - clock[1]}
            for name, seconds in steps.items():
                self._metrics.step(name, seconds)
            self._metrics.questions("answered", len(items))
            is_kept = any(item.question.options.explain for item in items)
            alone = part.split(1) if is_kept else [None] * len(items)
            for item, prediction, subgraph in zip(items, found, alone, strict=True):
                times = {"waiting": begun - item.since, **shared, **steps}
                milliseconds = {name: round(1e3 * seconds, 3) for name, seconds in times.items()}
                kept = None
                if subgraph is not None and item.question.options.explain:
                    kept = self._kept(item.question, subgraph)
                yield Answered(prediction, milliseconds, len(batch), version, kept)
        latest = (time.monotonic() - begun) / len(batch)
        self._pace = _averaged(self._pace, latest)

    def _update(self) -> None:
        """Apply pending changes to the graph, unless a request is not finished on it."""
        if self._is_outdated:
            self._reasoner.graph, self._version = self._live.snapshot()
            self._is_outdated = False

    def _kept(self, question: Question, subgraph: SubgraphBatch) -> Sampled:
        known = self._reasoner.known_answers(question.entity, question.relation)
        return Sampled(subgraph, known, self._version, self._reasoner.snapshot())

    def _proceeds(self, item: _Waiting) -> Callable[[], None]:
        """What raises an error if an item is not needed any more, for the steps of its work."""

        def proceed() -> None:
            if self._stopping:
                raise OverloadedError("the service is stopping")
            if item.future.cancelled() or time.monotonic() > item.deadline:
                raise ExpiredError("the request took too long; retry later")

        return proceed

    def _run(self, item: _WaitingTask) -> None:
        """Run a task on the graph of the moment."""
        try:
            self._is_outdated = True
            self._update()
            result = item.task(self._reasoner, self._proceeds(item))
            _finish(item, (result, self._version))
        except Exception as error:  # as in `_answer`
            _fail(item, error)

    def _sample(self, item: _WaitingExplanation) -> None:
        """Sample the subgraph of an explanation and pass it to the other thread."""
        try:
            self._is_outdated = True
            self._update()
            device = self._reasoner.device
            query = torch.tensor([[item.question.entity, item.question.relation]], device=device)
            included = torch.tensor([[item.answer]], device=device)
            subgraph = self._reasoner.sampler.sample(self._reasoner.graph, query, included)
            item.sampled = self._kept(item.question, subgraph)
            with self._changed:
                self._sampled.append(item)
                self._changed.notify_all()
        except Exception as error:  # as in `_answer`
            _fail(item, error)

    def _explain_all(self) -> None:
        # Explanations are computed on small tensors, and queries need the other cores. The number
        # has to be read: otherwise the first operation of this thread takes that of the engine.
        torch.set_num_threads(1)
        torch.get_num_threads()
        yield_to_other_threads(_EXPLAINING_NICE)
        self._started.set()
        return_at: float | None = None  # when freed memory is returned, if no explanation comes
        while True:
            with self._changed:
                while not (self._sampled or self._stopping):
                    left = None if return_at is None else return_at - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                if self._stopping:
                    for waiting in self._sampled:
                        _fail(waiting, OverloadedError("the service is stopping"))
                    return
                item = self._sampled.popleft() if self._sampled else None
            if item is None:
                return_freed_memory()
                return_at = None
                continue
            if self._is_wanted(item):
                with self._in_progress(item):
                    self._explain(item)
            del item
            return_at = time.monotonic() + _RETURN_MEMORY_AFTER

    def _explain(self, item: _WaitingExplanation) -> None:
        sampled = item.sampled
        assert sampled is not None
        try:
            started = time.monotonic()
            (found,) = explain(
                sampled.reasoner,
                sampled.subgraph,
                [item.answer],
                item.paths,
                known=sampled.known,
                proceed=self._proceeds(item),
            )
            seconds = time.monotonic() - started
            self._metrics.step("explaining", seconds)
            self._explaining_pace = _averaged(self._explaining_pace, seconds)
            _finish(item, (found, sampled.version))
        except Exception as error:  # as in `_answer`
            if item.future.cancelled():
                self._metrics.questions("abandoned")
            else:
                _fail(item, error)

    def _now(self) -> float:
        """The time after all work that the device has queued."""
        if self._reasoner.device.type == "cuda":
            torch.cuda.synchronize(self._reasoner.device)
        return time.monotonic()


def _averaged(old: float, latest: float) -> float:
    """A moving average; `old` is 0 before the first value."""
    return latest if old == 0 else 0.8 * old + 0.2 * latest


def _finish(item: _Waiting, result: object) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled or refused in the meantime
        item.future.set_result(result)


def _fail(item: _Waiting, error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled or done
        item.future.set_exception(error)
