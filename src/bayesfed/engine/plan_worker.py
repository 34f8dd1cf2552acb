"""A process that trains runs of a plan, one after another, as `plan_training.py` hands them out.

torch is loaded in the worker alone: whoever starts one imports this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from bayesfed.core import files
from bayesfed.core.errors import InputError, in_a_line, of_machine, words
from bayesfed.runs.planned import PlannedRun


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and its reason. `code`: its exit code; `of_machine`: another try, beside fewer jobs, may
    succeed.
    """

    state: Literal["finished", "stopped", "held", "failed"]
    why: str = ""
    code: int = 1
    of_machine: bool = False


def work(pipe: Connection, options: Mapping[str, Any]) -> None:
    """Train each run that comes and send its Outcome, until the other end is closed.

    The first message is "" once this worker is ready, or what is wrong with the options. `options` are those of
    `training.Place`, except where a run's files are.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent stops this one by SIGTERM
    from bayesfed.engine import device
    from bayesfed.engine.session import Process, free_gpu_memory
    from bayesfed.engine.training import Place

    with Process(waits=False) as process:
        try:
            process.lease(Place(Path(), Path(), **options))
            device.choose_precision(options["precision"], device.choose_device(options["device"]))
        except InputError as error:
            pipe.send(str(error))
            return
        pipe.send("")
        while run := received(pipe):
            print_to(run.log)
            done = train(run, options, process)
            with contextlib.suppress(OSError):  # nobody is there: nor is a next run
                pipe.send(done)
            free_gpu_memory()


def received(pipe: Connection) -> PlannedRun | None:
    """Return the next run; None when the other end is closed, or its process is gone."""
    try:
        run: PlannedRun = pipe.recv()
    except (EOFError, ConnectionResetError):
        return None
    return run


def print_to(log: Path) -> None:
    """Print to a log from now on, in place of what is there; traces of a crash go there, too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def train(run: PlannedRun, options: Mapping[str, Any], process: Any) -> Outcome:
    """Train a run."""
    from bayesfed.engine import session
    from bayesfed.engine.signals import Stopped
    from bayesfed.engine.training import Place

    try:
        session.train_file(
            run.run_file, options["data"], lambda _: Place(run.folder, run.checkpoint, **options), process
        )
    except files.Held:
        return Outcome("held")
    except Stopped as stopped:
        print(f"bayesfed: {stopped}", flush=True)
        return Outcome("stopped", str(stopped))
    except (Exception, SystemExit) as error:
        code = session.tell(run.run_file, error)
        known = in_a_line(error)
        return Outcome("failed", known[0] if known else words(error), code, bool(known) and of_machine(error))
    return Outcome("finished")
