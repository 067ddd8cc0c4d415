"""Stream: the answers to any number of queries, batch by batch, in order."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from oneshot.errors import InputError
from oneshot.graph.graph import INVERSE_MARK
from oneshot.reasoner.answers import AnswerOptions, Prediction
from oneshot.reasoner.batch_size import BatchSize, in_batches

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

Query = tuple[str | int, str | int] | tuple[str | int, str | int, bool]
"""An entity and a relation, each by name or id, and whether the relation is inverted."""
OnError = Literal["raise", "record"]


def predict_stream(
    reasoner: "Reasoner",
    queries: Iterable[Query],
    options: AnswerOptions,
    batch_size: int | None,
    errors: OnError,
) -> Iterator[Prediction]:
    """See `Reasoner.predict_stream`."""
    options.check_for_many()
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}")
    if errors not in ("raise", "record"):
        raise InputError(f'errors must be "raise" or "record", not {errors!r}')
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    return _stream(reasoner, queries, size, options, errors)


def _stream(
    reasoner: "Reasoner",
    queries: Iterable[Query],
    size: BatchSize,
    options: AnswerOptions,
    errors: OnError,
) -> Iterator[Prediction]:
    waiting: list[tuple[int, int] | Prediction] = []
    for query in queries:
        try:
            waiting.append(_ids(reasoner, query))
        except InputError as error:
            if errors == "raise":
                yield from _answered(reasoner, waiting, size, options)
                raise
            waiting.append(_record(query, error))
        if len(waiting) >= size.now:
            yield from _answered(reasoner, waiting, size, options)
            waiting = []
    yield from _answered(reasoner, waiting, size, options)


def _answered(
    reasoner: "Reasoner",
    waiting: Sequence[tuple[int, int] | Prediction],
    size: BatchSize,
    options: AnswerOptions,
) -> Iterator[Prediction]:
    """The answers to some queries, in order; records of errors keep their positions."""
    asked = [query for query in waiting if not isinstance(query, Prediction)]
    answers = _predicted(reasoner, asked, size, options)
    for query in waiting:
        yield query if isinstance(query, Prediction) else next(answers)


def _predicted(
    reasoner: "Reasoner", queries: list[tuple[int, int]], size: BatchSize, options: AnswerOptions
) -> Iterator[Prediction]:
    asked = torch.tensor(queries, dtype=torch.long, device=reasoner.device).view(-1, 2)
    for _, batch, scores in in_batches(reasoner, asked, size):
        yield from reasoner.predictions(batch, scores, [options] * batch.num_queries)


def _ids(reasoner: "Reasoner", query: Any) -> tuple[int, int]:
    """The ids of a query; raises if it is malformed, as table rows may be."""
    fields = _fields(query)
    if len(fields) not in (2, 3):
        raise InputError(
            f"a query is (entity, relation) or (entity, relation, inverse), not {query!r}"
        )
    for kind, name in zip(("entity", "relation"), fields[:2], strict=True):
        if not isinstance(name, str) and not hasattr(name, "__index__"):
            raise InputError(f"{kind} must be a name or an id, not {name!r}")
    return reasoner.query(*fields)


def _fields(query: Any) -> tuple[Any, ...]:
    is_several = isinstance(query, Iterable) and not isinstance(query, str | bytes)
    return tuple(query) if is_several else ()


def _record(query: Any, error: InputError) -> Prediction:
    """The prediction for a query that cannot be answered: without answers, with its error."""
    entity, relation, inverse = (*_fields(query), "", "", False)[:3]
    if inverse is True:
        relation = f"{relation}{INVERSE_MARK}"
    return Prediction(str(entity), str(relation), (), 0, 0, str(error))
