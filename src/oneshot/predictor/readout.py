"""QueryReadout: a two-layer readout of the states that depends on the query relation."""

import torch
from torch import Tensor, nn


class QueryReadout(nn.Module):
    """`w · (f(A h_o + c_q) − f(c_q))` with `c_q = B e_q + b`, for query embeddings `e_q`.

    `f(x) = x · σ(x)`, whose slope depends on the query everywhere; that of ReLU would do so only
    where the sign differs between the two terms.
    The second term makes the score of a state of zero zero, as with the other readouts: an entity
    that no message reaches scores like one outside the subgraph.
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.from_state = nn.Linear(width, dim, bias=False)
        self.from_query = nn.Linear(dim, dim)
        self.weight = nn.Linear(dim, 1, bias=False)

    def forward(self, hidden: Tensor, asked: Tensor) -> Tensor:
        """Scores float [m] from `A h_o` [m, d] and the `c_q` of each row, [m, d]."""
        # Scores are compared with each other, so they are float32 even if states are not.
        with torch.autocast(hidden.device.type, enabled=False):
            kind = self.weight.weight.dtype
            hidden, asked = hidden.to(kind), asked.to(kind)
            hidden = nn.functional.silu(hidden + asked) - nn.functional.silu(asked)
            scores: Tensor = self.weight(hidden).squeeze(-1)
        return scores
