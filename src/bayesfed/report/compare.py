"""`bayesfed compare`: train what is missing of some methods on a ground, and set it beside the records of all others."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.core import files, options
from bayesfed.core.errors import InputError
from bayesfed.plan import compared, progress
from bayesfed.plan.asked import Asked
from bayesfed.plan.compared import NAME, OWN, Planned, Request
from bayesfed.report import grounds_page
from bayesfed.report.call_notice import notice
from bayesfed.results import gains, grounds, grounds_files, grounds_of_plan, paired, searches, statements
from bayesfed.results.run_records import RunRecord
from bayesfed.runs import run_folder
from bayesfed.runs.planned import COUNT, SAYS, read

if TYPE_CHECKING:
    import pandas as pd

    from bayesfed.results.paired import Comparison


PAGE = Path("reports", f"{NAME}.html")
SECONDS = 10.0  # between two lines on how far the runs are
SHOWN = 3  # runs that such a line names
LEAVE = 30.0  # seconds that the workflow has to end after Ctrl-C
# Lines of Snakemake about itself; errors have others.
CHATTER = re.compile(
    r"Using workflow specific profile|Assuming unrestricted shared|Building DAG|Using shell|Singularity containers|Select jobs|"
    r"Execute \d+ jobs|Complete log|Elapsed time|Cannot restore .*no backup found|Shutting down|--keep-incomplete mode"
)


class TrainingFailed(RuntimeError):
    """Some of the runs that a comparison needs could not be trained; what is finished is kept."""


@dataclass(frozen=True)
class Result:
    """A comparison of methods: its sides, the methods asked for, the files that were written, and the text of
    `comparison.csv`, which the next call replaces."""

    sides: Sequence[Comparison]
    asked: Sequence[str]
    files: Sequence[Path]
    numbers: str

    @property
    def table(self) -> pd.DataFrame:
        """A row a ground, side and method, with each column's mean, sd and difference to the baseline: `comparison.csv`."""
        import pandas as pd

        return pd.read_csv(io.StringIO(self.numbers))

    @property
    def statements(self) -> list[str]:
        """The statements in words, made by rule."""
        return statements.lines(self.sides)

    def __str__(self) -> str:
        parts = [
            (title, head, [[f"{'▸ ' * (row[0] in self.asked)}{row[0]}", *row[1:]] for row in rows])
            for title, head, rows in grounds_files.tables(self.sides)
        ]
        for side in self.sides:
            baseline = side.grounds[0].baseline
            for method in self.asked:
                head, rows = grounds_files.differences(side, method, baseline)
                parts += [(f"{grounds.SIDES[side.side]}, {method} − {baseline}", head, rows)] if rows else []
        parts += grounds_files.gains_tables(self.sides)
        texts = [f"{title}\n{grounds_files.as_text(head, rows)}" for title, head, rows in parts]
        keys = f"{grounds_files.MARKS} {gains.KEY}"
        return "\n\n".join([*texts, keys, grounds_files.legend(self.sides), "\n".join(self.statements)])


