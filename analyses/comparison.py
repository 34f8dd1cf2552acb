"""Each method's configuration of the comparison, chosen from the searches that are finished, and the grounds they run on.

    python -m analyses.comparison

For a dataset and a method it is the configuration with the smallest validation NLL (`results/searches.py`). Where its
learning rate is the largest or smallest that was tried, the next one is added to the search, until the best is inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.results import searches
from bayesfed.results.grounds_files import with_twins
from bayesfed.results.searches import SEARCH, Searched
from bayesfed.runs import run_folder

PAPER = Path("config/papers/comparison.yaml")
RESULTS = Path("results/comparison")
WIDER = f"{SEARCH}_wider"
BEGIN, END = "  # {}: `python -m analyses.comparison` writes these lines\n", "  # {}: end\n"
SEEDS = 5


def flow(value: object) -> str:
    """Return a value in a line of YAML, which reads 3e-05 as text."""
    return re.sub(r"(?<![\w.])(\d+)e-", r"\1.0e-", json.dumps(value))


def wider(found: Sequence[Searched]) -> str:
    """Return the lines of the paper's `experiments` for the searches beyond the grids, an experiment a dataset: those that
    are there, and those that are due.
    """
    of_dataset: dict[tuple[str, str], list[tuple[str, str, Mapping[str, Any]]]] = {}
    for one in found:
        first = one.cells[0]
        tried = [cell["axes"] for cell in one.cells if cell["experiment"].startswith(WIDER)]
        for options in tried + [one.wider] * (one.wider is not None):
            of_dataset.setdefault((one.dataset, first["model"]), []).append((one.method, first["alpha"], options))
    text = ""
    for (dataset, model), cases in of_dataset.items():
        text += f"  {WIDER}_{dataset}:\n    axes: {{dataset: [{dataset}], models.global: [{model}]}}\n    cases:\n"
        for method, alpha, options in cases:
            axes = ", ".join(f"method.{name.removeprefix('method.')}: {flow(value)}" for name, value in options.items())
            text += f"      - {{partition.alpha: {alpha}, method: {method}, {axes}}}\n"
    return text


def rules(found: Sequence[Searched], labels: Collection[str]) -> str:
    """Return the lines of the paper's `given` that say what was chosen, for a method and its plain twin."""
    text = ""
    for one in found:
        if one.settled:
            axes = one.cells[one.best]["axes"]
            options = {axis.removeprefix("method."): value for axis, value in axes.items()}
            both = with_twins([one.method], labels)
            where = flow({"dataset": one.dataset, "method": both if len(both) > 1 else one.method})
            text += f"  - where: {where}  # validation NLL {one.scores[one.best]:.4f}\n"
            text += f"    methods: {flow(dict.fromkeys(both, options))}\n"
    return text


def grounds(found: Sequence[Searched], settings: Mapping[str, str], labels: Collection[str]) -> str:
    """Return the lines of the paper's `experiments` for the grounds: each dataset at each alpha, with what was chosen."""
    of_dataset: dict[str, list[Searched]] = {}
    for one in found:
        of_dataset.setdefault(one.dataset, []).append(one)
    text = ""
    for dataset, of_method in of_dataset.items():
        ready = [one.method for one in of_method if one.settled]
        waiting = [one.method for one in of_method if one.method not in ready]
        if waiting:
            text += f"  # {dataset}: no choice yet for {', '.join(waiting) if ready else 'any method'}\n"
        for alpha, setting in settings.items() if ready else ():
            model = of_method[0].cells[0]["model"]
            axes = {"dataset": [dataset], "models.global": [model], "partition.alpha": [float(alpha)]}
            text += f"  {dataset}-{setting}:\n    seeds: {SEEDS}\n    axes:\n"
            text += "".join(f"      {axis}: {flow(values)}\n" for axis, values in axes.items())
            text += "      method:\n" + "".join(f"        - {flow(method)}\n" for method in with_twins(ready, labels))
    return text


def between(text: str, name: str, lines: str) -> str:
    """Return a text with other lines between the marks of a name."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    return before + begin + lines + end + rest.partition(end)[2]


def write() -> None:
    """Write what is chosen now, and the grounds it runs on, into the file of the comparison."""
    plan: dict[str, Any] = json.loads((RESULTS / "plan/plan.json").read_text(encoding="utf-8"))
    found = searches.load(plan["cells"], lambda folder: run_folder.read(RESULTS / "runs" / folder))
    paper = plan["papers"]["comparison"]
    text = between(PAPER.read_text(encoding="utf-8"), "chosen", rules(found, paper["methods"]))
    text = between(text, "wider", wider(found))
    files.write_text(PAPER, between(text, "grounds", grounds(found, paper["settings"], paper["methods"])))


if __name__ == "__main__":
    write()
