"""Per-FedAvg (Fallah et al., NeurIPS 2020): a common model from which one step leads to a client's own.

Client i from w, for each three mini-batches D, D', D'':

    w' = w - alpha g(w; D),    v = g(w'; D'),    w <- w - beta (v - alpha H(w; D'') v)

`order` says what becomes of the Hessian H. `first` leaves it out, and takes mini-batches in pairs D, D'. `hf` is the paper's
difference of two gradients,

    H(w; D'') v = (g(w + delta v; D'') - g(w - delta v; D'')) / (2 delta)

and `exact` differentiates the gradient. Both compute in the states' dtype, since bf16 would round the difference away.

Mini-batches at the end of a round's epochs that are too few for another step lead nowhere; so a client of one mini-batch and
one epoch trains nothing.

Server: w <- sum_i q_i w_i. The client's own model is one step away from the server's w, on one of its mini-batches:

    phi = w - alpha g(w; D)

D is of its training images. In the repository of pFedMe, with which papers compare, D has been of its *test* images, whose
labels the model has then seen before it is tested on them: `adapt: test` does that, to measure what it gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bayesfed.core.errors import InputError, out_of_memory, words
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, average
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import ce_gradient, ce_gradient_at, cross_entropy, leaves


class PerFedAvg(Method):
    """A client keeps phi, though every round makes a new one; the server has w."""

    name = "perfedavg"
    label = "Per-FedAvg"
    revision = 1
    personal = True

    @dataclass(frozen=True)
    class Options:
        """The values of pFedMe's repository; delta is ours. lr: alpha. beta, order, delta: as above. adapt: whose images D
        is of for phi."""

        lr: float = option(0.01, above=0)
        beta: float = option(1e-3, above=0)
        adapt: Literal["train", "test"] = "train"
        order: Literal["first", "hf", "exact"] = "first"
        delta: float = option(1e-3, above=0)

    def leak(self) -> str:
        return "adapts on test images and their labels" if self.options.adapt == "test" else ""

    def unfit(self, ground: Ground) -> str:
        if self.options.adapt == "test" and not ground.min_test:
            return "partition.min_test: 0, but with adapt: test a client trains on its test images; set it to 1"
        if self.options.order == "hf" and ground.random:
            return (
                "method.order: hf, but the network draws random numbers in training, others for each of the two gradients; "
                "take exact"
            )
        return ""

    def init_server(self, server: Node) -> State:
        return {"w": server.initial()}

    def init_client(self, c: Node) -> State:
        return {"phi": c.initial()}

    def start(self, c: Node, message: State) -> State:
        w = message["w"]
        # theta is where the next gradient is taken: w or w'. turn: which of its two or three mini-batches is next, from 0.
        state = {"phi": w.clone(), "w": w.clone(), "theta": w.clone(), "turn": torch.zeros_like(c.n)}
        return state if self.options.order == "first" else state | {"v": torch.zeros_like(w)}

    def adapt(self, c: Learner, batch: Batch) -> None:
        """Do phi = w - alpha g(w; D)."""
        c["phi"].sub_(c.rate(self.options.lr) * ce_gradient(c, "phi", batch))

    def step(self, c: Learner, batch: Batch) -> None:
        """Do w' = w - alpha g(w; D), or w <- w - beta g(w'; D')."""
        g, turn = ce_gradient(c, "theta", batch), c["turn"]
        c["w"].lerp_(c["theta"], 1 - turn)  # one of them, as long as both are finite; faster than torch.where
        length = (1 - turn) * c.rate(self.options.lr) + turn * c.rate(self.options.beta)
        c["theta"].copy_(c["w"] - length * g)
        turn.copy_(1 - turn)

    def curved_step(self, c: Learner, batch: Batch) -> None:
        """Do w' = w - alpha g(w; D), or v = g(w'; D'), or w <- w - beta (v - alpha H(w; D'') v).

        A step knows its turn as a tensor alone, so that each computes all of it, with v = 0 where it is not known yet.
        """
        w, theta, v, turn = c["w"], c["theta"], c["v"], c["turn"]
        alpha, beta = c.rate(self.options.lr), c.rate(self.options.beta)
        g, curved = self.curved(c, replace(batch, x=batch.x.to(w.dtype)))
        w.copy_(torch.where(turn == 2, w - beta * (v - alpha * curved), w))
        theta.copy_(torch.where(turn == 0, w - alpha * g, w))
        v.copy_(torch.where(turn == 1, g, 0))
        turn.copy_((turn + 1) % 3)

    def curved(self, c: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the gradient g and H v at theta; by `hf` g is that at theta + delta v."""
        if self.options.order == "exact":
            return exactly(c, batch)
        away = self.options.delta * c["v"]
        ahead, behind = ce_gradient_at(c, c["theta"] + away, batch), ce_gradient_at(c, c["theta"] - away, batch)
        return ahead, (ahead - behind) / (2 * self.options.delta)

    def phases(self, c: Node) -> Sequence[Phase]:
        data: Literal["own", "test"] = "own" if self.options.adapt == "train" else "test"
        step, each = (self.step, 2) if self.options.order == "first" else (self.curved_step, 3)
        return [Phase(self.adapt, batches=1, data=data), Phase(step, epochs=c.epochs, batches=each * c.batches)]

    def finish(self, c: Node) -> State:
        # In a pair theta is the next w until a second mini-batch comes.
        return {"w": torch.where(c["turn"] == 0, c["theta"], c["w"])}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["w"] = average(updates, "w")
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("personal", c.received, c["phi"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["w"])]


def exactly(c: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the gradient g and the product H v at theta, by differentiating g^T v.

    Raises InputError where torch has no second derivative of something in the network.
    """
    (theta,) = leaves(c["theta"])
    loss = batch.mean(cross_entropy(c.model(theta, batch.x), batch.y))
    try:
        (g,) = torch.autograd.grad(loss, theta, create_graph=True)
        (curved,) = torch.autograd.grad(g, theta, c["v"])
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        raise InputError(
            f"method.order: exact, but the network's gradient cannot be differentiated ({words(error)}); take hf"
        ) from None
    return g.detach(), curved


METHOD = PerFedAvg
