"""Per-FedAvg (Fallah et al., NeurIPS 2020), first order: a common model from which one step leads to a client's own.

Client i from w, for each pair of mini-batches D, D':

    w' = w - alpha g(w; D),    w <- w - beta g(w'; D')

A last mini-batch of a round's epochs without a second one leads nowhere; so a client of one mini-batch and one epoch trains
nothing.

Server: w <- sum_i q_i w_i. The client's own model is one step away from the server's w, on one of its mini-batches:

    phi = w - alpha g(w; D)

D is of its training images. In the repository of pFedMe, with which papers compare, D has been of its *test* images, whose
labels the model has then seen before it is tested on them: `adapt: test` does that, to say what it is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.methods.base import (
    Batch,
    Ground,
    Learner,
    Method,
    Node,
    Phase,
    Predictor,
    State,
    Update,
    shares,
    softmax_of,
    stacked,
)
from bayesfed.methods.steps import ce_gradient
from bayesfed.options import option


class PerFedAvg(Method):
    """A client keeps phi, though every round makes it anew; the server has w."""

    name = "perfedavg"
    label = "Per-FedAvg"
    revision = 1

    @dataclass(frozen=True)
    class Options:
        """The values of pFedMe's repository. lr: alpha. beta: as above. adapt: whose images D is of for phi."""

        lr: float = option(0.01, above=0)
        beta: float = option(1e-3, above=0)
        adapt: Literal["train", "test"] = "train"

    def leak(self) -> str:
        return "adapts on test images and their labels" if self.options.adapt == "test" else ""

    def unfit(self, ground: Ground) -> str:
        if self.options.adapt == "test" and not ground.min_test:
            return "partition.min_test: 0, but with adapt: test a client trains on its test images; set it to 1"
        return ""

    def init_server(self, server: Node) -> State:
        return {"w": server.initial()}

    def init_client(self, c: Node) -> State:
        return {"phi": c.initial()}

    def start(self, c: Node, message: State) -> State:
        w = message["w"]
        # theta is where the next gradient is taken: w or w'; `first` is 1 for the first mini-batch of a pair, else 0.
        return {"phi": w.clone(), "w": w.clone(), "theta": w.clone(), "first": torch.ones_like(c.n)}

    def adapt(self, c: Learner, batch: Batch) -> None:
        """phi = w - alpha g(w; D)."""
        c["phi"].sub_(c.rate(self.options.lr) * ce_gradient(c, "phi", batch))

    def step(self, c: Learner, batch: Batch) -> None:
        """w' = w - alpha g(w; D), or w <- w - beta g(w'; D')."""
        g, first = ce_gradient(c, "theta", batch), c["first"]
        c["w"].copy_(torch.where(first == 1, c["theta"], c["w"]))
        length = first * c.rate(self.options.lr) + (1 - first) * c.rate(self.options.beta)
        c["theta"].copy_(c["w"] - length * g)
        first.copy_(1 - first)

    def phases(self, c: Node) -> Sequence[Phase]:
        data: Literal["own", "test"] = "own" if self.options.adapt == "train" else "test"
        return [Phase(self.adapt, batches=1, data=data), Phase(self.step, epochs=c.epochs, batches=2 * c.batches)]

    def finish(self, c: Node) -> State:
        # A mini-batch without a second one to its pair leads nowhere.
        return {"w": torch.where(c["first"] == 1, c["theta"], c["w"])}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        q = shares(updates)
        w = weighted_mean(q, stacked(updates, "w"))
        server["w"] = w.to(server["w"].dtype)
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("personal", c.received, c["phi"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["w"])]


METHOD = PerFedAvg
