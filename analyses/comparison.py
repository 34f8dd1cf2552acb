"""Each method's configuration of the comparison, chosen from the searches that are finished, and the grounds they run on.

    python -m analyses.comparison

For a dataset and a method it is the configuration with the smallest validation NLL in the last round, of the clients'
models if the method is for personal models, else of the server's; an average over weight samples stands for its model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed import methods
from bayesfed.core import files
from bayesfed.methods.node import SAMPLED
from bayesfed.runs import run_folder

PAPER = Path("config/papers/comparison.yaml")
RESULTS = Path("results/comparison")
BEGIN, END = "  # {}: `python -m analyses.comparison` writes these lines\n", "  # {}: end\n"
SEEDS = 5

Cell = Mapping[str, Any]
Choice = tuple[str, str, Cell, float]  # dataset, method, the cell chosen and its validation NLL


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


def chosen(plan: Mapping[str, Any], runs: Path) -> Iterator[Choice]:
    """Yield the choice of each search whose runs are all finished."""
    for (dataset, method), cells in searches(plan).items():
        summaries = [run_folder.read(runs / cell["folder"]) for cell in cells]
        if all(summaries):
            block = plan["papers"]["comparison"]["methods"][method]
            personal = methods.get(block["name"]).personal
            scores = [predictive_nll(summary or {}, personal) for summary in summaries]
            best = min(range(len(cells)), key=lambda place: scores[place])
            yield dataset, method, cells[best], scores[best]


def rules(choices: Iterable[Choice]) -> str:
    """Return the lines of the paper's `given` that say what was chosen."""
    text = ""
    for dataset, method, cell, score in choices:
        options = {axis.removeprefix("method."): value for axis, value in cell["axes"].items()}
        where = json.dumps({"dataset": dataset, "method": method})
        text += f"  - where: {where}  # validation NLL {score:.4f}\n"
        text += f"    methods: {json.dumps({method: options})}\n"
    return text


def grounds(plan: Mapping[str, Any], choices: Sequence[Choice]) -> str:
    """Return the lines of the paper's `experiments` for the grounds: each dataset at each alpha, with what was chosen."""
    of_dataset: dict[str, list[str]] = {}
    models = {}
    for (dataset, method), cells in searches(plan).items():
        of_dataset.setdefault(dataset, []).append(method)
        models[dataset] = cells[0]["model"]
    text = ""
    for dataset, methods_of in of_dataset.items():
        ready = [method for of, method, *_ in choices if of == dataset]
        waiting = [method for method in methods_of if method not in ready]
        if waiting:
            text += f"  # {dataset}: no choice yet for {', '.join(waiting) if ready else 'any method'}\n"
        for alpha, setting in plan["papers"]["comparison"]["settings"].items() if ready else ():
            axes = {"dataset": [dataset], "models.global": [models[dataset]], "partition.alpha": [float(alpha)]}
            text += f"  {dataset}-{setting}:\n    seeds: {SEEDS}\n    axes:\n"
            text += "".join(f"      {axis}: {json.dumps(values)}\n" for axis, values in axes.items())
            text += "      method:\n" + "".join(f"        - {json.dumps(method)}\n" for method in ready)
    return text


def between(text: str, name: str, lines: str) -> str:
    """Return a text with other lines between the marks of a name."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    return before + begin + lines + end + rest.partition(end)[2]


def write() -> None:
    """Write what is chosen now, and the grounds it runs on, into the file of the comparison."""
    plan = json.loads((RESULTS / "plan/plan.json").read_text(encoding="utf-8"))
    choices = list(chosen(plan, RESULTS / "runs"))
    text = between(PAPER.read_text(encoding="utf-8"), "chosen", rules(choices))
    files.write_text(PAPER, between(text, "grounds", grounds(plan, choices)))


if __name__ == "__main__":
    write()
