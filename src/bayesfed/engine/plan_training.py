"""Train the open runs of a plan, the most valuable first, several at a time, until all are done or the time is over.

Runs are trained in worker processes (`plan_worker.py`), each of which loads torch, leases a GPU and reads a dataset once for
many runs. The lock of a run's folder keeps workers of another command off it. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.data.sources import SOURCES
from bayesfed.engine.plan_worker import Outcome, work
from bayesfed.engine.signals import SIGNALS
from bayesfed.runs.planned import PlannedRun

POLL = 0.5  # seconds between looks at the clock, at signals and at runs that other processes hold
NAMED = 3  # failed runs that the last line names


def without_data(runs: Sequence[PlannedRun], data: Path) -> dict[str, int]:
    """Return the datasets missing in the data folder, and how many runs need each; fetch what a library brings."""
    found: dict[str, int] = {}
    for run in runs:
        for name in run.datasets:
            if not (data / name / "dataset.json").exists() and not (name in SOURCES and SOURCES[name].bundled):
                found[name] = found.get(name, 0) + 1
    return found


@dataclass
class Worker:
    """A worker process, our end of its pipe, and the run that it trains; `ready` once it has loaded torch and has a GPU."""

    process: Any
    pipe: Connection
    ready: bool = False
    run: PlannedRun | None = None
    began: float = 0.0


class Training:
    """Runs that wait, in their order, and what has become of the others."""

    def __init__(self, runs: Sequence[PlannedRun], jobs: int, options: Mapping[str, Any], until: float) -> None:
        """Train `jobs` at a time, until a moment of time.monotonic(); `options` are those of `plan_worker.work`."""
        self.jobs, self.options, self.until = jobs, {**options, "until": until}, until
        self.open = [run for run in runs if not run.finished]
        self.missing = without_data(self.open, options["data"])
        self.waiting = [run for run in self.open if not self.missing.keys() & {*run.datasets}]
        self.workers: list[Worker] = []
        self.finished = self.stopped = 0
        self.failed: dict[str, Outcome] = {}
        self.again: set[str] = set()  # runs that failed once by a fault of the machine
        self.heard = False  # a signal

    def train(self) -> None:
        """Train until nothing is left to do, the time is over, or a signal comes. Raises InputError for wrong options."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.jobs)))  # or each worker takes all cores
        with self.signals():
            try:
                while (self.waiting or self.busy) and self.jobs and not self.over:
                    self.hand_out()
                    self.hear()
                self.end()
            finally:
                for worker in self.workers:  # where an error ends this, some still train, and would wait for a next run
                    worker.pipe.close()
                    worker.process.terminate()
                for worker in self.workers:
                    worker.process.join()

    def end(self) -> None:
        """Wait for runs to stop, which they do after their round, or at once where a signal has come."""
        for worker in self.workers:
            if not worker.run:  # it may wait for a GPU
                worker.process.terminate()
        asked = False
        while self.busy:
            if self.heard and not asked:
                asked = True
                for worker in self.busy:
                    worker.process.terminate()
            self.hear()

    @property
    def over(self) -> bool:
        """True once no further run may begin."""
        return self.heard or time.monotonic() >= self.until

    @property
    def busy(self) -> list[Worker]:
        """The workers that train a run."""
        return [worker for worker in self.workers if worker.run]

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Note a signal, which ends the training."""

        def note(number: int, frame: object) -> None:
            self.heard = True

        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup has SIGHUP ignored
        before = {number: signal.signal(number, note) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def hand_out(self) -> None:
        """Give each worker that is ready the first run that nobody holds, and start workers for more."""
        for worker in self.workers:
            if worker.ready and not worker.run and (run := self.next()):
                worker.run, worker.began = run, time.monotonic()
                tell(f"training {run.name}")
                with contextlib.suppress(BrokenPipeError):  # it has ended; `hear` meets that
                    worker.pipe.send(run)
        while len(self.workers) < min(self.jobs, len(self.waiting) + len(self.busy)):
            self.workers.append(self.started())

    def next(self) -> PlannedRun | None:
        """Take the first waiting run that no process holds; runs that another process has finished wait no more."""
        for run in list(self.waiting):
            if run.finished:
                self.waiting.remove(run)
            elif not run.running:
                self.waiting.remove(run)
                return run
        return None

    def started(self) -> Worker:
        """Return a new worker."""
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=work, args=(there, self.options), daemon=True)
        process.start()
        there.close()
        return Worker(process, here)

    def hear(self) -> None:
        """Wait a little for what workers say, and take note of it."""
        for pipe in wait([worker.pipe for worker in self.workers], POLL) if self.workers else ():
            worker = next(one for one in self.workers if one.pipe is pipe)
            try:
                said = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.lost(worker)
                continue
            if isinstance(said, Outcome):
                self.note(worker, said)
            elif said:
                raise InputError(said)
            else:
                worker.ready = True

    def lost(self, worker: Worker) -> None:
        """Take note of a worker whose process has ended without a word."""
        worker.process.join()
        code = worker.process.exitcode
        if not worker.run:
            self.dismiss(worker)
            self.jobs = len(self.workers)  # that one could not begin: those that have must do
        elif self.heard:
            self.note(worker, Outcome("stopped"))
        else:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self.note(worker, Outcome("failed", f"its process ended by {how}; see {worker.run.log}", of_machine=True))

    def note(self, worker: Worker, outcome: Outcome) -> None:
        """Take note of how a worker's run has ended."""
        run, worker.run = worker.run, None
        assert run is not None, "an outcome is that of a run"
        took = f"after {time.monotonic() - worker.began:.0f} s"
        if outcome.state == "held":  # by a process that was faster
            self.waiting.insert(0, run)
        elif outcome.state == "finished":
            self.finished += 1
            tell(f"finished {run.name} {took}")
        elif outcome.state == "stopped":
            self.stopped += run.checkpoint.exists()
            tell(f"stopped {run.name} {took}")
        else:
            self.fail(worker, run, outcome)

    def fail(self, worker: Worker, run: PlannedRun, outcome: Outcome) -> None:
        """Take note of a failed run.

        One that a fault of the machine has ended beside others (memory ran out, the GPU takes no further process) is tried
        once more, beside fewer.
        """
        tell(f"failed {run.name}: {outcome.why}")
        self.dismiss(worker)  # a process may not be fit for another run
        if outcome.of_machine and self.workers and run.name not in self.again:
            self.again.add(run.name)
            self.waiting.insert(0, run)
            self.jobs = len(self.workers)
        else:
            self.failed[run.name] = outcome

    def dismiss(self, worker: Worker) -> None:
        """End a worker that trains nothing."""
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.terminate()
        worker.process.join()

    def told(self) -> str:
        """Return an account of what has become of the open runs, in a line."""
        left = sum(not run.finished for run in self.open) - self.stopped - len(self.failed)
        failed = [f"{name}: {outcome.why}" for name, outcome in self.failed.items()]
        shown = "; ".join([*failed[:NAMED], *([f"and {len(failed) - NAMED} more"] if len(failed) > NAMED else [])])
        return (
            f"{self.finished} finished, {self.stopped} stopped with a checkpoint, {len(failed)} failed"
            f"{f' ({shown})' if shown else ''}, {left} still open"
        )


def tell(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)
