"""The order in which runs are trained, and which of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bayesfed.papers.grid import Tree

if TYPE_CHECKING:
    from bayesfed.runs.spec import Run

# A run is short below this cost: three quarters of a minute of FOLA's MLP on a core, seconds of a CNN. Starting takes four.
# Short runs are trained several to a job: at most so many, of so much cost together, about five minutes of that MLP.
SHORT, TOGETHER, JOB_COST = 1e11, 20, 6e11


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
    below, together = asked.get("below", SHORT), asked.get("together", TOGETHER)
    found: list[list[str]] = []
    filling: list[str] = []  # the last job of short runs, and its cost
    cost = 0.0
    for run in sorted(runs, key=lambda run: -run["priority"]):
        if run["cost"] >= below:
            found.append([run["folder"]])
            continue
        if not filling or len(filling) >= together or cost + run["cost"] > JOB_COST:
            filling, cost = [], 0.0
            found.append(filling)
        filling.append(run["folder"])
        cost += run["cost"]
    return found
