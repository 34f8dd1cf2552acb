"""FedDyn (Acar et al. 2021, Algorithm 1): local losses are changed so that their minima agree with the global one.

    client k:   theta_k <- argmin  L_k(theta) - <g_k, theta> + alpha/2 ||theta - theta_0||^2      from the server's theta_0
                g_k     <- g_k - alpha (theta_k - theta_0)                                     kept, 0 at first
    server:     h       <- h - alpha/m sum_k (theta_k - theta_0)                               over those who took part
                theta   <- mean_k theta_k - h/alpha                                            m: all clients

The minimum is looked for by E epochs of SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed import option
from bayesfed.methods.base import Batch, Learner, Method, Node, Predictor, State, Update, softmax_of, stacked
from bayesfed.methods.steps import grad, leaves, loss_gradient


class FedDyn(Method):
    """FedDyn; a client's state is theta_k, theta_0 and g_k, the server's theta and h."""

    name = "own_feddyn"
    label = "FedDyn"
    revision = 1

    @dataclass(frozen=True)
    class Options:
        """The paper takes alpha from 0.001 to 0.1 and lr 0.1."""

        alpha: float = option(0.01, above=0)
        lr: float = option(0.1, above=0)

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "h": torch.zeros_like(theta)}

    def init_client(self, c: Node) -> State:
        return {"g": torch.zeros_like(c.initial())}

    def message(self, server: Node, client: int) -> State:
        return {"theta": server["theta"]}

    def start(self, c: Node, message: State) -> State:
        return {"theta": message["theta"].clone(), "theta_0": message["theta"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        logits = c.model(theta, batch.x)
        (gradient,) = grad(logits, theta, at=loss_gradient(batch, logits))
        gradient = gradient - c["g"] + self.options.alpha * (c["theta"] - c["theta_0"])
        c["theta"].sub_(c.rate(self.options.lr) * gradient)

    def finish(self, c: Node) -> State:
        c["g"].sub_(self.options.alpha * (c["theta"] - c["theta_0"]))
        return {"theta": c["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        thetas = stacked(updates, "theta")
        server["h"] = server["h"] - self.options.alpha / server.clients * (thetas - server["theta"]).sum(0)
        server["theta"] = thetas.mean(0) - server["h"] / self.options.alpha
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["theta"])]


METHOD = FedDyn
