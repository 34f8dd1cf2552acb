"""FML, federated mutual learning (Shen et al. 2020): a meme copy of the global model and the client's own model
teach each other.

    L_local = alpha CE(local) + (1 - alpha) KL(softmax(meme)  || softmax(local))
    L_meme  = beta  CE(meme)  + (1 - beta)  KL(softmax(local) || softmax(meme))
    theta  <- sum_k q_k theta_meme,k

Both losses come from the same two forward passes, teachers get no gradient, and KL is the batch mean at
temperature 1. The meme's optimiser is new in every round; the local model and its momentum stay with the client.
Where only the convolutions are shared, the meme's other layers stay with the client too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, average, shares
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, Adam, grad, leaves, loss_gradient


class FML(Method):
    """A client keeps its local model phi and the momentum of phi; the meme theta lives for a round."""

    name = "fml"
    label = "FML"
    revision = 1
    personal = True
    local_models = True

    @dataclass(frozen=True)
    class Options:
        """alpha and beta weight label against teacher. Assumptions: the server's average weighted by n_k or uniform
        as in FML's code (A16), local model kept or initialised again each round (A8), clients tested once a round or
        after each epoch (A14). Not in the paper, to ask what HBFL's gain depends on: the meme trained by Adam at
        `meme_adam`, as HBFL's is, instead of SGD."""

        alpha: float = option(0.5, low=0, high=1)
        beta: float = option(0.5, low=0, high=1)
        lr: float = option(0.01, above=0)
        momentum: float = option(0.9, low=0, high=1)
        weight_decay: float = option(5e-4, low=0)
        average: Literal["weighted", "uniform"] = "weighted"
        local_start: Literal["kept", "reset"] = "kept"
        evaluate: Literal["round", "epoch"] = "round"
        meme_adam: float | None = option(None, above=0)

    options: Options

    def __init__(self, options: FML.Options) -> None:
        super().__init__(options)
        o = options
        self.sgd = SGD(o.lr, o.momentum, o.weight_decay)
        self.of_meme = Adam(o.meme_adam, o.weight_decay) if o.meme_adam else self.sgd

    def evaluate_each_epoch(self) -> bool:
        return self.options.evaluate == "epoch"

    def init_server(self, server: Node) -> State:
        return {"theta": server.shared(server.initial())}

    def init_client(self, c: Node) -> State:
        phi = c.local_initial()
        return {"phi": phi, "theta.own": c.own(c.initial())} | self.sgd.start("phi", phi)

    def start(self, c: Node, message: State) -> State:
        theta = c.splice(message["theta"], c["theta.own"])
        state = {"theta": theta} | self.of_meme.start("theta", theta)
        if self.options.local_start == "reset":
            phi = c.local_initial()
            state |= {"phi": phi} | self.sgd.start("phi", phi)
        return state

    def gradients(self, batch: Batch, meme: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of L_meme and L_local at both models' logits (B, classes) on the same batch."""
        alpha, beta = self.options.alpha, self.options.beta
        at_meme = loss_gradient(batch, meme, ce=beta, kl=1 - beta, teacher=local)
        at_local = loss_gradient(batch, local, ce=alpha, kl=1 - alpha, teacher=meme)
        return at_meme, at_local

    def step(self, c: Learner, batch: Batch) -> None:
        theta, phi = leaves(c["theta"], c["phi"])
        meme, local = c.model(theta, batch.x), c.local_model(phi, batch.x)
        at_meme, at_local = self.gradients(batch, meme, local)
        (g_theta,) = grad(meme, theta, at=at_meme)
        (g_phi,) = grad(local, phi, at=at_local)
        if self.of_meme is self.sgd:  # both in one pass
            self.sgd.step(c, theta=g_theta, phi=g_phi)
        else:
            self.of_meme.step(c, theta=g_theta)
            self.sgd.step(c, phi=g_phi)

    def finish(self, c: Node) -> State:
        c["theta.own"].copy_(c.own(c["theta"]))
        return {"theta": c.shared(c["theta"])}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["theta"] = average(updates, "theta", shares(updates, equal=self.options.average == "uniform"))
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("meme", c.model, c["theta"]), softmax_of("local", c.local_model, c["phi"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["theta"])]


METHOD = FML
