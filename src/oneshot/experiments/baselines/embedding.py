"""Embedding models: PyKEEN's implementations, trained on our data sets, with our ranking."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation.scorer import QUERIES_PER_STEP, Ranked, Scorer, rank_split
from oneshot.experiments.baselines.checkpoint import Course
from oneshot.experiments.baselines.interactions import is_fast, speed_up
from oneshot.experiments.baselines.pykeen_import import guest, load_pykeen
from oneshot.experiments.baselines.pykeen_models import DIM, Recipe
from oneshot.experiments.baselines.timetable import Timetable
from oneshot.ranking import KnownFacts
from oneshot.system.devices import available_memory
from oneshot.training.time_budget import TimeBudget

PATIENCE = 5
"""Number of validations without improvement after which a training ends."""

MAX_EPOCHS = 2000
"""Maximum number of epochs."""

# Some models build a tensor of queries × entities × dimension. This limits its numbers, and on a
# GPU its share of the free memory, because several such tensors exist at the same time.
_NUMBERS_AT_ONCE = 2**25
_SHARE_OF_GPU = 1 / 16
# Queries of the first measurement of the time per query.
_PROBE_QUERIES = 32


class Watcher(Protocol):
    """Displays the progress of a training."""

    def told(self, line: str) -> None: ...
    def resumed(self, epoch: int, best_mrr: float) -> None: ...
    def stepped(self) -> None: ...
    def epoch_done(self, epoch: int, best_mrr: float | None) -> None: ...


@dataclass(frozen=True)
class Trained:
    """A trained model, with the parameters of its best epoch by validation MRR.

    `model`: PyKEEN's model. `queries_per_step`: batch size of the scorer. `stopped`: "patience" if
    it had stopped improving, "epochs" or "time" if it reached a limit. `seconds`: time of all
    processes; `resumed_after`: the last epoch of an earlier process.
    """

    model: Any
    scorer: Scorer
    queries_per_step: int
    parameters: int
    epochs: int
    best_epoch: int
    valid_mrr: float
    stopped: Literal["patience", "epochs", "time"]
    seconds: float
    resumed_after: int | None


def triples_factory(data: Dataset, inverse: bool) -> Any:
    """The training facts for PyKEEN, with the same ids, including entities without facts."""
    return load_pykeen().triples.CoreTriplesFactory(
        data.train.cpu(),
        num_entities=data.graph.num_entities,
        num_relations=data.graph.num_relations,
        create_inverse_triples=inverse,
    )


def build_model(recipe: Recipe, factory: Any, dim: int = DIM, seed: int = 0) -> Any:
    """A new model of PyKEEN according to the recipe, on the CPU."""
    pykeen = load_pykeen()
    loss = getattr(pykeen.losses, recipe.loss)(**recipe.loss_options)
    options = recipe.arguments(dim, factory.num_entities)
    name = recipe.model
    kind = getattr(pykeen.models, name) if isinstance(name, str) else name()
    model = kind(triples_factory=factory, loss=loss, random_seed=seed % 2**32, **options)
    speed_up(model)
    return model


def scorer_of(model: Any, num_relations: int) -> Scorer:
    """Scores of a PyKEEN model; all queries of a call have the same direction."""

    def scores(queries: Tensor) -> Tensor:
        with torch.inference_mode():
            if len(queries) and int(queries[0, 1]) >= num_relations:
                turned = torch.stack([queries[:, 1] - num_relations, queries[:, 0]], dim=1)
                found: Tensor = model.predict_h(turned)
            else:
                found = model.predict_t(queries)
        return found

    return scores


def count_parameters(recipe: Recipe, data: Dataset, dim: int = DIM) -> int:
    """The number of trainable parameters; complex ones count twice."""
    processor = torch.device("cpu")
    recipe = recipe.on(data.graph.num_entities, processor)
    with guest(0, processor):
        return _count(build_model(recipe, triples_factory(data, recipe.inverse), dim))


def train_embedding(
    recipe: Recipe,
    data: Dataset,
    device: torch.device,
    *,
    dim: int = DIM,
    seed: int = 0,
    epochs: int | None = None,
    patience: int = PATIENCE,
    watcher: Watcher | None = None,
    kept: Path | None = None,
    budget: TimeBudget | None = None,
) -> Trained:
    """Train until the MRR on `data.valid` has not improved for `patience` validations.

    `kept`: a checkpoint file; if it exists, the training resumes from it. `budget`: the time limit,
    if there is one. With a limit, the learning rate falls towards the end, validations may use a
    sample of the queries, and time is reserved for the ranking of the test split.
    """
    if not len(data.valid):
        raise InputError("training needs a validation split to select the best epoch")
    recipe = recipe.on(data.graph.num_entities, device)
    if budget is not None and budget.is_limited:
        recipe = recipe.timed(data.graph.num_entities)
    with guest(seed, device):
        factory = triples_factory(data, recipe.inverse)
        model = build_model(recipe, factory, dim, seed).to(device)
        # The tensors of a fast model are as large as the scores.
        size = _queries_per_step(data, 1 if is_fast(model) else dim, device)
        scorer = scorer_of(model, data.graph.num_relations)
        known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
        known = known.to(device)

        def rank(asked: int | None = None) -> Ranked:
            options: dict[str, Any] = {"known": known, "device": device, "step": size}
            return rank_split(scorer, data, "valid", limit=asked, seed=seed, **options)

        limit = epochs or MAX_EPOCHS
        loop = _loop(recipe, model, factory)
        tell = (lambda _: None) if watcher is None else watcher.told
        course = Course(kept, recipe.in_words(), tell)
        timetable = None
        if budget is not None and budget.is_limited:
            course.recipe += f", minutes {budget.minutes:g}"
            timetable = Timetable(budget, course)
        sizes: dict[str, int | None] = {"batch_size": _batch_size(recipe, factory)}
        if course.is_kept:
            sizes.update(_fitting(loop, factory, sizes["batch_size"]))
        is_resumed = course.read(loop)
        resumed_after = course.epoch if is_resumed else None
        if is_resumed and watcher is not None:
            watcher.resumed(course.epoch, course.mrr)
        if timetable is not None:
            timetable.budget.spent_before = course.seconds
            _prepare(timetable.budget, data, rank)

        def validate() -> float:
            if timetable is None:
                return rank().metrics.mrr
            found = rank(timetable.budget.validation_queries)
            timetable.budget.learn(found.queries, found.seconds)
            return found.metrics.mrr

        if course.epoch < limit and (course.bad < patience or timetable is not None):
            until = _Until(limit, patience, timetable)
            stopper = _stopper(loop, course, validate, recipe.every, until, watcher)
            _run(recipe, loop, factory, stopper, until, sizes, watcher)
        if timetable is not None and not (course.best and timetable.is_validated):
            course.validated(validate(), model)
        model.load_state_dict(course.best)
        model.eval()
    stopped: Literal["patience", "epochs", "time"] = "epochs"
    if timetable is not None and timetable.has_ended:
        stopped = "time" if timetable.is_cut else "patience"
    elif timetable is None and course.bad >= patience:
        stopped = "patience"
    return Trained(
        model,
        scorer,
        size,
        _count(model),
        course.epoch,
        course.best_epoch,
        course.mrr,
        stopped,
        course.total_seconds,
        resumed_after,
    )


def _loop(recipe: Recipe, model: Any, factory: Any) -> Any:
    """PyKEEN's training loop, with random negatives or all entities."""
    pykeen = load_pykeen()
    optimizer = torch.optim.Adam(model.get_grad_params(), lr=recipe.learning_rate)
    options: dict[str, Any] = {"model": model, "triples_factory": factory, "optimizer": optimizer}
    if recipe.negatives is None:
        return pykeen.training.LCWATrainingLoop(**options)
    negatives = {"num_negs_per_pos": recipe.negatives}
    return pykeen.training.SLCWATrainingLoop(**options, negative_sampler_kwargs=negatives)


