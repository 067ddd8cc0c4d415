"""Import of checkpoints of the official code.

Such a file is a `torch.save` of a dictionary with `model_state_dict`. Names and shapes of its
tensors determine layers, dimension, attention size, initial state, readout and concatenation.
Activation and shortcut are not in it. It is loaded with `weights_only=True`: a file that contains
code is rejected and not executed.
"""

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oneshot.config import Config, PredictorConfig
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.predictor import Predictor
from oneshot.reasoner.build import build_sampler
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.files import check_readable

_LAYER = re.compile(r"gnn_layers\.([0-9]{1,4})\.(.+)")

# Name of a layer's tensor in the official code → name here.
_LAYER_NAMES = {
    "rela_embed.weight": "message.relation.weight",
    "Ws_attn.weight": "message.from_source.weight",
    "Wr_attn.weight": "message.from_relation.weight",
    "Wqr_attn.weight": "message.from_query.weight",
    "Wqr_attn.bias": "message.from_query.bias",
    "w_alpha.weight": "message.attention.weight",
    "w_alpha.bias": "message.attention.bias",
    "W_h.weight": "linear.weight",
}
_OTHER_NAMES = {
    "gate.weight_ih_l0": "gate.cell.weight_ih",
    "gate.weight_hh_l0": "gate.cell.weight_hh",
    "gate.bias_ih_l0": "gate.cell.bias_ih",
    "gate.bias_hh_l0": "gate.cell.bias_hh",
    "query_rela_embed.weight": "query_embedding.weight",
    "W_final.weight": "readout.weight",
}


def import_official(path: Path, data: Dataset, config: Config) -> Reasoner:
    """The reasoner of an official checkpoint on the data set it was trained on.

    `config` provides what the file lacks: `predictor.activation`, `predictor.shortcut` and the
    sampler. The rest of the architecture follows from the file.
    """
    tensors = read_tensors(path, "model_state_dict")
    renamed = _renamed(path, tensors)
    shape = _shape(path, renamed, config.predictor)
    relations = data.graph.num_relations
    num_rows = len(renamed["layers.0.message.relation.weight"])
    if num_rows != 2 * relations + 1:
        raise InputError(
            f"{path} has {num_rows} relation rows, but {data.name} with {relations} relations "
            f"needs {2 * relations + 1} (with inverses and identity); is this the right data set?"
        )
    asked = renamed.get("query_embedding.weight")
    if asked is not None and len(asked) == num_rows - 1:  # no query has the identity relation
        renamed["query_embedding.weight"] = torch.cat([asked, torch.zeros_like(asked[:1])])
    with torch.device("meta"):  # only shapes: a damaged file may imply any size
        wanted = Predictor(shape, relations).state_dict()
    for name in sorted(wanted.keys() | renamed.keys()):
        here = list(renamed[name].shape) if name in renamed else "missing"
        there = list(wanted[name].shape) if name in wanted else "none"
        if here != there:
            raise InputError(f"{path}: the tensor for {name} is {here}, expected {there}")
    predictor = Predictor(shape, relations)
    predictor.load_state_dict(renamed)
    sampler = build_sampler(config.sampler, config.training.seed)
    return Reasoner(data.graph, sampler, predictor)


def read_tensors(path: Path, key: str) -> dict[str, Tensor]:
    """The tensors of a file of `torch.save`, or of its entry `key`; no code in it is executed."""
    check_readable(path)
    try:
        whole: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} contains more than tensors or is not a checkpoint; no code in it was executed"
        ) from error
    except Exception as error:  # torch raises all sorts of errors for a damaged archive
        raise InputError(f"{path}: not a readable checkpoint ({error})") from error
    tensors = whole.get(key, whole) if isinstance(whole, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise InputError(f"{path} contains no {key} of tensors")
    return tensors


def _renamed(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under our names; raises for unknown tensors."""
    renamed = {}
    for name, tensor in tensors.items():
        match = _LAYER.fullmatch(str(name))
        if match and match[2] in _LAYER_NAMES:
            ours = f"layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}"
        elif name in _OTHER_NAMES:
            ours = _OTHER_NAMES[name]
        else:
            raise InputError(
                f"{path}: unknown tensor {name!r}; not a checkpoint of the official code"
            )
        dimensions = 1 if "bias" in ours else 2
        if (
            tensor.dim() != dimensions
            or not tensor.is_floating_point()
            or (tensor.layout is not torch.strided)
        ):
            raise InputError(
                f"{path}: the tensor {name} is {tensor.dtype} {list(tensor.shape)}, "
                f"expected numbers in {dimensions} dimensions"
            )
        renamed[ours] = tensor.float()
    if "layers.0.message.relation.weight" not in renamed:
        raise InputError(f"{path} has no layer (gnn_layers.0.rela_embed)")
    return renamed


def _shape(path: Path, tensors: dict[str, Tensor], base: PredictorConfig) -> PredictorConfig:
    """The configuration that the tensors imply."""
    numbers = {int(name.split(".")[1]) for name in tensors if name.startswith("layers.")}
    layers = len(numbers)
    if max(numbers) != layers - 1:
        raise InputError(f"{path} has layer {max(numbers)}, but only {layers} layers in total")
    dim = tensors["layers.0.message.relation.weight"].shape[-1]
    attention = tensors.get("layers.0.message.attention.weight")
    if attention is None:
        raise InputError(f"{path} has no attention (gnn_layers.0.w_alpha)")
    readout = tensors.get("readout.weight")
    return dataclasses.replace(
        base,
        message="redgnn",
        compose="multiply",
        aggregate="sum",
        num_layers=layers,
        dim=dim,
        attention_dim=attention.shape[-1],
        initial="relational" if "query_embedding.weight" in tensors else "binary",
        gate="gate.cell.weight_ih" in tensors,
        gate_mask="nonzero",
        readout="dot" if readout is None else "linear",
        concat=readout is not None and readout.shape[-1] == (layers + 1) * dim,
    )
