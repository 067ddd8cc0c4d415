"""Checkpoints with the tensor names and shapes of the official code."""

import torch

DIM, ATTENTION, LAYERS = 6, 3, 3


def checkpoint(kinds: int, relational: bool, linear: bool, concat: bool, seed: int = 0) -> dict:
    """Random tensors under the official names."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.5

    tensors = {}
    for layer in range(LAYERS):
        names = {
            "rela_embed.weight": (kinds, DIM),
            "Ws_attn.weight": (ATTENTION, DIM),
            "Wr_attn.weight": (ATTENTION, DIM),
            "Wqr_attn.weight": (ATTENTION, DIM),
            "Wqr_attn.bias": (ATTENTION,),
            "w_alpha.weight": (1, ATTENTION),
            "w_alpha.bias": (1,),
            "W_h.weight": (DIM, DIM),
        }
        tensors |= {f"gnn_layers.{layer}.{name}": random(*shape) for name, shape in names.items()}
    for name, shape in {
        "gate.weight_ih_l0": (3 * DIM, DIM),
        "gate.weight_hh_l0": (3 * DIM, DIM),
        "gate.bias_ih_l0": (3 * DIM,),
        "gate.bias_hh_l0": (3 * DIM,),
    }.items():
        tensors[name] = random(*shape)
    if relational:
        tensors["query_rela_embed.weight"] = random(kinds, DIM)
    if linear:
        tensors["W_final.weight"] = random(1, DIM * (LAYERS + 1 if concat else 1))
    return tensors
