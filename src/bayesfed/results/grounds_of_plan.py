"""The grounds of a plan, with the records of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bayesfed.results.formatting import text
from bayesfed.results.grounds import Ground, Trial
from bayesfed.results.run_records import RunRecord
from bayesfed.results.searches import is_search


def load(
    cells: Iterable[Mapping[str, Any]], costs: Mapping[str, int], baseline: str, run_of: Callable[[str], RunRecord]
) -> list[Ground]:
    """Collect the grounds of a plan's cells, without searches. costs: of each run's folder; run_of: the record of one."""
    found: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        if not is_search(cell["experiment"]):
            found.setdefault(place_of(cell), []).append(cell)
    grounds = []
    for (name, dataset, alpha, model), of_ground in found.items():
        trials: dict[str, dict[str, Trial]] = {}
        for cell in of_ground:
            folder, seed, foreign = cell["folder"], text(cell["seed"]), tuple(cell.get("foreign", {}).values())
            trial = Trial(cell["method"], seed, run_of(folder), foreign, costs[folder], cell.get("server_images", 0))
            trials.setdefault(cell["method"], {})[seed] = trial
        first = of_ground[0]
        grounds.append(Ground(name, dataset, alpha, model, first["clients"], first["rounds"], baseline, trials))
    return grounds


def place_of(cell: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the name, data, alpha and network of a cell's ground; the name has all other axes that the experiment has."""
    dataset = text(cell["dataset"])
    data = dataset if cell["used"] == cell["dataset"] else f"{text(cell['used'])} in place of {dataset}"
    others = [f"{axis.rpartition('.')[2]} {text(value)}" for axis, value in cell["axes"].items()]
    others += [f"stragglers {cell['stragglers']}"] if cell["stragglers"] != "0" else []
    return ", ".join([cell["experiment"], *others]), data, cell["alpha"] or "", text(cell["model"])


def has_grounds(paper: Mapping[str, Any]) -> bool:
    """Return whether a paper's experiments are grounds: it has no table, figure or claim that they fill."""
    return not any(paper.get(kind) for kind in ("tables", "figures", "claims"))


def baseline_of(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Name the method that others are measured against: FedAvg by its label, else the first."""
    return next((label for label, block in methods.items() if block["name"] == "fedavg"), next(iter(methods)))
