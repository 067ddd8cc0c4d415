"""The smallest kernel, which tells whether Triton works on a device; imported only to try it."""

import torch
import triton
import triton.language as tl

_NUMBER = 7


def writes(device: torch.device) -> bool:
    """Whether a kernel, built and run on a device, has written what it should."""
    out = torch.zeros(1, dtype=torch.int32, device=device)
    _write[(1,)](out, _NUMBER)
    return int(out) == _NUMBER


@triton.jit
def _write(out_at, number):
    tl.store(out_at, number)
