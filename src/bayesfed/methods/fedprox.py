"""FedProx (Li et al. 2020): FedAvg with a proximal term that holds a client near the global model.

    L_k(theta) = CE(f(x; theta), y) + mu/2 ||theta - theta_t||^2

HBFL does not state mu; 0.01 is our default, and 0.1 fits the paper's description (smoother, and below FedAvg).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.node import Batch, Learner, Node, State


class FedProx(FedAvg):
    """FedAvg's round on another loss."""

    name = "fedprox"
    label = "FedProx"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's, and mu, the weight of the proximal term."""

        mu: float = option(0.01, low=0)

    options: Options

    def start(self, c: Node, message: State) -> State:
        return super().start(c, message) | {"theta_t": message["theta"].clone()}

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        return super().gradient(c, batch) + self.options.mu * (c["theta"] - c["theta_t"])


METHOD = FedProx
