"""Whether a stored run is what the code gives today: its first rounds are trained again and set beside the record."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed import runfile, runfolder
from bayesfed.engine import checkpoint, device
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.rounds import Row, Trainer, begin
from bayesfed.engine.train import Place, Process, assemble, facts
from bayesfed.errors import InputError
from bayesfed.parts import WEIGHTS
from bayesfed.revision import ENGINE_REVISION
from bayesfed.runfile import Run

CLOSE = 0.02  # of an accuracy: so far may what rounds otherwise lead in a few rounds
ROUNDING = ("code", "versions", "device", "hardware", "precision", "executor", "threads")  # what may round otherwise
Key = tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What was found of one run. `same`: of so many `values`, how many have the recorded digits; `more` is measured now and
    was not then. `far`: the largest difference of an accuracy, a fraction, and where. `differs`: what was otherwise when the
    record was made."""

    values: int
    same: int
    more: int
    far: float
    where: str
    differs: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Equal, or close where what rounds otherwise explains that it is not."""
        return self.same == self.values or (self.far <= CLOSE and any(name in ROUNDING for name in self.differs))

    def __str__(self) -> str:
        if self.same == self.values:
            text = f"all {self.values} values are the recorded ones"
        else:
            text = f"{self.same} of {self.values} values are the recorded ones, accuracies differ by {self.far:.4f} at most"
            text += f" ({self.where})"
            text += "; within rounding" if self.holds else "; DIFFERENT"
        text += f"; {self.more} more are not in the record" if self.more else ""
        return text + (f"; otherwise than in the record: {', '.join(self.differs)}" if self.differs else "")


def verify(folder: Path, rounds: int, data: Path, asked: str, process: Process, weights: Path = WEIGHTS) -> Verdict:
    """Train the first `rounds` rounds of the run in `folder` again, on the device `asked` or that of the record, and compare.
    `weights`: the folder with the files that its networks start from, where it has any.

    Raises InputError where there is no whole record, or where the run file gives another run today.
    """
    summary = runfolder.read(folder)
    if summary is None:
        raise InputError(f"{folder}: no finished run here (there is no {runfolder.SUMMARY})")
    run = runfile.load(folder / "run.yaml", data)
    then = json.loads((folder / "provenance.json").read_text())
    check_key(folder, run, summary, then)
    place = Place(folder, folder / checkpoint.FILE, data, asked, weights=weights)
    process.lease(place)
    on = device.choose_device(then["device"] if asked == "auto" and then["device"] == "cpu" else asked)
    as_then = on == then["device"]
    precision = device.choose_precision(then["precision"] if as_then else "auto", on)
    executor = then["executor"] if as_then else DEFAULT[on]
    federation = assemble(run, place, device.compute(on, precision), process.load(run, data))
    now = facts(run, data, on, precision, executor)
    differs = tuple(name for name, value in now.items() if value != then.get(name))
    trainer = Trainer(federation, executor)
    progress = begin(federation)
    while progress.round < rounds and not progress.over(run.budget.rounds):
        progress = trainer.play(progress)
    return compare(recorded(folder / "metrics.csv", progress.round), progress.history, differs)


def check_key(folder: Path, run: Run, summary: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Raise InputError, saying why, where the run file has another key now."""
    if run.key == summary["key"]:
        return
    revisions = {"method_revision": run.build_method().revision, "engine_revision": ENGINE_REVISION}
    changed = [f"{name} was {then[name]} and is {now}" for name, now in revisions.items() if then[name] != now]
    why = ", ".join(changed) or "its data, its parts or its format are other ones now"
    raise InputError(f"{folder}: this is run {summary['key']}, and its run file gives {run.key} now: {why}")


def recorded(path: Path, rounds: int) -> dict[Key, str]:
    """The values of the first rounds as they stand in metrics.csv, by round, client, model and metric."""
    with path.open(newline="") as file:
        return {tuple(row[:4]): row[4] for row in list(csv.reader(file))[1:] if int(row[0]) <= rounds}


def compare(then: Mapping[Key, str], history: list[Row], differs: tuple[str, ...]) -> Verdict:
    """The verdict on what was trained again. A value of the record that is not measured now is not the same."""
    now: dict[Key, str] = {(str(row.round), row.client, row.model, row.metric): f"{row.value:.6g}" for row in history}
    far, where = 0.0, ""
    for key, value in then.items():
        if key[3].endswith("accuracy"):
            apart = abs(float(value) - float(now[key])) if key in now else 1.0
            if apart > far:
                far, where = apart, f"round {key[0]}, {key[1]}, {key[2]}, {key[3]}"
    same = sum(now.get(key) == value for key, value in then.items())
    return Verdict(len(then), same, len(now.keys() - then.keys()), far, where, differs)


def verify_all(folders: list[Path], rounds: int, data: Path, asked: str, weights: Path = WEIGHTS) -> list[Path]:
    """Verify runs one after another, saying what was found of each; gives those that do not hold."""
    wrong = []
    with Process() as process:
        for folder in folders:
            try:
                verdict = verify(folder, rounds, data, asked, process, weights)
            except InputError as error:
                print(error, file=sys.stderr)
                wrong.append(folder)
                continue
            print(f"{folder}: {verdict}", flush=True)
            if not verdict.holds:
                wrong.append(folder)
    return wrong
