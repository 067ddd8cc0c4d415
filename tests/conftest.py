"""Settings of all tests."""

import os

# The tests run in parallel processes: threads of torch on top of that only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
