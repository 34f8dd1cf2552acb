"""Steps recorded once as CUDA graphs and replayed, with several clients at once on streams of their own.

A network of the papers' size leaves a GPU idle: launching its kernels one by one costs more than running them. So a
mini-batch is one replay, and up to LANES clients replay side by side. A lane is a stream with fixed buffers: a client
is copied in, its steps are replayed, its state is copied out; a thousand clients need no more lanes than ten. The
host only queues work, a burst for each lane in turn, so that no lane waits behind another's queue.

On a CPU nothing can be recorded: there a step runs each time it would be replayed, and all else is the same.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from bayesfed.engine.executors.base import CHUNK, Chunk, Executor, Job, Mixer, Result, epoch_hooks, phase_shard
from bayesfed.engine.federation import Federation
from bayesfed.methods.base import Batch, Learner, Node, Phase, State

LANES = 16  # clients at once, at most
LANE_MEMORY = 2**30  # bytes for a lane and networks of the papers' size, estimated, so a small GPU has fewer lanes
BURST = 16  # mini-batches queued for a lane before it is the next one's turn
KINDS = 8  # of networks and states that a lane keeps recorded
TAIL = 32  # the last, smaller batch of an epoch is filled up to a multiple of this, so that few sizes are recorded


@dataclass
class Kind:
    """Buffers for states of the same names and shapes on the same networks, and the steps recorded on them."""

    learner: Learner
    recorded: dict[Any, Callable[[], None]] = field(default_factory=dict)


class Lane:
    """Fixed buffers that recorded steps read and write, and the stream that they run on."""

    def __init__(self, federation: Federation) -> None:
        compute = federation.compute
        self.federation = federation
        self.device, self.dtype, self.cast = compute.device, compute.dtype, compute.cast
        self.size = federation.run.budget.batch_size
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.pool = torch.cuda.graph_pool_handle() if self.stream else None  # the graphs of a lane never overlap
        self.generator = torch.Generator(self.device)
        self.kinds: dict[Any, Kind] = {}
        self.images: dict[tuple[int, int], Tensor] = {}
        self.n = torch.zeros((), dtype=self.dtype, device=self.device)
        self.position = torch.zeros((), dtype=torch.int64, device=self.device)  # of the next batch in the chunk
        self.tail = torch.ones((), dtype=self.dtype, device=self.device)  # images of the last batch
        self.range = torch.arange(self.size, device=self.device)
        # A batch that is filled up may reach behind the chunk.
        self.y = torch.zeros(CHUNK[self.device.type] + 2 * self.size, dtype=torch.int64, device=self.device)

    def on(self) -> contextlib.AbstractContextManager[object]:
        """Work inside is queued on the lane's stream."""
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def knows(self, client: int) -> bool:
        """Whether steps for the client's networks have been recorded here."""
        return any(networks == self.federation.networks[client] for networks, _ in self.kinds)

    def load(self, job: Job) -> None:
        """Copy a client in: its node works on the lane's buffers from now on."""
        node = job.node
        layout = tuple((name, tensor.shape, tensor.dtype) for name, tensor in node.state.items())
        key = (self.federation.networks[node.client], layout)
        if key not in self.kinds:
            if len(self.kinds) == KINDS:
                if self.stream:
                    self.stream.synchronize()  # until no replay is left that uses them
                self.kinds.clear()
            self.kinds[key] = self.kind_of(node)
        self.kind = self.kinds[key]
        images = self.federation.shards[node.client].train_images
        shape = (images.size, images.channels)
        if shape not in self.images:
            self.images[shape] = torch.zeros((len(self.y), images.size, *shape), dtype=self.cast, device=self.device)
        self.x = self.images[shape]
        for phase in job.phases:
            full, tail = divmod(len(phase_shard(self.federation, node, phase).train), self.size)
            for size in [self.size] * bool(full) + [tail] * bool(tail):
                self.replay_of(phase, size)
        state = self.kind.learner.state
        for name, tensor in node.state.items():
            state[name].copy_(tensor)
        self.n.copy_(node.n)
        # A hook that puts a new tensor into the state would leave the recorded steps behind: it gets an error.
        node.state = cast(State, MappingProxyType(state))
        node.generator = self.generator
        node.reseed("noise")

    def kind_of(self, node: Node) -> Kind:
        """New buffers in the shapes of a node's state."""
        learner = node.learner()
        learner.state = {name: torch.zeros_like(tensor) for name, tensor in node.state.items()}
        learner.n, learner.generator = self.n, self.generator
        return Kind(learner)

    def fill(self, chunk: Chunk) -> None:
        """Put the next chunk into the buffers."""
        count = len(chunk.y)
        self.x[:count].copy_(chunk.x.permute(0, 2, 3, 1))
        self.y[:count].copy_(chunk.y)
        self.position.zero_()

    def step(self, phase: Phase, size: int) -> None:
        """The next mini-batch of the chunk, of `size` images."""
        if size < self.size:
            self.tail.fill_(size)
        self.replay_of(phase, size)()

    def replay_of(self, phase: Phase, size: int) -> Callable[[], None]:
        """The recorded step of a phase for batches of that size; records it where it is not."""
        filled = min(-(-size // TAIL) * TAIL, self.size)
        key = (phase.step, filled, size < self.size)
        recorded = self.kind.recorded
        if key not in recorded:
            recorded[key] = self.record(phase, filled, size < self.size)
        return recorded[key]

    def record(self, phase: Phase, filled: int, weighted: bool) -> Callable[[], None]:
        """Record a step on the buffers as they are; what they hold is lost."""
        learner, images = self.kind.learner, self.x

        def body() -> None:
            rows = self.position + self.range[:filled]
            x = images.index_select(0, rows).permute(0, 3, 1, 2)
            weight: Tensor | None = None
            if weighted:
                weight = (self.range[:filled] < self.tail).to(self.dtype) / self.tail
            phase.step(learner, Batch(x, self.y.index_select(0, rows), weight))
            self.position += filled

        if self.stream is None:
            return body
        for _ in range(2):  # libraries set themselves up in their first calls, which cannot be recorded
            self.position.zero_()
            body()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            body()
        return cast(Callable[[], None], graph.replay)


def lanes_of(device: torch.device) -> int:
    """How many lanes a device has room for, by its whole memory."""
    if device.type != "cuda":
        return LANES
    return max(1, min(LANES, torch.cuda.get_device_properties(device).total_memory // LANE_MEMORY))


class GraphExecutor(Executor):
    """Trains up to LANES clients at once by recorded steps."""

    name = "graphs"

    def __init__(self, federation: Federation, check: Callable[[], None], lanes: int | None = None) -> None:
        """`lanes`: how many clients at once; what the device has room for, unless given."""
        super().__init__(federation, check)
        self.most = lanes or lanes_of(federation.compute.device)
        self.lanes: list[Lane] = []

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        waiting, active = deque(clients), deque[tuple[Lane, Job, Iterator[None]]]()
        while waiting or active:
            while waiting and len(active) < self.most:
                client = waiting.popleft()
                lane = self.idle_lane(client, [lane for lane, *_ in active])
                if lane.stream:
                    lane.stream.wait_stream(torch.cuda.current_stream())  # the server's message is made there
                with lane.on():
                    job = begin(client)
                    lane.load(job)
                active.append((lane, job, self.bursts(lane, job)))
            lane, job, bursts = active.popleft()
            with lane.on():
                over = next(bursts, "over") == "over"
                result = end(job) if over else None
            if over:
                yield cast(Result, result)
            else:
                active.append((lane, job, bursts))
        for lane in self.lanes:
            if lane.stream:
                torch.cuda.current_stream().wait_stream(lane.stream)

    def idle_lane(self, client: int, busy: list[Lane]) -> Lane:
        """A lane that is free, best one whose recordings fit the client's networks."""
        idle = [lane for lane in self.lanes if lane not in busy]
        for lane in idle:
            if lane.knows(client):
                return lane
        if len(self.lanes) < self.most:
            self.lanes.append(Lane(self.federation))
            return self.lanes[-1]
        return idle[0]

    def bursts(self, lane: Lane, job: Job) -> Iterator[None]:
        """Queue a job's phases, BURST mini-batches each time it is asked."""
        mixer, queued = Mixer(self.federation, job.node), 0
        for phase in job.phases:
            for chunk in mixer.phase(phase_shard(self.federation, job.node, phase), phase):
                lane.fill(chunk)
                for part in chunk.y.split(mixer.size):
                    self.check()
                    lane.step(phase, len(part))
                    queued += 1
                    if queued % BURST == 0:
                        yield
                if chunk.ends_epoch:
                    epoch_hooks(job, phase)
            if phase.end:
                phase.end(job.node)
