"""Clients whose networks are equal, stacked on a GPU: a mini-batch of each of them is one batched step.

Ten clients side by side launch ten times as many kernels as one, each too small to fill a GPU. Stacked they launch as many
as one. Clients train stacked if their networks and states are alike and they have about as many images: a client that is
through keeps its place, and what is computed there is not used. All others train by themselves, as with `graphs`, at the
same time.

All clients of a stack begin before any of them trains. What `start` leaves elsewhere than in a client's state is the last
one's for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor

from bayesfed.engine.batches import Chunk, Mixer, chunk_size
from bayesfed.engine.executors.base import Job, layout_of
from bayesfed.engine.executors.cuda_graphs import BURST, GraphExecutor, Started
from bayesfed.engine.executors.cuda_worker import STEPS, Place, recorder_of
from bayesfed.engine.executors.proof import Proofs
from bayesfed.engine.executors.traced import Traced, traced
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Batch, Learner, Phase, State
from bayesfed.models import network

Kind = tuple[Hashable, ...]  # of clients: see `StackedExecutor.kind`
PhaseKind = tuple[Callable[[Learner, Batch], None], int, bool]  # see `kinds_of`
MOST_STACKS = 16  # with as many workers they have all streams that torch has
# Of how far a tensor has come in a step, what a stacked step and one by itself may differ in. On tensor cores a gradient
# near zero may have another sign, of which Adam makes a whole step; 0.17 has been seen.
ROUNDING, LOW_ROUNDING = 0.01, 0.5
RAGGED = 0.75  # of the images of the largest client of a stack, at least so many has each other one


class Streams:
    """The generators of a stack's clients, whose states are saved and set together."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.each = [torch.Generator(device) for _ in range(count)]

    def get_state(self) -> list[Tensor]:
        """Return the state of each."""
        return [generator.get_state() for generator in self.each]

    def set_state(self, states: list[Tensor]) -> None:
        """Set the state of each."""
        for generator, state in zip(self.each, states, strict=True):
            generator.set_state(state)


