"""FedPA (Al-Shedivat et al. 2021): the server steps along the clients' posterior deltas.

Client k runs SGD from theta; after `burn_in` epochs the mean of the iterates of each further epoch is a sample x_l of its
posterior. From them

    delta_k = Sigma^-1 (x_bar - theta),  Sigma = rho_l I + (1 - rho_l) S          (bayes.sampling.posterior_delta)

Server, by SGD with momentum on -sum_k q_k delta_k. Before `start_round` clients send theta_k - theta, as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.bayes.sampling import posterior_delta
from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, Phase, State


class FedPA(FedAvg):
    """FedAvg's local steps; the server holds theta and its momentum v."""

    name = "fedpa"
    label = "FedPA"
    revision = 1
    by_epochs = True
    logs: ClassVar = {"delta_norm": "length of the averaged step from the global model"}

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """The public code's burn-in and shrinkage rho; start: the share of the rounds that are FedAvg's; the server's rate
        and momentum were tuned there for each problem."""

        burn_in: int = option(1, low=0)
        rho: float = option(0.1, low=0)
        start: float = option(0.5, low=0, high=1)
        server_lr: float = option(0.5, above=0)
        server_momentum: float = option(0.9, low=0, high=1)

    options: Options

    def init_server(self, server: Node) -> State:
        theta = server.initial()
        return {"theta": theta, "v": torch.zeros_like(theta)}

    def sampling(self, c: Node) -> bool:
        """Return whether clients sample their posterior in this round."""
        return c.round > self.options.start * c.rounds + 1e-9  # 0.29 of 100 is 28.999...

    def start(self, c: Node, message: State) -> State:
        state = super().start(c, message) | {"start": message["theta"].clone()}
        if not self.sampling(c):
            return state
        theta = state["theta"]
        zeros = {"sum": torch.zeros_like(theta), "steps": torch.zeros_like(c.n)}
        return state | zeros | {"samples": theta.new_zeros((c.epochs - self.burn_in(c), len(theta)))}

    def burn_in(self, c: Node) -> int:
        """Return the epochs before the first sample; a straggler's last epoch always gives one."""
        return min(self.options.burn_in, c.epochs - 1)

    def phases(self, c: Node) -> Sequence[Phase]:
        if not self.sampling(c):
            return [c.local(self.step)]
        return [
            Phase(self.step, epochs=self.burn_in(c)),
            Phase(self.note, epochs=c.epochs - self.burn_in(c), epoch_end=self.take_sample),
        ]

    def note(self, c: Learner, batch: Batch) -> None:
        """Do a step, and add to the sum of the epoch's iterates."""
        self.step(c, batch)
        c["sum"].add_(c["theta"])
        c["steps"].add_(1)

    def take_sample(self, c: Node) -> None:
        """Make the epoch's mean the next sample: it moves in behind, and all others forward."""
        c["samples"].copy_(torch.cat([c["samples"][1:], (c["sum"] / c["steps"])[None]]))
        c["sum"].zero_()
        c["steps"].zero_()

    def finish(self, c: Node) -> State:
        if not self.sampling(c):
            return {"delta": c["theta"] - c["start"]}
        return {"delta": posterior_delta(c["start"], c["samples"], self.options.rho).to(c["theta"].dtype)}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        q = shares(updates)
        delta = weighted_mean(q, stacked(updates, "delta"))
        server["v"] = (self.options.server_momentum * server["v"] + delta).to(server["v"].dtype)
        server["theta"] = server["theta"] + self.options.server_lr * server["v"]
        return {"delta_norm": delta.norm()}


METHOD = FedPA
