"""The predictor and its interchangeable parts."""

from oneshot.config import PredictorConfig
from oneshot.predictor.aggregation import AGGREGATES
from oneshot.predictor.ensemble import Ensemble
from oneshot.predictor.layer import ACTIVATIONS
from oneshot.predictor.messages import MESSAGES
from oneshot.predictor.predictor import Predictor
from oneshot.predictor.ultra import UltraPredictor

NETWORKS: dict[str, type[Predictor]] = {"oneshot": Predictor, "ultra": UltraPredictor}

__all__ = [
    "ACTIVATIONS",
    "AGGREGATES",
    "MESSAGES",
    "NETWORKS",
    "Ensemble",
    "Predictor",
    "UltraPredictor",
    "make_predictor",
]


def make_predictor(config: PredictorConfig, num_relations: int) -> Predictor:
    """A new predictor, or an ensemble of them, with random parameters."""
    network = Ensemble if config.members > 1 else NETWORKS[config.network]
    return network(config, num_relations)
