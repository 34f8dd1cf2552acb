"""The rounds of a run: who trains, what is sent, aggregated, evaluated, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.engine import contract, labelling
from bayesfed.engine.executors import EXECUTORS, Job, run_plainly
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.labelling import Labelled
from bayesfed.methods.base import GLOBAL, SAMPLED, Node, Predictor, State, Update
from bayesfed.metrics.classification import accuracy, bins, uncertainty
from bayesfed.metrics.detection import detection, entropy

DETAILED_EVERY = 10  # rounds between evaluations of everything beyond the plain accuracies
LABELLED = "labelled_images"  # the metric of active learning: how many all clients together trained on
MEAN = "mean"  # stands for a client in rows of all clients of a round together
DETAILED_CLIENTS = 20  # at most so many clients of such a round, evenly spaced, are tested on the full test set


@dataclass(frozen=True)
class Row:
    """One line of metrics.csv; `client` is a number from 0, "global", or "mean".

    With a client's number and the model `global` it is about the server's model on that client's test images.
    """

    round: int
    client: str
    model: str
    metric: str
    value: float


@dataclass(frozen=True)
class Divergence:
    """Where a run first held a value that is not finite, or predicted one; `client` is a number from 0 or "server"."""

    round: int
    client: str
    tensor: str

    def __str__(self) -> str:
        who = self.client if self.client == "server" else f"client {self.client}"
        return f"diverged in round {self.round}: {who}'s {self.tensor} is not finite"


@dataclass
class Progress:
    """What a run has after a whole number of rounds: all that a checkpoint must hold.

    A run that has diverged is over, whatever rounds are left.
    """

    round: int
    server: State
    clients: dict[int, State] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    diverged: Divergence | None = None
    labelled: Labelled = field(default_factory=dict)  # in active learning; else all images are

    def over(self, rounds: int) -> bool:
        """Whether a run of so many rounds ends here."""
        return self.round == rounds or self.diverged is not None

    def tensors(self) -> State:
        """Every tensor by owner and name: server/<name>, client/<number>/<name>, labelled/<number>."""
        found = {f"server/{name}": tensor for name, tensor in self.server.items()}
        for client, state in self.clients.items():
            found |= {f"client/{client}/{name}": tensor for name, tensor in state.items()}
        found |= {f"labelled/{client}": images for client, images in self.labelled.items()}
        return found


def begin(federation: Federation) -> Progress:
    """A run before its first round."""
    method = federation.method
    contract.check_parameters(method)
    state = contract.state(method, "init_server", method.init_server(federation.node(SERVER, 0)))
    state |= federation.statistics(SERVER, own=False)
    return Progress(0, state, labelled=labelling.first(federation))


@dataclass(frozen=True)
class Reading:
    """A row whose value is still on the device, so that the host need not wait for it."""

    client: str
    model: str
    metric: str
    value: Tensor


@dataclass
class Visit:
    """What is left of a client's round: what it sent, what was measured, what it keeps, which of its tensors are finite."""

    update: Update
    readings: list[Reading]
    kept: State
    finite: State


