"""Steps recorded once as CUDA graphs and replayed, with several clients at once on streams of their own.

A network of the papers' size leaves a GPU idle: launching its kernels one by one costs more than running them. So a
mini-batch is one replay, and up to sixteen clients replay side by side, each in a worker. The host only queues work, a
burst for each worker in turn, so that no worker waits behind another's queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from bayesfed.engine import gpu_sharing
from bayesfed.engine.batches import Chunk, Mixer, phase_shard
from bayesfed.engine.device import Compute
from bayesfed.engine.executors.base import Executor, Job, Result, epoch_hooks
from bayesfed.engine.executors.cuda_worker import CudaWorker, Place
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Phase

Started = tuple[Place, list[Job], Iterator[None]]  # where clients train, and what queues their steps there in bursts
BURST = 16  # mini-batches queued for a worker before it is the next one's turn


def worker_count(compute: Compute) -> int:
    """Return how many workers fit in a job, by the whole memory of its GPU and the jobs that may share it."""
    if compute.device.type != "cuda":
        return gpu_sharing.WORKERS
    return gpu_sharing.workers(torch.cuda.get_device_properties(compute.device).total_memory, compute.slots)


class GraphExecutor(Executor):
    """Trains up to sixteen clients at once by recorded steps."""

    name = "graphs"

    def __init__(self, federation: Federation, workers: int | None = None) -> None:
        """`workers`: how many clients at once; as many as fit on the device, unless given."""
        super().__init__(federation)
        self.most = workers or worker_count(federation.compute)
        self.workers: list[CudaWorker] = []

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        waiting, active, used = deque(self.units(clients)), deque[Started](), list[Place]()
        if not self.workers:
            self.prepare(waiting, begin)
        while waiting or active:
            while waiting and (not active or sum(len(jobs) for _, jobs, _ in active) + len(waiting[0]) <= self.most):
                unit = waiting.popleft()
                if started := self.start(unit, [place for place, *_ in active], begin):
                    active.append(started)
                    used.append(started[0])
                else:
                    waiting.extendleft([client] for client in reversed(unit))
            place, jobs, bursts = active.popleft()
            with place.on():
                over = next(bursts, "over") == "over"
                results = [end(job) for job in jobs] if over else []
            if not over:
                active.append((place, jobs, bursts))
            yield from results
        for place in used:
            place.lead()

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Return the clients by those that train together: here each by itself."""
        return [[client] for client in clients]

    def alone(self, unit: list[int]) -> bool:
        """Return whether a unit is a client that trains by itself."""
        return True

    def start(self, unit: list[int], busy: list[Place], begin: Callable[[int], Job]) -> Started | None:
        """Let the clients of a unit begin at a place that is not busy; None where they cannot train together after all."""
        (client,) = unit
        worker = self.idle_worker(client, busy)
        worker.follow()  # the server's message has just been made
        with worker.on():
            job = begin(client)
            worker.load(job)
            bursts = self.bursts(worker, job)
            next(bursts, None)  # for the device, while the host begins the next client
        return worker, [job], bursts

    def prepare(self, units: Collection[list[int]], begin: Callable[[int], Job]) -> None:
        """Make the workers of those who train by themselves, and record on each what it will need, while nothing is
        training.

        Where every client has a worker, that is what one of them needs; else any client may come to any worker. So a
        client is begun here to see its state and steps, and again to be trained.
        """
        alone = [unit[0] for unit in units if self.alone(unit)]
        count = min(self.most, len(alone))
        everyone = sum(map(len, units)) == self.federation.clients
        for place in range(count):
            worker = CudaWorker(self.federation, ahead=place == 0)
            worker.follow()
            with worker.on():
                for client in alone[place : place + 1] if everyone and count == len(alone) else alone:
                    if not worker.knows(client) and not worker.full():
                        worker.prepare(begin(client))
            self.workers.append(worker)

    def idle_worker(self, client: int, busy: list[Place]) -> CudaWorker:
        """Return a worker that is free, best one whose recordings fit the client's networks."""
        idle = [worker for worker in self.workers if worker not in busy]
        for worker in idle:
            if worker.knows(client):
                return worker
        if len(self.workers) < self.most:
            self.workers.append(CudaWorker(self.federation, ahead=False))
            return self.workers[-1]
        return idle[0]

    def bursts(self, worker: CudaWorker, job: Job) -> Iterator[None]:
        """Queue a job's phases, BURST mini-batches each time it is asked."""
        mixer, queued = Mixer(self.federation, job.node, job.phases), 0
        for phase in job.phases:
            for size in self.feed(worker, worker.fill, job, phase, mixer):
                worker.step(phase, size)
                queued += 1
                if queued % BURST == 0:
                    yield

    def feed(self, place: Place, fill: Callable[[Chunk], None], job: Job, phase: Phase, mixer: Mixer) -> Iterator[int]:
        """Fill in a client's chunks, give the size of each mini-batch, and run the hooks between them."""
        for chunk in mixer.phase(phase_shard(self.federation, job.node, phase), phase):
            fill(chunk)
            for part in chunk.y.split(mixer.size):
                self.federation.check()
                yield len(part)
            if chunk.ends_epoch:
                epoch_hooks(job, phase)
                place.proofs.hooked()
        if phase.end:
            phase.end(job.node)
        place.proofs.hooked()
