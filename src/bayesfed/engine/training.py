"""Runs from their run files to their finished folders: lock, resume, train, checkpoint, and write the results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bayesfed.core import files, helper_modules, plugins
from bayesfed.core.errors import InputError, RunStopped, file_on, of_machine
from bayesfed.data import partition, store
from bayesfed.data.schemes import Partition
from bayesfed.engine import checkpoint, device, longer
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import DEFAULT, EXECUTORS
from bayesfed.engine.federation import Federation
from bayesfed.engine.progress import Reporter
from bayesfed.engine.provenance import facts, machine
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.engine.signals import Stop, StopOrLeave, Stopped
from bayesfed.methods.node import GLOBAL
from bayesfed.models import pretrained
from bayesfed.models.pretrained import SCRATCH
from bayesfed.runs import callbacks, run_folder
from bayesfed.runs.callbacks import OnRound
from bayesfed.runs.revision import ENGINE_REVISION
from bayesfed.runs.run_file import difference
from bayesfed.runs.spec import Run
from bayesfed.runs.summary import summarise

if TYPE_CHECKING:
    from bayesfed.engine.session import Process

CHECKPOINT_SECONDS = 30  # so much finished work may be lost to a kill; a signal loses none
CHECKPOINT_SHARE = 0.02  # of the time at most goes into checkpoints: those of a thousand clients come more rarely
KEY = "[0-9a-f]{12}"  # of a run, in names of files and folders


@dataclasses.dataclass(frozen=True)
class Place:
    """The places of a run's files, and how it is to be computed."""

    out: Path
    checkpoint: Path
    data: Path
    device: str = "auto"
    precision: str = "auto"
    gpu_slots: int = 1  # jobs that may share a GPU
    executor: str = "auto"  # another than the device's own one is for debugging
    weights: Path = plugins.WEIGHTS  # with the files of pretrained weights that run files name
    partitions: Path | None = None  # where they are, unless in the data folder
    on_round: OnRound | None = None  # called after every round, beside the run file's own
    until: float = math.inf  # of time.monotonic(): from then on it stops after a round, with its checkpoint
    exits: bool = False  # the process is the command line's: a signal may end it in the middle of a long step


def train(run: Run, place: Place, process: Process) -> None:
    """Train a run, or go on with it, until its folder is done; a finished run is left alone.

    A run ends early after a round in which a tensor of a client or of the server stopped being finite; its summary
    says which. Raises InputError for wrong input or another run's folder, Stopped on SIGTERM, SIGINT or SIGHUP and when its
    time is over, files.Held where another process holds the run and this one does not wait.
    """
    refuse_places(place)
    process.helpers(run)
    if skip_finished(run, place):
        return
    process.lease(place)  # before the lock: who holds a GPU may wait for the lock, and no holder of the lock for a GPU
    with files.locked(place.out / ".lock", f"{place.out}: another process holds this run", process.waits):
        if not skip_finished(run, place):  # by whoever held it
            refuse_other_files(run, place)
            train_locked(run, place, process)


def skip_finished(run: Run, place: Place) -> bool:
    """Return whether the run is finished; if so, say so and delete its older checkpoint.

    Raises InputError for another run's folder.
    """
    refuse_other_run(run, place.out)
    if done := (place.out / run_folder.SUMMARY).exists():
        checkpoint.delete_older(place.checkpoint, run.key)
        other = helper_modules.changed(run_folder.provenance(place.out).get("helpers", {}))
        told = f", with another {' and '.join(other)} than now" if other else ""
        print(f"{place.out}: done already{told}", file=sys.stderr)
    return done


def refuse_places(place: Place) -> None:
    """Raise InputError where no run folder or no checkpoint can be, before hours are spent."""
    for what, path in (("run folder", place.out), ("checkpoint", place.checkpoint.parent)):
        if file := file_on(path):
            raise InputError(f"{file}: this is a file, and a folder is needed for the {what}; give another path")
    if place.checkpoint.is_dir():
        raise InputError(f"--checkpoint {place.checkpoint}: this is a folder; give the path of a file")


