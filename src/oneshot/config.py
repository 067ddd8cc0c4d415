"""Configuration: frozen dataclasses, read from and written to TOML. Imports no torch.

One dataclass per section; each option is documented where it is defined. Unknown keys and values
of the wrong type raise errors that name the key and, for a typo, the nearest valid key.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from oneshot.errors import InputError
from oneshot.system.files import check_readable

FORMAT = 1

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class SamplerConfig:
    """Options of the sampler, which chooses the subgraph of a query; see `oneshot.samplers`."""

    # "ppr", "fitted", "bfs", "random_walk", "pagerank" or "random"
    name: str = "ppr"
    # share of the entities, or a table per relation name with "default"; 0.1 unless max_entities
    entity_ratio: float | dict[str, float] | None = None
    # share of the edges (each fact counts in both directions), or a table likewise
    edge_ratio: float | dict[str, float] | None = None
    max_entities: int | dict[str, int] | None = None
    max_edges: int | dict[str, int] | None = None
    # stop adding entities to a subgraph when they have this share of the total score
    mass: float | dict[str, float] | None = None
    # keep unreachable entities, so that every subgraph has exactly as many as the budget allows
    keep_unreachable: bool = False
    # PPR: probability of jumping back to the query entity
    restart: float = 0.15
    # PPR: "auto", "chebyshev", "power", "push" or "ball"
    method: str = "auto"
    # PPR: number of matrix products, at most 100,000; by default as many as the method needs
    steps: int | None = None
    # PPR: entities that "ball" visits, as a multiple of the budget; 1 to 1,000,000
    ball_factor: float = 3.0
    # PPR: "walk", or "paper" for scores divided by the degree
    transition: str = "walk"
    # fitted: share of the entities chosen by PPR, the rest being likely answers, or a table per
    # relation name with "default"; unset: 0.5, and more for relations of which PPR covers more
    context: float | dict[str, float] | None = None
    # random_walk: number of walks and their length, each at most 1,000,000
    walks: int = 100
    length: int = 10
    # score that ranks edges when they exceed the budget: "product" or "sum" of the end scores
    edge_score: str = "product"
    # edges of a subgraph without an edge budget, above which entities are dropped (0 = no limit);
    # by default 1,000,000, and 500 per entity of budgets above 2,000 entities
    edge_limit: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, walks=1, length=1, ball_factor=1)
        _at_most(self, walks=10**6, length=10**6, ball_factor=10**6)
        shares = self.context if isinstance(self.context, dict) else {"": self.context}
        for share in shares.values():
            if share is not None and not 0 <= share <= 1:
                raise InputError(f"context must be from 0 to 1, not {shown(share)}")
        if self.edge_limit is not None:
            _at_least(self, edge_limit=0)
        if self.steps is not None:
            _at_least(self, steps=1)
            _at_most(self, steps=10**5)


@dataclass(frozen=True)
class PredictorConfig:
    """Architecture of the predictor; see `oneshot.predictor`."""

    # "ultra": the network of an imported checkpoint of ULTRA, which uses only dim, num_layers and
    # relation_layers of the options below
    network: Literal["oneshot", "ultra"] = "oneshot"
    message: Literal["redgnn", "nbfnet", "drum"] = "redgnn"
    # "embedded": parameters per relation of the training graph; "relative": states computed from
    # the graph at hand, so that the predictor applies to relations it has never seen (nbfnet only)
    relations: Literal["embedded", "relative"] = "embedded"
    # layers of the network that computes relative states, at most 1,000
    relation_layers: int = 3
    # relative states also know which relations join the same pairs of entities
    relation_pairs: bool = False
    # how a message combines entity and relation; "rotate" for nbfnet only
    compose: Literal["multiply", "add", "rotate"] = "multiply"
    aggregate: Literal["sum", "mean", "max", "pna"] = "sum"
    # edges that mean, max and pna aggregate: those in the "subgraph", or all edges of the entity in
    # the "graph", where entities outside the subgraph send zeros; then the aggregates change less
    # with the size of the subgraph
    aggregate_over: Literal["subgraph", "graph"] = "subgraph"
    activation: Literal["identity", "relu", "tanh"] = "relu"
    # number of layers, at most 1,000
    num_layers: int = 6
    # dimension of the entity states, at most 65,536
    dim: int = 64
    # dimension of the attention of redgnn, at most 65,536
    attention_dim: int = 8
    # number of predictors, at most 100, whose mean score is used; each is trained on its own
    members: int = 1
    # rank of nbfnet's relation weights as a function of the query, at most 65,536; 0: dim. A low
    # rank has fewer parameters, and overfits less where there are many relations
    relation_rank: int = 0
    dropout: float = 0.0
    # initial state of the query entity: ones, or the embedding of the query relation
    initial: Literal["binary", "relational"] = "relational"
    # residual connection: add the input of a layer to its output
    shortcut: bool = False
    # add the initial state of the query entity to its state after every layer
    reinject: bool = False
    # GRU over the layers, shared by all layers
    gate: bool = True
    # entities that the gate keeps at zero: "nonzero" those whose state sums to zero, "reached"
    # those not yet reached
    gate_mask: Literal["nonzero", "reached"] = "nonzero"
    # compute the scores from the states of all layers instead of the last one
    concat: bool = False
    # how a score is computed from a state: a linear function, the dot product with the state of the
    # query entity, or a network of two layers that depends on the query relation
    readout: Literal["linear", "dot", "mlp"] = "linear"
    # divide the aggregated messages of each entity by their root mean square
    norm: bool = False
    # add terms for the sampler's score and the degree of each entity, with weights per relation
    priors: bool = False
    # initial weight of the logarithm of the sampler's score among these terms
    prior_start: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, num_layers=1, dim=1, attention_dim=1, dropout=0)
        _at_most(self, num_layers=1000, dim=2**16, attention_dim=2**16, prior_start=1000)
        _at_least(self, prior_start=-1000, relation_layers=0, relation_rank=0, members=1)
        _at_most(self, relation_layers=1000, relation_rank=2**16, members=100)
        if self.members > 1 and self.network == "ultra":
            raise InputError('network "ultra" has one member')
        if self.relations == "relative" and self.message != "nbfnet":
            raise InputError('relations "relative" needs message "nbfnet"')
        if self.network == "ultra" and self.relations != "relative":
            raise InputError('network "ultra" needs relations "relative"')
        if self.dropout >= 1:
            raise InputError(f"dropout must be below 1, not {self.dropout}")
        if self.compose == "rotate" and (self.message != "nbfnet" or self.dim % 2):
            raise InputError('compose "rotate" needs message "nbfnet" and an even dim')


@dataclass(frozen=True)
class FactorsConfig:
    """Vectors of entities and relations beside the predictor; see `oneshot.factors`."""

    # complex dimension of the vectors, at most 65,536; 0 for none
    dim: int = 0
    # maximum number of passes over the training facts
    epochs: int = 50
    # maximum share of the time budget of the training for fitting the vectors
    time_share: float = 0.33
    # queries per step, at most 1,000,000
    batch_size: int = 500
    # random entities that the answers of a step are compared with, at most 1,000,000,000; 0: all
    negatives: int = 0
    # learning rate of Adagrad, at most 1,000
    learning_rate: float = 0.1
    # weight of the cubed moduli of the vectors in the loss, at most 1,000; unset: chosen by
    # validation
    regularization: float | None = None
    # weight of predicting the relation between two entities, at most 1,000; unset: chosen by
    # validation
    relation_loss: float | None = None

    def __post_init__(self) -> None:
        _at_least(self, dim=0, epochs=1, batch_size=1, negatives=0)
        _at_most(self, dim=2**16, epochs=10**9, batch_size=10**6, negatives=10**9)
        if not 0 < self.learning_rate <= 1000:
            found = shown(self.learning_rate)
            raise InputError(f"learning_rate must be above 0 and at most 1,000, not {found}")
        if not 0 < self.time_share < 1:
            raise InputError(f"time_share must be above 0 and below 1, not {self.time_share}")
        for name in ("regularization", "relation_loss"):
            if getattr(self, name) is not None:
                _at_least(self, **{name: 0})
                _at_most(self, **{name: 1000})


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training; see `oneshot.training.trainer`."""

    epochs: int = 20
    # time budget in minutes for the whole training, including validation and the final evaluation
    # of both splits; 0 for no limit
    minutes: float = 0.0
    # training queries that fit the time according to the plan, at most 10^15; if they are far
    # fewer, the training reports it; 0 if the epochs were not planned
    expected_queries: int = 0
    # queries per step, at most 1,000,000
    batch_size: int = 32
    # options of Adam, each at most 1,000
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    # which training facts are queries: a random part of them in each "epoch", the others being
    # observation facts (see fact_ratio); or all of them, a few at a time, which alone are left out
    # of the observation facts ("leave_out"; fact_ratio has no effect)
    split: Literal["epoch", "leave_out"] = "epoch"
    # share of the training facts that are observation facts in an epoch; the others are queries
    fact_ratio: float = 0.9
    # share of the entities in training, if different from that in evaluation
    entity_ratio: float | None = None
    # facts that the sampler uses: the observation facts, or (official code) all training facts
    sample_from: Literal["observation", "train"] = "observation"
    loss: Literal["softmax", "bce"] = "softmax"
    # softmax over all entities (those not sampled have score 0) or over the sampled ones
    softmax_over: Literal["all", "sampled"] = "all"
    # a query whose answer was not sampled: "push_down" the scores of the sampled entities, as the
    # paper and the official code do, or "skip" it
    uncovered: Literal["push_down", "skip"] = "push_down"
    # remove all facts between query entity and answer from the subgraph, of any relation
    hide_direct: bool = False
    # share of the facts of each training subgraph that are removed at random
    fact_dropout: float = 0.0
    # mask other known answers of a query in the loss
    mask_known: bool = False
    schedule: Literal["constant", "plateau", "cosine"] = "cosine"
    # epochs over which the learning rate increases from zero
    warmup_epochs: float = 0.0
    # plateau: validations in a row without improvement before the learning rate is halved
    plateau_patience: int = 3
    # maximum norm of the gradient; 0 for no limit
    clip: float = 0.0
    # decay per step of a moving average of the parameters, for example 0.999; the average is then
    # validated and saved instead of the parameters themselves; 0 for none
    average: float = 0.0
    # validations without a better MRR before training stops early; 0 for never
    patience: int = 0
    # "auto" uses bfloat16 on a GPU that supports it
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    # gradient accumulation: parts of a batch, to save memory; the result is the same
    accumulate: int = 1
    # share of the query facts that are used in an epoch
    query_share: float = 1.0
    # validation queries per validation, sampled with the seed; 0 for all
    valid_limit: int = 0
    # batch size of validation; 0 for 16, on a GPU chosen to fill it
    valid_batch_size: int = 0
    # epochs between validations
    valid_every: int = 1
    # processes that sample the subgraphs of coming steps, at most 64; the graph must be saved
    # (`oneshot data DATA --save DIR`); 0 for none
    workers: int = 0
    # random seed, 0 to 2^63 − 1
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(self, epochs=1, batch_size=1, accumulate=1, plateau_patience=1, valid_every=1)
        _at_least(self, weight_decay=0, warmup_epochs=0, clip=0, patience=0, valid_limit=0)
        _at_least(self, average=0, fact_dropout=0)
        for name in ("average", "fact_dropout"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} must be below 1, not {getattr(self, name)}")
        _at_least(self, valid_batch_size=0, seed=0, minutes=0, expected_queries=0, workers=0)
        _at_most(self, workers=64)
        _at_most(self, epochs=10**9, patience=10**9, valid_every=10**9, warmup_epochs=10**9)
        _at_most(self, expected_queries=10**15)
        _at_most(self, batch_size=10**6, valid_batch_size=10**6, accumulate=10**6)
        _at_most(self, weight_decay=1000, learning_rate=1000, seed=2**63 - 1, minutes=10**6)
        if self.entity_ratio is not None and not 0 < self.entity_ratio <= 1:
            raise InputError(f"entity_ratio must be above 0 and at most 1, not {self.entity_ratio}")
        for name in ("fact_ratio", "query_share"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InputError(f"{name} must be above 0 and at most 1, not {value}")
        if self.fact_ratio == 1:
            raise InputError("fact_ratio must be below 1: some facts must be queries")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be above 0, not {shown(self.learning_rate)}")


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run."""

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    factors: FactorsConfig = field(default_factory=FactorsConfig)


def read_config(path: Path, settings: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file, changed by settings such as `predictor.dim=32`."""
    check_readable(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    return from_toml(text, settings, str(path))


def from_toml(text: str, settings: Sequence[str] = (), where: str = "configuration") -> Config:
    """The configuration in a TOML text, changed by settings; `where`: its file, for errors."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised by numbers with thousands of digits
        raise InputError(f"{where}: not valid TOML: {error}") from error
    version = table.pop("format", FORMAT)
    if version != FORMAT:
        found = shown(version)
        raise InputError(f"{where}: format {found} is unknown; this version reads format {FORMAT}")
    return from_table(table, settings, where)


def from_table(
    table: Mapping[str, Any], settings: Sequence[str] = (), where: str = "configuration"
) -> Config:
    """The configuration of a nested table, changed by settings `section.key=value`."""
    merged = {
        section: dict(values) if isinstance(values, Mapping) else values
        for section, values in table.items()
    }
    for setting in settings:
        path, separator, text = setting.partition("=")
        section, _, key = path.strip().partition(".")
        if not separator or not key:
            raise InputError(
                f"setting {setting!r}: write section.key=value, for example predictor.dim=32"
            )
        part = merged.setdefault(section, {})
        if isinstance(part, dict):
            try:
                part[key] = parse_value(text.strip())
            except (ValueError, RecursionError) as error:
                raise InputError(f"setting {section}.{key}: not a value ({error})") from error
    return _build(Config, merged, where)


def to_toml(config: Config) -> str:
    """The whole configuration as TOML, defaults included; unset options are left out."""
    lines = [f"format = {FORMAT}"]
    for section in dataclasses.fields(config):
        part = getattr(config, section.name)
        lines += ["", f"[{section.name}]"]
        for option in dataclasses.fields(part):
            value = getattr(part, option.name)
            if value is not None:
                lines.append(f"{option.name} = {as_toml(value)}")
    return "\n".join(lines) + "\n"


def _build(cls: type[ConfigT], table: Mapping[str, Any], where: str, prefix: str = "") -> ConfigT:
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1)
            hint = f"; did you mean {prefix}{near[0]!s}?" if near else ""
            raise InputError(f"{where}: unknown option {name}{hint}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise InputError(f"{where}: {name} must be a table of options")
            values[key] = _build(hints[key], value, where, f"{name}.")
        else:
            values[key] = checked(value, hints[key], f"{where}: {name}")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {prefix}{error}") from error


def _at_least(config: Any, **limits: float) -> None:
    for name, least in limits.items():
        value = getattr(config, name)
        if not (value >= least and value != math.inf):
            raise InputError(f"{name} must be at least {least}, not {shown(value)}")


def _at_most(config: Any, **limits: float) -> None:
    for name, most in limits.items():
        value = getattr(config, name)
        if not value <= most:
            raise InputError(f"{name} must be at most {most:,}, not {shown(value)}")


# values ------------------------------------------------------------------------------------------


def checked(value: Any, hint: Any, what: str) -> Any:
    """The value, if it has the type of the hint; integers are accepted as floats."""
    if get_origin(hint) in (Union, types.UnionType):
        for choice in get_args(hint):
            try:
                return checked(value, choice, what)
            except InputError:
                continue
    elif get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        choices = get_args(hint)
        near = difflib.get_close_matches(shown(value).strip("'"), choices, 1)
        extra = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{what} must be one of {', '.join(choices)}, not {shown(value)}{extra}")
    elif get_origin(hint) is dict:
        if isinstance(value, Mapping):
            inner = get_args(hint)[1]
            return {str(key): checked(item, inner, f"{what}.{key}") for key, item in value.items()}
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and _fits(value):
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool) and _fits(value):
            return value
    elif isinstance(value, hint):
        return value
    raise InputError(f"{what} must be {_type_name(hint)}, not {shown(value)}")


def _fits(value: float) -> bool:
    """Whether a number can be a float; integers may be too large."""
    return isinstance(value, float) or value.bit_length() < 1000


def shown(value: Any) -> str:
    """A value for a message, truncated if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits
        return "the given value (too long to show)"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _type_name(hint: Any) -> str:
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type_name(h) for h in get_args(hint) if h is not type(None))
    return "a table by relation name" if get_origin(hint) is dict else names.get(hint, str(hint))


def parse_value(text: str) -> Any:
    """A value parsed as TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def as_toml(value: Any) -> str:
    """A value in TOML syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(k)} = {as_toml(v)}" for k, v in value.items()) + " }"
    return repr(value)


def _quoted(text: str) -> str:
    # As in JSON, but TOML requires one more character to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
