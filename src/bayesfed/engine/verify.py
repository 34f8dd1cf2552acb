"""A check that a stored run is what the code gives today: its first rounds are trained again and compared with the
record.

They are trained twice: straight, and stopped midway and resumed by another process, which must give the same. What a method
keeps outside its tensors is not there then, wherever it is. And the summary must be what the record's metrics give.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesfed.core.errors import InputError
from bayesfed.engine import checkpoint, device, halfway
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.halfway import Values
from bayesfed.engine.provenance import facts, machine
from bayesfed.engine.rounds import LABELLED, Progress, Trainer, begin
from bayesfed.engine.session import Process, tell
from bayesfed.engine.training import Place, assemble, written
from bayesfed.runs import run_file, run_folder
from bayesfed.runs.revision import ENGINE_REVISION
from bayesfed.runs.spec import Run
from bayesfed.runs.summary import COMMUNICATION, COMPUTATION, PASSES, not_given

CLOSE = 0.02  # of a measured value: so far may what rounds otherwise lead in a few rounds, whatever the run
CLOSE_MCE = 0.3  # of the largest gap of a bin, which may hold one image: 0.14 has been seen, of accuracies 0.002
TWINS, TIMES = 3, 2  # beyond it, TIMES as far as TWINS runs from initial parameters a rounding away are from each other
COUNTS = (COMMUNICATION, COMPUTATION, PASSES, LABELLED)  # models and metrics of rows that are equal or wrong
ROUNDING = ("code", "versions", "device", "hardware", "precision", "executor", "threads")  # what may round otherwise


@dataclass(frozen=True)
class Apart:
    """Two runs' largest difference of a value over clients and rounds (see `distance`), and where it is; infinity for one
    that only the first has."""

    far: float = 0.0
    where: str = ""


Kind = tuple[bool, str, str]  # of values that are alike: the server's or the clients', the model, the metric


@dataclass(frozen=True)
class Verdict:
    """The outcome for one run; `rounds`: in words, which of its rounds.

    `same`: of so many `values`, how many have the recorded digits; `more` is measured now and was not then. `found`:
    how far values are off, by their kind (see `apart`), and `twins` the same between runs that begin a rounding apart, where
    that was asked. `differs`: what was otherwise when the record was made. `resumed`: what another process gave
    otherwise that resumed the run midway, in words; "" where that was nothing. `summary`: the fields of the record's summary
    that its metrics do not give.
    """

    rounds: str
    values: int
    same: int
    more: int
    found: Mapping[Kind, Apart]
    differs: tuple[str, ...]
    twins: Mapping[Kind, Apart] | None = None
    resumed: str = ""
    summary: Sequence[str] = ()

    @property
    def rounded(self) -> bool:
        """True if something differs that may round otherwise, and no value of the record is missing or another count."""
        return any(name in ROUNDING for name in self.differs) and all(one.far < math.inf for one in self.found.values())

    def bound(self, kind: Kind) -> float:
        """Return how far values of that kind may be off."""
        close = CLOSE_MCE if kind[-1].endswith("_mce") else CLOSE
        return max(close, TIMES * self.twins[kind].far if self.twins else 0.0)

    @property
    def close(self) -> bool:
        return all(one.far <= self.bound(kind) for kind, one in self.found.items())

    @property
    def holds(self) -> bool:
        """Equal, or close where what rounds otherwise explains that it is not; the same where it was resumed; and summed up
        as its metrics say."""
        return self.recorded and not self.resumed and not self.summary

    @property
    def recorded(self) -> bool:
        """True if what was trained straight is the record, or as good as it."""
        return self.values > 0 and (self.same == self.values or (self.rounded and self.close))

    def __str__(self) -> str:
        if not self.values:
            text = "the record has no values; DIFFERENT"
        elif self.same == self.values:
            text = f"all {self.values} values are the recorded ones"
        else:
            kind = max(self.found, key=lambda kind: self.found[kind].far / self.bound(kind), default=(True, "", ""))
            worst = self.found.get(kind, Apart())
            text = f"{self.same} of {self.values} values are the recorded ones, "
            text += f"others differ by {worst.far:.4f} at most ({worst.where})" if worst.far < math.inf else worst.where
            text += f", in runs that begin a rounding apart by {self.twins[kind].far:.4f}" if self.twins else ""
            text += "; within rounding" if self.recorded else "; DIFFERENT"
        text += f"; {self.more} more are not in the record" if self.more else ""
        text += f"; {self.resumed}; DIFFERENT" if self.resumed else ""
        if self.summary:
            text += f"; its metrics do not give {', '.join(self.summary)} of {run_folder.SUMMARY}; DIFFERENT"
        text = f"{self.rounds}: {text}"
        return text + (f"; otherwise than in the record: {', '.join(self.differs)}" if self.differs else "")


def verify(folder: Path, rounds: int, data: Path, asked: str, process: Process, weights: Path,
           partitions: Path | None) -> Verdict:  # fmt: skip
    """Train the first `rounds` rounds of the run in `folder` again, on the device `asked` or that of the record, and
    compare; from two rounds on, resume them midway, too. `weights`: the folder with the files that its networks start from,
    where it has any; `partitions`: that of partitions, where it is not the data folder's.

    Raises InputError where there is no whole record, where the run file gives another run today, and for what `train` does.
    """
    summary = run_folder.finished(folder)
    run = run_file.of_record(folder, data)
    then = run_folder.provenance(folder)
    ended_on = then["device"]
    then |= then.get("sessions", [{"by": {}}])[0]["by"]  # the first rounds are its first session's
    check_key(folder, run, summary, then)
    asked = then["device"] if asked == "auto" and then["device"] == "cpu" else asked
    place = Place(folder, folder / checkpoint.FILE, data, asked, weights=weights, partitions=partitions)
    process.lease(place)
    on = device.choose_device(asked)
    as_then = on == then["device"]
    precision = device.choose_precision(then["precision"] if as_then else "auto", on, run.networks)
    if "sessions" in then and then["device"] != ended_on and "executor" not in then["sessions"][0]["by"]:
        then["executor"] = DEFAULT[then["device"]]  # sessions of an earlier version have the last one's alone
    executor = then["executor"] if as_then else DEFAULT[on]
    compute, datasets = device.configure(on, precision), process.load(run, data)
    middle = min(rounds, run.budget.rounds) // 2

    def again(start: Callable[[np.ndarray], np.ndarray] = lambda theta: theta,
              stored: Path | None = None) -> tuple[Values, Progress]:  # fmt: skip
        """Return the values of the first rounds, and of those up to the first that has any, from initial parameters
        made by `start`; with the checkpoint of the middle in the file `stored`.
        """
        federation = assemble(run, place, compute, datasets)
        federation.start = start
        trainer, progress = Trainer(federation, executor), begin(federation)
        while (progress.round < rounds or not progress.history) and not progress.over(run.budget):
            progress = trainer.play(progress)
            if stored and progress.round == middle:
                header = checkpoint.Header(run.key, precision, executor, run=written(run))
                checkpoint.save(stored, progress, header)
        return halfway.values_of(progress), progress

    with tempfile.TemporaryDirectory() as scratch:
        stored = Path(scratch) / checkpoint.FILE
        values, progress = again(stored=stored if middle else None)
        task = halfway.Task(
            str(folder),
            str(data),
            str(weights),
            str(partitions or ""),
            on,
            precision,
            executor,
            str(stored),
            progress.round,
        )
        resumed = halfway.otherwise(task, progress, middle) if stored.exists() and progress.round > middle else ""
    now = facts(run, data, machine(on, executor), precision, partitions)
    differs = tuple(name for name, value in now.items() if value != then.get(name))
    last = max((int(number) for number, *_ in values), default=0)
    words = f"round{'s 1 to' if last > 1 else ''} {last} of {run.budget.rounds}"
    verdict = compare(words, recorded(folder, last), values, differs)
    verdict = replace(verdict, resumed=resumed, summary=not_given(summary, run_folder.metrics(folder)))
    if verdict.rounded and not verdict.close:
        unit = max(torch.finfo(device.PRECISIONS[name]).eps for name in (precision, then["precision"]))
        runs = [values, *(again(functools.partial(moved, unit, twin))[0] for twin in range(TWINS))]
        verdict = replace(verdict, twins=widest([apart(one, two) for one, two in itertools.combinations(runs, 2)]))
    return verdict


def moved(unit: float, twin: int, theta: np.ndarray) -> np.ndarray:
    """Move each entry of theta (P,) a relative `unit` up or down at random: one of the runs that rounding could have
    given.
    """
    signs = np.random.default_rng(twin).choice([-1, 1], len(theta))
    return (theta * (1 + unit * signs)).astype(theta.dtype)


def check_key(folder: Path, run: Run, summary: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Raise InputError, saying why, where the run file has another key now."""
    if run.key == summary["key"]:
        return
    revisions = {"method_revision": run.build_method().revision, "engine_revision": ENGINE_REVISION}
    changed = [f"{name} was {then[name]} and is {here}" for name, here in revisions.items() if then[name] != here]
    changed += [f"{what} has changed" for what in run.changed_plugins(then.get("plugins", {}))]
    why = ", ".join(changed) or "its data or its format are other ones now"
    raise InputError(f"{folder}: this is run {summary['key']}, and its run file gives {run.key} now: {why}")


