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
from bayesfed.engine.executors.cpu_worker import Desk
from bayesfed.engine.federation import Federation


class ThreadExecutor(Executor):
    """Trains as many clients at once as torch has threads; with fewer clients, each gets several threads."""

    name = "threads"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.desks: list[Desk] = []  # that nobody is at

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:

        def visit(client: int) -> Result:
            try:
                desk = self.desks.pop()
            except IndexError:
                desk = Desk(self.federation)
            job = begin(client)
            desk.load(job.node, tuple(self.federation.networks[client].items()))
            run_plainly(self.federation, job, desk.step, desk.proofs.hooked)
            result = end(job)
            self.desks.append(desk)
            return result

        threads = torch.get_num_threads()
        workers = min(threads, len(clients))
        # Torch keeps the number of threads per thread, and starts new ones with the number set last.
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
        try:
            for future in as_completed([pool.submit(visit, client) for client in clients]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
