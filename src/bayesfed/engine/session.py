"""Several runs in one process: the GPU that they share, the datasets of the last one, and their failures."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from bayesfed.core import helper_modules
from bayesfed.core.errors import in_a_line, words
from bayesfed.data import prepare, store
from bayesfed.engine import gpu_lease
from bayesfed.engine.provenance import code_hash
from bayesfed.engine.training import KEY, Place, refuse_other_key, train
from bayesfed.runs import run_file as runfile
from bayesfed.runs.spec import Run


class Process:
    """A process that trains runs one after another, which share a GPU, leased once, the last run's datasets, and the
    helpers that were imported.
    """

    def __init__(self, waits: bool = True) -> None:
        """Wait for a run that another process holds if `waits`; otherwise leave it to that."""
        self.waits = waits

    def __enter__(self) -> Process:
        code_hash()  # of the sources that run from now on: they may change while a process trains one run after another
        self.held = contextlib.ExitStack()
        self.leased = False
        self.seen: Any = None
        self.datasets: list[store.Dataset] = []
        self.imported: dict[str, str] = {}  # helpers and their sha256
        return self

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def lease(self, place: Place) -> None:
        """Take the GPU, at the first call; before torch looks, which fixes what it sees."""
        if not self.leased:
            self.held.enter_context(gpu_lease.lease(place.device, slots=place.gpu_slots))
            self.leased = True

    def helpers(self, run: Run) -> dict[str, str]:
        """Return the helpers of a run's own plugins, and print each once; their sha256 as they were when first seen, since a
        process imports a module once.
        """
        found = helper_modules.found(run.plugin_files)
        if new := sorted(name for name in found if helper_modules.shown(name) not in self.imported):
            print(helper_modules.told(new), file=sys.stderr)
        self.imported = {helper_modules.shown(name): digest for name, digest in found.items()} | self.imported
        return {name: self.imported[helper_modules.shown(name)] for name in found}

    def load(self, run: Run, data: Path) -> list[store.Dataset]:
        """Load the run's datasets, or take those of the last run if it saw the same."""
        seen = (run.sources, [prepare.identity(one) for one in run.sources], run.plugins, data)
        if seen != self.seen:
            self.seen, self.datasets = None, []  # not both in memory
            self.datasets = [store.load(name, data, run.images) for name in run.datasets]
            self.seen = seen
        return self.datasets


def train_all(run_files: Iterable[Path], data: Path, place_of: Callable[[Run], Place]) -> dict[Path, int]:
    """Train runs one after another in this process, each as `train` does and where `place_of` says.

    A run that fails is told of, and the others go on: gives what failed, and the exit code for it. Raises Stopped on
    SIGTERM, SIGINT or SIGHUP while a run is trained, which ends them all.
    """
    failed: dict[Path, int] = {}
    paths = list(run_files)
    for path in paths:  # a mistake in the last is told before the first has taken hours
        try:
            runfile.load(path, data)
        except (Exception, SystemExit) as error:
            failed[path] = tell(path, error)
    with Process() as process:
        for path in paths:
            if path in failed:
                continue
            try:
                train_file(path, data, place_of, process)
            except (Exception, SystemExit) as error:
                failed[path] = tell(path, error)
            finally:
                free_gpu_memory()
    return failed


def train_file(path: Path, data: Path, place_of: Callable[[Run], Place], process: Process) -> None:
    """Train the run of a run file, as `train` does; one that is named after a key must be that run."""
    run = runfile.load(path, data)
    if re.fullmatch(KEY, path.stem):
        refuse_other_key(run, path.stem, str(path))
    train(run, place_of(run), process)


def tell(path: Path, error: BaseException) -> int:
    """Print why the run of a run file failed, as the last line; return its exit code."""
    known = in_a_line(error)
    if not known:
        traceback.print_exception(error)
    text, code = known or (words(error), 1)
    print(f"bayesfed: {text if text.startswith(f'{path}: ') else f'{path}: {text}'}", file=sys.stderr)
    return code


def free_gpu_memory() -> None:
    """Free what a run's recorded steps have kept of a GPU's memory, which other jobs share."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