def recorded(folder: Path, rounds: int) -> Values:
    """Read the values of the first rounds of a run's metrics."""
    rows = list(csv.reader(run_folder.metrics(folder).splitlines()))[1:]
    return {tuple(row[:4]): row[4] for row in rows if int(row[0]) <= rounds}


def apart(then: Values, now: Values) -> dict[Kind, Apart]:
    """Return how far the values of `then` are off, by kind."""
    found: dict[Kind, Apart] = {}
    images = defaultdict[tuple[str, ...], float](float)
    for (number, client, model, metric), value in then.items():
        if metric.startswith("reliability_") and metric.endswith("_images"):
            images[number, client, model] += float(value)
    for key, value in then.items():
        number, client, model, metric = key
        far, where = math.inf, f"round {number}, {client}, {model}, {metric}"
        if key not in now:
            where += " is not measured now"
        elif (far := distance(model, metric, value, now[key], images[key[:3]])) == math.inf:
            where += f" is {now[key]} now, and {value} in the record"
        kind, one = (client == "global", model, metric), Apart(far, where)
        found[kind] = max(found.get(kind, one), one, key=lambda one: one.far)
    return found


def distance(model: str, metric: str, then: str, now: str, images: float) -> float:
    """Return how far a value is off, of a model with so many `images` in a reliability diagram.

    Metrics of predictions are fractions, except an NLL: above 1 it is relative to itself. What a method logs may have any
    scale, and is relative to itself; a bin of a reliability diagram to all its images. Infinite for a count that is another,
    and where one of the two is not finite and the other is not the same.
    """
    one, other = float(then), float(now)
    if then == now or one == other:
        return 0.0
    if model in COUNTS or metric in COUNTS or not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    size = max(abs(one), abs(other)) if model == "server" else max(1.0, abs(one))
    return abs(one - other) / (images if metric.startswith("reliability_") else size)


