"""The rounds of a run: who trains, what is sent, aggregated, and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.errors import InputError, out_of_memory, words
from bayesfed.engine import active_learning, method_checks
from bayesfed.engine.active_learning import Labelled
from bayesfed.engine.client_states import ClientStates
from bayesfed.engine.cost import CountedPhase, MultiplyAdds, Seconds, Stopwatch
from bayesfed.engine.divergence import Divergence, divergence, finiteness
from bayesfed.engine.evaluation import Evaluation, Reading, rows
from bayesfed.engine.executors import EXECUTORS, Job, run_plainly
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.outside import Watch
from bayesfed.engine.repeat import chosen
from bayesfed.engine.trial import Trial
from bayesfed.methods.method import Update
from bayesfed.methods.node import Node, State
from bayesfed.runs.run_folder import Row
from bayesfed.runs.spec import Budget
from bayesfed.runs.summary import COMMUNICATION, COMPUTATION, validation_curve

LABELLED = "labelled_images"  # the metric of active learning: how many all clients together trained on


@dataclass
class Progress:
    """The state of a run after a whole number of rounds: all that a checkpoint must hold.

    A run that has diverged is over, whatever rounds are left.
    """

    round: int
    server: State
    clients: ClientStates = field(default_factory=ClientStates)
    history: list[Row] = field(default_factory=list)
    diverged: Divergence | None = None
    labelled: Labelled = field(default_factory=dict)  # in active learning; else all images are

    def over(self, budget: Budget) -> bool:
        """Return whether the run ends here."""
        return (
            self.round == budget.rounds
            or self.diverged is not None
            or out_of_patience(self.history, self.round - 1, budget.patience)
        )

    def bounded(self, folder: Path) -> Progress:
        """Return the same, with the states of clients that are too many for memory in a folder."""
        return replace(self, clients=self.clients.bounded(folder))

    def tensors(self) -> State:
        """Return every tensor by owner and name: server/<name>, client/<number>/<name>, labelled/<number>."""
        found = {f"server/{name}": tensor for name, tensor in self.server.items()}
        for client, state in self.clients.items():
            found |= {f"client/{client}/{name}": tensor for name, tensor in state.items()}
        found |= {f"labelled/{client}": images for client, images in self.labelled.items()}
        return found


def begin(federation: Federation) -> Progress:
    """Begin a run: return its state before the first round."""
    method = federation.method
    method_checks.check_parameters(method)

    def init_server(server: Node) -> State:
        return method_checks.state(method, "init_server", method.init_server(server))

    with Watch(federation).watching("init_server"):
        state = Trial(federation).twice("init_server", federation.node(SERVER, 0), init_server)
    state |= federation.statistics(SERVER, own=False)
    return Progress(0, state, labelled=active_learning.first(federation))


@dataclass
class Visit:
    """The outcome of one client's round: its update, what was measured, what it keeps, which of its tensors are
    finite.
    """

    update: Update
    readings: list[Reading]
    kept: State
    finite: State


class Round:
    """A round under way: who takes part in it, how a client begins and ends, and what the server makes of it."""

    def __init__(self, federation: Federation, progress: Progress, watch: Watch, first: bool,
                 counts: MultiplyAdds) -> None:  # fmt: skip
        """`first`: whether it is the first that the process plays."""
        federation.label(progress.labelled)
        self.federation, self.before, self.number = federation, progress.clients, progress.round + 1
        if out_of_patience(progress.history, progress.round, federation.run.budget.patience):
            federation.rounds = self.number
        self.server = federation.node(SERVER, self.number)
        self.server.state = copy(progress.server, federation.compute.device)
        self.participants = federation.participants(self.number)
        self.epochs = federation.local_epochs(self.number, self.participants)
        self.n = {k: len(federation.shards[k].train) for k in self.participants}
        total = sum(self.n.values())
        shares = federation.compute.place(np.array([n / total for n in self.n.values()]))
        self.q = dict(zip(self.n, shares, strict=True))
        self.evaluation = Evaluation(federation, self.number, self.participants)
        # Statistics of normalisation travel with the model and are averaged by q, whatever the method; those of a
        # client's own model stay with it. A client that keeps parameters keeps what they go with.
        self.travelling = list(federation.statistics(SERVER, own=False))
        self.keeps: dict[int, list[str]] = {}
        self.bytes: dict[str, dict[int, int]] = {"down": {}, "up": {}}  # by client
        self.counts = counts
        self.started: dict[int, int] = {}  # multiply-adds in `start`, by client
        self.finished: dict[int, int] = {}  # in `finish`, and with SERVER in `aggregate`
        self.phases: dict[int, Sequence[CountedPhase]] = {}  # of clients
        self.times = Stopwatch(federation.compute.device)
        self.watch = watch
        self.trial = Trial(federation, self.order()[0]) if first else None

    def images(self) -> dict[int, int]:
        """Estimate how many images each client trains on in this round, in all its epochs or mini-batches."""
        budget = self.federation.run.budget
        size, batches = budget.batch_size, budget.local_batches
        return {k: n * self.epochs[k] or batches * min(size, n) for k, n in self.n.items()}

    def order(self) -> list[int]:
        """Order the clients, most work first, lest one core, or worker, still has a large client when the others are
        done.
        """
        operations = {
            k: sum(network.operations for network in self.federation.networks[k].values()) for k in self.participants
        }
        images = self.images()
        return sorted(self.participants, key=lambda k: -images[k] * operations[k])

    def begin(self, client: int) -> Job:
        """Make a client ready to train, with the server's message."""
        self.times.begin(client)
        job = self.begun(client)
        return self.trial.begun(job, lambda: self.begun(client)) if self.trial else job

    def begun(self, client: int) -> Job:
        """Do the same without any trial."""
        federation, method = self.federation, self.federation.method
        c = federation.node(client, self.number, self.epochs[client])
        before = self.before.get(client)
        if before is None:
            first = method_checks.state(method, "init_client", method.init_client(federation.node(client, 0)))
            before = first | federation.statistics(client, own=True)
        c.state = copy(before, c.n.device)
        self.keeps[client] = [*c.state, *(self.travelling if c.state else [])]
        c.arrived = copy({name: self.server[name] for name in self.travelling}, c.n.device)
        message = method_checks.state(method, "message", method.message(self.server, client))
        self.bytes["down"][client] = self.size(message)
        versions = {name: tensor._version for name, tensor in message.items()}
        with self.counts.counting(self.started, client):
            given = method_checks.state(method, "start", method.start(c, message))
        method_checks.check_message(method, message, versions)
        servers = {*map(memory, message.values()), *map(memory, self.server.state.values())}
        c.state |= {name: tensor.clone() if memory(tensor) in servers else tensor for name, tensor in given.items()}
        c.state |= copy(c.arrived, c.n.device)
        c.state |= federation.rate(self.number)
        test, decay = self.evaluation.epoch_test(client), federation.run.schedule.epoch_end()
        hooks = [test and self.times.timed(test), decay]
        self.phases[client] = self.counts.watched(c, method_checks.phases(method, method.phases(c)))
        return Job(c, self.phases[client], [hook for hook in hooks if hook])

    def end(self, job: Job) -> Visit:
        """Return the outcome of a client that has trained."""
        c = job.node
        self.watch.look_midway(c.client)
        sent = self.trial.twice("finish", c, self.finish) if self.trial else self.finish(c)
        self.bytes["up"][c.client] = self.size(sent)
        update = Update(c.client, self.n[c.client], self.q[c.client], copy(sent, c.n.device))
        finite = finiteness({**c.state, **update.values})
        with self.times.testing():
            readings = self.evaluation.of_client(c)
        # Absent clients wait on the host: a GPU holds those that it trains.
        kept = copy({name: c[name] for name in self.keeps[c.client]}, torch.device("cpu"))
        update.statistics = copy({name: c[name] for name in self.travelling}, c.n.device)
        self.times.end(c.client)
        return Visit(update, readings, kept, finite)

    def size(self, sent: State) -> int:
        """Return the bytes that travel one way: tensors that the method does not call `free`, and with any of these the
        BatchNorm statistics.
        """
        apart = {*self.federation.method.free, *self.travelling}
        tensors = [tensor for name, tensor in sent.items() if name not in apart]
        tensors += [self.server[name] for name in self.travelling] if tensors else []
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def finish(self, c: Node) -> State:
        """Return what a client sends."""
        method = self.federation.method
        with self.counts.counting(self.finished, c.client):
            return method_checks.state(method, "finish", method.finish(c))

    def aggregated(self, server: Node, updates: Sequence[Update]) -> Mapping[str, Tensor]:
        """Return what the method logs when the server has learnt from the clients."""
        with self.counts.counting(self.finished, SERVER):
            return self.federation.method.aggregate(server, updates)

    def aggregate(self, updates: Sequence[Update]) -> list[Reading]:
        """Let the server learn from the clients; return what the method logs."""
        method, server = self.federation.method, self.server
        shapes = {name: tensor.shape for name, tensor in server.state.items()}
        try:
            given = (
                self.trial.aggregate(server, updates, self.aggregated)
                if self.trial
                else self.aggregated(server, updates)
            )
        except (RuntimeError, ValueError) as error:  # torch's and numpy's, where shapes do not fit
            if out_of_memory(error) or not (odd := method_checks.unlike(updates, shapes)):
                raise
            raise InputError(f"method '{method.name}': {odd}, and aggregate failed: {words(error)}") from error
        logged = method_checks.diagnostics(method, given)
        method_checks.state(method, "aggregate", server.state)
        for name in self.travelling:
            server[name] = mean_over_clients([update.statistics[name] for update in updates], list(self.q.values()))
        return [Reading("global", "server", name, value) for name, value in logged.items()]


