"""Packages that some tests need, each with the word for where it is missing."""

import pytest

from oneshot.experiments.baselines.peers import has_pykeen

needs_pykeen = pytest.mark.skipif(
    not has_pykeen(), reason="PyKEEN is not installed (extra baselines)"
)