def compare(
    *methods: str,
    ground: str | Sequence[str] = (),
    seeds: int = 5,
    plugins: str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    clients: int | None = None,
    model: str | None = None,
    rounds: int | None = None,
    against: str | Sequence[str] = (),
    cores: int | str = "all",
    gpus: int | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> Result:
    """Train what is missing of methods on grounds, through the workflow, and compare it with all stored records.

    A method is `name`, or `name:key=value,...`. Of several values, as in `name:lr=0.03/0.1`, the one with the smallest
    validation NLL is taken, by a search as the comparison's own. With `dataset` it is a ground of one's own, on which
    all methods are trained that can run there, or FedAvg and those of `against`; partition, alpha, clients, model and
    rounds are of such a one. Files go to results/compare/, the page to reports/compare.html. Raises InputError for a wrong
    call, TrainingFailed (a RuntimeError) where training failed.
    """
    for method in methods:
        if not isinstance(method, str):
            name = (method if isinstance(method, type) else type(method)).__name__
            raise InputError(f"{name}: a method is a name here, as in 'fedavg:lr=0.1'")
    check_workflow(cores, gpus, profile)
    named, beside = (
        options.check(options.plain(given), str | tuple[str, ...], options.NONE, key)
        for given, key in ((ground, "ground"), (against, "against"))
    )
    given = {
        "methods": methods,
        "grounds": (named,) if isinstance(named, str) else named,
        "against": (beside,) if isinstance(beside, str) else beside,
        "seeds": seeds,
        "plugins": os.fspath(plugins) if isinstance(plugins, os.PathLike) else plugins,
        "dataset": dataset,
        "partition": partition,
        "alpha": alpha,
        "clients": clients,
        "model": model,
        "rounds": rounds,
    }
    request = options.read(Request, options.plain(given))
    compared.check(request)
    with files.locked(OWN.parent / ".lock", f"{OWN.parent}: another `bayesfed compare` is at work"):
        request = tuned(request, lambda planned: train(planned, cores, gpus, profile))
        planned = compared.plan(request)
        for label, why in request.refused.items() if dataset else ():
            print(f"{label} is left out: {why}", file=sys.stderr)
        if told := notice(planned):
            print(told, file=sys.stderr)
        if planned.lacking:
            train(planned, cores, gpus, profile)
        return result(planned)


def check_workflow(cores: int | str, gpus: int | None, profile: str | os.PathLike[str] | None) -> None:
    """Refuse what Snakemake would answer with a page, or wait for without end."""
    if cores != "all" and not (str(cores).isdecimal() and int(cores) > 0):
        raise InputError(f"--cores {cores}: give a whole number of at least 1, or all")
    options.check(options.plain(gpus), int | None, options.Bounds(low=0), "gpus")
    if profile is not None and not files.path(profile, "profile").is_dir():
        raise InputError(f"--profile {os.fspath(profile)!r}: there is no such folder; profiles/slurm is one")


def tuned(request: Request, run: Callable[[Planned], None]) -> Request:
    """Choose options of which a call gives several values, by the validation NLL on a seed that is in no table.

    Where the best learning rate is the largest or smallest that was tried, the next one is, until the best is inside. `run`
    trains what is missing of a plan. Raises InputError where no configuration has a validation NLL.
    """
    tried = {text: every for text in request.methods if (every := Asked.read(text).configurations)}
    if tried:
        compared.plan(request)  # which refuses, before anything is trained, what the comparison would
    while tried:
        request = dataclasses.replace(request, tried=tried)
        planned = compared.plan_search(request)
        if planned.lacking:
            run(planned)
        of_label = {one.method: one for one in searches.load(planned.cells, lambda folder: record(folder).summary)}
        found = {text: of_label[request.named[text][0]] for text in tried}
        if not any(one.wider for one in found.values()):
            chosen = {text: tried[text][one.best] for text, one in found.items() if math.isfinite(min(one.scores))}
            if without := [text for text in tried if text not in chosen]:
                raise InputError(f"{without[0]}: no configuration has a validation NLL; give smaller learning rates")
            for text, one in found.items():
                head = ["options", "validation NLL", "chosen"]
                print(f"{text}, searched on {one.dataset}\n{grounds_files.as_text(head, one.rows)}", file=sys.stderr)
            return dataclasses.replace(request, chosen=chosen)
        more = {text: [one.wider] if one.wider else [] for text, one in found.items()}
        tried = {text: [*of_text, *map(options_of, more[text])] for text, of_text in tried.items()}
    return request


def options_of(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the axes of a search are."""
    return {axis.removeprefix("method."): value for axis, value in axes.items()}


def record(folder: str) -> RunRecord:
    """Return a run's record, of the comparison or of a call."""
    return RunRecord(compared.finished(folder) or OWN / folder)


def train(planned: Planned, cores: int | str, gpus: int | None, profile: str | os.PathLike[str] | None) -> None:
    """Train what is missing, by the workflow, and pack its records."""
    command = [sys.executable, "-m", "snakemake", "runs"]
    command += ["--cores", str(cores)] if profile is None or cores != "all" else []  # a profile has its own
    command += ["--quiet", "rules", "progress", "host"]
    command += ["--configfile", planned.write_config().as_posix()]
    command += ["--resources", f"gpu={gpus}"] if gpus is not None else []
    command += ["--workflow-profile", os.fspath(profile)] if profile is not None else []
    started = time.time()
    if run_workflow(command, {cell["folder"]: cell for cell in planned.lacking}):
        why = reason(started) or "see the lines above"
        raise TrainingFailed(
            f"compare: training failed: {why}; mend that and start the same command again, which goes on"
        )
    for folder in planned.own:
        run_folder.pack_record(OWN / folder)


def run_workflow(command: Sequence[str], cells: Mapping[str, Mapping[str, Any]]) -> int:
    """Run Snakemake, show what it says except CHATTER, and tell how far the runs of `cells` are; gives its exit code."""
    ended = threading.Event()
    watcher = threading.Thread(target=watch, args=(cells, ended), daemon=True)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as workflow:
        watcher.start()
        try:
            for line in workflow.stderr or ():
                if not CHATTER.match(line):
                    print(line, end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:  # which a terminal sends to the runs, too: they write their checkpoints
            with contextlib.suppress(subprocess.TimeoutExpired):
                workflow.communicate(timeout=LEAVE)
            workflow.kill()
            raise
        finally:
            ended.set()
            watcher.join()
    return workflow.returncode


def watch(cells: Mapping[str, Mapping[str, Any]], ended: threading.Event) -> None:
    """Print how far the runs of `cells` are, where that has changed in SECONDS, until it has `ended`."""
    told = ""
    while not ended.wait(SECONDS):
        if (line := reached(cells)) != told:
            print(line, file=sys.stderr, flush=True)
            told = line


def reached(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how many runs of `cells`, by their folders, are finished, and the rounds of those that are being trained."""
    runs = []
    with contextlib.suppress(InputError):  # the workflow has no plan yet
        runs = [run for run in read(Path(NAME)) if run.name in cells]
    parts = [f"{sum(run.finished for run in runs)} of {len(cells)} runs finished"]
    running = [run for run in runs if run.running and not run.finished]
    for run in running[:SHOWN]:
        done, rounds, _ = run.progress()
        at = f"round {done}/{rounds}" if rounds else "begun"
        parts.append(f"{progress.name(dict(cells[run.name]))}: {at}")
    return "; ".join([*parts, *([f"{len(running) - SHOWN} more"] if len(running) > SHOWN else [])])


def reason(since: float) -> str:
    """Return what the last log that was written since a time ends with, without the number of failed runs: one line on what
    is wrong; "" for none.
    """
    logs = [path for path in OWN.parent.glob("logs/**/*.log") if path.stat().st_mtime >= since]
    for path in sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if told := [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS) and not COUNT.search(line)]:
            return told[-1]
    return ""


def result(planned: Planned) -> Result:
    """Compare what is finished, and write the files."""
    records: dict[str, RunRecord] = {}

    def run_of(folder: str) -> RunRecord:
        return records.setdefault(folder, record(folder))

    baseline, asked = grounds_of_plan.baseline_of(planned.request.paper["methods"]), list(planned.request.asked)
    found = grounds_of_plan.load(planned.cells, planned.costs, baseline, run_of)
    searched = searches.load(planned.cells, lambda folder: run_of(folder).summary)
    sides = [paired.Comparison(found, side) for side in grounds.SIDES]
    told = notice(planned)
    files.write_text(PAGE, grounds_page.page(sides, searched, "Methods compared", asked, told))
    written = grounds_files.write(sides, OWN.parent)
    numbers = next(path for path in written if path.suffix == ".csv").read_text(encoding="utf-8")
    return Result(sides, asked, [*written, PAGE], numbers)
