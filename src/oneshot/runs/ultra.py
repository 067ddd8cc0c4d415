"""Import of checkpoints of ULTRA.

Such a file is a `torch.save` of a dictionary of tensors, or of one with `model`. Names and shapes
of its tensors determine the dimension and the layers. It is loaded with `weights_only=True`: a file
that contains code is rejected and not executed.
"""

import dataclasses
import re
from pathlib import Path

import torch
from torch import Tensor

from oneshot.config import Config, PredictorConfig
from oneshot.errors import InputError
from oneshot.predictor import UltraPredictor
from oneshot.runs.layout import PREDICTOR
from oneshot.runs.official import read_tensors
from oneshot.runs.run import Run
from oneshot.runs.tensors import save_tensors

_LAYER = re.compile(r"(relation|entity)_model\.layers\.([0-9]{1,4})\.(.+)")
_NETWORKS = {"relation": "relation_network.layers", "entity": "layers"}
# Name of a layer's tensor in ULTRA → name here.
_LAYER_NAMES = {
    "relation.weight": "types",
    "relation_projection.0.weight": "project.0.weight",
    "relation_projection.0.bias": "project.0.bias",
    "relation_projection.2.weight": "project.2.weight",
    "relation_projection.2.bias": "project.2.bias",
    "linear.weight": "linear.weight",
    "linear.bias": "linear.bias",
    "layer_norm.weight": "norm.weight",
    "layer_norm.bias": "norm.bias",
}
_OTHER_NAMES = {
    f"entity_model.mlp.{number}.{part}": f"readout.{number}.{part}"
    for number in (0, 2)
    for part in ("weight", "bias")
}


def import_ultra(path: Path, out: Path, config: Config) -> PredictorConfig:
    """Write the run of an ULTRA checkpoint, which has no graph of its own. → its architecture

    `config` provides the sampler. With `sampler.entity_ratio = 1` and `sampler.keep_unreachable`,
    the network sees whole graphs, as in ULTRA.
    """
    tensors = _renamed(path, read_tensors(path, "model"))
    shape = _shape(path, tensors)
    with torch.device("meta"):  # only shapes: a damaged file may imply any size
        wanted = UltraPredictor(shape, 1).state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        here = list(tensors[name].shape) if name in tensors else "missing"
        there = list(wanted[name].shape) if name in wanted else "none"
        if here != there:
            raise InputError(f"{path}: the tensor for {name} is {here}, expected {there}")
    run = Run(out)
    run.check_writable()
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists already; choose another directory")
    out.mkdir(parents=True, exist_ok=True)
    with run.lock():
        run.start_without_graph(dataclasses.replace(config, predictor=shape), [path.name])
        save_tensors(out / PREDICTOR, tensors, {})
    return shape


def _renamed(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under our names; raises for unknown tensors."""
    renamed = {}
    for name, tensor in tensors.items():
        match = _LAYER.fullmatch(str(name))
        if match and match[3] in _LAYER_NAMES:
            ours = f"{_NETWORKS[match[1]]}.{int(match[2])}.{_LAYER_NAMES[match[3]]}"
        elif name in _OTHER_NAMES:
            ours = _OTHER_NAMES[name]
        else:
            raise InputError(f"{path}: unknown tensor {name!r}; not a checkpoint of ULTRA")
        if not tensor.is_floating_point() or tensor.is_sparse:
            raise InputError(f"{path}: the tensor {name} is {tensor.dtype}, expected numbers")
        renamed[ours] = tensor.float()
    return renamed


def _shape(path: Path, tensors: dict[str, Tensor]) -> PredictorConfig:
    """The configuration that the tensors imply."""
    counts = {}
    for network in _NETWORKS.values():
        numbers = {
            int(name.removeprefix(f"{network}.").split(".")[0])
            for name in tensors
            if name.startswith(f"{network}.")
        }
        counts[network] = len(numbers)
        if not numbers or max(numbers) != len(numbers) - 1:
            raise InputError(f"{path}: layers of {network} are missing; not a checkpoint of ULTRA")
    types = tensors.get("relation_network.layers.0.types")
    if types is None or types.dim() != 2:
        raise InputError(f"{path} has no relation types (relation_model.layers.0.relation)")
    return PredictorConfig(
        network="ultra",
        message="nbfnet",
        relations="relative",
        aggregate="sum",
        gate=False,
        shortcut=True,
        dim=types.shape[1],
        num_layers=counts["layers"],
        relation_layers=counts["relation_network.layers"],
    )
