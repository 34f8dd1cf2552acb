"""BayesADMM (Möllenhoff et al. 2026): federated ADMM whose iterates are Gaussians, with dual variables of their naturals.

K clients, all precisions diagonal. Client k, from v_k = V_k = 0 and the server's N(m, 1/S), first N(0, 1/S_0):

    q_k <- argmin n_k/tau E_q[CE] + E_q[v_k^T theta - 1/2 theta^T V_k theta] + rho KL(q || N(m, 1/S))
    v_k <- v_k + gamma rho (S_k m_k - S m),    V_k <- V_k + gamma rho (S_k - S)

by IVON (`methods.steps`) with lambda = n_k/(tau rho), w = S/lambda and S_k = lambda h + S. Server, with means over those
who took part, and sums over all clients, as running sums that those who are absent stay in:

    S <- (1 - alpha) mean_k S_k + alpha (S_0 + sum_k V_k)
    m <- S^-1 ((1 - alpha) mean_k S_k m_k + alpha sum_k v_k),    alpha = 1/(1 + K rho)

A round begins with m_k = m, in the first round the network's own start, and h = 0, in the first round h_start; momentum and
the count of steps last. alpha = rho = tau = 1 is partitioned variational inference (PVI) with damping gamma.

Where V_k is above rho S, a client's objective is convex by the loss alone, and may have no minimum. It comes to that where a
client has more than the share rho of all precision.

`server: mean` is the ablation without duals: every client has the prior N(0, 1/S_0) and rho = 1, goes on from the server's
Gaussian, and the server takes the means, weighted by q. Scales and shifts of normalisation have no h and no duals: their S_k
is S, and the server takes their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of
from bayesfed.methods.steps import IVON, ce_gradient_at

SAMPLES = 32  # weight samples of the averaged predictions
FLOOR = 1e-3  # of S, as a share of S_0


class BayesADMM(Method):
    """A client keeps v, V, momentum and count; the server holds m, S and the sums of all v and V."""

    name = "bayesadmm"
    label = "BayesADMM"
    revision = 1
    logs: ClassVar = {
        "precision_mean": "mean of the server's precisions S over all parameters",
        "precision_floored": "share of the server's precisions that were raised to a thousandth of the prior's",
        "duals_above": "largest share over the clients of parameters with V_k above rho S",
    }
    free = ("above",)

    @dataclass(frozen=True)
    class Options:
        """The public configuration of CIFAR-10 with the CNN of Acar et al., where the run's `schedule` is `cosine: true`.

        prior: S_0. temperature: tau. step: rho. damping: gamma. alpha: of the server; 1/(1 + K rho) by default. server: as
        above. h_start: IVON's first curvature. beta2: of the curvature.
        """

        prior: float = option(0.5, above=0)
        temperature: float = option(0.1, above=0)
        step: float = option(1.0, above=0)
        damping: float = option(0.1, low=0)
        alpha: float | None = option(None, low=0, high=1)
        server: Literal["admm", "mean"] = "admm"
        lr: float = option(0.005, above=0)
        momentum: float = option(0.9, low=0, below=1)
        h_start: float = option(0.1, above=0)
        beta2: float = option(0.99998, above=0, high=1)

    def __init__(self, options: BayesADMM.Options) -> None:
        super().__init__(options)
        self.ivon = IVON(options.lr, options.momentum, options.beta2)
        self.admm = options.server == "admm"
        self.rho = options.step if self.admm else 1.0

    def init_server(self, server: Node) -> State:
        m = server.initial()
        zero = torch.zeros_like(m, dtype=torch.float64)
        return {"m": torch.zeros_like(m), "S": zero + self.options.prior, "v": zero, "V": zero.clone()}

    def init_client(self, c: Node) -> State:
        m = c.initial()
        zero, fresh = torch.zeros_like(m, dtype=torch.float64), self.ivon.start("m", m, 0.0)
        return {"v": zero, "V": zero.clone(), "m.b": fresh["m.b"], "m.t": fresh["m.t"]}

    def message(self, server: Node, client: int) -> State:
        return {"m": server["m"], "S": server["S"].to(server["m"].dtype)}

    def start(self, c: Node, message: State) -> State:
        o, m, S, first = self.options, message["m"], message["S"].double(), c.round == 1
        size = c.n / (o.temperature * self.rho)
        h = torch.full_like(m, o.h_start) if first or self.admm else ((S - o.prior) / size).to(m.dtype)
        rest = torch.zeros_like(m) if self.admm and not first else h
        m_0, S_0 = (m, S) if self.admm else (torch.zeros_like(m), torch.full_like(S, o.prior))
        return {
            "m": c.initial() if first else m.clone(),
            "m.h": c.weights(rest, o.h_start),
            "m_0": m_0.clone(),
            "S": S_0.clone(),
            "lambda": size,
            "w": (S_0 / size).to(m.dtype),
            "dual": (o.temperature / c.n * c["v"]).to(m.dtype),
            "Dual": (o.temperature / c.n * c["V"]).to(m.dtype),
        }

    def step(self, c: Learner, batch: Batch) -> None:
        size, w = c["lambda"], c["w"]
        d = self.ivon.noise(c, "m", size, w)
        g = ce_gradient_at(c, c["m"] + d, batch)
        self.ivon.step(c, "m", g, d, size, w, m_0=c["m_0"], duals=(c["dual"], c["Dual"]))

    def finish(self, c: Node) -> State:
        S_k = c["S"] + c.weights(c["lambda"] * c["m.h"], 0)
        sent = {"S": S_k, "Sm": S_k * c["m"], "above": c["V"].gt(self.rho * c["S"]).double().mean()}
        if self.admm:
            rate = self.options.damping * self.rho
            dv = c.weights(rate * (sent["Sm"] - c["S"] * c["m_0"]), 0)
            sent |= {"dv": dv, "dV": rate * (S_k - c["S"])}
        sent = {name: value.to(c["m"].dtype) for name, value in sent.items()}
        if self.admm:
            c["v"].add_(sent["dv"])
            c["V"].add_(sent["dV"])
        return sent

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        q, alpha, dtype = shares(updates), 0.0, server["m"].dtype
        if self.admm:
            q, alpha = torch.ones_like(q), self.options.alpha
            alpha = 1 / (1 + server.clients * self.rho) if alpha is None else alpha
            for name in ("v", "V"):
                server[name] = server[name] + stacked(updates, f"d{name}").double().sum(0)
        S, Sm = (weighted_mean(q, stacked(updates, name)) for name in ("S", "Sm"))
        S, least = (1 - alpha) * S + alpha * (self.options.prior + server["V"]), FLOOR * self.options.prior
        server["S"] = S.clamp(min=least)
        server["m"] = (server.weights((1 - alpha) * Sm + alpha * server["v"], Sm) / server["S"]).to(dtype)
        above = stacked(updates, "above").max()
        floored = S.lt(least).double().mean()
        return {"precision_mean": server["S"].mean(), "precision_floored": floored, "duals_above": above}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["m"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            m = server["m"]
            return m + server.weights(server.noise(m), 0) * server["S"].rsqrt().to(m.dtype)

        return [
            softmax_of(GLOBAL, server.model, server["m"]),
            softmax_average(GLOBAL, server.model, draw, SAMPLES, sets=("test",)),
        ]


METHOD = BayesADMM
