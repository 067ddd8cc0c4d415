"""Random numbers that depend only on a seed and keys.

A counter-based generator: the number is a hash of the seed and of keys such as the query's
entity, the walk and the step. Therefore a query is sampled in the same way alone and
in a batch, on a CPU and on a GPU.
"""

import torch
from torch import Tensor

_ROUNDS = 6


def uniform(seed: int, *keys: Tensor) -> Tensor:
    """Numbers in (0, 1], float32, one per combination of the (broadcast) int64 keys."""
    state = _hashed(seed, keys)
    # The upper 24 bits fill the mantissa of a float32; + 1 reserves zero for "unreachable".
    return (((state >> 40) & 0xFFFFFF) + 1).float() / (1 << 24)


def integers(seed: int, size: int, *keys: Tensor) -> Tensor:
    """Numbers from 0 to `size - 1`, int64, one per combination of the (broadcast) int64 keys."""
    return _shifted(_hashed(seed, keys), 1) % size


def _hashed(seed: int, keys: tuple[Tensor, ...]) -> Tensor:
    state = torch.full((), seed, dtype=torch.long, device=keys[0].device)
    for key in keys:
        state = _mix(state + key * _signed(0x9E3779B97F4A7C15))
    return state


def permuted(places: Tensor, size: int, seed: int) -> Tensor:
    """The numbers at some places of a random order of `range(size)`: int64 [n] → int64 [n].

    Each number is computed on its own, so that a small sample of a large range without repetitions
    needs no memory for the range. (A Feistel network permutes the numbers of twice as many bits as
    a half has; those that leave the range are permuted again.)
    """
    bits = max((max(size - 1, 1).bit_length() + 1) // 2, 1)
    mask = (1 << bits) - 1
    numbers = places.clone()
    waiting = torch.arange(len(places), device=places.device)
    while len(waiting):
        left, right = numbers[waiting] >> bits, numbers[waiting] & mask
        for step in range(_ROUNDS):
            key = torch.full_like(right, (seed + step * _signed(0x9E3779B97F4A7C15)) % (1 << 62))
            left, right = right, left ^ (_mix(_mix(right) + key) & mask)
        numbers[waiting] = (left << bits) | right
        waiting = waiting[numbers[waiting] >= size]
    return numbers


def _mix(x: Tensor) -> Tensor:
    """The finalizer of splitmix64; int64 products wrap, and shifts are made logical."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant
