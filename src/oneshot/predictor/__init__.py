"""The predictor and its interchangeable parts."""

from oneshot.predictor.aggregation import AGGREGATES
from oneshot.predictor.layer import ACTIVATIONS
from oneshot.predictor.messages import MESSAGES
from oneshot.predictor.predictor import Predictor

__all__ = ["ACTIVATIONS", "AGGREGATES", "MESSAGES", "Predictor"]
