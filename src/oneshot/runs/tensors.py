"""Tensor files: the whole state of a training in one file, without pickle.

A checkpoint is one safetensors file, replaced atomically. It has parameters and the moments of the
optimizer as tensors, and everything else (epoch, schedule, best result) as JSON in its header, with
a checksum of the whole file. Random generators need no state: every step uses a generator seeded
with (seed, epoch, step).
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from oneshot.errors import InputError
from oneshot.system.checksums import KEY, damaged, digest
from oneshot.system.files import check_readable, replacing

_BLANK = "0" * 32  # placeholder while the checksum is computed
_OPTIMIZER = re.compile(r"([0-9]{1,6})\.(step|exp_avg|exp_avg_sq)")


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write tensors and a JSON value to one file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # Not with `save_file`, which uses its own temporary name: if killed, it leaves a file that
    # cannot be recognized as ours.
    content = save(plain, metadata={"about": json.dumps(about | {KEY: _BLANK})})
    place = _header_end(content)
    header = content[:place].replace(_seal(_BLANK), _seal(digest(content)), 1)
    with replacing(path) as temporary:
        temporary.write_bytes(header + content[place:])


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON value of a file written by `save_tensors`."""
    check_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
            about = json.loads(header.get("about", "{}"))
        content = path.read_bytes()
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error
    if not isinstance(about, dict) or not header.keys() <= {"about"}:
        raise InputError(f"{path}: not written by oneshot")
    checksum = about.pop(KEY, None)  # absent in files of earlier versions
    if checksum is not None and checksum != _checksum(content, str(checksum)):
        raise damaged(path)
    return tensors, about


def _checksum(content: bytes, kept: str) -> str:
    """The checksum of a file that contains `kept` as its own checksum."""
    place = _header_end(content)
    return digest(content[:place].replace(_seal(kept), _seal(_BLANK), 1) + content[place:])


def _seal(checksum: str) -> bytes:
    """The checksum as it appears in the header of a file: JSON within JSON."""
    return json.dumps(json.dumps({KEY: checksum})[1:-1])[1:-1].encode()


def _header_end(content: bytes) -> int:
    """The offset of the tensors: after a length of eight bytes and a header of that length."""
    return 8 + int.from_bytes(content[:8], "little")


def load_parameters(path: Path, module: torch.nn.Module) -> None:
    """Load the parameters of a module from a file; raises if names or shapes differ."""
    tensors, _ = load_tensors(path)
    check_shapes(path, tensors, module.state_dict())
    module.load_state_dict(tensors)


def check_shapes(path: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Raise unless two sets of tensors have the same names and shapes."""
    for name in sorted(wanted.keys() | found.keys()):
        here = list(found[name].shape) if name in found else "missing"
        there = list(wanted[name].shape) if name in wanted else "not expected"
        if here != there:
            raise InputError(
                f"{path}: the tensor {name} is {here} in the file, but {there} by the "
                "configuration; the file belongs to another configuration or other relations"
            )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of Adam as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in state.items()
        for key, value in values.items()
    }


def restore_optimizer(
    path: Path, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Restore the result of `optimizer_tensors`, without its prefix; `path` is for errors."""
    sizes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _OPTIMIZER.fullmatch(name)
        index = int(match[1]) if match else len(sizes)
        key = match[2] if match else ""
        if index >= len(sizes) or tensor.shape != (() if key == "step" else sizes[index]):
            raise InputError(
                f"{path}: the tensor optimizer.{name} {list(tensor.shape)} does not fit the "
                "predictor; train without --resume to start again"
            )
        state.setdefault(index, {})[key] = tensor
    for index, values in state.items():
        if len(values) != 3:
            raise InputError(
                f"{path}: some tensors optimizer.{index} are missing; train without "
                "--resume to start again"
            )
    whole = optimizer.state_dict()
    whole["state"] = state
    optimizer.load_state_dict(whole)