def refuse_other_key(run: Run, key: str, where: str) -> None:
    """Raise InputError where a run is not the one that a file or folder is named after."""
    if key != run.key:
        raise InputError(
            f"{where}: the name is that of run {key}, and the run file gives {run.key} now; if it was planned so, a plugin, a "
            "dataset or the run file itself has changed since: plan again"
        )


def refuse_other_run(run: Run, out: Path) -> None:
    """Raise InputError where the folder holds another run, or one of another source or revision, or is named after one."""
    if named := re.fullmatch(rf"seed~\d+-({KEY})", out.resolve().name):
        refuse_other_key(run, named[1], f"--out {out}")
    stored = run_folder.read(out)
    if stored and (key := stored["key"]) != run.key:
        apart = difference(files.read_yaml(out / "run.yaml"), written(run))
        raise InputError(f"--out {out}: this folder holds run {key}, not {run.key} ({apart}); give another folder")


def refuse_other_files(run: Run, place: Place) -> None:
    """Raise InputError where the folder of a run that is yet to begin holds files of others that the run's would replace."""
    there = [name for name in run_folder.SEALED if (place.out / name).exists()]
    if not there or checkpoint.found(place.checkpoint):
        return
    if "run.yaml" not in there or files.read_yaml(place.out / "run.yaml") != written(run):
        raise InputError(
            f"--out {place.out}: its {' and '.join(there)} would be replaced, and nothing says that this run wrote that; give "
            "another folder, or delete what is there"
        )


def written(run: Run) -> dict[str, Any]:
    """Return a run file with all defaults, as it is read again."""
    return json.loads(json.dumps(run.to_dict()))  # type: ignore[no-any-return]


def refuse_own_file(run_file: Path, run: Run, out: Path) -> None:
    """Raise InputError where a user's run file would be replaced: it lies where the run's completed one will be written."""
    if (out / run_folder.SUMMARY).exists() or run_file.resolve() != (out / "run.yaml").resolve():
        return
    if files.read_yaml(run_file) != written(run):
        raise InputError(
            f"--out {out}: {run_file} would be replaced by the completed run file; rename it, or give another folder"
        )


def train_locked(run: Run, place: Place, process: Process) -> None:
    """Train with the folder's lock held."""
    on = device.choose_device(place.device)
    device.one_of("executor", place.executor, ["auto", *EXECUTORS])
    executor = DEFAULT[on] if place.executor == "auto" else place.executor
    if on == "cuda" and executor == DEFAULT["cpu"]:
        raise InputError(f"--executor {executor}: this is for the cores of a CPU; use auto, or --device cpu")
    precision = device.choose_precision(place.precision, on, run.networks)
    header = checkpoint.Header(run.key, precision, executor, run=written(run), rounds_asked=False)
    progress, header = stored(run, place, on, header)
    shorter = longer.find(run, place.out, place.checkpoint, header, on) if progress is None else None
    if shorter and helper_modules.changed(run_folder.provenance(shorter.folder).get("helpers", {})):
        shorter = None
    tell = functools.partial(callbacks.call, callbacks.of(run.on_round, place.on_round), written(run), place.out)
    federation = None
    if progress is None or not progress.over(run.budget):
        compute = device.configure(on, header.precision, place.gpu_slots)
        federation = assemble(run, place, compute, process.load(run, place.data))
        if shorter:
            print(f"{place.out}: goes on from {shorter.folder}, round {shorter.progress.round}", file=sys.stderr)
            progress, header = longer.go_on(shorter, federation, header)
            checkpoint.save(place.checkpoint, progress, header)
    else:
        build_partition(run, place)  # the results name it
        tell(progress.history, progress.round, True, header.seconds / progress.round)  # one may have failed at it
    by, helpers = machine(on, header.executor), process.helpers(run)
    by |= {"helpers": helpers} if helpers else {}
    # Sources may be edited while it trains: these are the ones that it has read.
    sources = facts(run, place.data, {}, header.precision, place.partitions) | {"plugins": run.own_plugins}
    with Reporter(run, place.out / "run.log", progress.round if progress else 0) as report:
        if federation is not None:
            progress = rounds(federation, progress or begin(federation), place, header, by, report, tell)
        assert progress is not None
        by = header.sessions[-1]["by"] if header.sessions else by
        helpers = process.helpers(run) | by.get("helpers", {})  # also of those that were imported as late
        write_results(run, place, progress, header, {**by, **sources, "helpers": helpers})
        checkpoint.delete_older(place.checkpoint, run.key)
        report.write(f"checkpoint: {place.checkpoint}")


