"""HeurFedAMP (Huang et al., AAAI 2021): every client is held near a mixture of all clients' models of its own.

Server, from the last models w_1, ..., w_N of all clients, for client i:

    xi_ij = (1 - xi_ii) exp(s cos(w_i, w_j)) / sum_{h != i} exp(s cos(w_i, w_h)),    xi_ii = alpha
    u_i   = sum_j xi_ij w_j

Client i, from its own w_i, each mini-batch:

    w <- w - lr (g + lambda (w - u_i))

There is no common model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, ce_gradient


class HeurFedAMP(Method):
    """The server holds W, the clients' last models (N, P); client i keeps w, its row of it."""

    name = "heurfedamp"
    label = "HeurFedAMP"
    revision = 1
    personal = True

    @dataclass(frozen=True)
    class Options:
        """alpha: a client's weight of itself. scale: s of the cosines. penalty: lambda (of the paper, over its alpha_k)."""

        lr: float = option(0.01, above=0)
        alpha: float = option(0.5, low=0, high=1)
        scale: float = option(10.0, low=0)
        penalty: float = option(1.0, low=0)

    def __init__(self, options: HeurFedAMP.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, 0.0, 0.0)

    def init_server(self, server: Node) -> State:
        return {"W": server.initial().repeat(server.clients, 1)}

    def init_client(self, c: Node) -> State:
        return {"w": c.initial()}

    def weights(self, W: Tensor, i: int) -> Tensor:
        """Return xi_i1, ..., xi_iN from all models W (N, P): (N,), float64."""
        norms, products = W.norm(dim=1), W @ W[i]
        cosines = products / (norms * norms[i]).clamp(min=1e-12)
        scores = (self.options.scale * cosines).double()
        scores[i] = -torch.inf
        xi = (1 - self.options.alpha) * scores.softmax(0) if len(W) > 1 else torch.zeros_like(scores)
        xi[i] = self.options.alpha if len(W) > 1 else 1.0
        return xi

    def message(self, server: Node, client: int) -> State:
        W = server["W"]
        return {"u": self.weights(W, client).to(W.dtype) @ W}

    def start(self, c: Node, message: State) -> State:
        return {"u": message["u"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        g = ce_gradient(c, "w", batch)
        self.sgd.step(c, w=g + self.options.penalty * (c["w"] - c["u"]))

    def finish(self, c: Node) -> State:
        return {"w": c["w"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["W"] = server["W"].clone()
        for update in updates:
            server["W"][update.client] = update["w"]
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("personal", c.model, c["w"])]


METHOD = HeurFedAMP