def _batch_size(recipe: Recipe, factory: Any) -> int:
    facts = factory.mapped_triples
    if recipe.negatives is not None:
        return recipe.batch_size(len(facts) * (2 if recipe.inverse else 1))
    queries = len(facts[:, :2].unique(dim=0))
    if recipe.inverse:
        queries += len(facts[:, 1:].unique(dim=0))
    return recipe.batch_size(queries)


def _fitting(loop: Any, factory: Any, batch_size: int | None) -> dict[str, int | None]:
    """The slice size with which a step fits into memory.

    PyKEEN determines it only at the start of a training. The parameters are initialised again.
    """
    if not loop.automatic_memory_optimization:
        return {}
    device = loop.model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        part, piece = loop.sub_batch_and_slice(
            batch_size=batch_size, sampler=None, triples_factory=factory
        )
    return {"sub_batch_size": part, "slice_size": piece}


class _Until(NamedTuple):
    """The limits of a training: epochs, validations without improvement, time."""

    epochs: int
    patience: int
    timetable: Timetable | None


class _OutOfTimeError(Exception):
    """Ends PyKEEN's training loop between two steps."""


def _prepare(budget: TimeBudget, data: Dataset, rank: Callable[[int], Ranked]) -> None:
    """Measure the time per query, and set the number of queries per validation."""
    end, asked, queries = budget.used + budget.probe_seconds, _PROBE_QUERIES, 2 * len(data.valid)
    rank(asked)  # the first step takes longer
    while True:
        found = rank(asked)
        budget.seconds_per_query = found.seconds / found.queries
        # Double the number each time: the last measurement is the most precise.
        if asked >= queries or budget.used + 3 * found.seconds >= end:
            break
        asked *= 2
    budget.validation_queries = budget.valid_limit(queries)
    budget.final_queries = 2 * len(data.test)