def stored(run: Run, place: Place, on: str, header: checkpoint.Header) -> tuple[Progress | None, checkpoint.Header]:
    """Return the progress of a run and its header from its checkpoint; None and `header` without one.

    Raises InputError where the run is asked for another way of computing than it was begun with, and where a helper of its
    plugins has changed since.
    """
    paths = checkpoint.found(place.checkpoint)
    if not paths:
        return None, header
    asked = header
    progress, header = checkpoint.load(place.checkpoint, run.key, torch.device(on), written(run))
    if not progress.round:  # it was stopped in its first, maybe on another device
        return None, asked
    delete = f"delete {' and '.join(map(str, paths))}"
    if header.sessions and (changed := helper_modules.changed(header.sessions[-1]["by"].get("helpers", {}))):
        raise InputError(
            f"{place.checkpoint}: {changed[0]} has changed since its rounds were trained; put the old one back, or {delete} to "
            "train from the start"
        )
    if header.sessions and header.sessions[-1]["by"]["device"] != on:
        device.choose_precision(header.precision, on)  # a CPU lacks one that a GPU has
        header.executor = asked.executor
    for option, wanted, begun in (
        ("precision", place.precision, header.precision),
        ("executor", place.executor, header.executor),
    ):
        if wanted not in ("auto", begun):
            raise InputError(f"--{option} {wanted}: this run was begun with {begun}; go on with that, or {delete}")
    return progress, header


def assemble(run: Run, place: Place, compute: Compute, datasets: list[store.Dataset]) -> Federation:
    """Build the run's federation from its datasets, the files that its networks start from, and the cached partition,
    which is made if it is missing.
    """
    started = {key: pretrained.find(place.weights, name) for key, name in run.weights}
    foreign = [store.load_foreign(name, place.data, run.images, datasets[0].source) for name in run.tasks.foreign]
    return Federation(run, datasets, build_partition(run, place), compute, foreign, started)


def build_partition(run: Run, place: Place) -> Partition | None:
    """Make the run's cached partition if it is missing, and load it; None if every client holds a whole dataset."""
    if run.multi_task:
        return None
    cell = (run.datasets[0], run.partition, run.budget.seed, place.data, place.partitions)
    partition.build(*cell)
    return partition.load(*cell)


