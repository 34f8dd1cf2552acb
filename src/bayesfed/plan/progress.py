"""The progress of a workflow on the screen: a line for each run that is finished, in the paper's words."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from bayesfed.plan.workflow import Workflow

SECONDS = 1.0  # between two looks


class Progress:
    """Runs of a workflow that were open when it started, told of as they are finished.

    Snakemake tells of jobs by number, and a job may be many runs. The runs' summaries are files on a shared file system,
    wherever jobs run: looking for them needs nothing from the trainers.
    """

    def __init__(self, flow: Workflow) -> None:
        self.flow = flow
        self.left = list(flow.open)
        self.names = {
            cell["folder"]: name(cell) for cell in reversed(flow.plan["cells"])
        }  # a run's first cell names it
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def start(self) -> None:
        """Print what is to be trained, and begin to watch."""
        told = f"{len(self.left)} runs to train" if self.left else "No run to train; tables, figures and the report"
        print(told, file=sys.stderr)
        self.thread.start()

    def end(self) -> None:
        """Report the last runs, and stop."""
        self.stopped.set()
        if self.thread.is_alive():
            self.thread.join()

    def watch(self) -> None:
        """Print what is new until all runs are finished, or the workflow has ended."""
        ended = False
        while self.left and not ended:
            ended = self.stopped.wait(SECONDS)
            for line in self.news():
                print(line, file=sys.stderr, flush=True)

    def news(self) -> list[str]:
        """Return a line for each run finished since the last call, and one when none is left."""
        total, lines = len(self.flow.open), []
        for run in [run for run in self.left if Path(self.flow.summary(run)).exists()]:
            self.left.remove(run)
            lines.append(f"{total - len(self.left)} of {total} runs: {self.names[run]}")
        return lines if self.left or not lines else [*lines, "Trained. Now tables, figures and the report"]


def name(cell: dict[str, object]) -> str:
    """Name a run by a cell: `HBFL on digits, α 0.05, seed 0`."""
    used = cell["used"]
    data = " and ".join(map(str, used)) if isinstance(used, list) else used
    alpha = "" if cell["alpha"] is None else f", α {cell['alpha']}"
    axes = "".join(f", {axis} {value}" for axis, value in dict(cell["axes"]).items())  # type: ignore[call-overload]
    return f"{cell['method']} on {data}{alpha}{axes}, seed {cell['seed']}"
