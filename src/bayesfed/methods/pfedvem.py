"""pFedVEM (Zhu et al. 2023): personal heads with Gaussian posteriors, whose confidence weighs them in a common prior.

The base (all layers but the last) is a shared vector, the head of client k is q_k = N(mu_k, sigma_k^2), sigma = softplus(s),
with d entries and the prior N(mu_g, rho_k^2). The server starts with mu_g ~ N(0, 1), a client with mu_k = mu_g. A round:

    M-step   rho_k^2 = (sum sigma_k^2 + ||mu_k - mu_g||^2)/d
    E-step   head_epochs steps of (mu_k, s_k), the base fixed, each on all n_k images:
             1/D sum_{draws} sum_j CE_j + KL(q_k || N(mu_g, rho_k^2))                          SGD with lr_head
    base     its local epochs, q_k fixed: 1/D sum_{draws} CE                                   SGD with lr

Server, of a random part A of those who took part, each with the probability `aggregated`, two at least:

    base <- (1 - beta) sum_A n_k base_k/sum_A n_k + beta base
    mu_g <- (1 - beta) sum_A mu_k rho_k^-2/sum_A rho_k^-2 + beta mu_g

The sum over images in the E-step makes lr_head grow with n_k. The public code gives a client whose loss is not a number its
old head back; here such a run ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import inverse_softplus, kl_gradient, softplus, through_softplus, weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, base_gradient, head_gradients

TOGETHER = 500  # images of a mini-batch of the E-step, whose gradient is a sum over all images


class PFedVEM(Method):
    """A client keeps its head, mu and s; the server holds the base and mu_g."""

    name = "pfedvem"
    label = "pFedVEM"
    revision = 1
    personal = True
    logs: ClassVar = {
        "rho_mean": "mean over the clients of rho_k, the deviation of their heads from the common one",
        "aggregated": "how many clients were aggregated",
    }

    @dataclass(frozen=True)
    class Options:
        """The public code's values for CIFAR-10; the run's local epochs are the base's. draws: D. sigma: the first one."""

        head_epochs: int = option(10, low=1)
        draws: int = option(5, low=1)
        lr_head: float = option(1e-3, above=0)
        lr: float = option(1e-3, above=0)
        momentum: float = option(0.9, low=0, high=1)
        sigma: float = option(1.0, above=0)
        aggregated: float = option(0.1, above=0, high=1)
        beta: float = option(0.0, low=0, high=1)

    def __init__(self, options: PFedVEM.Options) -> None:
        super().__init__(options)
        self.head = SGD(options.lr_head, options.momentum, 0.0)
        self.base = SGD(options.lr, options.momentum, 0.0)

    def unfit(self, ground: Ground) -> str:
        if len(ground.sizes) < 4:
            return "models.global: pFedVEM has a base below the last layer, and the network has one layer; take a deeper one"
        if ground.sizes[-1] != ground.classes:
            return "models.global: pFedVEM's head is the last layer's weight and bias, and the network has no such bias; give it one"
        return ""

    def parts(self, node: Node) -> tuple[Tensor, Tensor]:
        """Return the first base (P - d,) and head (d,), the weight and bias of the last layer."""
        theta = node.initial()
        base, head = theta.split([len(theta) - (d := sum(map(len, node.split(theta)[-2:]))), d])
        return base, head

    def init_server(self, server: Node) -> State:
        base, head = self.parts(server)
        return {"base": base.clone(), "mu": server.noise(head)}

    def init_client(self, c: Node) -> State:
        _, head = self.parts(c)
        sigma = torch.full_like(head, self.options.sigma)
        return {"mu": torch.zeros_like(head), "s": inverse_softplus(sigma), "begun": torch.zeros_like(c.n)}

    def start(self, c: Node, message: State) -> State:
        o, mu_g = self.options, message["mu"]
        mu = torch.where(c["begun"] > 0, c["mu"], mu_g)
        c["begun"].fill_(1)
        rho2 = (softplus(c["s"]).square() + (mu - mu_g).square()).mean()
        state = {"base": message["base"].clone(), "mu": mu, "mu_g": mu_g.clone(), "rho2": rho2}
        state |= self.base.start("base", state["base"]) | self.head.start("mu", mu) | self.head.start("s", mu)
        state["eps"] = c.noise(mu.new_empty(o.head_epochs, o.draws, len(mu)))  # of each epoch of the head
        return state | {"g_mu": torch.zeros_like(mu), "g_sigma": torch.zeros_like(mu)}

    def phases(self, c: Node) -> Sequence[Phase]:
        epochs = self.options.head_epochs
        heads = Phase(self.gather, epochs=epochs, counted=False, batch_size=TOGETHER, epoch_end=self.move)
        return [heads, c.local(self.step)]

    def gather(self, c: Learner, batch: Batch) -> None:
        """Add a mini-batch to the E-step's gradient in mu and sigma, without the KL."""
        eps = c["eps"][0]
        g = head_gradients(c, c["base"], c["mu"] + softplus(c["s"]) * eps, batch) * batch.size / self.options.draws
        c["g_mu"].add_(g.sum(0))
        c["g_sigma"].add_((g * eps).sum(0))

    def move(self, c: Node) -> None:
        """Move the head by a step; its next epoch has other draws."""
        mu, sigma, rho = c["mu"], softplus(c["s"]), c["rho2"].sqrt()
        k_mu, k_sigma = kl_gradient(mu, sigma, c["mu_g"], rho)
        self.head.step(c, mu=c["g_mu"] + k_mu, s=through_softplus(c["g_sigma"] + k_sigma, c["s"]))
        c["eps"].copy_(c["eps"].roll(-1, 0))
        c["g_mu"].zero_()
        c["g_sigma"].zero_()

    def step(self, c: Learner, batch: Batch) -> None:
        eps = torch.stack([c.noise(c["mu"]) for _ in range(self.options.draws)])
        self.base.step(c, base=base_gradient(c, c["base"], c["mu"] + softplus(c["s"]) * eps, batch))

    def finish(self, c: Node) -> State:
        return {"base": c["base"], "mu": c["mu"], "rho2": c["rho2"]}

    def chosen(self, server: Node, updates: Sequence[Update]) -> list[Update]:
        """Return A, each with its own draw, in order."""
        draws = server.noise(updates[0].q.new_empty(len(updates)))
        below = draws < torch.special.ndtri(torch.full_like(draws, self.options.aggregated))
        count = max(2, int(below.sum()))
        return [updates[place] for place in sorted(draws.argsort()[:count].tolist())]

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        A, beta = self.chosen(server, updates), self.options.beta
        n, rho2 = shares(A), stacked(A, "rho2")
        for name, weights in (("base", n), ("mu", 1 / rho2)):
            mean = weighted_mean(weights, stacked(A, name))
            server[name] = ((1 - beta) * mean + beta * server[name]).to(server[name].dtype)
        count = torch.full_like(n[0], len(A))
        return {"rho_mean": stacked(updates, "rho2").sqrt().mean(), "aggregated": count}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("personal", c.model, torch.cat([c["base"], c["mu"]]))]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of(GLOBAL, server.model, torch.cat([server["base"], server["mu"]]))]


METHOD = PFedVEM
