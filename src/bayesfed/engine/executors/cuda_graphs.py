"""Steps recorded once as CUDA graphs and replayed, with several clients at once on streams of their own.

A network of the papers' size leaves a GPU idle: launching its kernels one by one costs more than running them. So a
mini-batch is one replay, and up to sixteen clients replay side by side, each in a worker. The host only queues work, a
burst for each worker in turn, so that no worker waits behind another's queue.
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
from bayesfed.engine.executors.cuda_worker import CudaWorker
from bayesfed.engine.federation import Federation

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
        if not self.workers:
            self.prepare(clients, begin)
        waiting, active = deque(clients), deque[tuple[CudaWorker, Job, Iterator[None]]]()
        while waiting or active:
            while waiting and len(active) < self.most:
                client = waiting.popleft()
                worker = self.idle_worker(client, [worker for worker, *_ in active])
                worker.follow()  # the server's message has just been made
                with worker.on():
                    job = begin(client)
                    worker.load(job)
                    bursts = self.bursts(worker, job)
                    next(bursts, None)  # for the device, while the host begins the next client
                active.append((worker, job, bursts))
            worker, job, bursts = active.popleft()
            with worker.on():
                over = next(bursts, "over") == "over"
                result = end(job) if over else None
            if over:
                yield cast(Result, result)
            else:
                active.append((worker, job, bursts))
        for worker in self.workers:
            worker.lead()

    def prepare(self, clients: Sequence[int], begin: Callable[[int], Job]) -> None:
        """Make the workers, and record on each what it will need, while nothing is training.

        Where every client has a worker, that is what one of them needs; else any client may come to any worker. So a
        client is begun here to see its state and steps, and again to be trained.
        """
        count = min(self.most, len(clients))
        for place in range(count):
            worker = CudaWorker(self.federation, ahead=place == 0)
            worker.follow()
            with worker.on():
                for client in clients if count < self.federation.clients else clients[place : place + 1]:
                    if not worker.knows(client) and not worker.full():
                        worker.prepare(begin(client))
            self.workers.append(worker)

    def idle_worker(self, client: int, busy: list[CudaWorker]) -> CudaWorker:
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
            for chunk in mixer.phase(phase_shard(self.federation, job.node, phase), phase):
                worker.fill(chunk)
                for part in chunk.y.split(mixer.size):
                    self.federation.check()
                    worker.step(phase, len(part))
                    queued += 1
                    if queued % BURST == 0:
                        yield
                if chunk.ends_epoch:
                    epoch_hooks(job, phase)
                    worker.proofs.hooked()
            if phase.end:
                phase.end(job.node)
            worker.proofs.hooked()
