"""Import of PyKEEN without side effects on the user's home directory."""

import atexit
import functools
import logging
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from oneshot.errors import require

_PARTS = ("losses", "models", "nn", "stoppers", "training", "triples")
_HOME = "PYSTOW_HOME"


def load_pykeen() -> Any:
    """The package `pykeen` with the parts we use, or an error that names the extra.

    On import, PyKEEN creates directories for downloads and checkpoints in the user's home. Neither
    is used: they are created in a temporary directory, unless the user has set one.
    """
    if all(f"pykeen.{part}" in sys.modules for part in _PARTS):
        return sys.modules["pykeen"]
    chosen = os.environ.get(_HOME)
    if chosen is None:
        place = tempfile.mkdtemp(prefix="oneshot-pykeen-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        os.environ[_HOME] = place
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies
            for name in ("pykeen", *(f"pykeen.{part}" for part in _PARTS)):
                require(name, "baselines", "comparing with embedding models")
    finally:
        if chosen is None:
            del os.environ[_HOME]
    # Its log messages are about options that are set on purpose.
    logging.getLogger("pykeen").setLevel(logging.ERROR)
    return sys.modules["pykeen"]


@contextmanager
def guest(seed: int, device: torch.device) -> Iterator[None]:
    """Run PyKEEN with a seed for all random numbers, without side effects.

    The state of the caller's generators is restored; warnings about its internals are hidden.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  PyKEEN draws from it
    try:
        devices = [device] if device.type == "cuda" else []
        generator = functools.partial(_generator, np.random.default_rng, seed)
        with (
            torch.random.fork_rng(devices=devices),
            warnings.catch_warnings(),
            # The anchor selection of NodePiece creates unseeded generators and shows a progress
            # bar.
            patch.object(np.random, "default_rng", generator),
            patch.object(load_pykeen().nn.node_piece.utils, "tqdm", _silent),
        ):
            warnings.simplefilter("ignore")
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _silent(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    """Replaces a progress bar on stderr."""
    return items


def _generator(make: Callable[[Any], np.random.Generator], usual: int, seed: Any = None) -> Any:
    return make(usual if seed is None else seed)
