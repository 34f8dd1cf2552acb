"""FedGVI (Mildner et al. 2025): partitioned variational inference with a robust loss and a robust divergence.

Gaussians with diagonal precisions, in natural parameters. The server's q is at first the prior N(0, sigma_0^2), client k's
site t_k = 1. Client k, with the cavity q/t_k:

    q_k <- argmin sum_j E_q_k[L(theta; x_j, y_j)] + D_alpha(q_k || q/t_k)        L = (1 - p_y^delta)/delta
    t_k <- t_k exp(eta (nat(q_k) - nat(q)))

Server, over all clients, where the sites of those who are absent stay in q:

    nat(q) <- nat(q) + eta sum_k (nat(q_k) - nat(q))

D_alpha is Rényi's divergence (`bayes.gaussian.renyi`). alpha = 1, the KL divergence, and delta = 0, L = -log p_y, are PVI
(Ashman et al. 2022). With Adam, reset in each round; from N(0, `first`) in the first and from q in others. Scales and shifts
of normalisation have no divergence and no draws, and are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import renyi_gradient, sample
from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of
from bayesfed.methods.steps import Adam, grad, leaves, loss_gradient

SAMPLES = 200  # weight samples of the averaged predictions
LEAST = 1e-6  # of a precision: a cavity's, and the server's


class FedGVI(Method):
    """A client keeps its site, the server holds q; both as precision S and Sm, precision times mean."""

    name = "fedgvi"
    label = "FedGVI"
    revision = 1
    free = ("m",)
    logs: ClassVar = {
        "precision_mean": "mean of the server's precisions over all parameters",
        "precision_floored": "share of the server's precisions that were raised to 1e-6",
    }

    @dataclass(frozen=True)
    class Options:
        """The paper's values, but that it draws activations, 10 times. damping: eta, 1/K of K clients by default. prior:
        sigma_0^2. first: variance of the first round's start. draws: of weights, for each mini-batch."""

        alpha: float = option(2.5, above=0)
        delta: float = option(0.5, low=0, high=1)
        damping: float | None = option(None, above=0, high=1)
        prior: float = option(1.0, above=0)
        first: float = option(1e-3, above=0)
        draws: int = option(1, low=1)
        lr: float = option(5e-4, above=0)

    def __init__(self, options: FedGVI.Options) -> None:
        super().__init__(options)
        self.adam = Adam(options.lr, 0.0)

    def init_server(self, server: Node) -> State:
        m = server.initial()
        zero = torch.zeros_like(m, dtype=torch.float64)
        return {"m": torch.zeros_like(m), "S": zero + 1 / self.options.prior, "Sm": zero}

    def init_client(self, c: Node) -> State:
        zero = torch.zeros_like(c.initial(), dtype=torch.float64)
        return {"site.S": zero, "site.Sm": zero.clone()}

    def message(self, server: Node, client: int) -> State:
        return {name: server[name].to(server["m"].dtype) for name in ("m", "S", "Sm")}

    def start(self, c: Node, message: State) -> State:
        m, S, Sm = message["m"].clone(), message["S"].double(), message["Sm"].double()
        s = (-S.log()).to(m.dtype)
        if c.round == 1:
            m, s = c.weights(m, c.initial()), torch.full_like(s, self.options.first).log()
        cavity = (S - c["site.S"]).clamp(min=LEAST)
        state = {"m": m, "s": s, "S": S.clone(), "Sm": Sm.clone()}
        state |= self.adam.start("m", m) | self.adam.start("s", m)
        cavity_m = (Sm - c["site.Sm"]) / cavity
        return state | {"cavity.m": cavity_m.to(m.dtype), "cavity.variance": cavity.reciprocal().to(m.dtype)}

    def gradient(self, c: Learner, theta: Tensor, batch: Batch) -> Tensor:
        """Return that of the mean L over the batch: that of -log p_y, times p_y^delta for each image."""
        (theta,) = leaves(theta)
        logits = c.model(theta, batch.x)
        p = logits.detach().log_softmax(-1).gather(1, batch.y[:, None])
        (g,) = grad(logits, theta, at=loss_gradient(batch, logits) * (self.options.delta * p).exp())
        return g

    def step(self, c: Learner, batch: Batch) -> None:
        sigma, draws = (c["s"] / 2).exp(), self.options.draws
        away = renyi_gradient(c["m"], sigma.square(), c["cavity.m"], c["cavity.variance"], self.options.alpha)
        g_m, g_s = (c.weights(g / c.n, 0) for g in away)
        for _ in range(draws):
            eps = c.weights(c.noise(sigma), 0)
            g = self.gradient(c, sample(c["m"], sigma, eps), batch) / draws
            g_m, g_s = g_m + g, g_s + g * eps * sigma / 2
        self.adam.step(c, m=g_m, s=g_s)

    def finish(self, c: Node) -> State:
        damping = self.options.damping or 1 / c.clients
        S_k = c.weights((-c["s"]).double().exp(), c["S"])
        change = S_k * c["m"] - c["Sm"]
        changes = {"S": damping * (S_k - c["S"]), "Sm": c.weights(damping * change, change)}
        sent = {name: change.to(c["m"].dtype) for name, change in changes.items()}
        for name, change in sent.items():
            c[f"site.{name}"].add_(c.weights(change, 0))
        return sent

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        changes = {name: stacked(updates, name).double() for name in ("S", "Sm")}
        S, Sm = (server[name] + server.weights(each.sum(0), each.mean(0)) for name, each in changes.items())
        server["S"], server["Sm"] = S.clamp(min=LEAST), Sm
        server["m"] = (Sm / server["S"]).to(server["m"].dtype)
        return {"precision_mean": server["S"].mean(), "precision_floored": S.lt(LEAST).double().mean()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["m"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            m = server["m"]
            return sample(m, server["S"].rsqrt().to(m.dtype), server.weights(server.noise(m), 0))

        return [
            softmax_of(GLOBAL, server.model, server["m"]),
            softmax_average(GLOBAL, server.model, draw, SAMPLES, sets=("test",)),
        ]


METHOD = FedGVI
