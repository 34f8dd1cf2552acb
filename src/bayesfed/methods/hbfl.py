"""HBFL (Yang 2023, AIMS Mathematics 8(7)): a Bayesian meme model, aggregated by its precisions, teaches local models.

Client, each mini-batch, q = N(mu, diag sigma^2), sigma = softplus(rho), eps ~ N(0, I):

    L_meme(mu, rho) = CE(f(x; mu + sigma eps), y) - T/n_k sum_i log sigma_i           (eq. 4.1 times T/n_k)  Adam
    L_local(phi)    = alpha CE(f_k(x; phi), y)
                      + (1 - alpha) KL(softmax(f(x; mu)/T_d) || softmax(f_k(x; phi)/T_d))         (eq. 4.2)  SGD

Server, elementwise, Lambda_k = sigma_k^-2:

    mu <- (sum_k q_k Lambda_k)^-1 sum_k q_k Lambda_k mu_k

There is no prior and no distillation term in the meme's loss. Only mu is sent down; sigma is reset each round.
Weight decay acts on mu and never on rho, whose gradient it would drown. Where only the convolutions are shared,
the meme's other layers are Bayesian too and stay with the client. Scales and shifts of batch normalisation are no
weights: they are not drawn, and their sigma, at which they are averaged, stays what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import (  # fmt: skip
    inverse_softplus,
    log_precision_spread,
    product,
    rho_gradient,
    sample,
    softplus,
    weighted_mean,
)
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of
from bayesfed.methods.steps import SGD, Adam, grad, leaves, loss_gradient

SAMPLES = 10  # weight samples of the averaged predictions


class HBFL(Method):
    """A client keeps its local model phi, the momentum of phi, and what the options below let it keep."""

    name = "hbfl"
    label = "HBFL"
    revision = 1
    personal = True
    local_models = True
    logs: ClassVar = {
        "log_precision_spread": "largest difference of log precision between two clients, over all parameters; 0 where all"
        " clients are as sure, and the average by precisions is the plain one",
        "sigma_mean": "mean of the server's sigma over all parameters",
    }

    @dataclass(frozen=True)
    class Options:
        """The paper's values, and our assumptions where it is silent.

        temperature: T of eq. 4.1. entropy_weight: T/n_k or T against the mean CE, or 1 against CE n_k/T (A1).
        sigma: reset to softplus(rho_start) every round, kept on the client (A2) or sent down with mu (A6). decay_rho:
        weight decay on rho too (A5). adam_state: the meme's optimiser fresh each round or kept (A7). local_start: local
        model kept or initialised again (A8). alpha: label against teacher in eq. 4.2 (A9). distillation_temperature: T_d,
        and whether the KL is multiplied by T_d^2 (A10). evaluate: clients tested once a round or after each epoch (A14).
        average: the paper's precision-weighted mean, the same without q_k, or the plain q_k-weighted mean of the mu_k
        (ablation). Not in the paper, to ask what its result depends on: optimizer and decay of the meme; beta, label against
        the local model as teacher in the meme's loss, as FML has it; noise: none trains at mu itself.
        """

        temperature: float = option(1e-4, above=0)
        entropy_weight: Literal["T/n", "T", "1"] = "T/n"
        sigma: Literal["reset", "kept", "sent"] = "reset"
        rho_start: float = -5.0
        decay_rho: bool = False
        adam_state: Literal["fresh", "kept"] = "fresh"
        local_start: Literal["kept", "reset"] = "kept"
        alpha: float = option(0.5, low=0, high=1)
        distillation_temperature: float = option(1.0, above=0)
        distillation_squared: bool = False
        evaluate: Literal["round", "epoch"] = "round"
        average: Literal["precision", "precision-without-q", "plain"] = "precision"
        optimizer: Literal["adam", "sgd"] = "adam"
        decay: Literal["coupled", "decoupled"] = "coupled"
        beta: float = option(1.0, low=0, high=1)
        noise: Literal["weights", "none"] = "weights"
        lr: float = option(0.001, above=0)
        local_lr: float = option(0.01, above=0)
        momentum: float = option(0.9, low=0, high=1)
        weight_decay: float = option(5e-4, low=0)

    options: Options

    def __init__(self, options: HBFL.Options) -> None:
        super().__init__(options)
        o = options
        undecayed = () if o.decay_rho else ("rho",)
        self.optimizer = (
            Adam(o.lr, o.weight_decay, undecayed, o.decay == "decoupled")
            if o.optimizer == "adam"
            else SGD(o.lr, o.momentum, o.weight_decay, undecayed)
        )
        self.sgd = SGD(o.local_lr, o.momentum, o.weight_decay)

    def unfit(self, ground: Ground) -> str:
        if self.options.optimizer == "sgd" and self.options.decay == "decoupled":
            return "method.decay: decoupled is Adam's, and SGD adds its decay to the gradient; take coupled"
        return ""

    def evaluate_each_epoch(self) -> bool:
        return self.options.evaluate == "epoch"

    def fresh_rho(self, mu: Tensor) -> Tensor:
        """Return rho_0 for every entry."""
        return torch.full_like(mu, self.options.rho_start)

    def init_server(self, server: Node) -> State:
        mu = server.shared(server.initial())
        return {"mu": mu, "sigma": softplus(self.fresh_rho(mu))}

    def init_client(self, c: Node) -> State:
        phi, mu = c.local_initial(), c.initial()
        kept = {"phi": phi, "mu.own": c.own(mu)} | self.sgd.start("phi", phi)
        if self.options.sigma == "kept":
            kept["rho"] = self.fresh_rho(mu)
        if self.options.adam_state == "kept":
            kept |= self.optimizer.start("mu", mu) | self.optimizer.start("rho", mu)
        return kept

    def message(self, server: Node, client: int) -> State:
        return {"mu": server["mu"]} | ({"sigma": server["sigma"]} if self.options.sigma == "sent" else {})

    def start(self, c: Node, message: State) -> State:
        mu = c.splice(message["mu"], c["mu.own"])
        state = {"mu": mu}
        if self.options.sigma == "reset":
            state["rho"] = self.fresh_rho(mu)
        if self.options.sigma == "sent":
            state["rho"] = c.splice(inverse_softplus(message["sigma"]), c.own(self.fresh_rho(mu)))
        if self.options.adam_state == "fresh":
            state |= self.optimizer.start("mu", mu) | self.optimizer.start("rho", mu)
        if self.options.local_start == "reset":
            phi = c.local_initial()
            state |= {"phi": phi} | self.sgd.start("phi", phi)
        return state

    def gradient_meme(self, c: Learner, g: Tensor, eps: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of eq. 4.1, up to a factor, in mu and rho, from g, that of the mean CE at theta = mu +
        sigma eps:

        dL/dmu = g,    dL/drho = (g eps - T/n_k / sigma) sigmoid(rho)
        """
        T, n = self.options.temperature, c.n
        if self.options.entropy_weight == "T/n":
            weight = T / n
        elif self.options.entropy_weight == "T":
            weight = torch.full_like(n, T)
        else:
            g, weight = n / T * g, torch.ones_like(n)
        return g, rho_gradient(g, eps, c["rho"], sigma, weight)

    def step(self, c: Learner, batch: Batch) -> None:
        mu, sigma, beta = c["mu"], softplus(c["rho"]), self.options.beta
        eps = c.weights(c.noise(mu), 0) if self.options.noise == "weights" else torch.zeros_like(mu)
        (theta,) = leaves(sample(mu, sigma, eps))
        noisy = c.model(theta, batch.x)
        with torch.no_grad():
            teacher = c.local_model(c["phi"], batch.x) if beta < 1 else None
        (g,) = grad(noisy, theta, at=loss_gradient(batch, noisy, ce=beta, kl=1 - beta, teacher=teacher))
        g_mu, g_rho = self.gradient_meme(c, g, eps, sigma)
        self.optimizer.step(c, mu=g_mu, rho=c.weights(g_rho, 0))

        with torch.no_grad():
            meme = c.model(mu, batch.x)
        alpha, T_d = self.options.alpha, self.options.distillation_temperature
        scale = T_d**2 if self.options.distillation_squared else 1.0
        (phi,) = leaves(c["phi"])
        local = c.local_model(phi, batch.x)
        at_local = loss_gradient(batch, local, ce=alpha, kl=(1 - alpha) * scale, teacher=meme, temperature=T_d)
        (g_phi,) = grad(local, phi, at=at_local)
        self.sgd.step(c, phi=g_phi)

    def finish(self, c: Node) -> State:
        c["mu.own"].copy_(c.own(c["mu"]))
        return {"mu": c.shared(c["mu"]), "sigma": softplus(c.shared(c["rho"]))}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        mus = stacked(updates, "mu")
        sigmas = stacked(updates, "sigma")
        q = shares(updates, equal=self.options.average == "precision-without-q")
        mu, sigma = product(mus, sigmas, q)
        if self.options.average == "plain":
            mu = weighted_mean(q, mus)
        server["mu"], server["sigma"] = mu.to(mus.dtype), sigma.to(mus.dtype)
        return {"log_precision_spread": log_precision_spread(sigmas), "sigma_mean": sigma.mean()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            return sample(c["mu"], softplus(c["rho"]), c.weights(c.noise(c["mu"]), 0))

        return [
            softmax_of("meme", c.model, c["mu"]),
            softmax_of("local", c.local_model, c["phi"]),
            softmax_average("meme", c.model, draw, SAMPLES, sets=("shard",)),
        ]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            return sample(server["mu"], server["sigma"], server.weights(server.noise(server["mu"]), 0))

        return [
            softmax_of("global", server.model, server["mu"]),
            softmax_average("global", server.model, draw, SAMPLES, sets=("test",)),
        ]


METHOD = HBFL
