"""Client of a service that `oneshot serve` runs; needs only Python."""

import json
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Literal, Unpack

from oneshot.errors import OneshotError
from oneshot.reasoner.answers import Answer, AnswerKeywords, Prediction

_MAX_FACTS = 10_000  # per request of a service, which also accepts
_MAX_BODY = 2 << 20  # bytes


class ServiceError(OneshotError):
    """A service refused a request, or cannot be reached (`status` is then None).

    `nearest`: known names similar to an unknown one. `changed`: facts that had been changed before,
    if they were sent in parts.
    """

    def __init__(
        self, message: str, status: int | None = None, nearest: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.nearest = status, list(nearest)
        self.changed = 0


class Client:
    """Sends queries and changes to the service at `url`.

    `token`: the token of the service, if it requires one. `timeout`: seconds to wait for a
    response. `retries`: how often to repeat a request while the service is busy, each time after
    the delay that it requests. Each thread has a connection of its own, which stays open.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, retries: int = 5
    ) -> None:
        address = urllib.parse.urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ServiceError(f"{url}: the address must begin with http:// or https://")
        self.url = url.rstrip("/")
        self.timeout, self.retries = timeout, retries
        self._token = token
        self._address, self._prefix = address, address.path.rstrip("/")
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def predict(
        self,
        entity: str,
        relation: str,
        *,
        inverse: bool = False,
        **options: Unpack[AnswerKeywords],
    ) -> Prediction:
        """The best answers to `(entity, relation, ?)`, as `Reasoner.predict` gives them.

        `options`: options of the answers, such as `top=10` or `exclude_known=True`.
        """
        return self.predict_many([(entity, relation)], inverse=inverse, **options)[0]

    def predict_many(
        self,
        questions: Iterable[tuple[str, str]],
        *,
        inverse: bool = False,
        batch_size: int = 16,
        errors: Literal["raise", "record"] = "raise",
        **options: Unpack[AnswerKeywords],
    ) -> list[Prediction]:
        """The answers to many queries (entity, relation), sent in requests of `batch_size`.

        `errors`: a query with an unknown name either raises a `ServiceError`, or has a prediction
        without answers and with its `error`.
        """
        if "explain" in options:
            raise ServiceError("predictions of a client have no explanations; use `explain`")
        asked = [
            {"entity": entity, "relation": relation, "inverse": inverse}
            for entity, relation in questions
        ]
        found = []
        for start in range(0, len(asked), batch_size):
            some = asked[start : start + batch_size]
            try:
                results = self._call("/v1/predict", {"questions": some, **options})["results"]
            except ServiceError as error:
                if errors == "raise" or error.status != 404:
                    raise
                results = [self._refused(question, options) for question in some]
            for value in results:
                if "error" in value and errors == "raise":
                    raise _problem(value["error"], 404)
                found.append(_prediction(value))
        return found

    def _refused(self, question: dict[str, Any], options: Any) -> dict[str, Any]:
        """The result of a query of a request that was refused because all of its queries were."""
        try:
            results = self._call("/v1/predict", {"questions": [question], **options})["results"]
            return dict(results[0])
        except ServiceError as error:
            if error.status != 404:
                raise
            query = {"entity": question["entity"], "relation": question["relation"]}
            size = {"entities": 0, "edges": 0}
            refusal = {"detail": str(error)}
            return {"query": query, "answers": [], "subgraph": size, "error": refusal}

    def explain(
        self,
        entity: str,
        relation: str,
        answer: str,
        *,
        inverse: bool = False,
        paths: int = 5,
        drawing: bool = False,
    ) -> dict[str, Any]:
        """The explanation of an answer: `paths`, and with `drawing` also drawings as SVG."""
        body = {"entity": entity, "relation": relation, "inverse": inverse, "answer": answer}
        return self._call("/v1/explain", {**body, "paths": paths, "drawing": drawing})

    def search(self, text: str, limit: int = 10) -> list[str]:
        """Entities by name: prefix matches first, then fuzzy matches."""
        query = urllib.parse.urlencode({"search": text, "limit": limit})
        return list(self._call(f"/v1/entities?{query}")["entities"])

    def facts(self, entity: str, limit: int = 100, offset: int = 0) -> list[tuple[str, str, str]]:
        """At most `limit` facts about an entity, without the first `offset`."""
        name = urllib.parse.quote(entity, safe="")
        found = self._call(f"/v1/entities/{name}?limit={limit}&offset={offset}")["facts"]
        return [(head, relation, tail) for head, relation, tail in found]

    def relations(self) -> list[str]:
        """All relations."""
        return list(self._call("/v1/relations")["relations"])

    def relation_counts(self) -> dict[str, int]:
        """The number of facts of each relation."""
        return dict(self._call("/v1/relations")["counts"])

    def check(self, head: str, relation: str, tail: str, *, paths: int = 5) -> dict[str, Any]:
        """How likely a fact is by all other facts: `known`, `probability`, `rank`, `paths` …"""
        body = {"head": head, "relation": relation, "tail": tail, "paths": paths}
        return self._call("/v1/check", body)

    def neighbourhood(self, entities: Iterable[str], top: int = 20) -> dict[str, Any]:
        """The entities nearest to some entities, with scores, and the facts between them."""
        return self._call("/v1/neighbourhood", {"entities": list(entities), "top": top})

    def changes(self, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
        """The changed facts, the latest change first: `fact`, `change`, `version`."""
        found = self._call(f"/v1/changes?limit={limit}&offset={offset}")["changes"]
        return list(found)

    def close(self) -> None:
        """Close the connection of this thread; the next request opens another one."""
        self._local.kept = None

    def add(self, facts: Iterable[Sequence[str]], *, in_parts: bool = False) -> int:
        """Add facts (head, relation, tail), all or none of them. Returns the number of new ones.

        At most 10,000 facts, or 2 MiB of JSON, fit into a request; more are refused unless they may
        be added `in_parts`. The relations are then checked first; if a part is refused, those
        before it stay, and the error has the number of facts that had been `changed`.
        """
        return self._change(facts, "POST", "added", in_parts)

    def remove(self, facts: Iterable[Sequence[str]], *, in_parts: bool = False) -> int:
        """Remove facts. Returns the number of facts that were in the graph.

        `in_parts`: as for `add`.
        """
        return self._change(facts, "DELETE", "removed", in_parts)

    def state(self) -> dict[str, Any]:
        """Whether the service is ready, and the size of its graph."""
        return self._call("/v1/readyz")

    def _change(self, facts: Iterable[Sequence[str]], method: str, key: str, in_parts: bool) -> int:
        rows = [list(fact) for fact in facts]
        parts = list(_parts(rows))
        if len(parts) > 1:
            if not in_parts:
                raise ServiceError(
                    f"{len(rows):,} facts do not fit into one request (at most {_MAX_FACTS:,} "
                    f"facts and {_MAX_BODY >> 20} MiB), so they cannot be changed all or not at "
                    "all; set in_parts=True, or use `oneshot facts` where the run is"
                )
            known = set(self.relations())
            for row in rows:
                if len(row) != 3 or row[1] not in known:
                    raise ServiceError(f"{row!r} is not a fact with a known relation", 404)
        changed = 0
        for part in parts:
            try:
                changed += self._call("/v1/facts", {"facts": part}, method)[key]
            except ServiceError as error:
                error.changed = changed
                raise
        return changed

    def _call(self, path: str, body: Any = None, method: str | None = None) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = _encoded(body)
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        method = method or ("GET" if data is None else "POST")
        for attempt in range(self.retries + 1):
            try:
                response, content = self._exchange(method, path, data, headers)
                if response.status in (429, 503) and attempt < self.retries:
                    time.sleep(_pause(response.headers.get("Retry-After")))
                    continue
                if response.status >= 300:
                    raise _refusal(response, content)
                value: dict[str, Any] = json.loads(content)
                return value
            except (OSError, HTTPException, ValueError) as error:
                self.close()
                raise ServiceError(f"{self.url}: cannot be reached ({error})") from error
        raise AssertionError("not reached")

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        """Send a request on the open connection; on a new one if the service has closed it."""
        kept: _Kept | None = getattr(self._local, "kept", None)
        is_new = kept is None
        if kept is None:
            # Requests go to the service directly, without the proxy of the system.
            secure = self._address.scheme == "https"
            connect = HTTPSConnection if secure else HTTPConnection
            kept = _Kept(
                connect(self._address.hostname or "", self._address.port, timeout=self.timeout)
            )
            self._local.kept = kept
        try:
            kept.connection.request(method, self._prefix + path, data, headers)
            response = kept.connection.getresponse()
        except (ConnectionError, HTTPException):
            kept = None
            self.close()
            if is_new:
                raise
            # Closed between two requests. All requests may be repeated: facts are sets.
            return self._exchange(method, path, data, headers)
        content = response.read()
        if response.will_close:
            self.close()
        return response, content


class _Kept:
    """A connection that is closed with its client, or with the thread that uses it."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _parts(rows: list[list[str]]) -> Iterator[list[list[str]]]:
    """Facts in parts that fit into a request each; a single one may be too large."""
    most = _MAX_BODY - len(_encoded({"facts": []}))
    part: list[list[str]] = []
    size = 0
    for row in rows:
        more = len(_encoded(row)) + 1  # a comma
        if part and (len(part) == _MAX_FACTS or size + more > most):
            yield part
            part, size = [], 0
        part.append(row)
        size += more
    if part:
        yield part


def _pause(asked: str | None) -> float:
    """The delay in seconds that a busy service requests, within bounds."""
    return min(float(asked), 30.0) if asked and asked.isdecimal() else 1.0


def _refusal(response: HTTPResponse, content: bytes) -> ServiceError:
    try:
        return _problem(json.loads(content), response.status)
    except (ValueError, AttributeError, KeyError, TypeError):
        return ServiceError(f"{response.status} {response.reason}", response.status)


def _problem(problem: dict[str, Any], status: int) -> ServiceError:
    told = problem.get("detail") or problem["title"]
    details = [part["detail"] for part in problem.get("errors", ())]
    message = "; ".join([str(told), *details])
    return ServiceError(message, status, problem.get("nearest", ()))


def _prediction(value: dict[str, Any]) -> Prediction:
    answers = tuple(
        Answer(one["entity"], one["score"], one.get("probability"), one["known"])
        for one in value["answers"]
    )
    query, size = value["query"], value["subgraph"]
    error = value["error"]["detail"] if "error" in value else None
    return Prediction(
        query["entity"], query["relation"], answers, size["entities"], size["edges"], error
    )
