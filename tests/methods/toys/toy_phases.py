"""Several phases in a round, each with its own step, data and length, and hooks at their ends.

A teacher's epochs with averages of the iterates at each epoch's end (as FedPA samples), then mini-batches of a student with
a network of its own (as in FedPPD), then a pass on the server's images that only measures (as FedCurv's Fisher), in
mini-batches of its own (as in pFedVEM).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import cross_entropy, grad, kl, leaves


class ToyPhases(Method):
    name = "toy_phases"
    label = "Toy with phases"
    revision = 1
    networks = ("student",)

    def server_images(self) -> int:
        return 40

    def init_server(self, server: Node) -> State:
        return {"theta": server.initial(), "student": server.initial("student")}

    def start(self, c: Node, message: State) -> State:
        theta = message["theta"].clone()
        zeros = torch.zeros_like(theta)
        counts = {name: theta.new_zeros(()) for name in ("epochs", "student_steps", "measured", "ends")}
        return {"theta": theta, "student": message["student"].clone(), "sum": zeros, "fisher": zeros.clone()} | counts

    def phases(self, c: Node) -> Sequence[Phase]:
        return [
            Phase(self.teach, epochs=c.epochs, epoch_end=self.collect),
            Phase(self.distil, batches=7, end=self.note),
            Phase(self.measure, epochs=1, data="server", counted=False, batch_size=36),
        ]

    def teach(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        (g,) = grad(batch.mean(cross_entropy(c.model(theta, batch.x), batch.y)), theta)
        c["theta"].sub_(c.rate(0.05) * g)

    def collect(self, c: Node) -> None:
        c["sum"].add_(c["theta"])
        c["epochs"].add_(1)

    def distil(self, c: Learner, batch: Batch) -> None:
        (student,) = leaves(c["student"])
        with torch.no_grad():
            teacher = c.model(c["theta"], batch.x)
        (g,) = grad(batch.mean(kl(teacher, c.network("student")(student, batch.x))), student)
        c["student"].sub_(c.rate(0.05) * g)
        c["student_steps"].add_(1)

    def note(self, c: Node) -> None:
        c["ends"].add_(1)

    def measure(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        (g,) = grad(batch.mean(cross_entropy(c.model(theta, batch.x), batch.y)), theta)
        c["fisher"].add_(g.square())
        c["measured"].add_(batch.size)

    def finish(self, c: Node) -> State:
        counts = {name: c[name] for name in ("epochs", "student_steps", "measured", "ends")}
        return {"theta": c["sum"] / c["epochs"], "student": c["student"]} | counts

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        for name in ("theta", "student"):
            server[name] = sum(update.q * update[name] for update in updates)
        return {name: updates[0][name] for name in ("epochs", "student_steps", "measured", "ends")}

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.network("student"), server["student"])]


METHOD = ToyPhases
