"""pFedMe (Dinh et al., NeurIPS 2020): a client's own model is the proximal point of the common one under its loss.

Client i from w, each mini-batch: K gradient steps on h(theta) = F(theta) + lambda/2 ||theta - w||^2, then one of w on the
Moreau envelope of F, whose gradient is lambda (w - theta):

    theta <- theta - eta_p (g + lambda (theta - w) + decay theta)        K times, on one mini-batch, on from the last theta
    w     <- w - eta lambda (w - theta)

Server, over S of the clients, all of which have trained:

    w <- (1 - beta) w + beta sum_i q_i w_i

The last theta is the client's model. As in the public code, it begins each round at the server's w, and h has a decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, move_towards_average, shares, some
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import ce_gradient


class PFedMe(Method):
    """A client keeps theta, its own model, though every round starts it again; the server has w."""

    name = "pfedme"
    label = "pFedMe"
    revision = 1
    personal = True

    @dataclass(frozen=True)
    class Options:
        """The public code's values. personal_lr: eta_p. lr: eta. penalty: lambda. inner_steps: K. averaged: S; 0 is all."""

        lr: float = option(0.01, above=0)
        personal_lr: float = option(0.01, above=0)
        penalty: float = option(15.0, low=0)
        inner_steps: int = option(5, low=1)
        weight_decay: float = option(1e-3, low=0)
        beta: float = option(1.0, above=0, high=1)
        averaged: int = option(0, low=0)

    def init_server(self, server: Node) -> State:
        return {"w": server.initial()}

    def init_client(self, c: Node) -> State:
        return {"theta": c.initial()}

    def start(self, c: Node, message: State) -> State:
        return {"theta": message["w"].clone(), "w": message["w"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        o = self.options
        for _ in range(o.inner_steps):
            away = c["theta"] - c["w"]
            g = ce_gradient(c, "theta", batch).add_(away, alpha=o.penalty).add_(c["theta"], alpha=o.weight_decay)
            c["theta"].sub_(c.rate(o.personal_lr) * g)
        c["w"].sub_(c.rate(o.lr) * o.penalty * (c["w"] - c["theta"]))

    def finish(self, c: Node) -> State:
        return {"w": c["w"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        chosen = some(server, updates, self.options.averaged)
        move_towards_average(server, chosen, "w", self.options.beta, shares(chosen))
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("personal", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["w"])]


METHOD = PFedMe
