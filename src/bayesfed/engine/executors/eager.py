"""The eager executor: clients one after another, step by step. The reference for every other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bayesfed.engine.executors.base import Job, Result, run_plainly
from bayesfed.engine.federation import Federation


class EagerExecutor:
    """Trains clients one after another. `check` is called before each mini-batch and may raise to stop a run."""

    name = "eager"

    def __init__(self, federation: Federation, check: Callable[[], None]) -> None:
        self.federation = federation
        self.check = check

    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        """See `Executor`."""
        for client in clients:
            job = begin(client)
            run_plainly(self.federation, job, self.check)
            yield end(job)
