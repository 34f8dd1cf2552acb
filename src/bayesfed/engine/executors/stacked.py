"""Clients whose networks are equal, stacked on a GPU: a mini-batch of each of them is one batched step.

Ten clients side by side launch ten times as many kernels as one, each too small to fill a GPU. Stacked they launch as many
as one. Clients train stacked if their networks and states are alike and they have about as many mini-batches: a client
that is through keeps its place, and what is computed there is not used. All others train by themselves, as with `graphs`,
at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from bayesfed.engine.batches import Chunk, Mixer, chunk_size, phase_shard
from bayesfed.engine.executors.base import Job, epoch_hooks, layout_of
from bayesfed.engine.executors.cuda_graphs import BURST, GraphExecutor, Started
from bayesfed.engine.executors.cuda_worker import MOST_BUFFERS, STEPS, Place, recorder_of
from bayesfed.engine.executors.proof import Proofs
from bayesfed.engine.executors.traced import Traced, traced
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.models import network

Kind = tuple[Hashable, ...]  # of clients: see `StackedExecutor.kind`
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

    def __init__(self, federation: Federation, node: Node, rows: int, most: int, compiled: bool) -> None:
        """Take memory for so many clients with a node's networks and state, and mini-batches of up to `most` images."""
        compute = federation.compute
        device, shape = compute.device, federation.shards[node.client].train_images.shape
        self.federation, self.rows, self.most, self.compiled = federation, rows, most, compiled
        self.layout = layout_of(node.state)
        self.proofs = Proofs(federation)
        low = network.gpu_layout(compute.cast) is torch.channels_last
        self.rounding = LOW_ROUNDING if low else ROUNDING
        self.streams = Streams(device, rows)
        self.recorder = recorder_of(device, self.streams.each, ahead=False)
        self.learner = node.learner()
        names = sorted(node.state)
        self.state = {name: node.state[name].new_zeros(rows, *node.state[name].shape) for name in names}
        self.n = torch.zeros(rows, dtype=compute.dtype, device=device)
        self.room = chunk_size(federation) + 2 * most  # of a row; the last mini-batch of a chunk may reach behind it
        self.x = torch.zeros(rows * self.room, *shape, dtype=compute.cast, device=device)
        self.y, self.index = (torch.zeros(rows * self.room, dtype=torch.int64, device=device) for _ in range(2))
        self.range = torch.arange(most, device=device)
        self.starts = torch.arange(rows, device=device) * self.room
        self.at, self.left = self.starts.clone(), torch.zeros_like(self.starts)  # the next image, and how many are left
        self.steps: dict[Any, tuple[Callable[[], None], Traced] | None] = {}

    def size_of(self, phase: Phase) -> int:
        """Return how many images a mini-batch of a phase has, but the last of an epoch."""
        return phase.batch_size or self.federation.run.budget.batch_size

    def load(self, jobs: Sequence[Job]) -> None:
        """Copy clients in, each to the row of its place: their nodes work there from now on."""
        self.left.zero_()
        for row, (job, generator) in enumerate(zip(jobs, self.streams.each, strict=False)):
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

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Return whether clients have the same phases, and states as the rows have."""
        first = [self.kind_of(phase) for phase in jobs[0].phases]
        return max(map(self.size_of, jobs[0].phases), default=0) <= self.most and all(
            layout_of(job.node.state) == self.layout and [self.kind_of(phase) for phase in job.phases] == first
            for job in jobs
        )

    def kind_of(self, phase: Phase) -> tuple[object, ...]:
        """Return what phases of stacked clients have in common."""
        return phase.step, self.size_of(phase), phase.indexed

    def takes(self, jobs: Sequence[Job]) -> bool:
        """Copy clients in, and return whether all their steps can be stacked; record those that are not recorded yet."""
        self.load(jobs)
        phases = jobs[0].phases
        for phase in phases:
            if phase.step not in self.steps and len(self.steps) < STEPS:
                self.steps[phase.step] = self.record(phase)
        return all(self.steps.get(phase.step) for phase in phases)

    def record(self, phase: Phase) -> tuple[Callable[[], None], Traced] | None:
        """Record a step for all rows; None for one that cannot be stacked."""
        many = self.size_of(phase)
        weight = torch.full((many,), 1 / many, dtype=self.n.dtype, device=self.n.device)
        batch = Batch(self.x[:many], self.y[:many], weight, self.index[:many])
        found = traced(phase, self.learner_of(0), batch, self.compiled)
        if found is None:
            return None

        def body() -> None:
            self.step_all(found, many)

        # Nobody has an image yet: what the recorder does to warm up changes no row, and streams alone are set back.
        before = self.streams.get_state()
        replay = self.recorder.record(body) if self.recorder else body
        self.streams.set_state(before)
        return replay, found

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

    def step(self, phase: Phase, sizes: Mapping[int, int]) -> None:
        """Do the next mini-batch of each client that has one, of so many images: `sizes` by row."""
        replay, _ = cast(tuple[Callable[[], None], Traced], self.steps[phase.step])
        if not self.proofs.due():
            replay()
            return
        places = {row: self.at[row] + self.range[:size] for row, size in sizes.items()}

        def one_by_one() -> None:
            for row, where in places.items():
                x, y, index = (held.index_select(0, where) for held in (self.x, self.y, self.index))
                phase.train(self.learner_of(row), Batch(x, y, index=index if phase.indexed else None))

        self.proofs.prove(phase, self.state, self.streams, replay, one_by_one, self.rounding)


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
        self.apart = set[Kind]()  # clients whose steps cannot be stacked

    def kind(self, client: int) -> Kind | None:
        """Return what stacked clients have in common before they begin: networks, and the shape of images; None where a
        client trains by itself.
        """
        networks = tuple(self.federation.networks[client].items())
        kind = networks, tuple(self.federation.shards[client].train_images.shape)
        return kind if self.federation.fillable(client) and kind not in self.apart else None

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Return the clients, the largest first, by those that train together: of one kind, and of about the same size."""
        units, latest = list[list[int]](), dict[Kind, list[int]]()
        for client in clients:
            kind = self.kind(client)
            unit = latest.get(kind) if kind else None
            if unit and len(unit) < self.together and self.images(client) >= RAGGED * self.images(unit[0]):
                unit.append(client)
                continue
            units.append([client])
            if kind:
                latest[kind] = units[-1]
        return units

    def prepare(self, clients: Sequence[int], begin: Callable[[int], Job]) -> None:
        """Make workers for the clients that train by themselves, uncompiled."""
        super().prepare([client for client in clients if not (self.compiled and self.kind(client))], begin)

    def images(self, client: int) -> int:
        """Return how many training images a client has."""
        return len(self.federation.shards[client].train)

    def start(self, unit: list[int], busy: list[Place], begin: Callable[[int], Job]) -> Started | None:
        """Let the clients of a unit begin; None where they cannot be stacked, as none of their kind are from now on."""
        kind = self.kind(unit[0])
        if kind is None or (len(unit) == 1 and not self.compiled):
            return super().start(unit, busy, begin)
        if stack := self.stack(kind, unit, busy, begin):
            stack.follow()  # the server's message has just been made
            with stack.on():
                jobs = [begin(client) for client in unit]
                if stack.fits(jobs) and stack.takes(jobs):
                    bursts = self.stacked(stack, jobs)
                    next(bursts, None)
                    return stack, jobs, bursts
        self.apart.add(kind)
        return None

    def stack(self, kind: Kind, unit: list[int], busy: list[Place], begin: Callable[[int], Job]) -> Stack | None:
        """Return a stack for clients of a kind that is not busy; None where there would be too many."""
        alike = sum(self.kind(other) == kind for other in range(self.federation.clients))
        rows = min(alike, self.together) if len(unit) > 1 else 1
        for one, stack in self.stacks:
            if (one, stack.rows) == (kind, rows) and stack not in busy:
                return stack
        if len(self.stacks) == MOST_BUFFERS:
            return None
        job, usual = begin(unit[0]), self.federation.run.budget.batch_size
        most = max([usual, *(phase.batch_size for phase in job.phases)])
        self.stacks.append((kind, Stack(self.federation, job.node, rows, most, self.compiled)))
        return self.stacks[-1][1]

    def stacked(self, stack: Stack, jobs: Sequence[Job]) -> Iterator[None]:
        """Queue the phases of stacked clients, BURST mini-batches each time it is asked."""
        mixers, queued = [Mixer(self.federation, job.node, job.phases) for job in jobs], 0
        for phases in zip(*(job.phases for job in jobs), strict=True):
            feeds = {row: self.feed(stack, row, *of) for row, of in enumerate(zip(jobs, phases, mixers, strict=True))}
            streams = dict[int, Tensor]()  # of clients that are through: the steps of the others draw from theirs, too
            while feeds:
                sizes = {row: next(feed, 0) for row, feed in feeds.items()}
                for row in [row for row, size in sizes.items() if not size]:
                    del feeds[row], sizes[row]
                    streams[row] = stack.streams.each[row].get_state()
                if sizes:
                    self.federation.check()
                    stack.step(phases[0], sizes)
                    queued += 1
                    if queued % BURST == 0:
                        yield
            for row, state in streams.items():
                stack.streams.each[row].set_state(state)

    def feed(self, stack: Stack, row: int, job: Job, phase: Phase, mixer: Mixer) -> Iterator[int]:
        """Put a client's mini-batches into its row, and give the size of each; run its hooks between them."""
        for chunk in mixer.phase(phase_shard(self.federation, job.node, phase), phase):
            stack.fill(row, chunk)
            for part in chunk.y.split(mixer.size):
                yield len(part)
            if chunk.ends_epoch:
                epoch_hooks(job, phase)
                stack.proofs.hooked()
        if phase.end:
            phase.end(job.node)
        stack.proofs.hooked()
