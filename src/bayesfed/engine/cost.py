"""The cost of a round: multiply-adds of training, and seconds of clients, server and testing apart."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bayesfed.engine.batches import trained_on, whole_epoch
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Batch, Learner, Node, Phase


class MultiplyAdds:
    """Counts the multiply-adds of networks in the steps of a run's clients.

    Steps are recorded and replayed: so passes through networks are counted when a step of a kind is first done, and what a
    client does is that, times its images.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.by_image: dict[Hashable, float] = {}  # by networks, shapes of the state, place among the phases, and step
        for network in {network for own in federation.networks for network in own.values()}:
            _ = network.training_operations  # a module counts them by a pass, which must not come into a recorded step

    def watched(self, node: Node, phases: Sequence[Phase]) -> list[CountedPhase]:
        """Return the phases of a client, which count."""
        networks = tuple(self.federation.networks[node.client].items())
        layout = tuple(sorted((name, tensor.shape) for name, tensor in node.state.items()))
        return [
            CountedPhase(**vars(one), counts=self, key=(networks, layout, place, code_of(one.step)))
            for place, one in enumerate(phases)
        ]

    @contextmanager
    def counting(self, found: dict[int, int], client: int) -> Iterator[None]:
        """Note the multiply-adds of what is done inside, outside of steps, as those of a client."""
        before = self.federation.passes.multiply_adds
        yield
        found[client] = self.federation.passes.multiply_adds - before

    def of_round(self, number: int, phases: Mapping[int, Sequence[CountedPhase]]) -> int:
        """Return the multiply-adds of all clients' steps in round `number`, from the phases of each."""
        found = 0.0
        for k, own in phases.items():
            passed = (number - 1) * sum(one.batches for one in own)
            for one in own:
                found += self.images(k, one, passed) * self.by_image.get(one.key, 0.0)
                passed += one.batches
        return round(found)

    def samples(self, number: int, phases: Mapping[int, Sequence[Phase]]) -> int:
        """Return how many images all clients train on in the local epochs or mini-batches of round `number`."""
        found = 0
        for k, own in phases.items():
            passed = (number - 1) * sum(one.batches for one in own)
            for one in own:
                found += self.images(k, one, passed) if one.counted else 0
                passed += one.batches
        return found

    def images(self, client: int, phase: Phase, passed: int) -> int:
        """Return how many images a client goes through in a phase; `passed`: its mini-batches so far, which decide where a
        fixed order goes on.
        """
        count, budget = len(trained_on(self.federation, client, phase).train), self.federation.run.budget
        size = phase.batch_size or budget.batch_size
        used = whole_epoch(count, size, self.federation.batchwise(client) and not phase.evaluates)
        batches, start = -(-used // size), passed if budget.batch_order == "fixed" else 0

        def of_first(number: int) -> int:
            """Return the images of so many mini-batches, the first of which begins an epoch."""
            epochs, left = divmod(number, batches)
            return epochs * used + min(left * size, used)

        return phase.epochs * used + of_first(start + phase.batches) - of_first(start)


@dataclass(frozen=True)
class CountedPhase(Phase):
    """A phase whose step is counted when it is first done, and not replayed."""

    counts: MultiplyAdds | None = None
    key: Hashable = None

    def train(self, c: Learner, batch: Batch) -> None:
        """Do one mini-batch, as a `Phase` does."""
        assert self.counts is not None  # without a default, a dataclass takes no further field
        passes, by_image = self.counts.federation.passes, self.counts.by_image
        before = passes.multiply_adds
        super().train(c, batch)
        by_image.setdefault(self.key, (passes.multiply_adds - before) / len(batch.y))


def code_of(step: Any) -> Hashable:
    """Return what is the same of a step in every round, also where a method makes it again in each: its code, and the
    numbers and texts that it was made with.
    """
    if isinstance(step, functools.partial):
        given = (*step.args, *itertools.chain(*sorted(step.keywords.items())))
        return code_of(step.func), *filter(is_plain, given)
    closed = [cell.cell_contents for cell in getattr(step, "__closure__", None) or ()]
    return getattr(step, "__code__", type(step).__qualname__), *filter(is_plain, closed)


def is_plain(value: object) -> bool:
    """Return whether a value is a number or a text."""
    return isinstance(value, bool | int | float | str)


@dataclass(frozen=True)
class Seconds:
    """The time of rounds: clients that train, the server that aggregates and trains, and all else, which is testing."""

    clients: float
    server: float
    testing: float


@dataclass
class Stopwatch:
    """Marks moments of a round, on a GPU by events on its streams: the host only queues work there.

    Clients side by side share the time that all took together, in proportion to their own.
    """

    device: torch.device
    moments: list[Any] = field(default_factory=list)  # of the round's stages, in order
    begun: dict[int, Any] = field(default_factory=dict)  # by client
    clients: list[tuple[Any, Any]] = field(default_factory=list)  # of each that is done: from, to
    tests: list[tuple[Any, Any]] = field(default_factory=list)  # of clients

    def now(self) -> Any:
        """Return this moment."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self) -> None:
        """Note that a stage of the round ends here, and the next begins."""
        self.moments.append(self.now())

    def begin(self, client: int) -> None:
        """Note that a client begins."""
        self.begun[client] = self.now()

    def end(self, client: int) -> None:
        """Note that a client is done."""
        self.clients.append((self.begun[client], self.now()))

    @contextmanager
    def testing(self) -> Iterator[None]:
        """Count what a client does inside as testing."""
        start = self.now()
        yield
        self.tests.append((start, self.now()))

    def timed(self, test: Callable[[Node], None]) -> Callable[[Node], None]:
        """Return a hook that is counted as testing."""

        def hook(c: Node) -> None:
            with self.testing():
                test(c)

        return hook

    def between(self, one: Any, other: Any) -> float:
        """Return the seconds between two moments; a GPU must be done with both."""
        return float(other - one if self.device.type != "cuda" else one.elapsed_time(other) / 1000)

    def seconds(self, whole: float) -> Seconds:
        """Return the time of a round that took `whole` seconds.

        Its marks: the begin, clients done, aggregated, clients' tests put together, server trained.
        """
        stages = [self.between(*pair) for pair in itertools.pairwise(self.moments)]
        every = sum(self.between(*pair) for pair in self.clients)
        tested = sum(self.between(*pair) for pair in self.tests)
        clients = stages[0] * (1 - tested / every if every else 1)
        server = stages[1] + stages[3]
        return Seconds(clients, server, max(0.0, whole - clients - server))
