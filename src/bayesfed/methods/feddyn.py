"""FedDyn (Acar et al. 2021, Algorithm 1): local losses are changed so that their minima agree with the global one.

Client k from the server's theta_0, of m clients in all:

    theta_k <- argmin CE - <g_k, theta> + alpha/2 ||theta - theta_0||^2         g_k <- g_k - alpha (theta_k - theta_0)

Server, over those who took part:

    h <- h - alpha/m sum_k (theta_k - theta_0)                                  theta <- mean_k theta_k - h/alpha

The argmin is looked for by E epochs; a weight decay is part of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, stacked
from bayesfed.methods.node import Batch, Learner, Node, State


class FedDyn(FedAvg):
    """FedAvg's round on another loss; a client keeps g, the server also holds h."""

    name = "feddyn"
    label = "FedDyn"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's, with the paper's lr and weight decay, and alpha, for which it takes 0.001 to 0.1."""

        alpha: float = option(0.01, above=0)
        lr: float = option(0.1, above=0)
        momentum: float = option(0.0, low=0, high=1)
        weight_decay: float = option(1e-3, low=0)

    options: Options

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "h": torch.zeros_like(theta)}

    def init_client(self, c: Node) -> State:
        return super().init_client(c) | {"g": torch.zeros_like(c.initial())}

    def start(self, c: Node, message: State) -> State:
        return super().start(c, message) | {"theta_0": message["theta"].clone()}

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        return super().gradient(c, batch) - c["g"] + self.options.alpha * (c["theta"] - c["theta_0"])

    def finish(self, c: Node) -> State:
        c["g"].sub_(self.options.alpha * (c["theta"] - c["theta_0"]))
        return {"theta": c["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        thetas, alpha = stacked(updates, "theta"), self.options.alpha
        server["h"] = server["h"] - alpha / server.clients * (thetas - server["theta"]).sum(0)
        server["theta"] = thetas.mean(0) - server["h"] / alpha
        return {}


METHOD = FedDyn
