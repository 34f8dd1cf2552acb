"""FedLap-Cov (Swaroop et al. 2025): FedLap with a Gaussian site term of every client, by Laplace's approximation.

Sums over n_k images, the prior N(0, 1/delta), all precisions diagonal. Client k, from v_k = V_k = 0:

    theta_k <- argmin n_k CE + v_k^T theta - 1/2 theta^T V_k theta + 1/2 (theta - m)^T S (theta - m)
    H_k = diagonal of the Gauss-Newton matrix of n_k CE at theta_k                        (`steps.gauss_newton`, one pass)
    S_k = H_k - V_k + S
    v_k <- v_k + rho (S_k theta_k - S m),    V_k <- (1 - rho) V_k + rho H_k

Server, over all clients, as running sums that those who are absent stay in:

    S <- delta + sum_k V_k,    m <- S^-1 sum_k v_k

S >= delta + V_k, so that the local quadratic term stays positive; sums are kept in float64 for that. First m = 0 and
S = delta; `received: flat` is the public code's S = 0. The code takes H_k of all clients' images on CIFAR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.fedlap import FedLap
from bayesfed.methods.method import Ground, Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_average
from bayesfed.methods.steps import gauss_newton

SAMPLES = 32  # weight samples of the averaged predictions


class FedLapCov(FedLap):
    """A client keeps v and V; the server holds m, as theta, its precision S, and the sums of all v and V. Scales and shifts
    of normalisation have no site term: the clients' own travel in place of their duals, and the server takes the mean."""

    name = "fedlap_cov"
    label = "FedLap-Cov"
    revision = 1
    draws_by_image = True
    predictive = GLOBAL  # the paper tests the mean m
    logs: ClassVar = {"precision_mean": "mean of the server's precisions S over all parameters"}

    @dataclass(frozen=True)
    class Options(FedLap.Options):
        """FedLap's. received: S of the first round. draws: of the Gauss-Newton diagonal, each a gradient of every batch."""

        received: Literal["prior", "flat"] = "prior"
        draws: int = option(1, low=1)

    options: Options

    def unfit(self, ground: Ground) -> str:
        if self.options.proximal == "norm":
            return "method.proximal: FedLap-Cov's term is squared in the public code, too; take squared"
        return ""

    def init_server(self, server: Node) -> State:
        zero = torch.zeros_like(server.initial(), dtype=torch.float64)
        S = zero + self.options.delta * (self.options.received == "prior")
        return {"theta": torch.zeros_like(server.initial()), "S": S, "v": zero, "V": zero.clone()}

    def init_client(self, c: Node) -> State:
        zero = torch.zeros_like(c.initial(), dtype=torch.float64)
        return FedAvg.init_client(self, c) | {"v": zero, "V": zero.clone()}

    def message(self, server: Node, client: int) -> State:
        return {"theta": server["theta"], "S": server["S"].to(server["theta"].dtype)}

    def start(self, c: Node, message: State) -> State:
        theta, S = message["theta"], message["S"].double()
        quadratic, linear = (S - c["V"]).clamp(min=0), S * theta - c["v"]
        return super().start(c, {"theta": theta}) | {
            "S": S.clone(),
            "H": torch.zeros_like(theta),
            "quadratic": c.weights(quadratic.to(theta.dtype), 0),
            "linear": c.weights(linear.to(theta.dtype), 0),
        }

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        """Return that of the client's objective over n_k."""
        return FedAvg.gradient(self, c, batch) + (c["quadratic"] * c["theta"] - c["linear"]) / c.n

    def measure(self, c: Learner, batch: Batch) -> None:
        """Add to H_k, a sum over the client's images."""
        for _ in range(self.options.draws):
            c["H"].add_(gauss_newton(c, c["theta"], batch), alpha=1 / self.options.draws)

    def phases(self, c: Node) -> Sequence[Phase]:
        return [c.local(self.step), Phase(self.measure, epochs=1, augment=False, counted=False)]

    def finish(self, c: Node) -> State:
        H, rho = c["H"].double(), self.rho(c)
        dv = rho * ((H - c["V"] + c["S"]) * c["theta"] - c["S"] * c["theta_0"])
        dv, dV = (c.weights(change.to(c["theta"].dtype), 0) for change in (dv, rho * (H - c["V"])))
        c["v"].add_(dv)
        c["V"].add_(dV)
        return {"dv": c.weights(dv, c["theta"]), "dV": dV}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        for name in ("v", "V"):
            server[name] = server[name] + server.weights(stacked(updates, f"d{name}").double().sum(0), 0)
        server["S"] = self.options.delta + server["V"]
        theta = server["v"] / server["S"]
        if server.scaling is not None:
            q = shares(updates, equal=self.options.weights == "equal")
            theta = server.weights(theta, weighted_mean(q, stacked(updates, "dv")))
        server["theta"] = theta.to(server["theta"].dtype)
        return {"precision_mean": server["S"].mean()}

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            theta = server["theta"]
            return theta + server.weights(server.noise(theta), 0) * server["S"].rsqrt().to(theta.dtype)

        return [*super().server_predictors(server), softmax_average(GLOBAL, server.model, draw, SAMPLES, ("test",))]


METHOD = FedLapCov