def _run(
    recipe: Recipe,
    loop: Any,
    factory: Any,
    stopper: Any,
    until: _Until,
    sizes: dict[str, int | None],
    watcher: Watcher | None,
) -> None:
    callbacks = [] if watcher is None else [_stepping(watcher)]
    if until.timetable is not None:
        callbacks.append(_timing(until.timetable, recipe.learning_rate))
    with suppress(_OutOfTimeError):
        loop.train(
            factory,
            num_epochs=until.epochs,
            continue_training=stopper.course.epoch
            > 0,  # otherwise it would start with new parameters
            **sizes,
            label_smoothing=recipe.label_smoothing,
            stopper=stopper,
            callbacks=callbacks,
            use_tqdm=False,
            pin_memory=loop.model.device.type == "cuda",
            # With batch norm, PyKEEN would drop the last batch of each epoch.
            drop_last=False,
        )


def _stopper(
    loop: Any,
    course: Course,
    validate: Callable[[], float],
    every: int,
    until: _Until,
    watcher: Watcher | None,
) -> Any:
    """PyKEEN's stopper with our validation; the checkpoint keeps the best parameters.

    Its `best_epoch` is not set, because PyKEEN would then write each best model to a file.
    """

    class Stopper(load_pykeen().stoppers.Stopper):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.course = course

        def should_evaluate(self, epoch: int) -> bool:
            course.epoch = epoch
            is_due = epoch % every == 0
            if until.timetable is not None:
                is_due = until.timetable.is_due(epoch, every)
            is_due = is_due or epoch >= until.epochs
            if watcher is not None and not is_due:
                watcher.epoch_done(epoch, course.mrr if course.best else None)
            return is_due

        def should_stop(self, epoch: int) -> bool:
            course.validated(validate(), loop.model)
            if until.timetable is not None and until.timetable.validated(until.patience):
                loop.model.load_state_dict(course.best)  # later epochs only overfit
            course.write(loop)
            if watcher is not None:
                watcher.epoch_done(epoch, course.mrr)
            return until.timetable is None and course.bad >= until.patience

        def get_summary_dict(self) -> dict[str, Any]:
            return {}

    return Stopper()


def _stepping(watcher: Watcher) -> Any:
    """PyKEEN callback that reports each step to the watcher."""

    class Stepping(load_pykeen().training.TrainingCallback):  # type: ignore[misc]
        def post_batch(self, **_: Any) -> None:
            watcher.stepped()

    return Stepping()


def _timing(timetable: Timetable, learning_rate: float) -> Any:
    """PyKEEN callback that sets the learning rate of each step and enforces the time limit."""
    clock = timetable.budget.clock

    class Timing(load_pykeen().training.TrainingCallback):  # type: ignore[misc]
        begun: float | None = None

        def pre_batch(self, **_: Any) -> None:
            now = clock()
            if timetable.is_over(0.0 if self.begun is None else now - self.begun):
                timetable.has_ended = True
                raise _OutOfTimeError
            self.begun, timetable.is_validated = now, False
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate * timetable.rate

        def post_epoch(self, **_: Any) -> None:
            self.begun = None  # the time until the next step does not count

    return Timing()


def _queries_per_step(data: Dataset, dim: int, device: torch.device) -> int:
    most = _NUMBERS_AT_ONCE
    if device.type == "cuda":
        most = max(most, int(available_memory(device) * _SHARE_OF_GPU) // 4)
    return max(1, min(QUERIES_PER_STEP, most // (data.graph.num_entities * dim)))


def _count(model: Any) -> int:
    return sum(
        parameter.numel() * (2 if parameter.is_complex() else 1)
        for parameter in model.parameters()
        if parameter.requires_grad
    )
