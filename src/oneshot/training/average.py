"""ParameterAverage: an exponential moving average of the parameters of a training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# At step t, the decay is at most t / (t + this), so that the average forgets the random start.
_WARMUP = 10


class ParameterAverage:
    """The moving average of a network's parameters over the steps of a training.

    `decay`: share of the average that a step keeps, after some first steps with less. `steps`:
    number of steps so far. `values`: the averages, in the order of `network.parameters()`.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.decay, self.steps = network, decay, 0
        self.values = [parameter.detach().clone() for parameter in network.parameters()]

    @torch.no_grad()
    def update(self, steps: int = 1) -> None:
        """Include the current parameters, after one or several steps."""
        self.steps += steps
        decay = min(self.decay, self.steps / (self.steps + _WARMUP)) ** steps
        torch._foreach_lerp_(self.values, list(self.network.parameters()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network has the averages as parameters within the block."""
        parameters: list[Tensor] = list(self.network.parameters())
        with torch.no_grad():
            current = [parameter.clone() for parameter in parameters]
            # In place: captured steps read the parameters at fixed addresses.
            torch._foreach_copy_(parameters, self.values)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, current)

    def named(self) -> dict[str, Tensor]:
        """The averages by the names of the parameters."""
        names = (name for name, _ in self.network.named_parameters())
        return dict(zip(names, self.values, strict=True))

    def load(self, values: dict[str, Tensor], steps: int) -> None:
        """Set the averages, by the names of the parameters, and the number of steps."""
        self.steps = steps
        for name, own in self.named().items():
            own.copy_(values[name])
