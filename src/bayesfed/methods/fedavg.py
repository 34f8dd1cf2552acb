"""FedAvg (McMahan et al. 2017): local training from the global model, then the data-weighted mean.

    theta_k <- E epochs of SGD on CE(f(x; theta)) from theta        theta <- sum_k q_k theta_k

HBFL's setting: lr 0.01, momentum 0.9, weight decay 5e-4. `optimizer: adam` with lr 0.001 is the ablation that asks
how much of HBFL's gain is Adam's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, average, shares
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, Adam, ce_gradient, clip


class FedAvg(Method):
    """FedAvg; the client's state is theta_k, the server's theta."""

    name = "fedavg"
    label = "FedAvg"
    revision = 1

    @dataclass(frozen=True)
    class Options:
        """Local optimiser; `optimizer_state: kept` carries momentum or moments over rounds (A21); longer gradients are
        scaled down to the length `clip` (FOLA)."""

        optimizer: Literal["sgd", "adam"] = "sgd"
        lr: float = option(0.01, above=0)
        momentum: float = option(0.9, low=0, high=1)
        weight_decay: float = option(5e-4, low=0)
        optimizer_state: Literal["fresh", "kept"] = "fresh"
        clip: float | None = option(None, above=0)

    def __init__(self, options: FedAvg.Options) -> None:
        super().__init__(options)
        o = options
        self.optimizer = SGD(o.lr, o.momentum, o.weight_decay) if o.optimizer == "sgd" else Adam(o.lr, o.weight_decay)

    def init_server(self, server: Node) -> State:
        return {"theta": server.initial()}

    def init_client(self, c: Node) -> State:
        return self.optimizer.start("theta", c.initial()) if self.options.optimizer_state == "kept" else {}

    def message(self, server: Node, client: int) -> State:
        return {"theta": server["theta"]}

    def start(self, c: Node, message: State) -> State:
        theta = message["theta"].clone()
        fresh = self.options.optimizer_state == "fresh"
        return {"theta": theta} | (self.optimizer.start("theta", theta) if fresh else {})

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        """Return the gradient of CE(f(x; theta), y), the batch mean."""
        return ce_gradient(c, "theta", batch)

    def step(self, c: Learner, batch: Batch) -> None:
        self.optimizer.step(c, theta=clip(self.gradient(c, batch), self.options.clip))

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"]}

    def weights(self, server: Node, updates: Sequence[Update]) -> Tensor:
        """Return the weight of each client in the average (K,): q_k."""
        return shares(updates)

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["theta"] = average(updates, "theta", self.weights(server, updates))
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["theta"])]


METHOD = FedAvg
