"""FedAvg+SWAG (Linsner et al. 2021): FedAvg, whose clients gather SWAG's moments in the last round.

In it client k takes d = theta_k - theta after each epoch, theta the server's model, and sends the means m_k of d and s_k of
d^2. Server:

    m = sum_k q_k m_k,  s = sum_k q_k s_k,  N(theta + m, diag(s - m^2)),

and predicts with the mean of softmax(f(x; .)) over samples of it. How the clients' Gaussians are put together the papers
do not say: this one is the Gaussian with the mixture's moments.

Its covariance is diagonal. SWAG's own has half of that and half of one of low rank, by `rank`: client k sends the
deviations D_k (R, P) of d from its running mean after each of the last R epochs, and the server's half is the mixture's,

    sum_k q_k (D_k^T D_k / (R - 1) + (m_k - m)(m_k - m)^T)  =  C^T C,
    theta + m + (sqrt(s - m^2) z + C^T z')/sqrt(2),   z, z' ~ N(0, I)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import sample, weighted_mean
from bayesfed.bayes.sampling import diagonal_gaussian
from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_average


class FedSWAG(FedAvg):
    """FedAvg; after the last round the server holds the Gaussian's mean as theta, and its sigma."""

    name = "fedswag"
    label = "FedAvg+SWAG"
    revision = 1
    by_epochs = True
    logs: ClassVar = {"sigma_mean": "mean of the Gaussian's sigma over all parameters, in the last round"}

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's. samples: how many networks predict in the last round. rank: R; 0 is the diagonal covariance."""

        samples: int = option(30, low=1)
        rank: int = option(0, low=0)

    def start(self, c: Node, message: State) -> State:
        state = super().start(c, message)
        if c.last:
            zeros = torch.zeros_like(state["theta"])
            state |= {"start": message["theta"].clone(), "sum": zeros, "squares": zeros.clone()}
            state["epochs"] = torch.zeros_like(c.n)
            state["D"] = zeros.new_zeros(min(self.options.rank, c.epochs), len(zeros))
        return state

    def phases(self, c: Node) -> Sequence[Phase]:
        local = c.local(self.step)
        return [replace(local, epoch_end=self.collect) if c.last else local]

    def collect(self, c: Node) -> None:
        d = c["theta"] - c["start"]
        c["sum"].add_(d)
        c["squares"].addcmul_(d, d)
        c["epochs"].add_(1)
        if self.options.rank:
            c["D"].copy_(torch.cat([c["D"][1:], (d - c["sum"] / c["epochs"])[None]]))

    def finish(self, c: Node) -> State:
        if not c.last:
            return super().finish(c)
        return {"moved": c["sum"] / c["epochs"], "squares": c["squares"] / c["epochs"], "D": c["D"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        if not server.last:
            return super().aggregate(server, updates)
        q = shares(updates)
        moments = (weighted_mean(q, stacked(updates, name)) for name in ("moved", "squares"))
        moved, sigma = diagonal_gaussian(*moments)
        dtype = server["theta"].dtype
        server["theta"], server["sigma"] = server["theta"] + moved.to(dtype), sigma.to(dtype)
        if self.options.rank:
            server["C"] = torch.cat([self.columns(update, moved) for update in updates]).to(dtype)
        return {"sigma_mean": sigma.mean()}

    def columns(self, update: Update, moved: Tensor) -> Tensor:
        """Return a client's rows of C (R + 1, P), with the mean m of all (P,); of a single deviation the divisor is 1."""
        D, apart = update["D"].double(), update["moved"].double() - moved
        return update.q.sqrt() * torch.cat([D / max(len(D) - 1, 1) ** 0.5, apart[None]])

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        if "sigma" not in server.state:
            return super().server_predictors(server)
        theta, sigma = server["theta"], server["sigma"]

        def draw() -> Tensor:
            drawn = sample(theta, sigma, server.noise(theta))
            if not self.options.rank:
                return drawn
            C = server["C"]
            return theta + (drawn - theta + server.noise(C[:, 0]) @ C) / 2**0.5

        averaged = softmax_average(GLOBAL, server.model, draw, self.options.samples, ("test", "shard"))
        return [replace(averaged, name=GLOBAL)]  # it stands for the method


METHOD = FedSWAG
