"""FedBE (Chen & Chao 2021): the server samples models around the clients', and distils their ensemble into one.

Clients train as in FedAvg. Server, for each tensor of the network, from w_t and the clients' w_k, with eps ~ N(0, I) and
i = 1..S, one of

    directions   w^(i) = w_t + h s (m + a sqrt(v) eps),  m and v = mean and variance over k of the d_k,
                 d_k = (w_k - w_t)/||w_k - w_t||,  s = mean_k ||w_k - w_t||
    gaussian     w^(i) = w_t + h (w_bar - w_t + a sqrt(v) eps),  v = sum_k q_k (w_k - w_bar)^2
    dirichlet    w^(i) = w_t + h (sum_k gamma_k w_k - w_t),  gamma ~ Dir(1, ..., 1) once for all tensors

and the pseudo-label of an image, with w_bar = sum_k q_k w_k:

    p(x) = mean of softmax(f(x; .)) over w^(i), all w_k and w_bar, then sharpened: p^(1/T) / sum

Each of them predicts with statistics of normalisation of its own: w_k with the client's, w_bar with their average, w^(i)
with those drawn in the same way, none of them below or above all of the clients' and the server's, so that no variance is
negative.

On images of its own, without labels and not augmented, it trains w_bar towards p by SGD,

    L(w) = KL(p || softmax(f(x; w))) / C

over C classes, and sends back the average of the iterates after step `swa_start`, every `swa_every` steps (SWA); the
last iterate where there are fewer steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, Phase, State
from bayesfed.methods.steps import SGD, grad, leaves, loss_gradient


@dataclass(frozen=True)
class ServerOptions:
    """The server's part, with the values of the public code.

    distribution: of the w^(i), as above; FedBE's text has `gaussian`, with a = 1, and a Dirichlet one. step: h.
    spread: a, of the two Gaussians. sharpen: T; 1 is the mean itself, FedPPD's text. floor: the least value of p^(1/T);
    the public code has 1e-8.
    """

    server_set: int = option(10_000, low=1)
    samples: int = option(10, low=0)
    distribution: Literal["directions", "gaussian", "dirichlet"] = "directions"
    step: float = option(1.0, above=0)
    spread: float = option(0.1, low=0)
    sharpen: float = option(0.5, above=0)
    floor: float = option(0.0, low=0, high=1)
    server_epochs: int = option(20, low=1)
    server_lr: float = option(1e-3, above=0)
    server_momentum: float = option(0.9, low=0, high=1)
    server_weight_decay: float = option(1e-5, low=0)
    server_batch_size: int = option(128, low=1)
    swa_start: int = option(500, low=0)
    swa_every: int = option(25, low=1)


def gaussian_of(moves: Tensor, weights: Tensor) -> tuple[Tensor | float, Tensor, Tensor]:
    """Return 1, and mean and deviation (...) of the clients' moves (K, ...)."""
    mean = weighted_mean(weights, moves)
    return 1.0, mean, weighted_mean(weights, (moves - mean).square()).sqrt()


def directions_of(moves: Tensor) -> tuple[Tensor | float, Tensor, Tensor]:
    """Return the mean length of the clients' moves (K, ...), and mean and deviation of their directions (...), as the
    public code has them: all clients count alike.
    """
    lengths = moves.reshape(len(moves), -1).norm(dim=1)
    d = moves / lengths.clamp(min=1e-12).view(-1, *[1] * (moves.dim() - 1))
    mean = d.mean(0)
    return lengths.mean(), mean, (d - mean).square().mean(0).clamp(min=1e-5).sqrt()


