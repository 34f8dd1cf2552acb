"""Predictors of a client or the server: maps from images to log class probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.core.options import Bounds, check, plain
from bayesfed.methods.node import SAMPLED, Logits


@dataclass(frozen=True)
class Predictor:
    """A named map from images (n, C, H, W) to log class probabilities (n, classes), and where it is evaluated.

    `sets`: "test" is the full test set, "shard" a client's own test images; for the server's `global`, those of every
    client. Accuracy of clients on their shards, of the server on the full set, and of `global` on the shards of those
    who took part, is taken every round, all else every tenth round and in the last. A predictor whose name ends in
    `_sampled` averages over many networks and is evaluated in those rounds alone; it is a second evaluation of a model and
    never counts as a client's best.

    `passes`: how often an image goes through a network for one prediction.

    `model` and `theta`, where they are given, say that it is softmax(model(theta, x)) of one network, as the node has
    it: then a finished run gives that network back as an ordinary module (`bayesfed.load_run`).
    """

    name: str
    log_probabilities: Callable[[Tensor], Tensor]
    sets: tuple[str, ...] = ("test", "shard")
    model: Logits | None = None
    theta: Tensor | None = None
    passes: int = 1

    @property
    def sampled(self) -> bool:
        """True if it is a second predictor of a model, by samples of weights."""
        return self.name.endswith(SAMPLED)


def softmax_of(name: str, model: Logits, theta: Tensor) -> Predictor:
    """Return the predictor softmax(f(x; theta)), evaluated on every set."""
    return Predictor(name, lambda x: F.log_softmax(model(theta, x), -1), model=model, theta=theta)


def mixture(model: Logits, thetas: Sequence[Tensor] | Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map from images to log 1/M sum_m softmax(f(x; theta_m)), of M vectors or the rows of one tensor (M, P)."""

    def log_probabilities(x: Tensor) -> Tensor:
        each = torch.stack([F.log_softmax(model(theta, x), -1) for theta in thetas])
        return each.logsumexp(0) - math.log(len(thetas))

    return log_probabilities


def softmax_average(
    name: str, model: Logits, draw: Callable[[], Tensor], samples: int, sets: tuple[str, ...]
) -> Predictor:
    """Return the predictor 1/S sum_s softmax(f(x; theta_s)) over S weight samples, drawn once, when it is first used.

    It is called `<name>_sampled`. Raises InputError for fewer than one sample.
    """
    samples = check(plain(samples), int, Bounds(low=1), f"softmax_average of '{name}', samples")
    thetas: list[Tensor] = []
    averaged = mixture(model, thetas)

    def log_probabilities(x: Tensor) -> Tensor:
        if not thetas:
            thetas.extend(draw() for _ in range(samples))
        return averaged(x)

    return Predictor(name + SAMPLED, log_probabilities, sets, passes=samples)
