"""Services for tests: small runs, served in the background, and plain requests to them."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.support.samples import chain_world

from oneshot.config import PredictorConfig
from oneshot.predictor import Predictor
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler, Sampler


class Reply(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def saved_run(path: Path, links: int = 30, sampler: Sampler | None = None) -> Path:
    """A run whose predictor has learnt nothing, which is enough to be asked."""
    graph = chain_world(links).graph
    sampler = sampler or PPRSampler(0.5)
    sampler.fit(graph)
    shape = PredictorConfig(num_layers=3, dim=8, attention_dim=4)
    if sampler.scores_answers:
        shape = replace(shape, priors=True, prior_start=1.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        predictor = Predictor(shape, 3)
    Reasoner(graph, sampler, predictor, Calibration(1.0, 0.0, 9)).save(path)
    return path


def rounded(value: Any) -> Any:
    """A JSON value whose numbers equal those of another computation up to rounding."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def request(
    url: str,
    body: Any = None,
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """One request; `body` is sent as JSON, bytes as they are. Refusals are replies, too."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if data is not None else {}
    asked = urllib.request.Request(url, data, given | (headers or {}), method=method)
    try:
        with urllib.request.urlopen(asked, timeout=120) as reply:
            return Reply(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read())
