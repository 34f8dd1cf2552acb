"""A server that trains on images of its own, by the same engine, and predicts with an ensemble whose size changes.

After averaging, the server distils the ensemble of the clients' models into the mean model (as FedBE); its state
grows by a model a round (as PFNM's model changes shape).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import cross_entropy, grad, kl, leaves


class ToyServer(Method):
    name = "toy_server"
    label = "Toy with a server's training"
    revision = 1

    def server_images(self) -> int:
        return 50

    def init_server(self, server: Node) -> State:
        return {
            "theta": server.initial(),
            "ensemble": server.n.new_empty((0, server.shared_parameters)),
            "steps": server.n.new_zeros(()),
        }

    def message(self, server: Node, client: int) -> State:
        return {"theta": server["theta"]}

    def start(self, c: Node, message: State) -> State:
        return {"theta": message["theta"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        (g,) = grad(batch.mean(cross_entropy(c.model(theta, batch.x), batch.y)), theta)
        c["theta"].sub_(c.rate(0.02) * g)

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["theta"] = sum(update.q * update["theta"] for update in updates)
        server["ensemble"] = torch.cat([server["ensemble"], server["theta"][None]])
        return {"members": server.n.new_full((), len(server["ensemble"]))}

    def server_phases(self, server: Node) -> Sequence[Phase]:
        return [Phase(self.distil, epochs=2)]

    def distil(self, server: Learner, batch: Batch) -> None:
        (theta,) = leaves(server["theta"])
        with torch.no_grad():
            teacher = torch.stack([server.model(member, batch.x) for member in server["ensemble"]]).mean(0)
        (g,) = grad(batch.mean(kl(teacher, server.model(theta, batch.x))), theta)
        server["theta"].sub_(0.01 * g)
        server["steps"].add_(1)

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        members = server["ensemble"]

        def ensemble(x: torch.Tensor) -> torch.Tensor:
            return torch.stack([server.model(member, x).softmax(-1) for member in members]).mean(0).log()

        return [softmax_of("global", server.model, server["theta"]), Predictor("ensemble", ensemble, sets=("test",))]


METHOD = ToyServer
