"""Deep ensemble (Lakshminarayanan et al. 2017) of FedAvg: M networks with initial weights of their own, each by FedAvg.

    theta_m <- sum_k q_k theta_km, m = 1..M        p(y | x) = 1/M sum_m softmax(f(x; theta_m))

A step trains every member on the same mini-batch, so that members differ by their initial weights alone. Training, bytes and
predictions cost M times FedAvg's. The mixture is `global`; with M = 1 it is FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Ground
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, mixture
from bayesfed.methods.steps import ce_gradient_at, clip


class FedAvgDeepEnsemble(FedAvg):
    """FedAvg; the client's and the server's theta have a row for each member, (M, P)."""

    name = "fedavg_deep_ensemble"
    label = "FedAvg deep ensemble"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's, of each member. members: M."""

        members: int = option(5, low=1)

    def unfit(self, ground: Ground) -> str:
        """Refuse networks with BatchNorm, of whose statistics a client has one set."""
        return "models.global: a deep ensemble needs a network without BatchNorm" if ground.batchwise else ""

    def members(self, node: Node) -> Tensor:
        """Return the initial theta (M, P)."""
        return torch.stack([node.initial(member=m) for m in range(self.options.members)])

    def init_server(self, server: Node) -> State:
        return {"theta": self.members(server)}

    def init_client(self, c: Node) -> State:
        return self.optimizer.start("theta", self.members(c)) if self.options.optimizer_state == "kept" else {}

    def step(self, c: Learner, batch: Batch) -> None:
        each = [clip(ce_gradient_at(c, theta, batch), self.options.clip) for theta in c["theta"]]
        g = torch.cat(each).view_as(c["theta"])  # a CPU's recorded steps have no place for what torch.stack gives
        self.optimizer.step(c, theta=g)

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [Predictor("local", mixture(c.model, c["theta"]), passes=self.options.members)]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [Predictor(GLOBAL, mixture(server.model, server["theta"]), passes=self.options.members)]


METHOD = FedAvgDeepEnsemble
