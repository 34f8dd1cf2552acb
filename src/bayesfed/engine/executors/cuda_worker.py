"""A place where clients are trained one after another on a GPU: a stream with fixed buffers that each is copied to,
and the steps recorded on it as CUDA graphs.

A thousand clients need no more workers than ten. What a run needs is recorded at its start; a recording that proves
necessary later holds up its own worker and the host, not other workers.

On a CPU nothing can be recorded: there a step runs each time it would be replayed, and all else is the same.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from bayesfed.core.errors import InputError, out_of_memory
from bayesfed.engine.batches import Chunk, chunk_size, phase_shard, trained_on, whole_epoch
from bayesfed.engine.executors.base import Job, layout_of
from bayesfed.engine.executors.proof import Proofs
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.models import network

MOST_BUFFERS = 8  # of networks and states that a worker keeps recorded
STEPS = 16  # different steps of a kind, at most: where there are more, each round makes its own
TAIL = 32  # the last, smaller batch of an epoch is filled up to a multiple of this, so that few sizes are recorded


class Recorder:
    """A stream, and the graphs recorded on it, which share a pool of memory since they never overlap."""

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator], ahead: bool) -> None:
        """Make a stream, whose steps draw from `generators`; they may be seeded between replays.

        `ahead`: a stream whose work comes before that of the others if the device cannot do all at once.
        """
        self.stream = torch.cuda.Stream(device, priority=-1 if ahead else 0)
        self.generators = generators
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record what a step does on this stream, which must be the current one; gives its replay.

        torch.cuda.graph() would wait for the whole device and empty both of torch's caches, workers that are training
        included; nothing but memory asks for that. Only this thread is forbidden what would spoil a recording:
        gradients are computed by another one. Raises Unrecordable where the step does what no recording can hold.
        """
        for _ in range(2):  # libraries set themselves up in their first calls, which cannot be recorded
            step()
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            with uncollected():
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        except RuntimeError as error:  # the step's own comes first, and spoils the end of the recording, too
            first = error.__context__ or error
            if out_of_memory(first):
                raise
            raise Unrecordable(str(first).strip().partition("\n")[0]) from error
        return graph.replay


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from freeing an earlier run's graphs inside: CUDA forbids that to a thread that records."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Unrecordable(RuntimeError):
    """Raised for a step that a GPU cannot record, with the words of torch or CUDA."""


def recorder_of(device: torch.device, generators: Sequence[torch.Generator], ahead: bool) -> Recorder | None:
    """Make a worker's recorder; none on a CPU."""
    return Recorder(device, generators, ahead) if device.type == "cuda" else None


@dataclass
class Recorded:
    """A step's replay, and the step as it is."""

    replay: Callable[[], None]
    step: Callable[[], None]


@dataclass
class Buffers:
    """Memory for states of the same names and shapes on the same networks, and the steps recorded on it.

    `recorded`: by step, then by size and whether the batch is filled up.
    """

    learner: Learner
    recorded: dict[Any, dict[tuple[int, bool], Recorded]] = field(default_factory=dict)


