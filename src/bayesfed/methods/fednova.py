"""FedNova (Wang et al. 2020): clients that take more steps do not count for more.

    d_i = (theta - theta_i) / a_i        theta <- theta - (sum_i p_i a_i) sum_i p_i d_i,    p_i = n_i / n

a_i is the length of the weights that client i's tau_i steps give to its gradients: tau_i without momentum, and with rho

    a_i = (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Ground, Update, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, State


class FedNova(FedAvg):
    """FedAvg's round, whose steps are counted, and another server."""

    name = "fednova"
    label = "FedNova"
    revision = 1
    steady_rate = True
    logs: ClassVar = {"tau_effective": "sum of p_i a_i: the number of local steps that the server's step equals"}

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's; the paper's analysis is of SGD without weight decay, with momentum or without."""

        momentum: float = option(0.0, low=0, high=0.999)
        weight_decay: float = option(0.0, low=0)

    def unfit(self, ground: Ground) -> str:
        if self.options.optimizer != "sgd":
            return f"method.optimizer: {self.options.optimizer}, but FedNova's a_i are those of SGD; take sgd"
        if self.options.momentum and self.options.optimizer_state == "kept":
            return "method.optimizer_state: kept, but FedNova's a_i begin without momentum; take fresh, or momentum 0"
        return super().unfit(ground)

    def start(self, c: Node, message: State) -> State:
        return super().start(c, message) | {"tau": torch.zeros_like(c.n)}

    def step(self, c: Learner, batch: Batch) -> None:
        super().step(c, batch)
        c["tau"].add_(1)

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"], "tau": c["tau"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        theta, rho = server["theta"].double(), self.options.momentum
        p = shares(updates)
        tau = stacked(updates, "tau").double()
        a = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        d = (theta - stacked(updates, "theta")) / a[:, None]
        server["theta"] = (theta - (p * a).sum() * weighted_mean(p, d)).to(server["theta"].dtype)
        return {"tau_effective": (p * a).sum()}


METHOD = FedNova
