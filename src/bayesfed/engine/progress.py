"""Progress of a run, for people: a bar in a terminal, plain lines in a log."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from bayesfed.engine.rounds import Progress
from bayesfed.engine.shards import round_half_up
from bayesfed.methods.node import GLOBAL
from bayesfed.runs.spec import Run

LINE_SECONDS = 5  # between lines where there is no terminal


class Reporter:
    """Reports rounds to standard error, and every line to the run's log."""

    def __init__(self, run: Run, log: Path, done: int) -> None:
        """`done` rounds are finished already."""
        self.budget = run.budget
        self.rounds = run.budget.rounds
        self.title = f"{run.method} on {'+'.join(run.datasets)}, {run.partition.label}, seed {run.budget.seed}"
        self.leak = run.build_method().leak()
        self.log_path, self.done = log, done
        self.per_round = max(1, round_half_up(run.budget.participation * run.partition.clients))
        self.bar: Any = None
        self.told = 0.0
        self.started = time.monotonic()

    def __enter__(self) -> Reporter:
        self.log = self.log_path.open("a", encoding="utf-8")
        self.write(f"{self.title}: round {self.done} of {self.rounds} done")
        if self.leak:
            self.write(f"no accuracy on unseen images: this method {self.leak}")
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return self
            self.bar = tqdm(
                total=self.rounds, initial=self.done, desc=self.title, unit="round", dynamic_ncols=True,
                bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.1f}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()
        self.log.close()

    def client_done(self) -> None:
        """Show that a client has been trained."""
        if self.bar is not None:
            self.bar.update(min(1 / self.per_round, self.rounds - self.bar.n))

    def round_done(self, progress: Progress) -> None:
        """Show that a round is over, with the accuracy of the server's model, or the mean over the clients."""
        rows = list(itertools.takewhile(lambda row: row.round == progress.round, reversed(progress.history)))
        server = [
            row.value for row in rows if (row.client, row.metric, row.model) == ("global", "test_accuracy", GLOBAL)
        ]
        clients = [row.value for row in rows if row.metric == "shard_accuracy" and row.model != GLOBAL]
        values, what = (server, "accuracy") if server else (clients, "mean client accuracy")
        text = f"{what} {sum(values) / len(values):.4f}" if values else ""
        line = f"round {progress.round}/{self.rounds}  {text}  {time.monotonic() - self.started:.0f} s"
        if self.bar is not None:
            self.bar.n = progress.round
            self.bar.set_postfix_str(text)
        last = progress.over(self.budget)
        self.write(line, quiet=self.bar is not None or (time.monotonic() - self.told < LINE_SECONDS and not last))
        if progress.diverged:
            self.write(f"{progress.diverged}; the run ends here")

    def write(self, line: str, quiet: bool = False) -> None:
        """Write a line to the log, and to standard error unless quiet."""
        self.log.write(line + "\n")
        self.log.flush()
        if not quiet:
            print(line, file=sys.stderr, flush=True)
            self.told = time.monotonic()
