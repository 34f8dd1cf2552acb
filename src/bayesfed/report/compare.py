"""`bayesfed compare`: train what is missing of some methods on a ground, and set it beside the records of all others."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.plan import compared
from bayesfed.plan.asked import Asked
from bayesfed.plan.compared import NAME, OWN, Planned, Request
from bayesfed.report import grounds_page
from bayesfed.report.call_notice import notice
from bayesfed.results import gains, grounds, grounds_files, grounds_of_plan, paired, searches, statements
from bayesfed.results.run_records import RunRecord
from bayesfed.runs import run_folder
from bayesfed.runs.planned import COUNT, SAYS

if TYPE_CHECKING:
    import pandas as pd

    from bayesfed.results.paired import Comparison


PAGE = Path("reports", f"{NAME}.html")


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
        parts = grounds_files.tables(self.sides)
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
    cores: int | str = "all",
    gpus: int | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> Result:
    """Train what is missing of methods on grounds, through the workflow, and compare it with all stored records.

    A method is `name`, or `name:key=value,...`. Of several values, as in `name:lr=0.03/0.1`, the one with the smallest
    validation NLL is taken, by a search as the comparison's own. With `dataset` it is a ground of one's own, on which
    all methods are trained that can run there; partition, alpha, clients, model and rounds are of such a one. Files go
    to results/compare/, the page to reports/compare.html. Raises InputError for a wrong call, TrainingFailed
    (a RuntimeError) where training failed.
    """
    for method in methods:
        if not isinstance(method, str):
            raise InputError(f"{type(method).__name__}: a method is a name here, as in 'fedavg:lr=0.1'")
    check_workflow(cores, gpus, profile)
    request = Request(
        methods=methods,
        grounds=(ground,) if isinstance(ground, str) else tuple(ground),
        seeds=seeds,
        plugins=None if plugins is None else os.fspath(plugins),
        dataset=dataset,
        partition=partition,
        alpha=alpha,
        clients=clients,
        model=model,
        rounds=rounds,
    )
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
    if gpus is not None and gpus < 0:
        raise InputError(f"--gpus {gpus}: give a whole number of at least 0")
    if profile is not None and not Path(profile).is_dir():
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
    command = [sys.executable, "-m", "snakemake", "runs", "--cores", str(cores), "--quiet", "rules", "progress", "host"]
    command += ["--configfile", planned.write_config().as_posix()]
    command += ["--resources", f"gpu={gpus}"] if gpus is not None else []
    command += ["--workflow-profile", os.fspath(profile)] if profile is not None else []
    started = time.time()
    if subprocess.run(command).returncode:
        why = reason(started) or "see the lines above"
        raise TrainingFailed(
            f"compare: training failed: {why}; mend that and start the same command again, which goes on"
        )
    for folder in planned.own:
        run_folder.pack_record(OWN / folder)


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
