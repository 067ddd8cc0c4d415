"""Transfer: a training that starts from the parameters of another run."""

import dataclasses

import torch
from torch import Tensor

from oneshot.config import PredictorConfig, as_toml
from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import make_predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.layout import PREDICTOR
from oneshot.runs.run import Run
from oneshot.runs.tensors import check_shapes, load_tensors

LEARNING_RATE = 5e-4
"""Default learning rate of a transfer; that of a training from scratch would undo it."""

_BUDGETS = ("entity_ratio", "edge_ratio", "max_entities", "max_edges", "mass")


def transfer_settings(run: Run) -> list[str]:
    """The settings that a training needs in order to start from a run.

    The architecture of its predictor, and the options of its sampler; the subgraph budget only if
    the run belongs to a graph.
    """
    config = run.config
    parts = (("predictor", config.predictor), ("sampler", config.sampler))
    settings = [
        f"{section}.{option.name}={as_toml(value)}"
        for section, part in parts
        for option in dataclasses.fields(part)
        if (value := getattr(part, option.name)) is not None
        and (run.has_graph or option.name not in _BUDGETS)
    ]
    return [*settings, f"training.learning_rate={LEARNING_RATE}"]


def start_from(run: Run, reasoner: Reasoner) -> int:
    """Set the predictor of a reasoner to the parameters of a run. → number of new relations

    Relations are matched by name; new ones start from the mean of those of the run. With relative
    relations there is nothing to match.
    """
    file = run.path / PREDICTOR
    if not file.is_file():
        raise InputError(f"{run.path}: this run has no trained predictor yet")
    found, _ = load_tensors(file)
    predictor = reasoner.predictor
    wanted = predictor.state_dict()
    if predictor.is_relative:
        check_shapes(file, found, wanted)
        predictor.load_state_dict(found)
        return 0
    rows = _matched(run.relations, reasoner.graph.relations)
    num_before = len(run.relations)
    check_shapes(file, found, _shapes(predictor.config, num_before))
    per_relation = _per_relation(predictor.config, num_before)
    moved = {
        name: _moved(tensor, rows, 2 * num_before + 1) if name in per_relation else tensor
        for name, tensor in found.items()
    }
    check_shapes(file, moved, wanted)
    predictor.load_state_dict(moved)
    return int((rows < 0).sum()) // 2


def _matched(before: Vocabulary, now: Vocabulary) -> Tensor:
    """The earlier id of each relation, with inverses and identity; -1 for new ones."""
    ids = [before.get(name) for name in now]
    count = len(before)
    forward = [-1 if number is None else number for number in ids]
    inverse = [-1 if number is None else number + count for number in ids]
    return torch.tensor([*forward, *inverse, 2 * count])


def _moved(tensor: Tensor, rows: Tensor, kinds: int) -> Tensor:
    """A tensor with equal parts per relation, for other relations: [kinds · m, …]."""
    parts = tensor.reshape(kinds, -1)
    new = parts.index_select(0, rows.clamp(min=0))
    new[rows < 0] = parts[:-1].mean(0)  # without the identity
    return new.reshape(-1, *tensor.shape[1:])


def _per_relation(config: PredictorConfig, num_relations: int) -> set[str]:
    """The names of the parameters that have a part per relation."""
    one, other = (_shapes(config, count) for count in (num_relations, num_relations + 1))
    return {name for name, tensor in one.items() if tensor.shape != other[name].shape}


def _shapes(config: PredictorConfig, num_relations: int) -> dict[str, Tensor]:
    """The parameters of a predictor, without values."""
    with torch.device("meta"):
        return make_predictor(config, num_relations).state_dict()
