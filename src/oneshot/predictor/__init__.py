"""The predictor and its interchangeable parts."""

from oneshot.predictor.aggregation import AGGREGATES
from oneshot.predictor.layer import ACTIVATIONS
from oneshot.predictor.messages import MESSAGES
from oneshot.predictor.predictor import Predictor
from oneshot.predictor.ultra import UltraPredictor

NETWORKS: dict[str, type[Predictor]] = {"oneshot": Predictor, "ultra": UltraPredictor}

__all__ = ["ACTIVATIONS", "AGGREGATES", "MESSAGES", "NETWORKS", "Predictor", "UltraPredictor"]
