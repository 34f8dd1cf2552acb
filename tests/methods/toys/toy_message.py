"""A message per client that carries more than weights, and updates of which only some are aggregated.

The server keeps every client's last model (as HeurFedAMP) and sends each its own mixture and a number; of the
clients that train, the first two are averaged (as pFedMe).
"""

from collections.abc import Sequence

from torch import Tensor

from bayesfed.methods.method import Method, Update, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import cross_entropy, grad, leaves


class ToyMessage(Method):
    name = "toy_message"
    label = "Toy with messages"
    revision = 1

    def init_server(self, server: Node) -> State:
        return {"theta": server.initial()}

    def message(self, server: Node, client: int) -> State:
        last = server.state.get(f"theta.{client}", server["theta"])
        return {"theta": 0.5 * (last + server["theta"]), "client": last.new_full((), client)}

    def init_client(self, c: Node) -> State:
        return {"rounds": c.n.new_zeros(()), "clients": c.n.new_zeros(())}

    def start(self, c: Node, message: State) -> State:
        assert int(message["client"]) == c.client
        c["rounds"].add_(1)
        c["clients"].fill_(c.clients)
        return {"theta": message["theta"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        (theta,) = leaves(c["theta"])
        (g,) = grad(batch.mean(cross_entropy(c.model(theta, batch.x), batch.y)), theta)
        c["theta"].sub_(c.rate(0.1) * g)

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"], "rounds": c["rounds"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        for update in updates:
            server[f"theta.{update.client}"] = update["theta"]
        server["theta"] = stacked(updates[:2], "theta").mean(0)
        q = shares(updates)
        return {"rounds": updates[0]["rounds"], "clients": q.new_tensor(server.clients), "q": q.sum()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("personal", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [softmax_of("global", server.model, server["theta"])]


METHOD = ToyMessage
