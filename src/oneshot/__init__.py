"""oneshot: link prediction on large knowledge graphs, one small subgraph per question."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oneshot._version import __version__

if TYPE_CHECKING:
    from oneshot.client import Client, ServiceError
    from oneshot.config import (
        Config,
        FactorsConfig,
        PredictorConfig,
        SamplerConfig,
        TrainingConfig,
    )
    from oneshot.data import load as datasets
    from oneshot.data.load import Dataset, load
    from oneshot.errors import InputError, MissingPackageError, OneshotError, UnknownNameError
    from oneshot.evaluation.coverage import Coverage, coverage
    from oneshot.evaluation.evaluate import Report, evaluate
    from oneshot.evaluation.factor_weight import add_factors
    from oneshot.factors import Factors
    from oneshot.graph.graph import KnowledgeGraph
    from oneshot.graph.vocabulary import Vocabulary
    from oneshot.predictor import Predictor
    from oneshot.reasoner.answers import Answer, AnswerOptions
    from oneshot.reasoner.check import CheckedFact
    from oneshot.reasoner.explanation import Explanation
    from oneshot.reasoner.judgement import ScoredFact, ScoredFacts
    from oneshot.reasoner.reasoner import Reasoner
    from oneshot.reasoner.relations import RelationAnswer, RelationAnswers
    from oneshot.samplers import (
        SAMPLERS,
        BFSSampler,
        FittedSampler,
        PageRankSampler,
        PPRSampler,
        RandomSampler,
        RandomWalkSampler,
        Sampler,
    )
    from oneshot.samplers._pagerank import pagerank, ppr
    from oneshot.samplers.neighbourhood import Neighbourhood, TopScores, neighbourhood
    from oneshot.subgraph import SubgraphBatch
    from oneshot.training.classifier import SubgraphClassifier
    from oneshot.training.estimator import LinkPredictor
    from oneshot.training.plan import plan
    from oneshot.training.trainer import fit

# Names are imported on first use, so that `oneshot --help` does not wait for torch.
_HOME = {
    "Answer": "reasoner.answers",
    "AnswerOptions": "reasoner.answers",
    "Client": "client",
    "ServiceError": "client",
    "Config": "config",
    "FactorsConfig": "config",
    "PredictorConfig": "config",
    "SamplerConfig": "config",
    "TrainingConfig": "config",
    "Coverage": "evaluation.coverage",
    "coverage": "evaluation.coverage",
    "Dataset": "data.load",
    "load": "data.load",
    "InputError": "errors",
    "MissingPackageError": "errors",
    "OneshotError": "errors",
    "UnknownNameError": "errors",
    "Report": "evaluation.evaluate",
    "evaluate": "evaluation.evaluate",
    "add_factors": "evaluation.factor_weight",
    "Factors": "factors",
    "CheckedFact": "reasoner.check",
    "Explanation": "reasoner.explanation",
    "KnowledgeGraph": "graph.graph",
    "LinkPredictor": "training.estimator",
    "Neighbourhood": "samplers.neighbourhood",
    "TopScores": "samplers.neighbourhood",
    "neighbourhood": "samplers.neighbourhood",
    "plan": "training.plan",
    "pagerank": "samplers._pagerank",
    "ppr": "samplers._pagerank",
    "Predictor": "predictor",
    "Reasoner": "reasoner.reasoner",
    "RelationAnswer": "reasoner.relations",
    "RelationAnswers": "reasoner.relations",
    "ScoredFact": "reasoner.judgement",
    "ScoredFacts": "reasoner.judgement",
    "SAMPLERS": "samplers",
    "BFSSampler": "samplers",
    "FittedSampler": "samplers",
    "PPRSampler": "samplers",
    "PageRankSampler": "samplers",
    "RandomSampler": "samplers",
    "RandomWalkSampler": "samplers",
    "Sampler": "samplers",
    "SubgraphBatch": "subgraph",
    "SubgraphClassifier": "training.classifier",
    "fit": "training.trainer",
    "Vocabulary": "graph.vocabulary",
}

__all__ = [
    "SAMPLERS",
    "Answer",
    "AnswerOptions",
    "BFSSampler",
    "CheckedFact",
    "Client",
    "Config",
    "Coverage",
    "Dataset",
    "Explanation",
    "Factors",
    "FactorsConfig",
    "FittedSampler",
    "InputError",
    "KnowledgeGraph",
    "LinkPredictor",
    "MissingPackageError",
    "Neighbourhood",
    "OneshotError",
    "PPRSampler",
    "PageRankSampler",
    "Predictor",
    "PredictorConfig",
    "RandomSampler",
    "RandomWalkSampler",
    "Reasoner",
    "RelationAnswer",
    "RelationAnswers",
    "Report",
    "Sampler",
    "SamplerConfig",
    "ScoredFact",
    "ScoredFacts",
    "ServiceError",
    "SubgraphBatch",
    "SubgraphClassifier",
    "TopScores",
    "TrainingConfig",
    "UnknownNameError",
    "Vocabulary",
    "__version__",
    "add_factors",
    "coverage",
    "datasets",
    "evaluate",
    "fit",
    "load",
    "neighbourhood",
    "pagerank",
    "plan",
    "ppr",
]


def __getattr__(name: str) -> Any:
    if name == "datasets":
        return import_module("oneshot.data.load")
    if name in _HOME:
        return getattr(import_module(f"oneshot.{_HOME[name]}"), name)
    raise AttributeError(f"module 'oneshot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
