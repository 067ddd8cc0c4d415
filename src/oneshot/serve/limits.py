"""Limits of requests: maximum sizes, and the checks of each route before the body is read.

The service does not start if a route declares no limits, so that none is open by oversight.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

MAX_QUESTIONS = 64  # per request
MAX_TOP = 1000  # answers per query
MAX_TYPES = 8  # facts that answers must have
MAX_EXPLAINED = 10  # answers with paths; each takes several times as long as the query
MAX_FACTS = 10_000  # per request, which are changed in one transaction
MAX_NAME = 4096  # characters
MAX_NEW_NAME = 1024  # characters of the name of an entity that is added
MAX_ERRORS = 20  # reported per request
LARGE_BODY = 1 << 16  # bytes; a larger body is parsed in another thread
MAX_BODY = 2 << 20  # bytes
MAX_BODIES = 32 * MAX_BODY  # of all requests at a time
MAX_PARSED = 16  # large bodies that wait to be parsed
MAX_SEARCHES = 16  # searches of names that wait; each holds a thread
MAX_SUGGESTED = 3  # unknown names of a request for which similar ones are searched
MAX_FOUND = 100  # names per search
MAX_PAGE = 1000  # facts, entities or changes per page
MAX_SEEDS = 10  # entities around which a neighbourhood lies
MAX_NEAR = 1000  # entities of a neighbourhood
MAX_NEAR_FACTS = 1000  # facts of a neighbourhood
MAX_OTHERS = 10  # other tails of a checked fact
MAX_STREAMED = 10_000  # queries per stream

_DECLARED = "oneshot_limits"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class Limits:
    """The checks of a request to a route.

    `token`: the request must carry the token of the service, if there is one. `json`: its body must
    be JSON. `queued`: it is refused while the queue is full. `write`: if the service has a token
    for changes, the request must carry that one.
    """

    token: bool = True
    json: bool = False
    queued: bool = False
    write: bool = False


def limited(
    *, token: bool = True, json: bool = False, queued: bool = False, write: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Declare the limits of a route's function (see `Limits`)."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _DECLARED, Limits(token, json, queued, write))
        return endpoint

    return declare


class RouteLimits:
    """The limits of all routes of an app; raises if a route declares none."""

    def __init__(self, routes: Iterable[Any]) -> None:
        self._by_path: dict[str, dict[str, Limits]] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        for route in routes:
            declared = getattr(getattr(route, "endpoint", None), _DECLARED, None)
            if declared is None:
                raise TypeError(f"{route.path}: the route declares no limits; see `limited`")
            self._patterns[route.path] = route.path_regex
            methods = self._by_path.setdefault(route.path, {})
            methods.update(dict.fromkeys(route.methods, declared))

    def find(self, path: str, method: str) -> Limits:
        """The limits of a request; without a route for the path or method, those of any other."""
        # The whole path: a pattern that ends in "$" also matches before a trailing line break.
        methods = self._by_path.get(path) or next(
            (self._by_path[p] for p, found in self._patterns.items() if found.fullmatch(path)), None
        )
        if methods is None:
            return Limits()
        if method in methods:
            return methods[method]
        return Limits(token=any(limits.token for limits in methods.values()))
