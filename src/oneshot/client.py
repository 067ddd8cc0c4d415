"""Client of a service that `oneshot serve` runs; needs only Python."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from http.client import HTTPException
from typing import Any, Unpack

from oneshot.errors import OneshotError
from oneshot.reasoner.answers import Answer, AnswerKeywords, Prediction


class ServiceError(OneshotError):
    """A service refused a request, or cannot be reached (`status` is then None).

    `nearest`: known names similar to an unknown one.
    """

    def __init__(
        self, message: str, status: int | None = None, nearest: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.nearest = status, list(nearest)


class Client:
    """Sends queries and changes to the service at `url`.

    `token`: the token of the service, if it requires one. `timeout`: seconds to wait for a
    response. `retries`: how often to repeat a request while the service is busy, each time after
    the delay that it requests.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, retries: int = 5
    ) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ServiceError(f"{url}: the address must begin with http:// or https://")
        self.url = url.rstrip("/")
        self.timeout, self.retries = timeout, retries
        self._token = token
        # Requests go to the service directly, without the proxy of the system.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

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
        **options: Unpack[AnswerKeywords],
    ) -> list[Prediction]:
        """The answers to many queries (entity, relation), sent in requests of `batch_size`."""
        if "explain" in options:
            raise ServiceError("predictions of a client have no explanations; use `explain`")
        asked = [
            {"entity": entity, "relation": relation, "inverse": inverse}
            for entity, relation in questions
        ]
        found = []
        for start in range(0, len(asked), batch_size):
            body = {"questions": asked[start : start + batch_size], **options}
            found += [_prediction(value) for value in self._call("/v1/predict", body)["results"]]
        return found

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

    def facts(self, entity: str, limit: int = 100) -> list[tuple[str, str, str]]:
        """Facts about an entity."""
        name = urllib.parse.quote(entity, safe="")
        found = self._call(f"/v1/entities/{name}?limit={limit}")["facts"]
        return [(head, relation, tail) for head, relation, tail in found]

    def relations(self) -> list[str]:
        """All relations."""
        return list(self._call("/v1/relations")["relations"])

    def add(self, facts: Iterable[Sequence[str]]) -> int:
        """Add facts (head, relation, tail). Returns the number of new ones."""
        return self._change(facts, "POST", "added")

    def remove(self, facts: Iterable[Sequence[str]]) -> int:
        """Remove facts. Returns the number of facts that were in the graph."""
        return self._change(facts, "DELETE", "removed")

    def state(self) -> dict[str, Any]:
        """Whether the service is ready, and the size of its graph."""
        return self._call("/v1/readyz")

    def _change(self, facts: Iterable[Sequence[str]], method: str, key: str) -> int:
        rows = [list(fact) for fact in facts]
        parts = [rows[start : start + 1000] for start in range(0, len(rows), 1000)]
        return sum(self._call("/v1/facts", {"facts": part}, method)[key] for part in parts)

    def _call(self, path: str, body: Any = None, method: str | None = None) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        for attempt in range(self.retries + 1):
            try:
                with self._opener.open(request, timeout=self.timeout) as response:
                    value: dict[str, Any] = json.load(response)
                    return value
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 503 and attempt < self.retries:
                        time.sleep(_pause(error.headers.get("Retry-After")))
                        continue
                    raise _refusal(error) from None
            except (OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise ServiceError(f"{self.url}: cannot be reached ({reason})") from error
        raise AssertionError("not reached")


def _pause(asked: str | None) -> float:
    """The delay in seconds that a busy service requests, within bounds."""
    return min(float(asked), 30.0) if asked and asked.isdecimal() else 1.0


def _refusal(error: urllib.error.HTTPError) -> ServiceError:
    try:
        problem = json.load(error)
        told = problem.get("detail") or problem.get("title") or error.reason
        details = [part["detail"] for part in problem.get("errors", ())]
        message = "; ".join([str(told), *details])
        return ServiceError(message, error.code, problem.get("nearest", ()))
    except (OSError, HTTPException, ValueError, AttributeError, KeyError, TypeError):
        return ServiceError(f"{error.code} {error.reason}", error.code)


def _prediction(value: dict[str, Any]) -> Prediction:
    answers = tuple(
        Answer(one["entity"], one["score"], one["probability"], one["known"])
        for one in value["answers"]
    )
    query, size = value["query"], value["subgraph"]
    return Prediction(query["entity"], query["relation"], answers, size["entities"], size["edges"])
