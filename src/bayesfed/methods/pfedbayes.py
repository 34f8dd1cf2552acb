"""pFedBayes (Zhang et al., ICML 2022): every client's own Gaussian is held near the common one, its prior, by a KL.

Client i has q = N(mu, diag sigma^2), which it keeps, and w = N(mu_w, diag sigma_w^2), which begins each round as the
server's; sigma = softplus(rho) of both. Each mini-batch of b of its n images, with g_1, ..., g_K ~ N(0, I):

    Omega   = -(n/b) 1/K sum_k sum_j log p(y_j | x_j; mu + sigma g_k) + zeta KL(q || w)      a step of (mu, rho)
    Omega_w = KL(q || w)                                                                     a step of (mu_w, rho_w)

Server, over S of the clients, the mean of mu_w and rho_w alike:

    v <- (1 - beta) v + beta/S sum_i v_i,    v = (mu, rho)

Scales and shifts of batch normalisation are no weights: they have no Gaussian and no KL. A client's mu begins each round
with the server's, is trained with the weights on the data, and mu_w gets it back, to be averaged.

The authors' code is not public. The unofficial one draws g with a standard deviation of 0.001, has the sum over a
mini-batch in place of n/b times it and zeta over the mini-batches of a round in place of zeta, takes five steps of q
for one of w, and weights the clients by their images. Its Omega_w has that zeta before the KL, too, which is left out
here: by Adam's steps a constant factor is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import (
    kl,
    kl_gradient,
    kl_prior_gradient,
    sample,
    softplus,
    through_softplus,
)
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, move_towards_average, shares, some, stacked
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of
from bayesfed.methods.steps import Adam, grad, leaves, loss_gradient

SAMPLES = 10  # weight samples of the averaged predictions


class PFedBayes(Method):
    """A client keeps mu, rho and the Adam states of both steps; the server has mu_w and rho_w."""

    name = "pfedbayes"
    label = "pFedBayes"
    revision = 1
    personal = True
    logs: ClassVar = {
        "kl_mean": "KL divergence of a client's q from its copy of the global one as its round ends, mean over the clients",
        "sigma_mean": "mean of the server's sigma over all parameters",
    }

    @dataclass(frozen=True)
    class Options:
        """The paper's values; of samples and beta it has none, and these are the unofficial code's.

        zeta: weight of the KL. lr, lr_w: of q and w (eta_1, eta_2). rho_start: of all rho. mu_spread: the standard deviation
        of each layer's first mu; 0 begins as the network does by itself. samples: K. beta: as above.
        averaged: S; 0 averages all who took part. noise_scale: the standard deviation of g. loss: Omega as above or as
        the code has it. personal_steps: of q on each mini-batch, each with noise of its own, before the one of w.
        weights: of the clients in the average.
        """

        zeta: float = option(10.0, low=0)
        lr: float = option(1e-3, above=0)
        lr_w: float = option(1e-3, above=0)
        rho_start: float = -2.5
        mu_spread: float = option(0.0, low=0)
        samples: int = option(1, low=1)
        beta: float = option(1.0, above=0, high=1)
        averaged: int = option(0, low=0)
        noise_scale: float = option(1.0, low=0)
        loss: Literal["paper", "code"] = "paper"
        personal_steps: int = option(1, low=1)
        weights: Literal["equal", "images"] = "equal"

    def __init__(self, options: PFedBayes.Options) -> None:
        super().__init__(options)
        self.adam, self.adam_w = Adam(options.lr, 0.0), Adam(options.lr_w, 0.0)

    def first(self, node: Node) -> Tensor:
        """Return the first mu (P,), the same for all.

        What starts as a constant stays one: scales, shifts, biases by Xavier's draw.
        """
        mu, spread = node.initial(), self.options.mu_spread
        if not spread:
            return mu
        layers = [(part, part.std(correction=0)) for part in node.split(mu)]
        return torch.cat([part * (spread / std) if std > 0 else part for part, std in layers])

    def init_server(self, server: Node) -> State:
        mu = self.first(server)
        return {"mu_w": mu, "rho_w": torch.full_like(mu, self.options.rho_start)}

    def init_client(self, c: Node) -> State:
        mu = self.first(c)
        q = {"mu": mu, "rho": torch.full_like(mu, self.options.rho_start)}
        q |= self.adam.start("mu", mu) | self.adam.start("rho", mu)
        return q | self.adam_w.start("mu_w", mu) | self.adam_w.start("rho_w", mu)

    def unfit(self, ground: Ground) -> str:
        if self.options.loss == "code" and not ground.batches:
            return "method.loss: the code's KL weight is zeta / local_batches; set local_batches"
        return ""

    def start(self, c: Node, message: State) -> State:
        scale = c.batches if self.options.loss == "code" else 1
        return {
            "mu": c.weights(c["mu"], message["mu_w"]),
            "mu_w": message["mu_w"].clone(),
            "rho_w": message["rho_w"].clone(),
            "zeta": torch.full_like(c.n, self.options.zeta / scale),
            "sigma": softplus(c["rho"]),  # as rho has it by now: softplus takes as long as a product with the weights
        }

    def noise(self, c: Learner, like: Tensor) -> Tensor:
        """Draw g, which is 0 for what is not drawn."""
        return c.weights(self.options.noise_scale * c.noise(like), 0)

    def personal_step(self, c: Learner, batch: Batch, sigma_w: Tensor) -> None:
        """Do a step of (mu, rho) on Omega, beside w of deviations sigma_w."""
        K, sigma = self.options.samples, c["sigma"]
        weight = (c.n if self.options.loss == "paper" else batch.size) / K
        g_mu, g_sigma = kl_gradient(c["mu"], sigma, c["mu_w"], sigma_w)
        g_mu, g_sigma = c.weights(c["zeta"] * g_mu, 0), c.weights(c["zeta"] * g_sigma, 0)
        for _ in range(K):
            eps = self.noise(c, sigma)
            (theta,) = leaves(sample(c["mu"], sigma, eps))
            logits = c.model(theta, batch.x)
            (g,) = grad(logits, theta, at=loss_gradient(batch, logits))
            g_mu, g_sigma = g_mu + weight * g, g_sigma + weight * g * eps
        self.adam.step(c, mu=g_mu, rho=through_softplus(g_sigma, c["rho"]))
        sigma.copy_(softplus(c["rho"]))

    def step(self, c: Learner, batch: Batch) -> None:
        sigma_w = softplus(c["rho_w"])
        for _ in range(self.options.personal_steps):
            self.personal_step(c, batch, sigma_w)
        g_mu, g_sigma = kl_prior_gradient(c["mu"], c["sigma"], c["mu_w"], sigma_w)
        g_mu, g_sigma = c.weights(g_mu, 0), c.weights(g_sigma, 0)
        self.adam_w.step(c, mu_w=g_mu, rho_w=through_softplus(g_sigma, c["rho_w"]))

    def finish(self, c: Node) -> State:
        c["mu_w"].copy_(c.weights(c["mu_w"], c["mu"]))
        divergence = kl(c["mu"], softplus(c["rho"]), c["mu_w"], softplus(c["rho_w"]))
        return {"mu_w": c["mu_w"], "rho_w": c["rho_w"], "kl": divergence}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        chosen = some(server, updates, self.options.averaged)
        weights = shares(chosen, equal=self.options.weights == "equal")
        for name in ("mu_w", "rho_w"):
            move_towards_average(server, chosen, name, self.options.beta, weights)
        divergence = stacked(updates, "kl").mean()
        return {"kl_mean": divergence, "sigma_mean": softplus(server["rho_w"]).mean()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            return sample(c["mu"], softplus(c["rho"]), self.noise(c, c["mu"]))

        return [
            softmax_of("personal", c.model, c["mu"]),
            softmax_average("personal", c.model, draw, SAMPLES, sets=("shard",)),
        ]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            return sample(server["mu_w"], softplus(server["rho_w"]), self.noise(server, server["mu_w"]))

        return [
            softmax_of("global", server.model, server["mu_w"]),
            softmax_average("global", server.model, draw, SAMPLES, sets=("test",)),
        ]


METHOD = PFedBayes
