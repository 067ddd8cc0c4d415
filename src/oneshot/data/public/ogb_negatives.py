"""Given negatives: queries whose answer is ranked among candidates, as in OGB benchmarks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oneshot.data.dataset import Dataset, both_directions
from oneshot.errors import InputError


@dataclass(frozen=True)
class Candidates:
    """Queries [n, 2], their answers [n], and the entities [n, c] each is ranked among."""

    queries: Tensor
    answers: Tensor
    negatives: Tensor


def candidates_file(directory: Path, split: str) -> Path:
    """The file with the negatives of a split: arrays `head` and `tail`, [facts, c].

    `head` replaces the head of a fact, `tail` its tail.
    """
    return directory / f"negatives-{split}.npz"


def read_candidates(data: Dataset, split: str) -> Candidates:
    """The candidates of a split, with both queries of each fact."""
    source = (data.graph.origin or {}).get("source")
    path = candidates_file(Path(source or "."), split)
    if source is None or not path.is_file():
        raise InputError(f"{data.name} has no negatives for the {split} split")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            head, tail = arrays["head"], arrays["tail"]
    # A damaged archive may raise from zipfile, zlib, struct, tokenize or numpy.
    except Exception as error:
        raise InputError(f"{path}: not a file of negatives ({error})") from error
    if any(column.dtype.kind not in "iu" for column in (head, tail)):
        raise InputError(f"{path}: the arrays head and tail must be integers")
    head, tail = head.astype(np.int64), tail.astype(np.int64)
    facts = data.facts(split)
    if head.ndim != 2 or head.shape != tail.shape or len(head) != len(facts):
        raise InputError(f"{path} does not match the {len(facts):,} facts of the {split} split")
    if head.size and not 0 <= min(head.min(), tail.min()) <= max(head.max(), tail.max()) < len(
        data.entities
    ):
        raise InputError(f"{path} contains entities that are not in {data.name}")
    queries, answers = both_directions(facts, data.graph.num_relations)
    # In the order of `both_directions`: first all queries for tails, then all for heads.
    return Candidates(queries, answers, torch.from_numpy(np.concatenate([tail, head])))
