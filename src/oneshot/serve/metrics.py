"""Metrics of a service, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """All metrics of one service; several services in one process count separately."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests by route and status.", "route", "method", "status"
        )
        self._request_seconds = self._histogram(
            "request_seconds", "Time of requests by route.", SECONDS, "route"
        )
        self._questions = self._counter("questions", "Queries by outcome.", "outcome")
        self._batch_questions = self._histogram("batch_questions", "Queries per batch.", SIZES)
        self._step_seconds = self._histogram(
            "step_seconds", "Time of the steps of a batch.", SECONDS, "step"
        )
        self._facts = self._counter("facts_changed", "Facts added and removed.", "change")

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered or abandoned."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def questions(self, outcome: str, count: int = 1) -> None:
        """Count queries that were answered, refused, …"""
        self._questions.labels(outcome).inc(count)

    def batch(self, size: int) -> None:
        self._batch_questions.observe(size)

    def step(self, name: str, seconds: float) -> None:
        """Record the time of a step of a batch."""
        self._step_seconds.labels(name).observe(seconds)

    def facts(self, change: str, count: int) -> None:
        """Count facts that were added or removed."""
        self._facts.labels(change).inc(count)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Register a gauge whose value is read at each scrape."""
        Gauge(f"oneshot_{name}", about, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"oneshot_{name}", about, labels, registry=self._registry)

    def _histogram(
        self, name: str, about: str, bounds: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"oneshot_{name}", about, labels, registry=self._registry, buckets=bounds)
