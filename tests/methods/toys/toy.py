"""The smallest method: FedAvg by hand, in one file. The README's worked example."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import cross_entropy, grad, leaves


class Toy(Method):
    name = "toy"
    label = "Toy"
    revision = 1

    @dataclass(frozen=True)
    class Options:
        lr: float = option(0.1, above=0)

    def init_server(self, server: Node) -> State:
        return {"theta": server.initial()}

    def start(self, c: Node, message: State) -> State:
        return {"theta": message["theta"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        (g,) = grad(batch.mean(cross_entropy(c.model(theta, batch.x), batch.y)), theta)
        c["theta"].sub_(c.rate(self.options.lr) * g)

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["theta"] = sum(update.q * update["theta"] for update in updates)
        return {}

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["theta"])]


METHOD = Toy