def rounds(federation: Federation, progress: Progress, place: Place, header: checkpoint.Header,
           by: dict[str, Any], report: Reporter, tell: Callable[..., None]) -> Progress:  # fmt: skip
    """Play the rounds that are left, with a checkpoint now and then, at the end, and when a signal comes; `tell` of each."""
    kept, saving = progress.round, threading.Lock()

    def save() -> None:
        nonlocal kept
        with saving:
            checkpoint.save(place.checkpoint, progress, header)
            kept = progress.round

    def leave(why: str = "by a signal") -> str:
        save()
        return f"stopped {why} after round {progress.round} of {federation.run.budget.rounds}; run it again to go on"

    stop = StopOrLeave(leave) if place.exits else Stop()
    federation.check = stop.check
    trainer = Trainer(federation, header.executor, report.client_done, report.write)
    saved, wait = time.monotonic(), float(CHECKPOINT_SECONDS)
    heard = threading.current_thread() is threading.main_thread()  # signals reach no other thread
    with stop if heard else contextlib.nullcontext():
        try:
            while not progress.over(federation.run.budget):
                started, spent = time.monotonic(), time.process_time()
                progress = trainer.play(progress).bounded(checkpoint.of_clients(place.checkpoint))
                seconds = time.monotonic() - started
                header.add(by, seconds, time.process_time() - spent, trainer.samples, trainer.seconds)
                header.rounds_asked |= federation.rounds_asked
                report.round_done(progress)
                over = progress.over(federation.run.budget)
                tell(progress.history, progress.round, over, seconds)
                if not over and time.monotonic() >= place.until:
                    raise Stopped(leave("as its time is over"))
                if over or time.monotonic() - saved > wait:
                    started = time.monotonic()
                    save()
                    saved = time.monotonic()
                    wait = max(CHECKPOINT_SECONDS, (saved - started) / CHECKPOINT_SHARE)
            stop.check()  # for what came since the last mini-batch, lest a batch goes on to its next run
        except (Exception, Stopped) as error:
            # An OSError is that of a terminal that is gone, for whoever writes to it.
            if stop.raised and isinstance(error, Stopped | OSError):
                raise Stopped(leave()) from None
            if (of_machine(error) or isinstance(error, RunStopped)) and progress.round > kept:
                with contextlib.suppress(Exception):  # of a GPU or a disk that does no more: what was kept before stays
                    save()
            raise
    return progress


def write_results(run: Run, place: Place, progress: Progress, header: checkpoint.Header, made: dict[str, Any]) -> None:
    """Write the files of a finished run, the summary last. `made`: by what machine, and from which sources."""
    lines = (f"{r.round},{r.client},{r.model},{r.metric},{r.value:.6g}\n" for r in progress.history)
    files.write_text(place.out / "metrics.csv", "round,client,model,metric,value\n" + "".join(lines))
    files.write_yaml(place.out / "run.yaml", run.to_dict(), flow=None)
    method, budget = run.build_method(), run.budget
    provenance = {
        "key": run.key,
        "method_revision": method.revision,
        "engine_revision": ENGINE_REVISION,
        "executor": header.executor,  # where sessions of an earlier version do not say it
        **made,
        "weights": {key: dict(run.weights).get(key, SCRATCH) for key in (GLOBAL, *run.other_models)},
        "partition": run.partition_file,
        "train_seconds": round(header.seconds, 3),
        "samples_per_second": round(header.samples / header.seconds, 1) if header.seconds else None,
    }
    for name in ("helpers", "plugins"):
        if not provenance[name]:
            del provenance[name]
    if header.begun:
        provenance["begun"] = header.begun
    if len(header.sessions) > 1:
        provenance["sessions"] = header.sessions
    if leak := method.leak():
        provenance["leak"] = leak
    files.write_json(place.out / "provenance.json", provenance)
    summary = {
        "key": run.key,
        "method": run.method,
        "dataset": list(run.datasets),
        "seed": budget.seed,
        "rounds": budget.rounds if progress.diverged else progress.round,
        "local_epochs": budget.local_epochs,
        "batch_size": budget.batch_size,
        "train_seconds": round(header.seconds, 3),
        "seconds": {name: round(value, 3) for name, value in header.apart.items()},
        "cpu_seconds": None if header.cpu_seconds is None else round(header.cpu_seconds, 3),
        "kept_numbers": kept_numbers(run, progress),
        "diverged": dataclasses.asdict(progress.diverged) if progress.diverged else None,
        **({"predictive": method.predictive} if method.predictive else {}),
    } | summarise(progress.history, test_images(run, place), progress.round)
    run_folder.seal(place.out, summary)


def kept_numbers(run: Run, progress: Progress) -> list[int]:
    """Return how many numbers each client keeps between rounds."""
    return [sum(one.numel() for one in progress.clients.get(k, {}).values()) for k in range(run.partition.clients)]


def test_images(run: Run, place: Place) -> list[int]:
    """Return how many test images each client has."""
    if run.multi_task:
        return [one.count("test") for one in run.sources]
    shares = partition.load(run.datasets[0], run.partition, run.budget.seed, place.data, place.partitions)
    return np.diff(shares.test_offsets).tolist()  # type: ignore[no-any-return]
