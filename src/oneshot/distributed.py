"""Team: the processes that train together under `torchrun`, or the only one."""

import atexit
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# The others wait while the first process validates, which may take hours on a large graph; if it
# dies, `torchrun` ends them anyway.
_PATIENCE = timedelta(days=7)


class Team:
    """The processes of this training; a single process is a team of one.

    Under `torchrun` (environment variables RANK and WORLD_SIZE) the process group is started on
    first use: nccl for training on GPUs, of which each process takes its own, else gloo.
    """

    def __init__(self, device: torch.device) -> None:
        wanted = int(os.environ.get("WORLD_SIZE", "1"))
        if wanted > 1 and not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                timeout=_PATIENCE,
            )
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

    def share(self, value: float) -> float:
        """The first process's value, for all of them."""
        if self.size == 1:
            return value
        return float(self.sum(torch.tensor(value if self.is_first else 0.0, dtype=torch.float64)))


def _close() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
