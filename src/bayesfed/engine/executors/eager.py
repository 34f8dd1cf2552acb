"""The eager executor: clients one after another, step by step. The reference for every other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bayesfed.engine.executors.base import Executor, Job, Result, run_plainly


class EagerExecutor(Executor):
    """Trains clients one after another."""

    name = "eager"

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        for client in clients:
            job = begin(client)
            run_plainly(self.federation, job)
            yield end(job)
