"""Settings of a service, and the limits that its interface states."""

from dataclasses import dataclass

MAX_QUESTIONS = 64  # in one request
MAX_TOP = 1000  # answers to a question
MAX_EXPLAINED = 10  # answers with paths, as each takes several times as long as the question
MAX_FACTS = 1000  # in one request
MAX_NAME = 4096  # letters
MAX_BODY = 2 << 20  # bytes
MAX_FOUND = 100  # names found by a search, facts of an entity times ten


@dataclass(frozen=True)
class ServeSettings:
    """How a service treats its users.

    `token`: what every request must carry as `Authorization: Bearer …`; None for no such thing.
    `read_only`: facts cannot be changed. `batch_size`: questions answered at once; `batch_wait`:
    seconds that a question waits for others. `queue`: questions that may wait before more are
    refused. `timeout`: seconds that a request may take. `hosts`: names that a request may give as
    its host, None for any; a page elsewhere must not reach a service that is meant for this
    machine only by pointing a name of its own at it.
    """

    token: str | None = None
    read_only: bool = False
    batch_size: int = 16
    batch_wait: float = 0.005
    queue: int = 128
    timeout: float = 30.0
    hosts: tuple[str, ...] | None = None
