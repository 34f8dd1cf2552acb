"""The contract of a method in one place, for plugins: `from bayesfed.methods.base import Method, softmax_of`."""

from bayesfed.methods.method import Ground, Method, Update, average, move_towards_average, shares, some, stacked
from bayesfed.methods.node import GLOBAL, LOCAL, RATE, SAMPLED, Batch, Bound, Learner, Logits, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of

__all__ = [
    "GLOBAL", "LOCAL", "RATE", "SAMPLED", "Batch", "Bound", "Ground", "Learner", "Logits", "Method", "Node", "Phase", "Predictor",
    "State", "Update", "average", "move_towards_average", "shares", "softmax_average", "softmax_of", "some", "stacked",
]  # fmt: skip