def widest(found: Sequence[Mapping[Kind, Apart]]) -> dict[Kind, Apart]:
    """Return the largest of several that is finite, kind by kind: what is not finite bounds nothing."""
    finite = [{kind: apart for kind, apart in one.items() if apart.far < math.inf} for one in found]
    return {kind: max((one.get(kind, Apart()) for one in finite), key=lambda one: one.far) for kind in found[0]}


def compare(rounds: str, then: Values, now: Values, differs: tuple[str, ...]) -> Verdict:
    """Return the verdict on what was trained again. A value of the record that is not measured now is not the same."""
    same = sum(now.get(key) == value for key, value in then.items())
    return Verdict(rounds, len(then), same, len(now.keys() - then.keys()), apart(then, now), differs)


def verify_all(folders: list[Path], rounds: int, data: Path, asked: str,
               weights: Path, partitions: Path | None) -> tuple[list[Path], list[Path]]:  # fmt: skip
    """Verify runs one after another, saying what was found of each; gives those that do not hold, and those that could not
    be checked, whatever failed."""
    wrong, unchecked = [], []
    with Process() as process:
        for folder in folders:
            try:
                verdict = verify(folder, rounds, data, asked, process, weights, partitions)
            except (Exception, SystemExit) as error:
                tell(folder, error)
                unchecked.append(folder)
                continue
            print(f"{folder}: {verdict}", flush=True)
            if not verdict.holds:
                wrong.append(folder)
    return wrong, unchecked
