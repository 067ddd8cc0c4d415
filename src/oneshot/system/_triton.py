"""A minimal kernel that checks whether Triton works on a device; imported only for the check."""

import torch
import triton
import triton.language as tl

_NUMBER = 7


def writes(device: torch.device) -> bool:
    """Compile and run a kernel on a device. Returns whether its output is correct."""
    out = torch.zeros(1, dtype=torch.int32, device=device)
    _write[(1,)](out, _NUMBER)
    return int(out) == _NUMBER


@triton.jit
def _write(out_at, number):
    tl.store(out_at, number)
