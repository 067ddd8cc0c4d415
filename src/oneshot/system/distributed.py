"""Team: the processes of a distributed training under `torchrun`, or a single process."""

import atexit
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# One process may finish its share of a validation long before another. If one dies, `torchrun`
# ends the others.
_PATIENCE = timedelta(days=7)


class Team:
    """The processes of this training; a single process is a team of one.

    Under `torchrun` (environment variables RANK and WORLD_SIZE) the process group is started on
    first use: nccl for training on GPUs, one per process, otherwise gloo.
    """

    def __init__(self, device: torch.device) -> None:
        wanted = int(os.environ.get("WORLD_SIZE", "1"))
        if wanted > 1 and not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            _begin("nccl" if device.type == "cuda" else "gloo")
            atexit.register(_close)
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size > 1:
            values = values.clone()
            if dist.get_backend() == "nccl":
                values = values.cuda()
            dist.all_reduce(values)
            values = values.cpu()
        return values

    def from_first(self, value: float) -> float:
        """Broadcast `value` of the first process to all processes."""
        return float(self.sum(torch.tensor([value if self.is_first else 0.0]).double()))

    def dealt(self, count: int) -> Tensor:
        """The indices of `count` items that belong to this process, round robin, int64 [m]."""
        return torch.arange(self.rank, count, self.size)

    def gathered(self, rows: Tensor, count: int) -> Tensor:
        """All `count` rows, in order; each process has those that were `dealt` to it."""
        if self.size == 1:
            return rows
        # All processes send as many rows as the first; the last row may be padding.
        padded = rows.new_zeros(-(-count // self.size), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.stack(parts, dim=1).flatten(0, 1)[:count]


def _begin(backend: str) -> None:
    """Start the process group of `torchrun`."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    arranged: tuple[Any, int, int] = next(rendezvous("env://", timeout=_PATIENCE))
    store, rank, size = arranged
    # After a restart, the store may still contain addresses of ended processes.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"oneshot/{attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)


def _close() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
