"""Each method's configuration of the comparison, chosen from the searches that are finished, written into its file.

    python -m analyses.comparison

For a dataset and a method it is the configuration with the smallest validation NLL in the last round, of the clients'
models if the method is for personal models, else of the server's; an average over weight samples stands for its model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bayesfed import methods
from bayesfed.core import files
from bayesfed.methods.node import SAMPLED
from bayesfed.runs import run_folder

PAPER = Path("config/papers/comparison.yaml")
RESULTS = Path("results/comparison")
BEGIN, END = "  # chosen: `python -m analyses.comparison` writes these lines\n", "  # chosen: end\n"

Cell = Mapping[str, Any]


def predictive_nll(summary: Mapping[str, Any], personal: bool) -> float:
    """Return the validation NLL of what a method predicts with; infinity for a run that diverged."""
    block = summary["validation"]["clients" if personal else "global"] if summary.get("validation") else {}
    sampled = [values["nll"] for name, values in block.items() if name.endswith(SAMPLED)]
    found = sampled or [values["nll"] for values in block.values()]
    return min((value for value in found if value is not None and math.isfinite(value)), default=math.inf)


def searches(plan: Mapping[str, Any]) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of each search, by dataset and method."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan["cells"]:
        if cell["experiment"].startswith("search"):
            found.setdefault((cell["dataset"], cell["method"]), []).append(cell)
    return found


def chosen(plan: Mapping[str, Any], runs: Path) -> Iterator[tuple[str, str, Cell, float]]:
    """Yield dataset, method, chosen cell and its validation NLL of each search whose runs are all finished."""
    for (dataset, method), cells in searches(plan).items():
        summaries = [run_folder.read(runs / cell["folder"]) for cell in cells]
        if all(summaries):
            block = plan["papers"]["comparison"]["methods"][method]
            personal = methods.get(block["name"]).personal
            scores = [predictive_nll(summary or {}, personal) for summary in summaries]
            best = min(range(len(cells)), key=lambda place: scores[place])
            yield dataset, method, cells[best], scores[best]


def rules(plan: Mapping[str, Any], runs: Path) -> str:
    """Return the lines of the paper's `given` that say what was chosen."""
    text = ""
    for dataset, method, cell, score in chosen(plan, runs):
        options = {axis.removeprefix("method."): value for axis, value in cell["axes"].items()}
        where = json.dumps({"dataset": dataset, "method": method})
        text += f"  - where: {where}  # validation NLL {score:.4f}\n"
        text += f"    methods: {json.dumps({method: options})}\n"
    return text


def write() -> None:
    """Write what is chosen now into the file of the comparison."""
    plan = json.loads((RESULTS / "plan/plan.json").read_text(encoding="utf-8"))
    before, _, rest = PAPER.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    files.write_text(PAPER, before + BEGIN + rules(plan, RESULTS / "runs") + END + after)


if __name__ == "__main__":
    write()
