"""The rounds of a run: who trains, what is sent, aggregated, evaluated, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesfed.engine.executor import EagerExecutor
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.methods.base import Node, Predictor, State, Update
from bayesfed.metrics.classification import accuracy, uncertainty

DETAILED_EVERY = 10  # rounds between evaluations of everything beyond the plain accuracies


@dataclass(frozen=True)
class Row:
    """One line of metrics.csv; `client` is a number from 0 or "global"."""

    round: int
    client: str
    model: str
    metric: str
    value: float


@dataclass
class Progress:
    """What a run has after a whole number of rounds: all that a checkpoint must hold."""

    round: int
    server: State
    clients: dict[int, State] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)


def begin(federation: Federation) -> Progress:
    """A run before its first round."""
    return Progress(0, federation.method.init_server(federation.node(SERVER, 0)))


class Trainer:
    """Plays rounds. A round that is stopped midway leaves the progress as it was before it."""

    def __init__(self, federation: Federation, check: Callable[[], None], tick: Callable[[], None]) -> None:
        """`check` is called between batches and may raise; `tick` once for each client trained."""
        self.federation = federation
        self.executor = EagerExecutor(federation, check)
        self.tick = tick
        self.samples = 0  # training images of the last round, times epochs

    def play(self, progress: Progress) -> Progress:
        """The progress after one more round."""
        federation, method = self.federation, self.federation.method
        round = progress.round + 1
        last = round == federation.run.budget.rounds
        detailed = last or round % DETAILED_EVERY == 0
        rows: list[Row] = []
        server = federation.node(SERVER, round)
        server.state = copy(progress.server)
        participants = federation.participants(round)
        epochs = federation.local_epochs(round, participants)
        total = sum(len(federation.shards[k].train) for k in participants)
        self.samples = 0
        updates, kept = [], dict(progress.clients)
        for client in participants:
            c = federation.node(client, round, epochs[client])
            before = progress.clients.get(client)
            c.state = copy(before if before is not None else method.init_client(federation.node(client, 0)))
            names = list(c.state)
            c.state |= method.start(c, method.message(server, client))
            rows += self.train_client(c)
            self.samples += len(federation.shards[client].train) * c.epochs
            n = len(federation.shards[client].train)
            updates.append(Update(client, n, n / total, copy(method.finish(c))))
            rows += self.evaluate(c, method.client_predictors(c), detailed)
            kept[client] = {name: c[name] for name in names}
            self.tick()
        for name, value in method.aggregate(server, updates).items():
            rows.append(Row(round, "global", "server", name, value))
        self.executor.train(server, method.server_phases(server))
        if server.predicts:
            rows += self.evaluate(server, method.server_predictors(server), detailed)
        return Progress(round, server.state, kept, progress.history + rows)

    def train_client(self, c: Node) -> list[Row]:
        """Run a client's phases; where the method asks for it, test it after each epoch and give its best."""
        method = self.federation.method
        if not method.evaluate_each_epoch() or not len(self.federation.shards[c.client].test):
            self.executor.train(c, method.phases(c))
            return []
        best: dict[str, float] = {}

        def epoch_end(c: Node) -> None:
            for predictor in method.client_predictors(c):
                if not predictor.sampled:
                    value = self.shard_accuracy(c, predictor)
                    best[predictor.name] = max(best.get(predictor.name, 0.0), value)

        self.executor.train(c, method.phases(c), epoch_end)
        return [Row(c.round, str(c.client), model, "epoch_shard_accuracy", value) for model, value in best.items()]

    def shard_accuracy(self, c: Node, predictor: Predictor) -> float:
        """Accuracy on the client's own test images."""
        shard = self.federation.shards[c.client]
        predicted = self.federation.predict(predictor, shard.test_images, shard.test)
        return accuracy(predicted, shard.test_images.labels[shard.test])

    def evaluate(self, node: Node, predictors: Sequence[Predictor], detailed: bool) -> list[Row]:
        """All metrics of a node's predictors that are due this round."""
        node.reseed("predict")
        shard = self.federation.shards[node.client]
        is_server = node.client == SERVER
        who = "global" if is_server else str(node.client)
        every_round = "test" if is_server else "shard"
        rows = []
        for predictor in predictors:
            sets = [name for name in predictor.sets if name != "shard" or (not is_server and len(shard.test))]
            if not detailed:
                sets = [name for name in sets if name == every_round and not predictor.sampled]
            predicted: dict[str, tuple[Tensor, Tensor]] = {}
            labels = shard.test_images.labels
            if "test" in sets:
                everything = torch.arange(len(labels), device=labels.device)
                predicted["test"] = self.federation.predict(predictor, shard.test_images, everything), labels
            if "shard" in sets and "test" in sets:  # a shard is a part of the test set
                predicted["shard"] = predicted["test"][0][shard.test], labels[shard.test]
            elif "shard" in sets:
                predicted["shard"] = (
                    self.federation.predict(predictor, shard.test_images, shard.test),
                    labels[shard.test],
                )
            for name, (log_probabilities, truth) in predicted.items():
                values = {"accuracy": accuracy(log_probabilities, truth)}
                if detailed:
                    values |= uncertainty(log_probabilities, truth)
                rows += [Row(node.round, who, predictor.name, f"{name}_{key}", value) for key, value in values.items()]
        return rows


def copy(state: State) -> State:
    """The state with tensors of its own, so that training in place leaves the original alone."""
    return {name: tensor.clone() for name, tensor in state.items()}
