"""The state of a plan: what is finished, running, stopped, failed and open of each experiment. Imports no torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from bayesfed.core.errors import InputError
from bayesfed.runs import run_folder
from bayesfed.runs.planned import PlannedRun

STATES = ("finished", "running", "failed", "stopped", "open")
FAILED = 10  # of the failed runs so many are named


def state_of(run: PlannedRun) -> str:
    """One of STATES. A stopped run has a checkpoint; a failed one's log ends with a reason."""
    if run.finished:
        return "finished"
    if run.running:
        return "running"
    if run.failure():
        return "failed"
    return "stopped" if run.checkpoint.exists() else "open"


def lines(runs: Sequence[PlannedRun]) -> Iterable[str]:
    """Return the state of a plan's runs: a table by paper and experiment, then the running and the failed runs.

    A run that several experiments share counts in the first of them.
    """
    states = {run.name: state_of(run) for run in runs}
    hours, damaged = hours_left(runs, states)
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    left: dict[tuple[str, str], float] = defaultdict(float)
    for run in sorted(runs, key=lambda run: run.experiment[0]):
        for row in (run.experiment, ("all", "")):
            counts[row][states[run.name]] += 1
            left[row] += hours.get(run.name, 0.0)
    total = counts.pop(("all", ""), Counter())
    rows = [["paper", "experiment", *STATES, "hours left"]]
    for row, count in [*counts.items(), (("all", ""), total)]:
        known = hours or count.total() == count["finished"]
        rows.append([*row, *(str(count[state]) for state in STATES), f"{left[row]:.1f}" if known else "unknown"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        names = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
        yield "  ".join([*names, *(cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))])
    if hours:
        yield "hours left: an estimate for one run at a time, by what finished runs of a method took for their multiply-adds"
    for run in runs:
        if states[run.name] == "running":
            done, of, what = run.progress()
            yield f"running {run.name}: round {done} of {of}, {what}".rstrip(", ") if of else f"running {run.name}"
    yield from (f"damaged {what}" for what in damaged)
    failed = [run for run in runs if states[run.name] == "failed"]
    yield from (f"failed {run.name}: {run.failure()}" for run in failed[:FAILED])
    if len(failed) > FAILED:
        yield f"and {len(failed) - FAILED} more that failed"


def hours_left(runs: Sequence[PlannedRun], states: dict[str, str]) -> tuple[dict[str, float], list[str]]:
    """Return an estimate in hours for each run that is not finished, nothing where none is finished, to estimate by; and
    what is wrong with damaged records of finished ones.
    """
    damaged = []
    seconds: dict[str, float] = defaultdict(float)
    costs: dict[str, float] = defaultdict(float)
    for run in runs:
        if states[run.name] == "finished":
            try:
                took = run_folder.finished(run.folder)["train_seconds"]
            except InputError as error:
                damaged.append(str(error))
                continue
            for method in (run.method, ""):  # a method of which none is finished is as fast as all together
                seconds[method] += took
                costs[method] += run.cost
    found = {}
    for run in runs:
        method = run.method if run.method in costs else ""
        if states[run.name] != "finished" and costs[method]:
            done, of, _ = run.progress()
            found[run.name] = run.cost * (1 - done / of if of else 1) * seconds[method] / costs[method] / 3600
    return found, damaged
