"""FedIvon (2025, arXiv 2411.18385): clients train by IVON from the server's posterior, and their curvatures weigh the mean.

Client k from the server's (m, h), by IVON (`methods.steps`) with lambda = n_k and w = delta, the prior N(0, 1/(n_k delta)):

    (m_k, h_k) <- its local epochs, with fresh momentum

Server, w_k = n_k/n over those who took part:

    h <- sum_k w_k h_k,    m <- sum_k w_k (h_k + delta) m_k/sum_k w_k (h_k + delta)

and its posterior is N(m, 1/(n (h + delta))). `prior: server` is the personalised form: from the second round on the client's
prior is that posterior, w = n (h + delta)/n_k around m, and its own N(m_k, 1/(n_k (h_k + w))) predicts; h_k + w takes the
place of h_k + delta in the mean. No code or hyperparameters are public; the equations are a third party's note.
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

SAMPLES = 64  # weight samples of the averaged predictions
FLOOR = 1e-3  # of h + delta, as a share of delta


class FedIvon(Method):
    """The server holds m, h and, after a round, n; a client keeps nothing."""

    name = "fedivon"
    label = "FedIvon"
    revision = 1
    free = ("stiffness",)
    logs: ClassVar = {"curvature_mean": "mean of the server's h over all parameters"}

    @dataclass(frozen=True)
    class Options:
        """IVON's package's values. weight_decay: delta. curvature: h begins a round as the server's, or at h_start. rescale:
        multiply lr by h_start + weight_decay, as the package does. beta2: take less where a round has few steps."""

        prior: Literal["fixed", "server"] = "fixed"
        curvature: Literal["server", "fresh"] = "server"
        lr: float = option(0.1, above=0)
        momentum: float = option(0.9, low=0, below=1)
        weight_decay: float = option(1e-4, above=0)
        h_start: float = option(1.0, above=0)
        beta2: float = option(0.99999, above=0, high=1)
        rescale: bool = True

    options: Options

    def __init__(self, options: FedIvon.Options) -> None:
        super().__init__(options)
        o = options
        self.ivon = IVON(o.lr * (o.h_start + o.weight_decay if o.rescale else 1), o.momentum, o.beta2)

    def init_server(self, server: Node) -> State:
        m = server.initial()
        return {"m": m, "h": torch.full_like(m, self.options.h_start)}

    def start(self, c: Node, message: State) -> State:
        o, m, h = self.options, message["m"], message["h"]
        state = {"m": m.clone(), "m_0": torch.zeros_like(m), "w": torch.full_like(m, o.weight_decay)}
        if o.prior == "server" and "n" in message:
            state["m_0"], state["w"] = m.clone(), message["n"] / c.n * (h + o.weight_decay)
        state |= self.ivon.start("m", m, o.h_start)
        if o.curvature == "server":
            state["m.h"].copy_(h)
        return state

    def step(self, c: Learner, batch: Batch) -> None:
        d = self.ivon.noise(c, "m", c.n, c["w"])
        g = ce_gradient_at(c, c["m"] + d, batch)
        self.ivon.step(c, "m", g, d, c.n, c["w"], m_0=c["m_0"])

    def finish(self, c: Node) -> State:
        return {"m": c["m"], "h": c["m.h"], "stiffness": c["m.h"] + c["w"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        w, delta, dtype = shares(updates), self.options.weight_decay, server["m"].dtype
        ms, stiffness = stacked(updates, "m"), stacked(updates, "stiffness").double()
        h = weighted_mean(w, stacked(updates, "h")).clamp(min=(FLOOR - 1) * delta)
        server["h"], server["m"] = h.to(dtype), weighted_mean(w[:, None] * stiffness, ms).to(dtype)
        server["n"] = torch.full_like(w[0], sum(update.n for update in updates)).to(dtype)
        return {"curvature_mean": h.mean()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            return c["m"] + self.ivon.noise(c, "m", c.n, c["w"])

        return [
            softmax_of("local", c.model, c["m"]),
            softmax_average("local", c.model, draw, SAMPLES, sets=("shard",)),
        ]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            m, h = server["m"], server["h"]
            eps = server.weights(server.noise(m), 0)
            return m + eps * (server["n"] * (h + self.options.weight_decay)).rsqrt()

        return [
            softmax_of(GLOBAL, server.model, server["m"]),
            softmax_average(GLOBAL, server.model, draw, SAMPLES, sets=("test",)),
        ]


METHOD = FedIvon