class Place:
    """Where clients train on a GPU: a stream, on which steps are recorded; on a CPU none."""

    federation: Federation
    recorder: Recorder | None
    proofs: Proofs

    def on(self) -> contextlib.AbstractContextManager[object]:
        """Queue work inside on the place's stream."""
        return torch.cuda.stream(self.recorder.stream) if self.recorder else contextlib.nullcontext()

    def follow(self) -> None:
        """Let what is queued here from now on wait for what the device has been asked so far."""
        if self.recorder:
            self.recorder.stream.wait_stream(torch.cuda.current_stream())

    def lead(self) -> None:
        """Let what the device is asked from now on wait for what is queued here."""
        if self.recorder:
            torch.cuda.current_stream().wait_stream(self.recorder.stream)

    def recorded(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record what a step does here; gives its replay, which on a CPU is the step. Raises InputError where that cannot
        be.
        """
        try:
            return self.recorder.record(step) if self.recorder else step
        except Unrecordable as error:
            raise InputError(
                f"method '{self.federation.method.name}': a step cannot be recorded as a CUDA graph ({error}); leave out "
                "what waits for the GPU, like .item() or an `if` on a tensor, or train with --executor eager"
            ) from error


class CudaWorker(Place):
    """Fixed buffers that recorded steps read and write, for one client at a time."""

    def __init__(self, federation: Federation, ahead: bool) -> None:
        """`ahead`: the worker of the client with most work, whose chain of steps bounds the round, so that no other may hold
        it up."""
        compute = federation.compute
        self.federation, self.proofs = federation, Proofs(federation)
        self.device, self.dtype, self.cast = compute.device, compute.dtype, compute.cast
        self.channels_first = network.layout_for(self.device, self.cast) is torch.contiguous_format
        self.usual = self.most = federation.run.budget.batch_size
        self.generator = torch.Generator(self.device)
        self.recorder = recorder_of(self.device, [self.generator], ahead)
        self.buffers: dict[Any, Buffers] = {}
        self.current: Buffers  # of the client that is here
        self.fills: bool  # whether its last batches are filled up
        self.images: dict[tuple[int, ...], Tensor] = {}  # by the shape of an example
        self.as_they_come: bool  # whether the buffer has their order of memory, and not channels last
        self.n = torch.zeros((), dtype=self.dtype, device=self.device)
        self.tail = torch.ones((), dtype=self.dtype, device=self.device)  # images of the last batch
        self.make_room()

    def make_room(self) -> None:
        """Make memory for a chunk, and for mini-batches of up to `most` images."""
        self.range = torch.arange(self.most, device=self.device)
        self.rows = self.range.clone()  # where the next batch lies in the chunk
        # A batch that is filled up may reach behind the chunk.
        self.y = torch.zeros(chunk_size(self.federation) + 2 * self.most, dtype=torch.int64, device=self.device)
        self.index = torch.zeros_like(self.y)
        self.images.clear()

    def knows(self, client: int) -> bool:
        """Return whether steps for the client's networks have been recorded here."""
        return any(networks == tuple(self.federation.networks[client].items()) for networks, _ in self.buffers)

    def full(self) -> bool:
        """Return whether further buffers would take the place of all that there are."""
        return len(self.buffers) == MOST_BUFFERS

    def load(self, job: Job) -> None:
        """Copy a client in: its node works on the worker's buffers from now on."""
        node = job.node
        self.prepare(job)
        state = self.current.learner.state
        for name, tensor in node.state.items():
            state[name].copy_(tensor)
        self.n.copy_(node.n)
        # A hook that puts a new tensor into the state would leave the recorded steps behind: it gets an error.
        node.state = cast(State, MappingProxyType(state))
        self.generator.set_state(node.generator.get_state())
        node.generator = self.generator
        self.proofs.arrive(node)

    def prepare(self, job: Job) -> None:
        """Record what a job needs here, and what other clients with the same networks may; buffers lose what they hold."""
        node, networks = job.node, self.federation.networks
        if (most := max(map(self.size_of, job.phases), default=0)) > self.most:
            if self.buffers:
                self.forget()
            self.most = most
            self.make_room()
        # Recording, and a batch that is filled up, read what is here: never another client's labels, of which it may have
        # fewer.
        self.y.zero_()
        self.index.zero_()
        key = (tuple(networks[node.client].items()), layout_of(node.state))
        alike = [node.client]
        if key not in self.buffers:
            if self.full():
                self.forget()
            self.buffers[key] = self.new_buffers(node)
            alike = [client for client in range(len(networks)) if networks[client] == networks[node.client]]
        self.current = self.buffers[key]
        images = self.federation.shards[node.client].train_images
        shape = images.shape
        self.as_they_come = self.channels_first or len(shape) != 3
        if shape not in self.images:
            held = shape if self.as_they_come else (*shape[1:], shape[0])
            self.images[shape] = torch.zeros((len(self.y), *held), dtype=self.cast, device=self.device)
        self.x = self.images[shape]
        self.fills = self.federation.fillable(node.client)
        for phase in job.phases:
            phase_shard(self.federation, node, phase)
            for client in [SERVER] if phase.data == "server" else alike:
                count = len(trained_on(self.federation, client, phase).train)
                batchwise = self.federation.batchwise(node.client) and not phase.evaluates
                usual = self.size_of(phase)
                tail = whole_epoch(count, usual, batchwise) % usual
                for size in [usual] * (count >= usual) + [tail] * bool(tail):
                    self.record(phase, *self.form(size, usual))

    def forget(self) -> None:
        """Let all recordings go, once no replay of them is left.

        All at once: from torch 2.13 on, the end of one graph frees the workspaces that cuBLAS has on its stream, also
        those that other graphs recorded there still write to. And torch refuses a pool whose last graph has gone.
        """
        if self.recorder:
            self.recorder.stream.synchronize()
            self.recorder.pool = torch.cuda.graph_pool_handle()
        self.buffers.clear()
        del self.current

    def new_buffers(self, node: Node) -> Buffers:
        """Make buffers in the shapes of a node's state."""
        learner = node.learner()
        learner.state = {name: torch.zeros_like(tensor) for name, tensor in node.state.items()}
        learner.n, learner.generator = self.n, self.generator
        return Buffers(learner)

    def fill(self, chunk: Chunk) -> None:
        """Put the next chunk into the buffers."""
        count = len(chunk.y)
        self.x[:count].copy_(chunk.x if self.as_they_come else chunk.x.permute(0, 2, 3, 1))
        self.y[:count].copy_(chunk.y)
        self.index[:count].copy_(chunk.index)
        self.rows.copy_(self.range)

    def step(self, phase: Phase, size: int) -> None:
        """Do the next mini-batch of the chunk, of `size` images."""
        usual = self.size_of(phase)
        if size < usual:
            self.tail.fill_(size)
        recorded = self.current.recorded[phase.step][self.form(size, usual)]
        if not self.proofs.due():
            recorded.replay()
            return
        rows = self.rows.clone()

        def step() -> None:
            self.rows.copy_(rows)
            recorded.step()

        self.proofs.prove(phase, self.current.learner.state, self.generator, recorded.replay, step)

    def size_of(self, phase: Phase) -> int:
        """Return how many images a mini-batch of a phase has, but the last of an epoch."""
        return phase.batch_size or self.usual

    def form(self, size: int, usual: int) -> tuple[int, bool]:
        """Return how a batch of that size, of `usual` at most, is run: filled up to so many images, and whether it must be
        told its own size.

        See `Federation.fillable`.
        """
        if not self.fills:
            return size, False
        return min(-(-size // TAIL) * TAIL, usual), size < usual

    def record(self, phase: Phase, filled: int, weighted: bool) -> None:
        """Record a step for batches of that form, where it is not; the buffers lose what they hold.

        Raises InputError where every round makes new steps, and would be recorded without end, and where a
        step cannot be recorded.
        """
        steps = self.current.recorded
        if phase.step not in steps and len(steps) == STEPS:
            raise InputError(
                f"method '{self.federation.method.name}': its phases have had more than {STEPS} different steps; give "
                f"methods of the class, not a lambda or partial of each round, so that a recorded step serves them all"
            )
        if (filled, weighted) in steps.setdefault(phase.step, {}):
            return
        learner, images, as_they_come = self.current.learner, self.x, self.as_they_come

        def body() -> None:
            rows = self.rows[:filled]
            x = images.index_select(0, rows)
            x = x if as_they_come else x.permute(0, 3, 1, 2)
            weight: Tensor | None = None
            if weighted:
                weight = (self.range[:filled] < self.tail).to(self.dtype) / self.tail
            index = self.index.index_select(0, rows) if phase.indexed else None
            phase.train(learner, Batch(x, self.y.index_select(0, rows), weight, index))
            self.rows += filled

        self.rows.copy_(self.range)
        steps[phase.step][filled, weighted] = Recorded(self.recorded(body), body)
