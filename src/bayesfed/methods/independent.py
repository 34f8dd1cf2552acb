"""Independent: every client trains its own model on its own data and nothing is exchanged (HBFL, Table 4).

theta_k <- E epochs of SGD on CE(f_k(x; theta_k)) each round, R rounds; the best epoch-end accuracy counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bayesfed.core.options import option
from bayesfed.methods.method import Method
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, grad, leaves, loss_gradient


class Independent(Method):
    """The client keeps theta and its momentum; the server has nothing."""

    name = "independent"
    label = "Independent"
    revision = 1
    personal = True
    local_models = True

    @dataclass(frozen=True)
    class Options:
        """SGD, as for all conventional networks of the paper."""

        lr: float = option(0.01, above=0)
        momentum: float = option(0.9, low=0, high=1)
        weight_decay: float = option(5e-4, low=0)

    def __init__(self, options: Independent.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, options.momentum, options.weight_decay)

    def evaluate_each_epoch(self) -> bool:
        return True

    def init_client(self, c: Node) -> State:
        theta = c.local_initial()
        return {"theta": theta} | self.sgd.start("theta", theta)

    def step(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        logits = c.local_model(theta, batch.x)
        (g,) = grad(logits, theta, at=loss_gradient(batch, logits))
        self.sgd.step(c, theta=g)

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.local_model, c["theta"])]


METHOD = Independent
