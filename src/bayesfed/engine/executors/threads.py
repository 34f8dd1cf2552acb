"""Clients side by side on the cores of a CPU, each with its share of the threads.

One thread for each of two clients does more than two threads inside the operators of one, for a CNN and more so for
an MLP with small batches, and more than stacking clients into batched products. `benchmarks/ways.py` measures all
three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from bayesfed.engine.executors.base import Executor, Job, Result, run_plainly
from bayesfed.engine.executors.cpu_worker import CpuWorker
from bayesfed.engine.federation import Federation


class ThreadExecutor(Executor):
    """Trains as many clients at once as torch has threads; with fewer clients, each gets several threads."""

    name = "threads"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.workers: list[CpuWorker] = []  # that are idle

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:

        def visit(client: int) -> Result:
            try:
                worker = self.workers.pop()
            except IndexError:
                worker = CpuWorker(self.federation)
            job = begin(client)
            worker.load(job.node, tuple(self.federation.networks[client].items()))
            run_plainly(self.federation, job, worker.step, worker.proofs.hooked)
            result = end(job)
            self.workers.append(worker)
            return result

        threads = torch.get_num_threads()
        at_once = min(threads, len(clients))
        # New threads for each round: what a library keeps by thread must not outlive it.
        # Torch keeps the number of threads per thread, and starts new ones with the number set last.
        pool = ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(threads // at_once,))
        try:
            for future in as_completed([pool.submit(visit, client) for client in clients]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