class Stack(Place):
    """Memory in which clients have a row each, and the steps recorded on all of its rows."""

    def __init__(self, federation: Federation, like: Job, rows: int) -> None:
        """Take memory for so many clients with a job's networks, state and sizes of mini-batches."""
        compute, node = federation.compute, like.node
        device, shape = compute.device, federation.shards[node.client].train_images.shape
        self.federation, self.rows = federation, rows
        self.layout, self.phases = layout_of(node.state), kinds_of(federation, like)
        self.proofs = Proofs(federation)
        low = network.gpu_layout(compute.cast) is torch.channels_last
        self.rounding = LOW_ROUNDING if low else ROUNDING
        self.streams = Streams(device, rows)
        self.recorder = recorder_of(device, self.streams.each, ahead=False)
        self.learner = node.learner()
        names, most = sorted(node.state), max((size for _, size, _ in self.phases), default=0)
        self.state = {name: node.state[name].new_zeros(rows, *node.state[name].shape) for name in names}
        self.n = torch.zeros(rows, dtype=compute.dtype, device=device)
        self.room = chunk_size(federation) + 2 * most  # of a row; the last mini-batch of a chunk may reach behind it
        self.x = torch.zeros(rows * self.room, *shape, dtype=compute.cast, device=device)
        self.y, self.index = (torch.zeros(rows * self.room, dtype=torch.int64, device=device) for _ in range(2))
        self.range = torch.arange(most, device=device)
        self.starts = torch.arange(rows, device=device) * self.room
        self.at, self.left = self.starts.clone(), torch.zeros_like(self.starts)  # the next image, and how many are left
        self.replays: dict[PhaseKind, Callable[[], None]] = {}

    def load(self, jobs: Sequence[Job]) -> None:
        """Copy clients in, each to the row of its place: their nodes work there from now on."""
        self.left.zero_()
        for row, (job, generator) in enumerate(zip(jobs, self.streams.each, strict=True)):
            node, state = job.node, self.row(row)
            for name, tensor in node.state.items():
                state[name].copy_(tensor)
            self.n[row].copy_(node.n)
            # A hook that puts a new tensor into the state would leave the recorded steps behind: it gets an error.
            node.state = cast(State, MappingProxyType(state))
            generator.set_state(node.generator.get_state())
            node.generator = generator
        self.proofs.arrive(*(job.node for job in jobs))

    def row(self, row: int) -> State:
        """Return a client's tensors."""
        return {name: tensor[row] for name, tensor in self.state.items()}

    def record(self, kind: PhaseKind, step: Traced) -> None:
        """Record a step for all rows.

        Nobody has an image yet: what the recorder does to warm up changes no row, and streams alone are set back.
        """
        before = self.streams.get_state()
        self.replays[kind] = self.recorded(lambda: self.step_all(step, kind[1]))
        self.streams.set_state(before)

    def example(self, many: int) -> Batch:
        """Return a mini-batch of so many images, to trace a step with."""
        weight = torch.full((many,), 1 / many, dtype=self.n.dtype, device=self.n.device)
        return Batch(self.x[:many], self.y[:many], weight, self.index[:many])

    def learner_of(self, row: int) -> Learner:
        """Return the learner that works on a row."""
        c = self.learner
        return Learner(
            state=self.row(row), n=self.n[row], models=c.models, generator=self.streams.each[row], scaling=c.scaling
        )

    @torch.no_grad()
    def step_all(self, step: Traced, many: int) -> None:
        """Do the next mini-batch, of up to `many` images, of each row that has images left."""
        trains, size = self.left > 0, self.left.clamp(1, many)
        weight = (self.range[:many] < size[:, None]).to(self.n.dtype) / size[:, None]
        places = (self.at[:, None] + self.range[:many]).flatten()
        x, y, index = (held.index_select(0, places).unflatten(0, (-1, many)) for held in (self.x, self.y, self.index))
        draws = [
            torch.stack([
                torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
                for generator in self.streams.each
            ])
            for like in step.likes
        ]  # fmt: skip
        values = step.batched(*self.state.values(), self.n, x, y, weight, index, *draws)
        for name, new in zip(step.moved, values, strict=True):
            old = self.state[name]
            old.copy_(torch.where(trains.view(-1, *[1] * (old.dim() - 1)), new, old))
        self.at += many * trains
        self.left.sub_(many).clamp_(min=0)

    def fill(self, row: int, chunk: Chunk) -> None:
        """Put a client's next chunk into its row."""
        start, count = row * self.room, len(chunk.y)
        for held, new in ((self.x, chunk.x), (self.y, chunk.y), (self.index, chunk.index)):
            held[start : start + count].copy_(new)
        self.at[row].copy_(self.starts[row])
        self.left[row].fill_(count)

    def step(self, phase: Phase, kind: PhaseKind, sizes: Mapping[int, int]) -> None:
        """Do the next mini-batch of each client that has one, of so many images: `sizes` by row."""
        if not self.proofs.due():
            self.replays[kind]()
            return
        places = {row: self.at[row] + self.range[:size] for row, size in sizes.items()}

        def one_by_one() -> None:
            for row, where in places.items():
                x, y, index = (held.index_select(0, where) for held in (self.x, self.y, self.index))
                phase.train(self.learner_of(row), Batch(x, y, index=index if phase.indexed else None))

        # Row by row, lest one that is wrong is lost among those that are right.
        state = {f"{name}' of row '{row}": tensor for row in sizes for name, tensor in self.row(row).items()}
        self.proofs.prove(phase, state, self.streams, self.replays[kind], one_by_one, self.rounding)


def kinds_of(federation: Federation, job: Job) -> list[PhaseKind]:
    """Return what phases of stacked clients have in common: step, size of mini-batches, and whether images are indexed."""
    usual = federation.run.budget.batch_size
    return [(phase.step, phase.batch_size or usual, phase.indexed) for phase in job.phases]


