"""The runs of a plan and where their files are, for commands that need nothing else of it; imports no torch."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.runs.run_folder import SUMMARY

SAYS = "bayesfed: "  # how the command's own lines begin
COUNT = re.compile(r"\d+ of \d+ runs failed")  # how the log of several runs ends
ROUND = re.compile(r"round (\d+)/(\d+)  (.*?)  \d+ s")  # a line of run.log, as `engine/progress.py` writes it


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan. `cost` is in multiply-adds; `experiment` is (paper, experiment) of the first cell that it fills."""

    name: str  # its folder below `runs/`
    run_file: Path
    folder: Path
    checkpoint: Path
    log: Path  # what its training prints, if it is not in one of `shared`
    shared: tuple[Path, ...]  # the logs of the other runs of its job
    method: str
    datasets: tuple[str, ...]
    cost: int
    priority: int
    experiment: tuple[str, str]

    @property
    def running(self) -> bool:
        """True while a process trains it."""
        return files.is_locked(self.folder / ".lock")

    @property
    def finished(self) -> bool:
        """True once it has a summary."""
        return (self.folder / SUMMARY).exists()

    def progress(self) -> tuple[int, int, str]:
        """Return its rounds done by its log, of how many, and the last result, `accuracy 0.5123`; zeros before one."""
        try:
            lines = (self.folder / "run.log").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return 0, 0, ""
        last = next((found for line in reversed(lines) if (found := ROUND.fullmatch(line))), None)
        return (int(last[1]), int(last[2]), last[3] or "") if last else (0, 0, "")

    def failure(self) -> str:
        """Return what its training ended with; "" for a run that did not fail, or was stopped.

        The log of a job of several runs has a line for each that failed, and then their number. The latest log that says how
        it ended decides.
        """
        logs = [log for log in (self.log, *self.shared) if log.exists()]
        for log in sorted(logs, key=lambda log: log.stat().st_mtime_ns, reverse=True):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            named = [line for line in lines if f"{self.run_file.name}: " in line]
            alone = lines[-1:] if log == self.log and not COUNT.search("".join(lines[-1:])) else []
            for line in (named or alone)[-1:]:
                if line.startswith(SAYS):
                    return "" if "stopped " in line else line.removeprefix(SAYS)
        return ""


def home(plan: Path) -> Path:
    """Return the folder that has a plan's folder, and beside it runs, checkpoints and logs."""
    return Path(os.path.normpath(plan.parent / ".."))


def found(given: Path) -> Path:
    """Return the plan.json of the config of that name where it has been planned, else the path as it is."""
    return named if (named := Path("results", given, "plan", "plan.json")).is_file() else given


def read(given: Path) -> list[PlannedRun]:
    """Return the runs of a plan.json, or of the plan of the config of that name, the most valuable first.

    Run folders, checkpoints and logs are where the workflow has them, beside the plan's folder. Raises InputError where
    there is no plan.
    """
    plan = found(given)
    if not plan.is_file():
        raise InputError(
            f"{given}: there is no such plan; give a plan.json, or the name of a config whose plan is in results/<name>/plan/; "
            "`bayesfed plan CONFIG --out DIR` makes one"
        )
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
        around = home(plan)
        jobs = {name: job for job in content["jobs"] for name in job}
        logs = {name: around / "logs" / "train" / f"{name}.log" for name in jobs}
        experiments = {cell["folder"]: (cell["paper"], cell["experiment"]) for cell in reversed(content["cells"])}
        runs = [
            PlannedRun(
                name := run["folder"],
                plan.parent / "runs" / f"{run['key']}.yaml",
                around / "runs" / name,
                around / "checkpoints" / f"{name}.safetensors",
                logs[name],
                tuple(logs[one] for one in jobs[name] if one != name),
                run["method"],
                tuple(run["datasets"]),
                run["cost"],
                run["priority"],
                experiments[name],
            )
            for run in content["runs"]
        ]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{plan}: this is no plan; give a plan.json that `bayesfed plan` has written") from None
    return sorted(runs, key=lambda run: -run.priority)
