"""Rate limit: a bounded number of requests per second from each client address."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

_LEAST_BURST = 20  # requests; the page sends several for one question
_LONGEST_WAIT = 3600.0  # seconds; at a very low rate, the time is endless
_MOST_CLIENTS = 10_000  # remembered; those that were idle longest are forgotten first


class RateLimit:
    """A token bucket per client: `rate` requests per second, and bursts of twice as many."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._burst = max(2 * rate, _LEAST_BURST)
        # Requests left, and when they were counted; the latest client is the last.
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Count a request. → 0, or the seconds after which the client may send it again"""
        if self._rate <= 0:
            return 0.0
        client, now = _client(address), self._clock()
        left, since = self._clients.pop(client, (self._burst, now))
        left = min(left + (now - since) * self._rate, self._burst)
        is_refused = left < 1
        self._clients[client] = (left if is_refused else left - 1, now)
        if len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return min((1 - left) / self._rate, _LONGEST_WAIT) if is_refused else 0.0


def _client(address: str) -> str:
    """The address of a client; with IPv6, its network, of which one client has all addresses."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address, 64), strict=False))
    except ValueError:
        return address
