"""Settings of a service."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a service.

    `token`: the token of every request (`Authorization: Bearer …`); None for no access control.
    `write_token`: the token of requests that change facts, which is accepted for all others too;
    None for `token`.
    `read_only`: facts cannot be changed. `batch_size`: maximum queries per batch. `batch_wait`:
    seconds that a query waits for others. `queue`: queries that may wait before more are refused.
    `timeout`: time limit of a request in seconds. `hosts`: accepted host names besides `localhost`
    and IP addresses, "*" for any. They prevent DNS rebinding: a page of another site must not reach
    the service through a host name of its own. `connections`: connections that may be open at once.
    `access_log`: log every request. `grace`: seconds for open requests to finish when the service
    stops. `rate`: requests per second and client address, 0 for no limit. `prefix`: the path under
    which everything is served, such as `/kg`. `labels`: a file with labels of names.
    `label_relation`: the relation of facts whose tails are labels.
    """

    token: str | None = None
    write_token: str | None = None
    read_only: bool = False
    batch_size: int = 16
    batch_wait: float = 0.005
    queue: int = 128
    timeout: float = 30.0
    hosts: tuple[str, ...] = ()
    connections: int = 1000
    grace: float = 10.0
    access_log: bool = False
    rate: float = 0.0
    prefix: str = ""
    labels: Path | None = None
    label_relation: str | None = None