class Trainer:
    """Plays rounds. A round that is stopped midway leaves the progress as it was before it."""

    def __init__(self, federation: Federation, executor: str, tick: Callable[[], None] = lambda: None) -> None:
        """`executor`: one of EXECUTORS. `tick` is called once a client."""
        self.federation = federation
        self.executor = EXECUTORS[executor](federation)
        self.tick = tick
        self.samples = 0  # training images of the last round, times epochs
        self.predicts = False  # whether anything has predicted in this round
        self.off: list[tuple[str, Tensor]] = []  # and how far probabilities were from adding up to 1, by predictor
        self.numbers: dict[tuple[int, str], Tensor] = {}  # and whether all were numbers, by client and predictor

    def play(self, progress: Progress) -> Progress:
        """The progress after one more round. A GPU is waited for at its end, before only for a recording and for values that
        the host must see."""
        federation, method = self.federation, self.federation.method
        round, generators, attributes = progress.round + 1, contract.shared_generators(), dict(vars(method))
        self.off, self.numbers, self.predicts = [], {}, False
        federation.label(progress.labelled)
        budget = federation.run.budget
        detailed = round == budget.rounds or round % DETAILED_EVERY == 0
        server = federation.node(SERVER, round)
        server.state = copy(progress.server, federation.compute.device)
        participants = federation.participants(round)
        epochs = federation.local_epochs(round, participants)
        n = {k: len(federation.shards[k].train) for k in participants}
        total = sum(n.values())
        q = dict(zip(n, federation.compute.place(np.array([n[k] / total for k in n])), strict=True))
        sparse = -(-len(participants) // DETAILED_CLIENTS)
        every = budget.clients_on_test == "round"
        tested = set(participants[:: 1 if every else sparse] if detailed or every else [])
        # Statistics of normalisation travel with the model and are averaged by q, whatever the method; those of a
        # client's own model stay with it. A client that keeps parameters keeps what they go with.
        travelling = list(federation.statistics(SERVER, own=False))
        keeps: dict[int, list[str]] = {}
        best: dict[int, dict[str, Tensor]] = {k: {} for k in participants}

        def begin(client: int) -> Job:
            c = federation.node(client, round, epochs[client])
            before = progress.clients.get(client)
            if before is None:
                first = contract.state(method, "init_client", method.init_client(federation.node(client, 0)))
                before = first | federation.statistics(client, own=True)
            c.state = copy(before, c.n.device)
            keeps[client] = [*c.state, *(travelling if c.state else [])]
            c.arrived = copy({name: server[name] for name in travelling}, c.n.device)
            message = contract.state(method, "message", method.message(server, client))
            c.state |= contract.state(method, "start", method.start(c, message))
            c.state |= copy(c.arrived, c.n.device)
            c.state |= federation.rate(round)
            hooks = [self.epoch_test(client, best[client]), federation.run.schedule.epoch_end()]
            return Job(c, contract.phases(method, method.phases(c)), [hook for hook in hooks if hook])

        def end(job: Job) -> Visit:
            c = job.node
            sent = contract.state(method, "finish", method.finish(c))
            update = Update(c.client, n[c.client], q[c.client], copy(sent, c.n.device))
            finite = finiteness({**c.state, **update.values})
            readings = [Reading(str(c.client), m, "epoch_shard_accuracy", v) for m, v in best[c.client].items()]
            predictors = contract.client_predictors(method, method.client_predictors(c))
            readings += self.evaluate(c, predictors, detailed, c.client in tested)
            # Absent clients wait on the host: a GPU holds those that it trains.
            kept = copy({name: c[name] for name in keeps[c.client]}, torch.device("cpu"))
            update.statistics = copy({name: c[name] for name in travelling}, c.n.device)
            return Visit(update, readings, kept, finite)

        visits: dict[int, Visit] = {}
        drawn = server.generator.get_state()
        images = {k: n[k] * epochs[k] or budget.local_batches * min(budget.batch_size, n[k]) for k in n}
        # Most work first, lest one core, or lane, still has a large client when the others are done.
        work = {k: images[k] * sum(network.operations for network in federation.networks[k].values()) for k in n}
        for visit in self.executor.run(sorted(n, key=lambda k: -work[k]), begin, end):
            visits[visit.update.client] = visit
            self.tick()
        contract.check_messages(method, drawn, server.generator.get_state())
        readings = [reading for k in participants for reading in visits[k].readings]
        logged = contract.diagnostics(method, method.aggregate(server, [visits[k].update for k in participants]))
        contract.state(method, "aggregate", server.state)
        readings += [Reading("global", "server", name, value) for name, value in logged.items()]
        readings += averages(readings, q) if every else []
        for name in travelling:
            server[name] = mean_over_clients([visits[k].update.statistics[name] for k in q], list(q.values()))
        run_plainly(federation, Job(server, method.server_phases(server)))
        if server.predicts:
            on = list(range(federation.clients)) if detailed else participants
            predictors = contract.server_predictors(method, method.server_predictors(server))
            whole = not federation.run.multi_task  # else clients' tests are of several sets, and their shards are these
            readings += self.evaluate(server, predictors, detailed, tested=whole, on=on)
        self.samples = sum(images.values())
        finite = {(str(k), name): flag for k in participants for name, flag in visits[k].finite.items()}
        finite |= {("server", name): flag for name, flag in finiteness(server.state).items()}
        for (client, name), flag in sorted(self.numbers.items(), key=lambda one: one[0]):
            finite["server" if client == SERVER else str(client), f"prediction by its model '{name}'"] = flag
        federation.compute.synchronise()  # the round ends here; what was sent may be freed only after it
        contract.check_draws(method, generators)
        contract.check_self(method, attributes)
        contract.check_predictions(method, self.predicts, self.off)
        labelled = progress.labelled
        if labelled:
            count = torch.tensor(float(sum(map(len, labelled.values()))), device=federation.compute.device)
            readings.append(Reading("global", "server", LABELLED, count))
        if labelling.due(federation, round):
            labelled = labelling.more(federation, labelled, server)
        kept = progress.clients | {k: visit.kept for k, visit in visits.items()}
        history = progress.history + rows(round, readings)
        return Progress(round, server.state, kept, history, divergence(round, finite), labelled)

    def epoch_test(self, client: int, best: dict[str, Tensor]) -> Callable[[Node], None] | None:
        """Where the method asks for it: test a client after an epoch and keep the best accuracy of each model."""
        method, shard = self.federation.method, self.federation.shards[client]
        if not method.evaluate_each_epoch() or not len(shard.test):
            return None

        def test(c: Node) -> None:
            for predictor in method.client_predictors(c):
                if not predictor.sampled:
                    predicted = self.federation.predict(predictor, shard.test_images, shard.test)
                    value = accuracy(predicted, shard.test_images.labels[shard.test])
                    best[predictor.name] = torch.maximum(best.get(predictor.name, value), value)

        return test

    def evaluate(self, node: Node, predictors: Sequence[Predictor], detailed: bool, tested: bool,
                 on: Sequence[int] = ()) -> list[Reading]:  # fmt: skip
        """All metrics of a node's predictors that are due this round; on the full test set where it is `tested`.

        `on`: the clients on whose shards the server's model is tested.
        """
        node.reseed("predict")
        self.predicts |= bool(predictors)
        shard = self.federation.shards[node.client]
        is_server = node.client == SERVER
        who = "global" if is_server else str(node.client)
        classes = self.federation.run.sources[max(node.client, 0) if self.federation.run.multi_task else 0].classes
        due = {"test"} if tested else set()
        due |= {"shard"} if not is_server and len(shard.test) else set()
        readings = []
        for predictor in predictors:
            sets = due.intersection(predictor.sets) if detailed or not predictor.sampled else set()
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
                contract.check_shape(self.federation.method, predictor.name, log_probabilities, len(truth), classes)
                self.off.append((predictor.name, contract.off_one(log_probabilities)))
                of = node.client, predictor.name
                self.numbers[of] = ~log_probabilities.isnan().any() & self.numbers.get(of, True)
                values = {"accuracy": accuracy(log_probabilities, truth)}
                if detailed:
                    values |= uncertainty(log_probabilities, truth)
                if detailed and name == "test":
                    values |= self.tasks(predictor, log_probabilities, truth)
                readings += [Reading(who, predictor.name, f"{name}_{key}", value) for key, value in values.items()]
            ours = is_server and predictor.name in (GLOBAL, GLOBAL + SAMPLED)
            if ours and "test" in predicted and node.round == node.rounds:
                readings += reliability(predictor.name, *predicted["test"])
            if predictor.name == GLOBAL and "shard" in predictor.sets:
                readings += self.on_shards(predictor, predicted["test"][0] if "test" in predicted else None, on)
        return readings

    def tasks(self, predictor: Predictor, on_test: Tensor, truth: Tensor) -> dict[str, Tensor]:
        """How well entropy tells wrong predictions from right ones, and foreign images from the run's own, as the run asks.

        on_test: the predicted log probabilities (n, classes) of the full test set with the labels truth (n,). AUROC as
        mean and sd over resamplings.
        """
        asked, found = self.federation.run.tasks, {}
        own = entropy(on_test)
        if asked.mistakes:
            found["mistakes"] = detection(own, on_test.argmax(-1) != truth, self.federation.resamplings(len(own)))
        for name, images in self.federation.foreign.items():
            everything = torch.arange(len(images), device=own.device)
            scores = torch.cat([own, entropy(self.federation.predict(predictor, images, everything))])
            foreign = torch.arange(len(scores), device=own.device) >= len(own)
            found[f"foreign_{name}"] = detection(scores, foreign, self.federation.resamplings(len(scores)))
        return {
            f"auroc_{name}{end}": value
            for name, both in found.items()
            for end, value in zip(("", "_sd"), both, strict=True)
        }

    def on_shards(self, predictor: Predictor, on_test: Tensor | None, clients: Sequence[int]) -> list[Reading]:
        """Accuracy of a predictor of the server on the test images of each of the clients.

        `on_test`: what it has predicted on the server's test set, of which a shard is a part unless every client has a
        dataset of its own.
        """
        images, readings = self.federation.shards[SERVER].test_images, []
        for k in clients:
            shard = self.federation.shards[k]
            if not len(shard.test):
                continue
            if on_test is not None and shard.test_images is images:
                predicted = on_test[shard.test]
            else:
                predicted = self.federation.predict(predictor, shard.test_images, shard.test)
            value = accuracy(predicted, shard.test_images.labels[shard.test])
            readings.append(Reading(str(k), predictor.name, "shard_accuracy", value))
        return readings


def mean_over_clients(tensors: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    """sum_k q_k tensor_k / sum_k q_k, rounded where they are whole numbers, such as a count of mini-batches."""
    mean = weighted_mean(torch.stack(list(q)), torch.stack(list(tensors)))
    return (mean if tensors[0].is_floating_point() else mean.round()).to(tensors[0].dtype)


def reliability(model: str, log_probabilities: Tensor, labels: Tensor) -> list[Reading]:
    """The bins of a model of the server as rows `reliability_<bin>_<what>`, bins from 1."""
    return [
        Reading("global", model, f"reliability_{number}_{what}", value)
        for what, values in vars(bins(log_probabilities, labels)).items()
        for number, value in enumerate(values, start=1)
    ]


def averages(readings: Sequence[Reading], q: Mapping[int, Tensor]) -> list[Reading]:
    """sum_k q_k of the accuracies on the full test set of each model that all clients of a round were tested with: FOLA's
    LA, of a model of the client "mean"."""
    found: dict[str, list[Tensor]] = {}
    for reading in readings:
        if reading.metric == "test_accuracy" and reading.client != "global":
            found.setdefault(reading.model, []).append(q[int(reading.client)] * reading.value)
    return [
        Reading(MEAN, model, "test_accuracy", torch.stack(values).sum())
        for model, values in found.items()
        if len(values) == len(q)
    ]


def rows(round: int, readings: list[Reading]) -> list[Row]:
    """The readings with their values on the host, fetched in one go."""
    if not readings:
        return []
    values = torch.stack([reading.value.double() for reading in readings]).tolist()
    return [Row(round, r.client, r.model, r.metric, value) for r, value in zip(readings, values, strict=True)]


def finiteness(state: State) -> State:
    """For each tensor of numbers that can be other than finite, whether all of them are: a tensor () on its device."""
    # Sorted, since a checkpoint gives tensors back in another order: the first that is not is named.
    return {name: tensor.isfinite().all() for name, tensor in sorted(state.items()) if tensor.is_floating_point()}


def divergence(round: int, finite: dict[tuple[str, str], Tensor]) -> Divergence | None:
    """The first tensor (owner, name) that is not finite, if there is one."""
    flags = torch.stack(list(finite.values())).tolist() if finite else []
    broken = [where for where, flag in zip(finite, flags, strict=True) if not flag]
    return Divergence(round, *broken[0]) if broken else None


def copy(state: State, device: torch.device) -> State:
    """The state on a device with tensors of its own, so that training in place leaves the original alone."""
    return {name: tensor.to(device, copy=True, non_blocking=True) for name, tensor in state.items()}
