"""Limits: what a route asks of a request before its body is read, declared where it is defined.

A route without declared limits ends the start of the service: none is open by oversight.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

_DECLARED = "oneshot_limits"
_API = "/v1/"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class Limits:
    """What is checked of a request to a route.

    `token`: it carries the token of the service, if that has one. `json`: its body is JSON.
    `queued`: it is refused while too many questions wait.
    """

    token: bool = True
    json: bool = False
    queued: bool = False


def limited(
    *, token: bool = True, json: bool = False, queued: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Declare the limits of the route that a function answers (see `Limits`)."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _DECLARED, Limits(token, json, queued))
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
        """The limits of a request; where no route takes it, whether the token is needed."""
        # As the app does it: "/metrics" is also reached by "/metrics\n".
        methods = self._by_path.get(path) or next(
            (self._by_path[p] for p, found in self._patterns.items() if found.match(path)), None
        )
        if methods is None:
            return Limits(token=path.startswith(_API))
        if method in methods:
            return methods[method]
        return Limits(token=all(limits.token for limits in methods.values()))
