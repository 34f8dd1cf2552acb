"""Steps recorded once as CUDA graphs and replayed, with several clients at once on streams of their own.

A network of the papers' size leaves a GPU idle: launching its kernels one by one costs more than running them. So a
mini-batch is one replay, and up to sixteen clients replay side by side, each in a lane. The host only queues work, a
burst for each lane in turn, so that no lane waits behind another's queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch

from bayesfed.engine import gpu_sharing
from bayesfed.engine.batches import Mixer, phase_shard
from bayesfed.engine.device import Compute
from bayesfed.engine.executors.base import Executor, Job, Result, epoch_hooks
from bayesfed.engine.executors.cuda_worker import Lane
from bayesfed.engine.federation import Federation

BURST = 16  # mini-batches queued for a lane before it is the next one's turn


def lanes_of(compute: Compute) -> int:
    """How many lanes a job has room for, by the whole memory of its GPU and the jobs that may share it."""
    if compute.device.type != "cuda":
        return gpu_sharing.LANES
    return gpu_sharing.lanes(torch.cuda.get_device_properties(compute.device).total_memory, compute.slots)


class GraphExecutor(Executor):
    """Trains up to sixteen clients at once by recorded steps."""

    name = "graphs"

    def __init__(self, federation: Federation, lanes: int | None = None) -> None:
        """`lanes`: how many clients at once; what the device has room for, unless given."""
        super().__init__(federation)
        self.most = lanes or lanes_of(federation.compute)
        self.lanes: list[Lane] = []

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        if not self.lanes:
            self.prepare(clients, begin)
        waiting, active = deque(clients), deque[tuple[Lane, Job, Iterator[None]]]()
        while waiting or active:
            while waiting and len(active) < self.most:
                client = waiting.popleft()
                lane = self.idle_lane(client, [lane for lane, *_ in active])
                lane.follow()  # the server's message has just been made
                with lane.on():
                    job = begin(client)
                    lane.load(job)
                    bursts = self.bursts(lane, job)
                    next(bursts, None)  # for the device, while the host begins the next client
                active.append((lane, job, bursts))
            lane, job, bursts = active.popleft()
            with lane.on():
                over = next(bursts, "over") == "over"
                result = end(job) if over else None
            if over:
                yield cast(Result, result)
            else:
                active.append((lane, job, bursts))
        for lane in self.lanes:
            lane.lead()

    def prepare(self, clients: Sequence[int], begin: Callable[[int], Job]) -> None:
        """Make the lanes, and record on each what it will need, while nothing is training.

        Where every client has a lane, that is what one of them needs; else any client may come to any lane. So a
        client is begun here to see its state and steps, and again to be trained.
        """
        count = min(self.most, len(clients))
        for place in range(count):
            lane = Lane(self.federation, ahead=place == 0)
            lane.follow()
            with lane.on():
                for client in clients if count < self.federation.clients else clients[place : place + 1]:
                    if not lane.knows(client) and not lane.full():
                        lane.prepare(begin(client))
            self.lanes.append(lane)

    def idle_lane(self, client: int, busy: list[Lane]) -> Lane:
        """A lane that is free, best one whose recordings fit the client's networks."""
        idle = [lane for lane in self.lanes if lane not in busy]
        for lane in idle:
            if lane.knows(client):
                return lane
        if len(self.lanes) < self.most:
            self.lanes.append(Lane(self.federation, ahead=False))
            return self.lanes[-1]
        return idle[0]

    def bursts(self, lane: Lane, job: Job) -> Iterator[None]:
        """Queue a job's phases, BURST mini-batches each time it is asked."""
        mixer, queued = Mixer(self.federation, job.node, job.phases), 0
        for phase in job.phases:
            for chunk in mixer.phase(phase_shard(self.federation, job.node, phase), phase):
                lane.fill(chunk)
                for part in chunk.y.split(mixer.size):
                    self.federation.check()
                    lane.step(phase, len(part))
                    queued += 1
                    if queued % BURST == 0:
                        yield
                if chunk.ends_epoch:
                    epoch_hooks(job, phase)
                    lane.proofs.hooked()
            if phase.end:
                phase.end(job.node)
            lane.proofs.hooked()
