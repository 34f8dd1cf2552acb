"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates take out of a step what only this client pulls at.

Client i, K mini-batches from y = theta:

    y    <- y - lr (g - c_i + c)
    c_i' <- c_i - c + (theta - y) / (K lr)

Server, over the clients S of a round and all N clients:

    theta <- theta + sum_{i in S} w_i (y_i - theta)        c <- c + 1/N sum_{i in S} (c_i' - c_i)

All control variates start at zero, where NIID-Bench's code starts c from a random network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, average, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, ce_gradient


class SCAFFOLD(Method):
    """The server holds theta and c, client i its c_i."""

    name = "scaffold"
    label = "SCAFFOLD"
    revision = 1
    steady_rate = True
    logs: ClassVar = {"c_norm": "length of the server's control variate c"}

    @dataclass(frozen=True)
    class Options:
        """The step of plain SGD; weights of the clients: n_i / n as in NIID-Bench, or all alike as in the paper."""

        lr: float = option(0.01, above=0)
        weights: Literal["images", "equal"] = "images"

    def __init__(self, options: SCAFFOLD.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, 0.0, 0.0)

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "c": torch.zeros_like(theta)}

    def init_client(self, c: Node) -> State:
        return {"c_i": torch.zeros_like(c.initial())}

    def start(self, c: Node, message: State) -> State:
        return {
            "y": message["theta"].clone(),
            "theta": message["theta"].clone(),
            "c": message["c"].clone(),
            "K": torch.zeros_like(c.n),
        }

    def step(self, c: Learner, batch: Batch) -> None:
        g = ce_gradient(c, "y", batch)
        self.sgd.step(c, y=g - c["c_i"] + c["c"])
        c["K"].add_(1)

    def finish(self, c: Node) -> State:
        difference = (c["theta"] - c["y"]) / (c["K"] * c.rate(self.options.lr)) - c["c"]  # c_i' - c_i
        c["c_i"].add_(difference)
        return {"y": c["y"], "dc": difference}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["theta"] = average(updates, "y", shares(updates, equal=self.options.weights == "equal"))
        server["c"] = server["c"] + stacked(updates, "dc").sum(0) / server.clients
        return {"c_norm": server["c"].norm()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["y"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["theta"])]


METHOD = SCAFFOLD
