"""FedAvg with temperature scaling (Guo et al. 2017): one number, fitted on images of the server's own, after each round.

    theta <- sum_k q_k theta_k        T = argmin_T sum_i CE(f(x_i; theta)/T, y_i)        p(y | x) = softmax(f(x; theta)/T)

The derivative in b = 1/T, sum_i (E_p[z] - z_y) with z = f(x_i; theta) and p = softmax(b z), rises with b: its root is found
by bisection of log b between log 1e-3 and log 1e3. Accuracy is FedAvg's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Ground, Update
from bayesfed.methods.node import GLOBAL, Node, State
from bayesfed.methods.predictors import Predictor

HALVINGS = 40
AT_ONCE = 500  # images


class FedAvgTemperature(FedAvg):
    """FedAvg; the server also holds the temperature T ()."""

    name = "fedavg_temperature"
    label = "FedAvg, temperature-scaled"
    revision = 1
    logs: ClassVar = {"temperature": "temperature T that logits are divided by"}

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's. calibration_images: the server's, which no client trains on."""

        calibration_images: int = option(1000, low=1)

    def unfit(self, ground: Ground) -> str:
        """Refuse networks whose BatchNorm statistics the engine averages after T was fitted."""
        return "models.global: temperature scaling needs a network without BatchNorm" if ground.batchwise else ""

    def server_images(self) -> int:
        return self.options.calibration_images  # type: ignore[no-any-return]

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "T": torch.ones_like(theta[0])}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        super().aggregate(server, updates)
        x, y = server.images()
        with torch.no_grad():
            z = torch.cat([server.model(server["theta"], part) for part in x.split(AT_ONCE)])
        server["T"] = temperature(z, y).to(z.dtype)
        return {"temperature": server["T"]}

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        theta, T = server["theta"], server["T"]
        return [Predictor(GLOBAL, lambda x: F.log_softmax(server.model(theta, x) / T, -1))]


def temperature(z: Tensor, y: Tensor) -> Tensor:
    """T () in float64 for logits z (n, classes) and labels y (n,), between 1e-3 and 1e3."""
    z = z.double()
    low, high = (torch.full_like(z[0, 0], bound) for bound in (math.log(1e-3), math.log(1e3)))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p = (middle.exp() * z).softmax(-1)
        rising = ((p * z).sum(-1) - z.gather(-1, y[:, None])[:, 0]).sum() > 0  # the optimal b is smaller
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return (-(low + high) / 2).exp()


METHOD = FedAvgTemperature
