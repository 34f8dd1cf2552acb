"""Gaussians of clients and a rule that makes one of them, after Jamoussi et al. 2024 and 2025 and Ozer et al. 2022.

Client k trains a diagonal q_k = N(mu, sigma^2) by one of two inferences. `ivon`: IVON (`methods.steps`), lambda = n_k, with
the prior N(0, 1/(n_k w)), w the weight decay. `bbb`, Bayes by backprop with s = log sigma^2 and the prior N(0, sigma_0^2):

    L(mu, s) = CE(f(x; mu + sigma eps), y) + KL(q_k || N(0, sigma_0^2))/n_k        SGD, whose decay acts on s, too

of the weights of the last `layers` layers; all other parameters have no distribution, nor have scales and shifts of
normalisation, and are averaged. Server, by a rule of `bayes.gaussian.barycentre`:

    (mu, sigma) <- barycentre(mu_k, sigma_k, weights)

Both go down, and a client goes on from them; sent down `mean`, each round has the first sigma again. `personal` gives a
client's predictions by barycentres of its own Gaussian, of weight l/(l + 1), and the one that it received, 1/(l + 1), by the
same rule if that is rkl and else by wb. The paper has the one that is made after the last round there.

The repositories draw activations in place of weights, and clamp log sigma^2 to [-8, 8], which stops its training below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import Rule, barycentre, log_precision_spread, sample, weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of
from bayesfed.methods.steps import IVON, SGD, ce_gradient_at

SAMPLES = 10  # weight samples of the averaged predictions


class Gaussian(Method):
    """The server holds mu and, after a round, sigma; a client keeps nothing."""

    name = "gaussian"
    label = "Gaussian barycentre"
    revision = 1
    logs: ClassVar = {
        "log_precision_spread": "largest difference of log precision between two clients, over all parameters that have one",
        "sigma_mean": "mean of the server's sigma over all parameters that have one",
    }

    @dataclass(frozen=True)
    class Options:
        """The repositories' values for IVON; for bbb they have lr 0.01 and weight_decay 1e-5.

        rule, inference, layers (0: all, with biases), personal: as above. weights: of the clients. h_start: IVON's first
        curvature. rescale: multiply IVON's lr by h_start + weight_decay, as its package does. beta2: of the curvature; with
        few steps a round take less. log_variance: the first s. prior: sigma_0^2 of bbb.
        """

        inference: Literal["ivon", "bbb"] = "ivon"
        rule: Rule = "wb"
        weights: Literal["images", "equal"] = "images"
        sent: Literal["both", "mean"] = "both"
        layers: int = option(0, low=0)
        personal: tuple[float, ...] = option((), low=0)
        lr: float = option(0.1, above=0)
        momentum: float = option(0.9, low=0, below=1)
        weight_decay: float = option(2e-4, above=0)
        beta2: float = option(0.99999, above=0, high=1)
        h_start: float = option(1.0, above=0)
        rescale: bool = True
        log_variance: float = -9.0
        prior: float = option(1.0, above=0)

    def __init__(self, options: Gaussian.Options) -> None:
        super().__init__(options)
        o = options
        self.ivon = IVON(o.lr * (o.h_start + o.weight_decay if o.rescale else 1), o.momentum, o.beta2)
        self.sgd = SGD(o.lr, o.momentum, o.weight_decay)
        self.by_ivon = o.inference == "ivon"

    def unfit(self, ground: Ground) -> str:
        o = self.options
        if o.layers and self.by_ivon:
            return "method.layers: IVON's q is of all parameters; set it to 0, or inference to bbb"
        if 2 * o.layers > len(ground.sizes):
            return f"method.layers: {o.layers}, but the network has {len(ground.sizes) // 2} layers; set fewer, or 0 for all"
        if o.rule == "fedag" and o.sent == "both":
            return "method.sent: the rule fedag has no sigma of a client's; take mean"
        return ""

    def drawn(self, node: Node) -> Tensor:
        """Return which parameters (P,) have a distribution: all, or the weights of the last layers."""
        theta, layers = node.initial(), self.options.layers
        if layers:
            last = [i for i, shape in enumerate(node.shapes[GLOBAL]) if len(shape) > 1][-layers:]
            theta = torch.cat([part.clone().fill_(i in last) for i, part in enumerate(node.split(theta))])
        else:
            theta.fill_(1)
        return node.weights(theta, 0).bool()

    def init_server(self, server: Node) -> State:
        return {"mu": server.initial()}

    def message(self, server: Node, client: int) -> State:
        return {"mu": server["mu"]} if self.options.sent == "mean" else server.state

    def start(self, c: Node, message: State) -> State:
        o, mu, drawn = self.options, message["mu"].clone(), self.drawn(c)
        state = {"mu": mu, "drawn": drawn}
        if self.by_ivon:
            state |= self.ivon.start("mu", mu, o.h_start)
            if "sigma" in message:  # h of the variance 1/(n (h + w))
                h = 1 / (c.n * message["sigma"].square()) - o.weight_decay
                state["mu.h"] = torch.where(drawn, h, o.h_start)
        else:
            first = torch.full_like(mu, o.log_variance)
            state["s"] = torch.where(drawn, 2 * message["sigma"].log(), first) if "sigma" in message else first
            state |= self.sgd.start("mu", mu) | self.sgd.start("s", mu)
        if o.personal:
            state |= {"received.mu": mu.clone(), "received.sigma": self.sigma(c, state)}
        return state

    def sigma(self, c: Learner, state: State) -> Tensor:
        """Return the standard deviations (P,) of q_k; 0 for what has none."""
        w = self.options.weight_decay
        variance = 1 / (c.n * (state["mu.h"] + w)) if self.by_ivon else state["s"].exp()
        return variance.sqrt() * state["drawn"]

    def step(self, c: Learner, batch: Batch) -> None:
        if self.by_ivon:
            w = c.n.new_full((), self.options.weight_decay)
            d = self.ivon.noise(c, "mu", c.n, w)
            self.ivon.step(c, "mu", ce_gradient_at(c, c["mu"] + d, batch), d, c.n, w)
        else:
            eps, sigma = c.noise(c["mu"]), self.sigma(c, c.state)
            g_mu, g_s = self.gradients(c, ce_gradient_at(c, sample(c["mu"], sigma, eps), batch), eps, sigma)
            self.sgd.step(c, mu=g_mu, s=g_s)

    def gradients(self, c: Learner, g: Tensor, eps: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Return those of L in mu and s from g, that of CE at mu + sigma eps:

        dL/dmu = g + mu/(sigma_0^2 n),    dL/ds = (sigma g eps + (sigma^2/sigma_0^2 - 1)/n)/2
        """
        prior = self.options.prior
        g_s = (sigma * g * eps + (sigma.square() / prior - 1) / c.n) / 2
        return g + c["drawn"] * c["mu"] / (prior * c.n), c["drawn"] * g_s

    def finish(self, c: Node) -> State:
        prior = c.n * self.options.weight_decay if self.by_ivon else torch.ones_like(c.n) / self.options.prior
        return {"mu": c["mu"], "sigma": self.sigma(c, c.state), "prior": prior}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        mus, sigmas, priors = (stacked(updates, name) for name in ("mu", "sigma", "prior"))
        q, drawn = shares(updates, equal=self.options.weights == "equal"), self.drawn(server)
        sigmas = torch.where(drawn, sigmas, 1)  # of what has none, a number that no rule minds
        mu, sigma = barycentre(self.options.rule, mus, sigmas, q, priors)
        server["mu"] = torch.where(drawn, mu, weighted_mean(q, mus)).to(mus.dtype)
        server["sigma"] = (sigma * drawn).to(mus.dtype)
        mean = (sigma * drawn).sum() / drawn.sum()
        return {"log_precision_spread": log_precision_spread(sigmas), "sigma_mean": mean}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["mu"]), *(self.between(c, weight) for weight in self.options.personal)]

    def between(self, c: Node, weight: float) -> Predictor:
        """Predict with the mean of the barycentre of q_k, of that weight, and the one received, of weight 1."""
        rule: Rule = "rkl" if self.options.rule == "rkl" else "wb"
        mus = torch.stack([c["mu"], c["received.mu"]])
        sigmas = torch.stack([self.sigma(c, c.state), c["received.sigma"]])
        w, sigmas = c.n.new_tensor([weight, 1.0]), torch.where(c["drawn"], sigmas, 1)
        mu, _ = barycentre(rule, mus, sigmas, w, torch.ones_like(w))
        return softmax_of(f"personal {weight:g}", c.model, mu.to(mus.dtype))

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            return sample(server["mu"], server["sigma"], server.noise(server["mu"]))

        sampled = softmax_average(GLOBAL, server.model, draw, SAMPLES, sets=("test",))
        return [softmax_of(GLOBAL, server.model, server["mu"]), *([sampled] if "sigma" in server.state else [])]


METHOD = Gaussian
