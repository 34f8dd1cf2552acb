"""FedAvgM (Hsu, Qi, Brown 2019): FedAvg whose server moves with momentum.

    d = theta - sum_k q_k theta_k        v <- b v + d        theta <- theta - eta v

With b = 0 and eta = 1 it is FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, average
from bayesfed.methods.node import Node, State


class FedAvgM(FedAvg):
    """FedAvg with server momentum; the server also holds v."""

    name = "fedavgm"
    label = "FedAvgM"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's. server_momentum: b. server_lr: eta."""

        server_momentum: float = option(0.9, low=0, high=1)
        server_lr: float = option(1.0, above=0)

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "v": torch.zeros_like(theta)}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        d = server["theta"] - average(updates, "theta", self.weights(server, updates))
        server["v"] = self.options.server_momentum * server["v"] + d
        server["theta"] = server["theta"] - self.options.server_lr * server["v"]
        return {}


METHOD = FedAvgM
