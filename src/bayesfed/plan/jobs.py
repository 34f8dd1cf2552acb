"""The order in which runs are trained, and which of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bayesfed.papers.grid import Tree
from bayesfed.papers.spec import ShortRuns

if TYPE_CHECKING:
    from bayesfed.runs.spec import Run

JOB_COST = 6e11  # of the short runs of a job together: about five minutes of FOLA's MLP on a core


def priorities(runs: Mapping[str, Run], cells: Iterable[Tree], papers: Tree) -> list[int]:
    """Return the value of each run, from 1; the most valuable is trained first, so that a cut sweep has whole columns.

    Lower seeds come first. Within a seed, published tables come first, then cheaper runs. Runs of equal cost, such as the
    methods of a row, keep the paper's order.
    """
    tables = {
        (paper, table["experiment"])
        for paper, spec in papers.items()
        for table in spec.get("tables", {}).values()
        if table.get("published", True)
    }
    tabled = {cell["folder"] for cell in cells if (cell["paper"], cell["experiment"]) in tables}
    order = sorted(runs.values(), key=lambda run: (run.budget.seed, run.folder not in tabled, run.cost))
    place = {run.folder: len(order) - number for number, run in enumerate(order)}
    return [place[folder] for folder in runs]


def group(runs: Iterable[Tree], asked: Tree) -> list[list[str]]:
    """Return the folders of the runs of each training job, the most valuable first: a long run alone, short ones together.

    `runs` are a plan's; `asked` is the config's `short_runs`. Which of them are finished makes no difference.
    """
    short = ShortRuns(**asked)
    found: list[list[str]] = []
    filling: list[str] = []  # the last job of short runs, and its cost
    cost = 0.0
    for run in sorted(runs, key=lambda run: -run["priority"]):
        if run["cost"] >= short.below:
            found.append([run["folder"]])
            continue
        if not filling or len(filling) >= short.together or cost + run["cost"] > JOB_COST:
            filling, cost = [], 0.0
            found.append(filling)
        filling.append(run["folder"])
        cost += run["cost"]
    return found