class Trainer:
    """Plays rounds. A round that is stopped midway leaves the progress as it was before it."""

    def __init__(self, federation: Federation, executor: str, tick: Callable[[], None] = lambda: None,
                 tell: Callable[[str], None] = lambda line: None) -> None:  # fmt: skip
        """`executor`: one of EXECUTORS. `tick` is called once a client, `tell` with what the log should say."""
        self.federation = federation
        self.watch, self.tell, self.played = Watch(federation), tell, 0
        self.executor = EXECUTORS[executor](federation)
        self.tick = tick
        self.samples = 0  # training images of the last round, times epochs
        self.multiply_adds = MultiplyAdds(federation)
        self.seconds = Seconds(0.0, 0.0, 0.0)  # of the last round

    def play(self, progress: Progress) -> Progress:
        """Play one more round; return the progress after it."""
        self.played += 1
        started = time.perf_counter()
        now = Round(self.federation, progress, self.watch, self.played == 1, self.multiply_adds)
        with self.watch.watching("a round", closely=chosen(self.played, now.number == self.federation.rounds)):
            played = self.round(now, progress)
        self.seconds = now.times.seconds(time.perf_counter() - started)
        return played

    def round(self, now: Round, progress: Progress) -> Progress:
        """Play this round; return the progress after it.

        The host waits for a GPU at the round's end; before, only for a recording and for values that it must see.
        """
        federation, method = self.federation, self.federation.method
        server, evaluation, device = now.server, now.evaluation, federation.compute.device
        drawn = server.generator.get_state()
        came: dict[int, Visit] = {}
        now.times.mark()
        for visit in self.executor.run(now.order(), now.begin, now.end):
            came[visit.update.client] = visit
            self.tick()
        method_checks.check_messages(method, drawn, server.generator.get_state())
        visits = [came[k] for k in now.participants]
        readings = [reading for visit in visits for reading in visit.readings]
        now.times.mark()
        readings += now.aggregate([visit.update for visit in visits])
        now.times.mark()
        readings += evaluation.over_clients(readings, now.q)
        now.times.mark()
        job = Job(server, method_checks.list_of_phases(method, "server_phases", method.server_phases(server)))
        before = federation.passes.multiply_adds
        run_plainly(federation, now.trial.watched(job) if now.trial else job)
        of_server = federation.passes.multiply_adds - before + now.finished.pop(SERVER)
        outside = sum(now.started.values()) + sum(now.finished.values())
        of_clients = self.multiply_adds.of_round(server.round, now.phases) + outside
        multiply_adds = {"clients": of_clients, "server": of_server}
        now.times.mark()
        readings += evaluation.of_server(server)
        self.samples = self.multiply_adds.samples(server.round, now.phases)
        finite = {(str(v.update.client), name): flag for v in visits for name, flag in v.finite.items()}
        finite |= {("server", name): flag for name, flag in finiteness(server.state).items()}
        federation.compute.synchronise()  # the round ends here; what was sent may be freed only after it
        evaluation.check()
        for line in now.trial.found(now.number) if now.trial else ():
            self.tell(line)
        labelled = progress.labelled
        if labelled:
            count = torch.tensor(float(sum(map(len, labelled.values()))), device=device)
            readings.append(Reading("global", "server", LABELLED, count))
        if active_learning.due(federation, now.number):
            labelled = active_learning.more(federation, labelled, server, evaluation)
        for way, each in now.bytes.items():
            count = torch.tensor(float(sum(each.values())), dtype=torch.float64, device=device)
            readings.append(Reading("global", COMMUNICATION, f"bytes_{way}", count))
        diverged = divergence(now.number, finite | evaluation.finiteness())
        kept = progress.clients | {client: visit.kept for client, visit in came.items()}
        history = progress.history + rows(now.number, readings)
        for whose, operations in multiply_adds.items():
            history.append(Row(now.number, "global", COMPUTATION, f"multiply_adds_{whose}", float(operations)))
        return Progress(now.number, server.state, kept, history, diverged, progress.labelled if diverged else labelled)


def mean_over_clients(tensors: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    """Return sum_k q_k tensor_k / sum_k q_k, rounded where they are whole numbers, such as a count of mini-batches."""
    mean = weighted_mean(torch.stack(list(q)), torch.stack(list(tensors)))
    return (mean if tensors[0].is_floating_point() else mean.round()).to(tensors[0].dtype)


def out_of_patience(history: Sequence[Row], number: int, patience: int) -> bool:
    """Return whether round `number` is the `patience`-th in a row without a better validation accuracy."""
    if not patience:
        return False
    curve = {r: value for r, value in validation_curve(history).items() if r <= number}
    return bool(curve) and number - max(curve, key=lambda r: (curve[r], -r)) >= patience


def memory(tensor: Tensor) -> int:
    """Return where a tensor's memory begins, that of its whole storage."""
    return tensor.untyped_storage().data_ptr()


def copy(state: State, device: torch.device) -> State:
    """Copy the state to a device, with tensors of its own, so that training in place leaves the original alone."""
    return {name: tensor.to(device, copy=True, non_blocking=True) for name, tensor in state.items()}
