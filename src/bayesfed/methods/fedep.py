"""FedEP and FedSEP (Guo et al. 2023): expectation propagation with Gaussian sites of clients, in natural parameters.

The server's posterior is (eta, Lambda), Lambda the diagonal precision, eta = Lambda mu. Client k keeps (eta_k, Lambda_k).
From Lambda = w c n and Lambda_k = w c n_k around the network's start, w the weight decay and n all images. Client k:

    cavity      server - site (`ep`), (1 - n_k/n) server (`sep`), or the server (`adf`)
    prior       cavity + (0, w n_k)
    theta       E epochs of SGD from the server's mean on CE + (1/2 theta^T Lambda theta - eta^T theta)/n_k, of the prior
    mu          mean of theta at the ends of the epochs
    Lambda_new  that of the prior (`identity`), 1/(s + (1 - s) variance of those theta) (`mcmc`), or with the Fisher
                information of n_k CE at mu added to the prior's (`laplace`); within two deviations of its mean over entries;
                c (Lambda_new - cavity) + cavity
    Delta_k     (Lambda_new mu, Lambda_new) - server, in joint length clipped, over K
    site        a step of SGD with momentum on Delta_k, which lasts over rounds (`ep`)

Server: a step of SGD with momentum on sum_k Delta_k. A client's prior (0, w n_k) stays in its site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_average, softmax_of
from bayesfed.methods.steps import SGD, ce_gradient, clip, gauss_newton

SAMPLES = 10  # weight samples of the averaged predictions
LEAST = 1e-6  # of the server's precision, where a mean is taken of it


class FedEP(Method):
    """Server and clients hold natural parameters, (2, P) each: eta and Lambda; and the momentum of both. Scales and shifts
    of normalisation have no site: the clients' own travel in place of their change, and the server's mu is the mean."""

    name = "fedep"
    label = "FedEP"
    revision = 1
    free = ("mu",)
    by_epochs = True
    draws_by_image = True
    logs: ClassVar = {
        "precision_mean": "mean of the server's precisions over all parameters",
        "precision_floored": "share of the server's precisions below 1e-6, which its mean is taken with",
    }

    @dataclass(frozen=True)
    class Options:
        """The public code's values for CIFAR-100, where `clip` is 100 for identity, 300 for mcmc and 6500 for laplace.

        weight_decay: w. scale: c. shrinkage: s. damping: 1/K; by default K are all clients, in the code those of a round.
        step, step_momentum: of server and sites.
        """

        cavity: Literal["ep", "sep", "adf"] = "ep"
        covariance: Literal["identity", "mcmc", "laplace"] = "identity"
        lr: float = option(0.01, above=0)
        momentum: float = option(0.9, low=0, high=1)
        weight_decay: float = option(1e-4, above=0)
        scale: float = option(500.0, above=0)
        shrinkage: float = option(1e-4, above=0, high=1)
        clip: float | None = option(100.0, above=0)
        damping: float | None = option(None, above=0, high=1)
        step: float = option(0.5, above=0)
        step_momentum: float = option(0.9, low=0, high=1)

    options: Options

    def __init__(self, options: FedEP.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, options.momentum, 0.0)

    def first(self, node: Node, n: Tensor) -> State:
        """Return the natural parameters of so many images, and their momentum."""
        o, theta = self.options, node.initial().double()
        precision = torch.full_like(theta, 1) * (o.weight_decay * o.scale * n)
        natural = torch.stack([precision * theta, precision])
        return {"natural": natural, "momentum": torch.zeros_like(natural)}

    def init_server(self, server: Node) -> State:
        return {"mu": server.initial()} | self.first(server, server.total)

    def init_client(self, c: Node) -> State:
        return {f"site.{name}": tensor for name, tensor in self.first(c, c.n).items()}

    def message(self, server: Node, client: int) -> State:
        return {"mu": server["mu"], "natural": server["natural"].to(server["mu"].dtype)}

    def start(self, c: Node, message: State) -> State:
        server, theta, cavity = message["natural"].double(), message["mu"].clone(), self.options.cavity
        outside = {"ep": server - c["site.natural"], "sep": (1 - c.n / c.total) * server, "adf": server}[cavity]
        prior = outside.clone()
        prior[1] += self.options.weight_decay * c.n
        eta, precision = c.weights(prior.to(theta.dtype), 0)
        zeros = {name: torch.zeros_like(theta) for name in ("sum", "squares", "fisher")}
        state = {"theta": theta, "mu": theta.clone(), "origin": theta.clone(), "samples": torch.zeros_like(c.n)} | zeros
        state |= {"server": server.clone(), "cavity": outside.clone(), "eta": eta, "precision": precision}
        return state | self.sgd.start("theta", theta)

    def step(self, c: Learner, batch: Batch) -> None:
        prior = c["precision"] * c["theta"] - c["eta"]
        self.sgd.step(c, theta=ce_gradient(c, "theta", batch) + prior / c.n)

    def phases(self, c: Node) -> Sequence[Phase]:
        local = replace(c.local(self.step), epoch_end=self.collect, end=self.average)
        measured = Phase(self.measure, epochs=1, augment=False, counted=False)
        return [local, *([measured] if self.options.covariance == "laplace" else [])]

    def collect(self, c: Node) -> None:
        """Take the end of an epoch as a sample."""
        moved = c["theta"] - c["origin"]
        c["sum"].add_(moved)
        c["squares"].addcmul_(moved, moved)
        c["samples"].add_(1)

    def average(self, c: Node) -> None:
        """Set mu to the mean of the samples."""
        c["mu"].copy_(c["origin"] + c["sum"] / c["samples"])

    def measure(self, c: Learner, batch: Batch) -> None:
        """Add to the Fisher information of n_k CE at mu, which is the mean over the model's own labels."""
        c["fisher"].add_(gauss_newton(c, c["mu"], batch))

    def precision(self, c: Node) -> Tensor:
        """Return Lambda_new (P,), in float64."""
        o, prior = self.options, c["cavity"][1] + self.options.weight_decay * c.n
        if o.covariance == "mcmc":
            mean, count = c["sum"].double() / c["samples"], c["samples"].double()
            variance = (c["squares"].double() - count * mean.square()).clamp(min=0) / (count - 1).clamp(min=1)
            found = 1 / (o.shrinkage + (1 - o.shrinkage) * variance)
        else:
            found = prior + c["fisher"]  # no information by `identity`
        drawn = found if c.scaling is None else found[~c.scaling]
        mean, deviation = drawn.mean(), drawn.std(correction=0)
        found = found.clamp(mean - 2 * deviation, mean + 2 * deviation)
        return o.scale * (found - c["cavity"][1]) + c["cavity"][1]

    def finish(self, c: Node) -> State:
        precision = self.precision(c)
        change = torch.stack([precision * c["mu"], precision]) - c["server"]
        change = clip(c.weights(change, 0), self.options.clip) * (self.options.damping or 1 / c.clients)
        change = change.to(c["mu"].dtype)
        if self.options.cavity == "ep":
            c["site.momentum"].mul_(self.options.step_momentum).add_(change)
            c["site.natural"].add_(c["site.momentum"], alpha=self.options.step)
        return {"change": c.weights(change, torch.stack([c["mu"], torch.zeros_like(c["mu"])]))}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        o = self.options
        sent = stacked(updates, "change")
        server["momentum"] = o.step_momentum * server["momentum"] + server.weights(sent.double().sum(0), 0)
        eta, precision = server["natural"] + o.step * server["momentum"]
        if server.scaling is not None:
            eta = server.weights(eta, weighted_mean(shares(updates), sent[:, 0]) * precision)
        server["natural"] = torch.stack([eta, precision])
        server["mu"] = (eta / precision.clamp(min=LEAST)).to(server["mu"].dtype)
        return {"precision_mean": precision.mean(), "precision_floored": precision.lt(LEAST).double().mean()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["mu"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        def draw() -> Tensor:
            mu = server["mu"]
            deviation = server["natural"][1].clamp(min=LEAST).rsqrt().to(mu.dtype)
            return mu + server.weights(server.noise(mu), 0) * deviation

        return [
            softmax_of(GLOBAL, server.model, server["mu"]),
            softmax_average(GLOBAL, server.model, draw, SAMPLES, sets=("test",)),
        ]


METHOD = FedEP
