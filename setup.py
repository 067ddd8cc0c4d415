"""The part of the build that pyproject.toml cannot say: the kernels for the CPU, compiled from C.

Without a C compiler the package installs all the same, and computes with PyTorch's operations.
"""

import sys

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "oneshot.compiled._kernels",
            [f"src/oneshot/compiled/{name}.c" for name in ("predictor", "push", "subgraph")],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-Wno-psabi"],
            optional=True,
        )
    ]
)
