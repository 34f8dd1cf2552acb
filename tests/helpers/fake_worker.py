"""A worker of a plan's training that trains nothing: each run's file says what becomes of it. It loads no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bayesfed.engine.plan_worker import Outcome, received
from bayesfed.runs.planned import PlannedRun


def work(pipe: Connection, options: Mapping[str, Any]) -> None:
    """In place of `plan_worker.work`."""
    pipe.send("")
    while run := received(pipe):
        run.folder.mkdir(parents=True, exist_ok=True)
        with (options["data"] / "order").open("a") as order:
            order.write(f"{run.name}\n")
        done = outcome(run, *run.run_file.read_text().split())
        with contextlib.suppress(OSError):
            pipe.send(done)


def outcome(run: PlannedRun, does: str, other: str = "") -> Outcome:
    """How the run ends. `other` is a file that it waits for, or writes."""
    if does == "crash":
        os._exit(7)
    if does == "refuse":
        return Outcome("failed", "its rounds are wrong", 2)
    if does == "crowded" and not (run.folder / "tried").exists():
        (run.folder / "tried").touch()
        return Outcome("failed", "memory ran out", of_machine=True)
    if does == "deaf":  # as one that saves what it has, and asks for the next run
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(other).touch()
        time.sleep(0.3)
    if does == "after":
        while not Path(other).exists():
            time.sleep(0.01)
    if does == "write":
        Path(other).parent.mkdir(parents=True, exist_ok=True)
        Path(other).touch()
    if does == "stop":
        run.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        run.checkpoint.touch()
        return Outcome("stopped")
    (run.folder / "summary.json").touch()
    return Outcome("finished")
