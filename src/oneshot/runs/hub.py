"""Hugging Face Hub: a run as a repository of models, with a model card (extra `hub`).

A run in a repository is complete: it contains its graph, and refers to no other file. The token is
that of `huggingface_hub` (`hf auth login`, or `$HF_TOKEN`); it is never read or written here.
"""

import copy
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneshot.errors import InputError, require
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.layout import (
    CALIBRATION,
    CONFIG,
    FACTORS,
    GRAPH,
    PREDICTOR,
    RELATIONS,
    SAMPLER,
    SAVED,
)
from oneshot.runs.layout import CONTENTS as RUN_FILES
from oneshot.runs.reference import TAKING_DATA
from oneshot.system.files import write_text

if TYPE_CHECKING:
    from oneshot.runs.run import Run

PREFIX = "hf://"
CARD = "README.md"
FILES: tuple[str, ...] = (
    *(CONFIG, RELATIONS, PREDICTOR, SAMPLER, FACTORS, GRAPH, CALIBRATION),
    *(f"{SAVED}/{name}" for name in RUN_FILES[SAVED] or ()),
)
"""The files of a run in a repository; nothing else is downloaded."""

_LISTED_RELATIONS = 50
# A repository on the Hub, with or without its owner, and a branch, tag or commit.
_NAME = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_SECRET = re.compile(r"hf_\w+")


def push(
    reasoner: Reasoner,
    name: str,
    *,
    private: bool = True,
    with_graph: bool = True,
    metrics: Mapping[str, float] | None = None,
    message: str = "Upload a reasoner",
) -> str:
    """Upload a reasoner to the repository `name`, which is created if necessary.

    See `Reasoner.push_to_hub`. → the address of the repository
    """
    from oneshot.runs.run import Run

    repository, revision = _parsed(name)
    hub = _package("uploading to the Hugging Face Hub")
    _check_online(name)
    card = model_card(reasoner, repository, with_graph, metrics)
    # The source of the graph is a path of this machine, which is nobody else's concern.
    graph = copy.copy(reasoner.graph.to("cpu"))
    graph.origin = None
    parts = (reasoner.sampler, reasoner.predictor, reasoner.calibration, reasoner.factors)
    alone = Reasoner(graph, *parts)
    with tempfile.TemporaryDirectory(prefix="oneshot-hub-") as place:
        folder = Path(place) / "run"
        Run(folder).save(alone, with_graph=with_graph)
        write_text(folder / CARD, card)
        with _one_line(name):
            api = hub.HfApi()
            created = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=created.repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=message,
                # Files of an earlier run that this one does not have.
                delete_patterns=list(FILES),
            )
    return str(created)


def fetched(path: str, settings: Sequence[str] = ()) -> "Run":
    """The run in a repository, downloaded into the cache of `huggingface_hub`."""
    from oneshot.runs.run import Run

    repository, revision = _parsed(path)
    hub = _package("loading from the Hugging Face Hub")
    with _one_line(path):
        folder = hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(FILES),
            local_files_only=bool(os.environ.get("ONESHOT_OFFLINE")),
        )
    run = Run.open(Path(folder), settings)
    if run.reference.has_origin:
        # Somebody else's path must not decide which file of this machine is read.
        raise InputError(
            f"{path}: refers to a data set outside of the repository; download the repository and "
            f"give the data set with --data ({TAKING_DATA}), or with graph= in Python"
        )
    return run


def is_copy(path: Path) -> bool:
    """Whether a directory is one of the cache of `huggingface_hub`, which nothing may change."""
    place = path.absolute().parent
    return place.name == "snapshots" and place.parent.name.startswith("models--")


def model_card(
    reasoner: Reasoner,
    name: str,
    with_graph: bool = True,
    metrics: Mapping[str, float] | None = None,
) -> str:
    """The text of the model card of a reasoner in the repository `name`."""
    graph, config = reasoner.graph, reasoner.predictor.config
    sampler = reasoner.sampler.name
    rows = {
        "entities of the graph": f"{graph.num_entities:,}",
        "relations": f"{graph.num_relations:,}",
        "facts": f"{graph.num_facts:,}" + (", with weights" if graph.weights is not None else ""),
        "sampler": sampler,
        "predictor": f"{config.message}, {config.aggregate}, {config.num_layers} layers, "
        f"dimension {config.dim}",
        "parameters": f"{reasoner.predictor.num_parameters:,}",
        "probabilities": "calibrated" if reasoner.calibration is not None else "not calibrated",
    }
    rows |= {key: f"{value:.4f}" for key, value in (metrics or {}).items()}
    table = "\n".join(f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items())
    relations = [graph.relations[number] for number in range(graph.num_relations)]
    listed = ", ".join(f"`{_cell(one)}`" for one in relations[:_LISTED_RELATIONS])
    if len(relations) > _LISTED_RELATIONS:
        listed += f" and {len(relations) - _LISTED_RELATIONS:,} more"
    graph_text, loaded = "The repository contains the graph.", f'"{PREFIX}{name}"'
    if not with_graph:
        graph_text = "The repository does not contain the graph: give one with these relations."
        loaded += ', graph=oneshot.load("DATA").graph'
    return f"""---
library_name: oneshot
pipeline_tag: graph-ml
tags:
- knowledge-graph
- link-prediction
- one-shot-subgraph
---

# {_cell(name)}

A link predictor for a knowledge graph, trained with `oneshot`. It answers queries (entity,
relation, ?): Personalized PageRank selects one small subgraph per query, and a graph neural network
scores the entities in it. It has no entity embeddings. {graph_text}

| property | value |
|---|---|
{table}

Relations: {listed or "none"}

## Usage

```
pip install 'one-shot-subgraph[hub]'
```

```python
import oneshot

reasoner = oneshot.Reasoner.load({loaded})
for answer in reasoner.predict("ENTITY", "RELATION", top=10):
    print(answer.entity, answer.score)
```
"""


def _cell(text: str) -> str:
    """Text as a part of a line of Markdown."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _parsed(name: str) -> tuple[str, str | None]:
    """The repository and the revision of a name, with or without `hf://`."""
    found = _NAME.fullmatch(name.removeprefix(PREFIX))
    if found is None:
        raise InputError(f"{_SECRET.sub('…', name)}: expected {PREFIX}OWNER/NAME, or …@REVISION")
    return found["name"], found["revision"]


def _package(purpose: str) -> Any:
    return require("huggingface_hub", "hub", purpose)


def _check_online(name: str) -> None:
    if os.environ.get("ONESHOT_OFFLINE"):
        raise InputError(f"{name}: $ONESHOT_OFFLINE forbids connections")


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Raise the errors of the client as `InputError`, in one line and without tokens."""
    try:
        yield
    except Exception as error:  # also those of its HTTP library, which differs by version
        lines = str(error).strip().splitlines() or [type(error).__name__]
        found = " ".join(_SECRET.sub("…", lines[0]).split())[:300]
        raise InputError(
            f"{name}: {found}; check the name and the connection, and log in with `hf auth login`"
        ) from error
