"""FedPPD (Bhatt et al. 2023): a student distils every client's posterior predictive distribution; the server averages.

Client, from the server's teacher theta and student w, E times in turn an epoch of either, with n images, step alpha
and z ~ N(0, I), u ~ N(0, 0.001^2 I):

    theta <- theta - alpha/2 (grad CE(f(x; theta), y) + decay theta) + sqrt(alpha) s z        (SGLD)
    w     <- w - beta grad( CE(g(x + u; w), softmax(f(x; theta))) + decay/2 |w|^2 )           (distillation)

The gradients are batch means, so s = 1/sqrt(n) samples the posterior. The public code has s = 2/n, a cold posterior of
temperature 4/n. It lets alpha fall within a round, alternates by epochs where Algorithm 4 does by mini-batches, and sends
the last teacher where the text sends the sample of the largest posterior density. Its choices are the defaults.

Server: theta and w are the means of the clients', weighted by q; the student predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesfed.bayes.sampling import langevin
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, average
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, ce_gradient, cross_entropy, grad, leaves, loss_gradient


class FedPPD(Method):
    """The server holds theta and w; a client keeps nothing. `global` is the teacher's network, as the baselines have it."""

    name = "fedppd"
    label = "FedPPD"
    revision = 1
    by_epochs = True
    draws_by_image = True
    networks = ("student",)

    @dataclass(frozen=True)
    class Options:
        """The paper's learning rates for CIFAR, and assumptions.

        lr: alpha of a round's first epoch, which falls by `lr_decay` after every `lr_every` epochs of the teacher.
        student_lr: beta. weight_decay: of both. noise: s, code's or exact. teacher: which one is sent. distillation: how the
        two alternate; by steps the student learns from the mini-batch that the teacher has just seen.
        """

        lr: float = option(0.055, above=0)
        lr_decay: float = option(0.85, above=0, high=1)
        lr_every: int = option(3, low=1)
        student_lr: float = option(0.02, above=0)
        weight_decay: float = option(1e-4, low=0)
        noise: Literal["code", "exact"] = "code"
        teacher: Literal["last", "map"] = "last"
        distillation: Literal["epochs", "steps"] = "epochs"
        jitter: float = option(0.001, low=0)

    def __init__(self, options: FedPPD.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.student_lr, 0.0, options.weight_decay)

    def unfit(self, ground: Ground) -> str:
        if self.options.teacher == "map" and ground.batchwise:
            return "method.teacher: map, but BatchNorm statistics are those of the last teacher; take last"
        return ""

    def init_server(self, server: Node) -> State:
        return {"theta": server.initial(), "w": server.initial("student")}

    def start(self, c: Node, message: State) -> State:
        theta, o = message["theta"].clone(), self.options
        state = {"theta": theta, "w": message["w"].clone(), "alpha": torch.full_like(c.n, o.lr)}
        state["s"] = 2 / c.n if o.noise == "code" else c.n.rsqrt()
        if o.teacher == "map":
            state |= {"map": theta.clone(), "least": torch.full_like(c.n, torch.inf), "loss": torch.zeros_like(c.n)}
        return state

    def phases(self, c: Node) -> Sequence[Phase]:
        both = self.options.distillation == "steps"
        measure = Phase(self.measure, epochs=1, augment=False, counted=False, evaluates=True, end=self.remember)
        found = []
        for epoch in range(1, c.epochs + 1):
            due = epoch % self.options.lr_every == 0
            teach, falls = self.both if both else self.teach, self.slow_down if due else None
            found.append(Phase(teach, epochs=1, counted=both, end=falls))
            found += [] if both else [Phase(self.distil, epochs=1)]
            found += [measure] * (self.options.teacher == "map")
        return found

    def teach(self, c: Learner, batch: Batch) -> None:
        g = ce_gradient(c, "theta", batch) + self.options.weight_decay * c["theta"]
        langevin(c["theta"], g, c.rate(1.0) * c["alpha"], c["s"], c.noise(g))

    def distil(self, c: Learner, batch: Batch) -> None:
        (w,) = leaves(c["w"])
        with torch.no_grad():
            teacher = c.model(c["theta"], batch.x)
        logits = c.network("student")(w, batch.x + self.options.jitter * c.noise(batch.x))
        (g,) = grad(logits, w, at=loss_gradient(batch, logits, ce=0.0, kl=1.0, teacher=teacher))
        self.sgd.step(c, w=g)

    def both(self, c: Learner, batch: Batch) -> None:
        """Do a mini-batch of Algorithm 4."""
        self.teach(c, batch)
        self.distil(c, batch)

    def slow_down(self, c: Node) -> None:
        c["alpha"].mul_(self.options.lr_decay)

    def measure(self, c: Learner, batch: Batch) -> None:
        """Gather the mean cross-entropy of the teacher over the client's images."""
        with torch.no_grad():
            ce = batch.mean(cross_entropy(c.model(c["theta"], batch.x), batch.y))
        c["loss"].add_(batch.size / c.n * ce)

    def remember(self, c: Node) -> None:
        """Keep the sample of the largest posterior density so far: of the least -log p(theta | D)/n."""
        loss = c["loss"] + self.options.weight_decay / 2 * c["theta"].square().sum()
        better = loss < c["least"]
        c["map"].copy_(torch.where(better, c["theta"], c["map"]))
        c["least"].copy_(torch.minimum(loss, c["least"]))
        c["loss"].zero_()

    def finish(self, c: Node) -> State:
        return {"theta": c["map" if self.options.teacher == "map" else "theta"], "w": c["w"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        for name in ("theta", "w"):
            server[name] = average(updates, name)
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.network("student"), c["w"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [
            softmax_of("global", server.network("student"), server["w"]),
            softmax_of("teacher", server.model, server["theta"]),
        ]


METHOD = FedPPD
