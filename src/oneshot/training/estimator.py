"""LinkPredictor: an estimator in the style of scikit-learn, from facts to predictions."""

import dataclasses
import inspect
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.config import Config
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.data.objects import read_known
from oneshot.errors import InputError, UnknownNameError
from oneshot.evaluation.evaluate import evaluate
from oneshot.factors import fit_factors
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.check import fact_logits
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.devices import find_device
from oneshot.training.diagnosis import Diagnosis
from oneshot.training.final_evaluation import FinalEvaluation, final_queries
from oneshot.training.plan import check_minutes, plan
from oneshot.training.time_budget import TimeBudget
from oneshot.training.trainer import Trainer


class LinkPredictor:
    """A reasoner as an estimator: `fit` plans, trains and calibrates it.

    `minutes`: time budget of `fit`; default 10 on a CPU, 5 on a GPU.
    `seed`: of the split, the initial parameters and the training.
    `device`: auto, cpu or cuda.
    `config`: a `Config` that replaces the plan, or settings that the plan keeps, such as
        `["predictor.dim=32"]`.

    After `fit`: `reasoner_`, `data_` with its splits, `config_`, `history_` with one record per
    epoch, and `classes_`, the columns of `predict_proba`.
    """

    def __init__(
        self,
        *,
        minutes: float | None = None,
        seed: int = 0,
        device: str = "auto",
        config: Config | Sequence[str] | None = None,
    ) -> None:
        # Values are checked in `fit`: scikit-learn requires that they are stored as they are.
        self.minutes = minutes
        self.seed = seed
        self.device = device
        self.config = config

    def fit(self, triples: object, y: object = None) -> Self:
        """Train on facts. → itself

        `triples`: anything that `oneshot.load` takes. Without splits, a tenth of the facts is held
        out at random to choose the best epoch and to calibrate the probabilities. `y` is ignored.
        """
        check_minutes(self.minutes)
        started = time.perf_counter()
        device = find_device(self.device)
        data = load(triples, seed=self.seed, test_share=0.0)
        config = self._planned(data, device)
        reasoner = build_reasoner(data.graph, config, device)
        budget = TimeBudget(config.training.minutes, started=started)
        budget.final_queries = final_queries(data, config.factors.dim > 0)
        trainer = Trainer(reasoner, data, config.training, budget)
        if config.factors.dim:
            reasoner.factors = fit_factors(
                trainer.graph,
                config.factors,
                data.valid.to(device),
                trainer.known,
                seed=config.training.seed,
                seconds=config.factors.time_share * budget.limit,
            )
        state = trainer.run([Diagnosis()])
        evaluation = FinalEvaluation(trainer, budget)
        evaluation.weigh_factors()
        reasoner.calibration = evaluation.calibrated()
        self.reasoner_, self.data_, self.config_ = reasoner, data, config
        self.history_ = list(state.history)
        self.classes_ = np.array([False, True])
        return self

    def predict(
        self, queries: Iterable[Sequence[Any]], *, exclude_known: bool = False
    ) -> NDArray[np.object_]:
        """The best answer to each query (entity, relation), by name; None if there is none. → [n]

        `queries`: an iterable, a DataFrame of two columns, or an array [n, 2]. A relation that ends
        in ⁻¹ asks for heads. `exclude_known`: only answers that are not facts of the graph. For
        more answers, use `reasoner_.predict`.
        """
        self._check_fitted()
        asked = (self._query(query) for query in _rows(queries))
        found = self.reasoner_.predict_stream(asked, top=1, exclude_known=exclude_known)
        answers = [one[0].entity if len(one) else None for one in found]
        result = np.empty(len(answers), object)
        result[:] = answers
        return result

    def predict_proba(self, triples: object) -> NDArray[np.float64]:
        """The probabilities that facts do not hold and that they hold, [n, 2] (see `classes_`).

        `triples`: facts in an object, as in `fit`. Each is judged in both directions: a fact that
        the graph lacks as by `reasoner_.discover`, a fact of the graph while it is hidden, as by
        `reasoner_.audit`. Up to 1 % of the facts of the graph, at most 512, are hidden together.
        """
        reasoner, facts = self._asked(triples)
        holds = torch.sigmoid(fact_logits(reasoner, facts))
        return torch.stack([1 - holds, holds], dim=1).numpy()

    def score(self, triples: object, y: object = None) -> float:
        """The filtered MRR of facts, in both directions. → float

        Filtered by these facts and those of `fit`. Entities that are new here are entities without
        facts. `y` is ignored.
        """
        reasoner, facts = self._asked(triples)
        return evaluate(reasoner, facts, torch.cat([self.data_.known.cpu(), facts])).mrr

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options by name; `deep` is ignored."""
        return {name: getattr(self, name) for name in _options()}

    def set_params(self, **options: Any) -> Self:
        """Change options by name. → itself"""
        for name, value in options.items():
            if name not in _options():
                raise UnknownNameError.among("option", name, _options())
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.get_params().items())
        return f"LinkPredictor({', '.join(given)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "reasoner_")

    def __sklearn_tags__(self) -> Any:
        """The properties of the estimator that scikit-learn asks for, as in `cross_val_score`."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def _planned(self, data: Dataset, device: torch.device) -> Config:
        """The configuration of the training."""
        if self.config is None or not isinstance(self.config, Config):
            settings = self.config or ()
            if isinstance(settings, str):
                settings = (settings,)
            return plan(data, self.minutes, device=str(device), settings=settings, seed=self.seed)
        changes: dict[str, Any] = {"seed": self.seed}
        if self.minutes is not None:
            changes["minutes"] = self.minutes
        training = dataclasses.replace(self.config.training, **changes)
        return dataclasses.replace(self.config, training=training)

    def _asked(self, triples: object) -> tuple[Reasoner, torch.Tensor]:
        """The facts of an object as ids, int64 [n, 3], and the reasoner with all their entities."""
        self._check_fitted()
        fitted, graph = self.reasoner_, self.data_.graph
        facts, entities = read_known(triples, graph.entities, graph.relations)
        asked = torch.from_numpy(facts)
        if len(entities) == len(graph.entities):
            return fitted, asked
        weights = None if graph.weights is None else graph.weights.numpy()
        larger = KnowledgeGraph.from_distinct(
            self.data_.train.numpy(), entities, graph.relations, weights
        )
        on_device = larger.to(fitted.device)
        parts = (fitted.sampler, fitted.predictor, fitted.calibration, fitted.factors)
        return Reasoner(on_device, *parts), asked

    def _query(self, query: Any) -> tuple[Any, ...]:
        """A query whose entity and relation are names."""
        fields = tuple(query)
        return (*(str(name) for name in fields[:2]), *fields[2:])

    def _check_fitted(self) -> None:
        if not hasattr(self, "reasoner_"):
            raise InputError("this LinkPredictor is not fitted; call fit(triples) first")


def _options() -> list[str]:
    """The names of the options, as scikit-learn finds them."""
    return list(inspect.signature(LinkPredictor).parameters)


def _rows(queries: Any) -> Iterable[Any]:
    """The rows of a table of queries."""
    rows: Iterable[Any] = queries
    if hasattr(queries, "itertuples"):  # a pandas DataFrame, which iterates over its columns
        rows = queries.itertuples(index=False, name=None)
    elif hasattr(queries, "rows"):  # a polars DataFrame, likewise
        rows = queries.rows()
    elif isinstance(queries, Sequence) and queries and isinstance(queries[0], str):
        raise InputError(f"queries must be a list of (entity, relation), not {queries!r}")
    return rows
