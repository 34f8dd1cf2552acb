"""FedCurv (Shoham et al. 2019): every client is held near the others' models, by what their data say of each parameter.

Client s from theta, with I_j = diag of client j's Fisher information at the end of its last training, at theta_j:

    L_s(theta) = CE + lambda sum_{j != s} (theta - theta_j)^T I_j (theta - theta_j)

whose gradient needs two sums only, u = sum_{j != s} I_j and v = sum_{j != s} I_j theta_j:

    g + 2 lambda (u theta - v)

I_j is the mean of g^2, with the gradients g of mini-batches, weighted by their images, or of single images (`squares`).

FOLA's repository does something else under this name, `form: repository`: in round r the penalty lambda/(2r) (theta - mu)^T
Omega (theta - mu) with mu the global model and Omega = sum_n pi_n I_n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Ground, Update, average, stacked
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.steps import Squares, gradient_and_squares, no_squares


class FedCurv(FedAvg):
    """FedAvg's round on another loss, and a pass that only measures; a client keeps its own terms of the sums."""

    name = "fedcurv"
    label = "FedCurv"
    revision = 1
    logs: ClassVar = {
        "fisher_mean": "mean over all parameters of the clients' Fisher information, summed over them (averaged by `form: repository`)"
    }

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's, with the values of FOLA's public code, and penalty, the weight lambda; squares, of gradients of
        mini-batches or single images."""

        penalty: float = option(1.0, low=0)
        squares: Squares = "batch"
        form: Literal["shoham", "repository"] = "shoham"
        momentum: float = option(0.0, low=0, high=1)
        weight_decay: float = option(0.0, low=0)
        clip: float | None = option(10.0, above=0)

    options: Options

    def unfit(self, ground: Ground) -> str:
        return no_squares(self.options.squares, ground)

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "u": torch.zeros_like(theta), "v": torch.zeros_like(theta)}

    def init_client(self, c: Node) -> State:
        zero = torch.zeros_like(c.initial())
        return super().init_client(c) | {"own.u": zero, "own.v": zero.clone()}

    def message(self, server: Node, client: int) -> State:
        used = ("theta", "u", "v") if self.options.form == "shoham" else ("theta", "u")
        return {name: server[name] for name in used}

    def start(self, c: Node, message: State) -> State:
        u = message["u"]
        if self.options.form == "shoham":
            stiffness, pull = 2 * (u - c["own.u"]), 2 * (message["v"] - c["own.v"])
        else:
            stiffness, pull = u / c.round, u * message["theta"] / c.round
        measured = {"fisher": torch.zeros_like(u)}
        return super().start(c, message) | {"stiffness": stiffness, "pull": pull} | measured

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        penalty = self.options.penalty * (c["stiffness"] * c["theta"] - c["pull"])
        return super().gradient(c, batch) + penalty

    def measure(self, c: Learner, batch: Batch) -> None:
        """Add |b|/n g^2 to I at the trained theta, g being the gradient of CE alone."""
        _, squares = gradient_and_squares(c, "theta", batch, self.options.squares)
        c["fisher"].add_(batch.size / c.n * squares)

    def phases(self, c: Node) -> Sequence[Phase]:
        return [c.local(self.step), Phase(self.measure, epochs=1, counted=False)]

    def finish(self, c: Node) -> State:
        fisher, theta = c["fisher"], c["theta"]
        if self.options.form == "shoham":
            sent = {"theta": theta, "du": fisher - c["own.u"], "dv": fisher * theta - c["own.v"]}
        else:
            sent = {"theta": theta, "fisher": fisher}
        c["own.u"].copy_(fisher)
        c["own.v"].copy_(fisher * theta)
        return sent

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        super().aggregate(server, updates)
        if self.options.form == "shoham":  # sums over all clients, those that were absent included
            for name in ("u", "v"):
                server[name] = server[name] + stacked(updates, f"d{name}").sum(0)
        else:
            server["u"] = average(updates, "fisher")
        return {"fisher_mean": server["u"].mean()}


METHOD = FedCurv
