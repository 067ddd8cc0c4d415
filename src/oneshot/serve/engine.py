"""The engine of a service: one worker thread with a bounded queue.

Queries that wait at the same time are answered in one batch. A query is dropped if its deadline
has passed or its client has disconnected.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from oneshot.errors import OneshotError
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.reasoner.answers import AnswerOptions, Prediction
from oneshot.reasoner.explanation import Explanation, explain
from oneshot.reasoner.reasoner import Reasoner
from oneshot.serve.metrics import Metrics
from oneshot.serve.settings import ServeSettings
from oneshot.subgraph import SubgraphBatch

_BATCH_SECONDS = 1.0  # target time of a batch, estimated from recent batches


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
class Answered:
    """The answers to a query, and the time of each step in milliseconds.

    The times of updating (applying changes to the graph) and sampling are those of the whole batch
    of `batch` queries; on a GPU, so are all other times. `subgraph` is kept if the answers are to
    be explained.
    """

    prediction: Prediction
    milliseconds: dict[str, float]
    batch: int
    subgraph: SubgraphBatch | None = field(default=None, repr=False)


@dataclass(eq=False)
class _Waiting:
    deadline: float
    future: "Future[Any]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _WaitingQuestion(_Waiting):
    question: Question = field(kw_only=True)


@dataclass(eq=False)
class _WaitingExplanation(_Waiting):
    question: Question = field(kw_only=True)
    answer: int = field(kw_only=True)
    paths: int = field(kw_only=True)
    subgraph: SubgraphBatch | None = field(kw_only=True)


class Engine:
    """Answers queries and explains answers with one reasoner, in its own thread."""

    def __init__(
        self, reasoner: Reasoner, live: LiveGraph, settings: ServeSettings, metrics: Metrics
    ) -> None:
        self._reasoner, self._live = reasoner, live
        self._settings, self._metrics = settings, metrics
        self._questions: deque[_WaitingQuestion] = deque()
        self._explanations: deque[_WaitingExplanation] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._pace = 0.0  # recent seconds per query
        self._thread = threading.Thread(target=self._work, name="oneshot-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the current batch and refuse everything that is still queued."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    @property
    def waiting(self) -> int:
        """Number of queries and explanations in the queue."""
        return len(self._questions) + len(self._explanations)

    @property
    def full(self) -> bool:
        """Whether another query would be refused; checked before a request is read."""
        if self.waiting < self._settings.queue:
            return False
        with self._changed:
            self._forget_gone()
            return self.waiting >= self._settings.queue

    @property
    def patience(self) -> int:
        """Seconds after which a refused client should retry: half the time of the queue."""
        return min(max(math.ceil(self.waiting * self._pace / 2), 1), 30)

    def ask(self, questions: Sequence[Question], deadline: float) -> "list[Future[Answered]]":
        """Enqueue queries; raises `OverloadedError` if the queue is full.

        `deadline`: when the client stops waiting, as `time.monotonic`.
        """
        items = [_WaitingQuestion(deadline, question=question) for question in questions]
        self._enqueue(self._questions, items)
        return [item.future for item in items]

    def explain(
        self,
        question: Question,
        answer: int,
        paths: int,
        deadline: float,
        subgraph: SubgraphBatch | None = None,
    ) -> "Future[Explanation]":
        """Enqueue an explanation; raises `OverloadedError` if the queue is full.

        `subgraph`: the subgraph of the answer; if None, the query is sampled again.
        """
        item = _WaitingExplanation(
            deadline, question=question, answer=answer, paths=paths, subgraph=subgraph
        )
        self._enqueue(self._explanations, [item])
        return item.future

    def _enqueue(self, line: "deque[Any]", items: Sequence[_Waiting]) -> None:
        with self._changed:
            if self._stopping:
                raise OverloadedError("the service is stopping")
            # A request larger than the queue is accepted if the queue is empty.
            if self.waiting and self.waiting + len(items) > self._settings.queue:
                self._forget_gone()
            if self.waiting and self.waiting + len(items) > self._settings.queue:
                self._metrics.questions("refused", len(items))
                raise OverloadedError("too many queries are waiting; retry in a moment")
            line.extend(items)
            self._changed.notify_all()

    def _forget_gone(self) -> None:
        for line in (self._questions, self._explanations):
            kept = [item for item in line if not item.future.cancelled()]
            line.clear()
            line.extend(kept)  # type: ignore[arg-type]

    def _work(self) -> None:
        explain_next = False
        while True:
            with self._changed:
                while not self.waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    for item in (*self._questions, *self._explanations):
                        _fail(item, OverloadedError("the service is stopping"))
                    return
                # Explanations are slow: they alternate with batches of queries.
                reason = None
                if self._explanations and (explain_next or not self._questions):
                    reason = self._explanations.popleft()
            explain_next = reason is None
            if reason is not None:
                if self._begins(reason):
                    self._explain(reason)
                continue
            batch = self._gather()
            if batch:
                self._answer(batch)

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
            taken = [self._questions.popleft() for _ in range(min(size, len(self._questions)))]
        return [item for item in taken if self._begins(item)]

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
                item.future.set_result(answered)
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
        reasoner.graph = self._live.graph()
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
                kept = subgraph if item.question.options.explain else None
                yield Answered(prediction, milliseconds, len(batch), kept)
        latest = (time.monotonic() - begun) / len(batch)
        self._pace = latest if self._pace == 0 else 0.8 * self._pace + 0.2 * latest

    def _explain(self, item: _WaitingExplanation) -> None:
        try:
            self._reasoner.graph = self._live.graph()
            started = time.monotonic()
            if item.subgraph is None:
                asked = item.question
                found = self._reasoner.explain(
                    asked.entity, asked.relation, item.answer, paths=item.paths
                )
            else:
                (found,) = explain(self._reasoner, item.subgraph, [item.answer], item.paths)
            self._metrics.step("explaining", time.monotonic() - started)
            item.future.set_result(found)
        except Exception as error:  # as in `_answer`
            _fail(item, error)

    def _now(self) -> float:
        """The time after all work that the device has queued."""
        if self._reasoner.device.type == "cuda":
            torch.cuda.synchronize(self._reasoner.device)
        return time.monotonic()


def _fail(item: _Waiting, error: Exception) -> None:
    if not item.future.done():
        item.future.set_exception(error)