class StackedExecutor(GraphExecutor):
    """Trains equal clients of about the same size stacked, and the others as `graphs` does."""

    name = "stacked"

    def __init__(self, federation: Federation, workers: int | None = None, together: int | None = None,
                 compiled: bool = False) -> None:  # fmt: skip
        """`workers`: how many clients at once; `together`: how many in a stack at most, all of them unless given.
        `compiled`: steps by torch's compiler, also of a client by itself.
        """
        super().__init__(federation, workers)
        self.together, self.compiled = together or self.most, compiled
        self.stacks: list[tuple[Kind, Stack]] = []
        # That have been traced, None for what cannot be; recordings work on what they hold.
        self.steps: dict[Hashable, Traced | None] = {}

    def kind(self, client: int) -> Kind | None:
        """Return what stacked clients have in common before they begin: networks, and the shape of images; None where a
        client's mini-batches cannot be filled up.
        """
        networks = tuple(self.federation.networks[client].items())
        kind = networks, tuple(self.federation.shards[client].train_images.shape)
        return kind if self.federation.fillable(client) else None

    def images(self, client: int) -> int:
        """Return how many training images a client has."""
        return len(self.federation.shards[client].train)

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Return the clients by those that train together: of one kind, and of about the same size. The largest come
        first.
        """
        units, latest = list[list[int]](), dict[Kind, list[int]]()
        for client in sorted(clients, key=self.images, reverse=True):
            kind = self.kind(client)
            unit = latest.get(kind) if kind else None
            if unit and len(unit) < self.together and self.images(client) >= RAGGED * self.images(unit[0]):
                unit.append(client)
                continue
            units.append([client])
            if kind:
                latest[kind] = units[-1]
        return units

    def alone(self, unit: list[int]) -> bool:
        """Return whether a unit is a client that trains by itself: compiled it does so in a stack of one row."""
        return len(unit) == 1 and not (self.compiled and self.kind(unit[0]))

    def start(self, unit: list[int], busy: list[Place], begin: Callable[[int], Job]) -> Started | None:
        """Let the clients of a unit begin; None where they cannot be stacked."""
        kind = self.kind(unit[0])
        if kind and not self.alone(unit) and (stack := self.stack(kind, begin(unit[0]), len(unit), busy)):
            stack.follow()  # the server's message has just been made
            with stack.on():
                jobs = [begin(client) for client in unit]
                if self.fit(kind, stack, jobs):
                    bursts = self.stacked(stack, jobs)
                    next(bursts, None)
                    return stack, jobs, bursts
        return super().start(unit, busy, begin) if len(unit) == 1 else None

    def stack(self, kind: Kind, like: Job, rows: int, busy: list[Place]) -> Stack | None:
        """Return a stack for so many clients of a kind, with a job's state and phases, that is not busy. None where there is
        none, and one more would be too many, and for steps of a client's own.
        """
        if any(getattr(phase.step, "__self__", None) is not self.federation.method for phase in like.phases):
            return None
        wanted = kind, rows, layout_of(like.node.state), kinds_of(self.federation, like)
        for one, stack in self.stacks:
            if (one, stack.rows, stack.layout, stack.phases) == wanted and stack not in busy:
                return stack
        if len(self.stacks) == MOST_STACKS:
            return None
        self.stacks.append((kind, Stack(self.federation, like, rows)))
        return self.stacks[-1][1]

    def fit(self, kind: Kind, stack: Stack, jobs: Sequence[Job]) -> bool:
        """Copy clients in, and return whether all their steps can be stacked; record those that are not recorded yet."""
        if any(
            layout_of(job.node.state) != stack.layout or kinds_of(self.federation, job) != stack.phases for job in jobs
        ):
            return False
        stack.load(jobs)
        for phase, of in zip(jobs[0].phases, stack.phases, strict=True):
            if of not in stack.replays and len(stack.replays) < STEPS and (step := self.traced(kind, stack, phase, of)):
                stack.record(of, step)
        return all(of in stack.replays for of in stack.phases)

    def traced(self, kind: Kind, stack: Stack, phase: Phase, of: PhaseKind) -> Traced | None:
        """Return a step as it was traced for clients of a kind, or trace it now."""
        key = kind, of, stack.layout
        if key not in self.steps:
            self.steps[key] = traced(phase, stack.learner_of(0), stack.example(of[1]), self.compiled)
        return self.steps[key]

    def stacked(self, stack: Stack, jobs: Sequence[Job]) -> Iterator[None]:
        """Queue the phases of stacked clients, BURST mini-batches each time it is asked."""
        mixers, queued = [Mixer(self.federation, job.node, job.phases) for job in jobs], 0
        for kind, *phases in zip(stack.phases, *(job.phases for job in jobs), strict=True):
            feeds = {
                row: self.feed(stack, functools.partial(stack.fill, row), *of)
                for row, of in enumerate(zip(jobs, phases, mixers, strict=True))
            }
            streams = dict[int, Tensor]()  # of clients that are through: the steps of the others draw from theirs, too
            while feeds:
                sizes = {row: next(feed, 0) for row, feed in feeds.items()}
                for row in [row for row, size in sizes.items() if not size]:
                    del feeds[row], sizes[row]
                    streams[row] = stack.streams.each[row].get_state()
                if sizes:
                    stack.step(phases[0], kind, sizes)
                    queued += 1
                    if queued % BURST == 0:
                        yield
            for row, state in streams.items():
                stack.streams.each[row].set_state(state)
