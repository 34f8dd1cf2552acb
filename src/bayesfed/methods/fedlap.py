"""FedLap (Swaroop et al. 2025): a client's likelihood is approximated by a linear site term, its dual v_k.

The loss is a sum over n_k images, the prior N(0, 1/delta). Client k, from v_k = 0 and the server's theta_0, first 0:

    theta_k <- argmin n_k CE + delta v_k^T theta + delta/2 ||theta - theta_0||^2         v_k <- v_k + rho (theta_k - theta_0)

Server, over all clients: theta_0 <- sum_k v_k, as a running sum that those who are absent stay in.

A fixed point minimises sum_k n_k CE_k + delta/2 ||theta||^2. Training begins at the network's own start in the first round,
later at theta_0. `proximal: norm` is the public code's term delta/2 ||theta - theta_0||, which is not squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, stacked
from bayesfed.methods.node import Batch, Learner, Node, State


class FedLap(FedAvg):
    """FedAvg's round on another loss; a client keeps v, the server holds theta, which is the sum of all v."""

    name = "fedlap"
    label = "FedLap"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """delta, the prior's precision; damping: rho, 1/K of K clients by default. weights: with `images` it is
        rho n_k/n, rho 1 by default. The optimiser is the public code's, whose state lasts over rounds; its `clip` is 10 on a
        gradient n_k times ours."""

        delta: float = option(1.0, above=0)
        damping: float | None = option(None, above=0)
        weights: Literal["equal", "images"] = "equal"
        proximal: Literal["squared", "norm"] = "squared"
        optimizer: Literal["sgd", "adam"] = "adam"
        optimizer_state: Literal["fresh", "kept"] = "kept"
        lr: float = option(0.001, above=0)
        momentum: float = option(0.0, low=0, high=1)
        weight_decay: float = option(0.0, low=0)

    options: Options

    def rho(self, c: Node) -> float | Tensor:
        """Return the damping of a client's duals, a number or a tensor ()."""
        if self.options.weights == "equal":
            return self.options.damping or 1 / c.clients
        return (self.options.damping or 1.0) * c.n / c.total

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": torch.zeros_like(theta), "v": torch.zeros_like(theta, dtype=torch.float64)}

    def init_client(self, c: Node) -> State:
        return super().init_client(c) | {"v": torch.zeros_like(c.initial())}

    def start(self, c: Node, message: State) -> State:
        first = {"theta": c.initial()} if c.round == 1 else message
        return super().start(c, first) | {"theta_0": message["theta"].clone()}

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        """Return that of the client's objective over n_k."""
        pull = c["theta"] - c["theta_0"]
        if self.options.proximal == "norm":
            pull = pull / (2 * pull.norm().clamp(min=1e-12))
        return super().gradient(c, batch) + self.options.delta / c.n * (c["v"] + pull)

    def finish(self, c: Node) -> State:
        dv = self.rho(c) * (c["theta"] - c["theta_0"])
        c["v"].add_(dv)
        return {"dv": dv}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["v"] = server["v"] + stacked(updates, "dv").double().sum(0)
        server["theta"] = server["v"].to(server["theta"].dtype)
        return {}


METHOD = FedLap