@dataclass(frozen=True)
class Distillation:
    """The server's part, on the vector `name` (P,) of the model `network`, with its learning rate.

    In a round: `gather` the ensemble, then the `phases`. What only the round needs is gone at its end.
    """

    options: ServerOptions
    lr: float
    name: str = "theta"
    network: str = GLOBAL

    @property
    def sgd(self) -> SGD:
        """The server's optimiser."""
        return SGD(self.lr, self.options.server_momentum, self.options.server_weight_decay)

    def at(self, what: str) -> str:
        """Return the name of what the round needs in the server's state."""
        return f"{self.name}.{what}"

    def gather(self, server: Node, before: Tensor, updates: Sequence[Update]) -> None:
        """Put the ensemble into the state: the mean that it holds by now, the clients' models, whose round began at
        `before` (P,), and samples around them; of their statistics all but the mean's, which the engine has yet to
        average.
        """
        thetas = stacked(updates, self.name)
        cut = [server.split(theta, self.network) for theta in (before, *thetas)]
        parts = [(start, torch.stack(ends)) for start, *ends in zip(*cut, strict=True)]
        weights = self.weights(server, updates)
        samples = [torch.cat(sample) for sample in self.draws(server, parts, weights)]
        server[self.at("ensemble")] = torch.stack([server[self.name], *thetas, *samples])
        for name in server.statistics[self.network]:
            start, ends = server[name], torch.stack([update.statistics[name] for update in updates])
            if start.is_floating_point():  # a count of mini-batches matters in training alone
                low, high = torch.stack([start, *ends]).aminmax(dim=0)
                drawn = [each.clamp(low, high) for (each,) in self.draws(server, [(start, ends)], weights)]
                server[self.at(f"ensemble.{name}")] = torch.stack([*ends, *drawn])

    def weights(self, server: Node, updates: Sequence[Update]) -> Tensor:
        """Return the clients' weights in each sample (S, K): gamma, or q."""
        q = shares(updates).expand(self.options.samples, -1)
        if self.options.distribution != "dirichlet":
            return q
        # The sum of two squares is exponential, and exponentials over their sum are Dir(1, ..., 1).
        exponential = server.noise(q.new_empty(2, *q.shape)).square().sum(0)
        return exponential / exponential.sum(1, keepdim=True)

    def draws(self, server: Node, parts: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> list[list[Tensor]]:
        """Draw the tensors of each w^(i), where the clients, of `weights` (S, K), began at `start` and came to `ends`
        (K, ...), which are a part.
        """
        step = self.options.step
        if self.options.distribution == "dirichlet":
            return [
                [start + step * weighted_mean(w, ends - start).to(start.dtype) for start, ends in parts]
                for w in weights
            ]
        if not len(weights):
            return []
        directions = self.options.distribution == "directions"
        around = [
            directions_of(ends - start) if directions else gaussian_of(ends - start, weights[0])
            for start, ends in parts
        ]
        spread = [self.options.spread * deviation for _, _, deviation in around]
        return [
            [
                start + step * length * (mean + deviation * server.noise(start)).to(start.dtype)
                for (start, _), (length, mean, _), deviation in zip(parts, around, spread, strict=True)
            ]
            for _ in weights
        ]

    def statistics(self, server: Learner) -> State:
        """Return the statistics of the ensemble's models, by their names in the server's state."""
        begin = self.at("ensemble.")
        return {name.removeprefix(begin): each for name, each in server.state.items() if name.startswith(begin)}

    def members(self, server: Learner) -> list[tuple[Learner, Tensor]]:
        """Return the models (P,) of the ensemble, each behind the server with its statistics."""
        statistics, thetas = self.statistics(server), server[self.at("ensemble")]
        owns = [{name: each[i] for name, each in statistics.items()} for i in range(len(thetas))]
        return [(server.having(own), theta) for own, theta in zip(owns, thetas, strict=True)]

    def phases(self, server: Node) -> list[Phase]:
        """Return one phase that writes the ensemble's predictions down, and the training."""
        theta, o = server[self.name], self.options
        for name, each in self.statistics(server).items():
            server[self.at(f"ensemble.{name}")] = torch.cat([server[name][None], each])
        server.state |= self.sgd.start(self.name, theta)
        server[self.at("targets")] = theta.new_zeros((int(server.n), server.classes))
        server[self.at("swa")] = torch.zeros_like(theta)
        server[self.at("averaged")], server[self.at("t")] = theta.new_zeros((2, 1))
        plain: dict[str, Any] = {"augment": False, "indexed": True, "batch_size": o.server_batch_size}
        return [
            Phase(self.teach, epochs=1, evaluates=True, **plain),
            Phase(self.distil, epochs=o.server_epochs, end=self.settle, **plain),
        ]

    def logits(self, server: Learner, theta: Tensor, x: Tensor) -> Tensor:
        """Return f(x; theta)."""
        return server.models[self.network](server, theta, x)

    def teach(self, server: Learner, batch: Batch) -> None:
        """Write down log p of the batch's images."""
        assert batch.index is not None
        with torch.no_grad():
            p = torch.stack([self.logits(*member, batch.x).softmax(-1) for member in self.members(server)]).mean(0)
            low = math.log(self.options.floor) if self.options.floor else -math.inf
            server[self.at("targets")][batch.index] = F.log_softmax((p.log() / self.options.sharpen).clamp(min=low), -1)

    def distil(self, server: Learner, batch: Batch) -> None:
        """Do a step towards p."""
        assert batch.index is not None
        (theta,) = leaves(server[self.name])
        logits, targets = self.logits(server, theta, batch.x), server[self.at("targets")][batch.index]
        at = loss_gradient(batch, logits, ce=0.0, kl=1 / targets.shape[1], teacher=targets)
        (g,) = grad(logits, theta, at=at)
        self.sgd.step(server, **{self.name: g})
        t, averaged, swa = server[self.at("t")].add_(1), server[self.at("averaged")], server[self.at("swa")]
        due = ((t > self.options.swa_start) & (t % self.options.swa_every == 0)).to(t.dtype)
        averaged.add_(due)
        swa.add_(due / averaged.clamp(min=1) * (server[self.name] - swa))

    def settle(self, server: Node) -> None:
        """Make the average the model, and drop what only this round needed."""
        theta, averaged = server[self.name], server[self.at("averaged")]
        theta.copy_(torch.where(averaged > 0, server[self.at("swa")], theta))
        for name in [name for name in server.state if name.startswith(self.at(""))]:
            del server.state[name]


class FedBE(FedAvg):
    """FedAvg's clients; between rounds the server holds theta alone."""

    name = "fedbe"
    label = "FedBE"
    revision = 1

    @dataclass(frozen=True)
    class Options(ServerOptions, FedAvg.Options):
        """FedAvg's of the clients, and those of the server."""

    options: Options

    def __init__(self, options: FedBE.Options) -> None:
        super().__init__(options)
        self.distillation = Distillation(options, options.server_lr)

    def server_images(self) -> int:
        return self.options.server_set

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        before = server["theta"].clone()
        super().aggregate(server, updates)
        self.distillation.gather(server, before, updates)
        return {}

    def server_phases(self, server: Node) -> Sequence[Phase]:
        return self.distillation.phases(server)


METHOD = FedBE
