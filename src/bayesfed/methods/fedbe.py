"""FedBE (Chen & Chao 2021): the server samples models around the clients', and distils their ensemble into one.

Clients train as in FedAvg. Server, for each tensor of the network, from w_t and the clients' w_k:

    d_k = (w_k - w_t)/||w_k - w_t||,  s = mean_k ||w_k - w_t||,  m and v = mean and variance of the d_k
    w^(i) = w_t + s (m + sqrt(v) a eps),  eps ~ N(0, I),  i = 1..S
    p(x) = mean of softmax(f(x; .)) over w^(i), all w_k and w_bar = sum_k q_k w_k, then sharpened: p^(1/T) / sum

On images of its own, without labels and not augmented, it trains w_bar towards p by SGD,

    L(w) = KL(p || softmax(f(x; w))) / C

over C classes, and sends back the average of the iterates from step `swa_start` on, every `swa_every` steps (SWA); the
last iterate where there are fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.methods.base import Batch, Learner, Node, Phase, State, Update
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.steps import SGD, grad, leaves, loss_gradient
from bayesfed.options import option


class FedBE(FedAvg):
    """FedAvg's clients; between rounds the server holds theta alone."""

    name = "fedbe"
    label = "FedBE"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """The values of the public code. spread: a above. sharpen: T."""

        server_set: int = option(10_000, low=1)
        samples: int = option(10, low=0)
        spread: float = option(0.1, low=0)
        sharpen: float = option(0.5, above=0)
        server_epochs: int = option(20, low=1)
        server_lr: float = option(1e-3, above=0)
        server_momentum: float = option(0.9, low=0, high=1)
        server_weight_decay: float = option(1e-5, low=0)
        server_batch_size: int = option(128, low=1)
        swa_start: int = option(500, low=0)
        swa_every: int = option(25, low=1)

    def __init__(self, options: FedBE.Options) -> None:
        super().__init__(options)
        o = options
        self.server_sgd = SGD(o.server_lr, o.server_momentum, o.server_weight_decay)

    def server_images(self) -> int:
        return self.options.server_set

    def message(self, server: Node, client: int) -> State:
        return {"theta": server["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        before = server["theta"].clone()
        super().aggregate(server, updates)
        thetas = torch.stack([update["theta"] for update in updates])
        samples = [self.draw(server, before, thetas) for _ in range(self.options.samples)]
        server["ensemble"] = torch.stack([server["theta"], *thetas, *samples])
        return {}

    def draw(self, server: Node, before: Tensor, thetas: Tensor) -> Tensor:
        """A sample w^(i) (P,) around the clients' models (K, P), whose round began at `before` (P,)."""
        parts = []
        for start, ends in zip(server.split(before), zip(*map(server.split, thetas), strict=True), strict=True):
            deltas = torch.stack(ends) - start
            norms = deltas.norm(dim=1, keepdim=True)
            d = deltas / norms.clamp(min=1e-12)
            v = d.var(0, correction=0).clamp(min=1e-5)
            parts.append(start + norms.mean() * (d.mean(0) + v.sqrt() * self.options.spread * server.noise(start)))
        return torch.cat(parts)

    def server_phases(self, server: Node) -> Sequence[Phase]:
        theta = server["theta"]
        server.state |= self.server_sgd.start("theta", theta)
        server["targets"] = theta.new_zeros((int(server.n), server.classes))
        server["swa"], server["averaged"], server["t"] = torch.zeros_like(theta), *theta.new_zeros((2, 1))
        size = self.options.server_batch_size
        return [
            Phase(self.teach, epochs=1, augment=False, indexed=True, batch_size=size),
            Phase(
                self.distil, self.options.server_epochs, augment=False, indexed=True, batch_size=size, end=self.settle
            ),
        ]

    def teach(self, server: Learner, batch: Batch) -> None:
        """log p of the batch's images."""
        assert batch.index is not None
        with torch.no_grad():
            p = torch.stack([server.model(theta, batch.x).softmax(-1) for theta in server["ensemble"]]).mean(0)
            server["targets"][batch.index] = F.log_softmax(p.log() / self.options.sharpen, -1)

    def distil(self, server: Learner, batch: Batch) -> None:
        assert batch.index is not None
        (theta,) = leaves(server["theta"])
        logits, targets = server.model(theta, batch.x), server["targets"][batch.index]
        at = loss_gradient(batch, logits, ce=0.0, kl=1 / targets.shape[1], teacher=targets)
        (g,) = grad(logits, theta, at=at)
        self.server_sgd.step(server, theta=g)
        t = server["t"].add_(1)
        due = ((t > self.options.swa_start) & (t % self.options.swa_every == 0)).to(t.dtype)
        server["averaged"].add_(due)
        server["swa"].add_(due / server["averaged"].clamp(min=1) * (server["theta"] - server["swa"]))

    def settle(self, server: Node) -> None:
        """The average is the model; what only this round needed goes."""
        server["theta"].copy_(torch.where(server["averaged"] > 0, server["swa"], server["theta"]))
        for name in ("ensemble", "targets", "swa", "averaged", "t", *self.server_sgd.start("theta", server["theta"])):
            del server.state[name]


METHOD = FedBE
