"""A plan's cells, joined with what their run folders hold."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.results import run_records
from bayesfed.results.cells import UNRECORDED, Record, Study
from bayesfed.results.formatting import text
from bayesfed.runs.run_folder import NO_GLOBAL

NOT_TESTED = "no local model on the full test set"


def studies(plan: Path) -> list[Study]:
    """Read `plan.json` and the run folders it names, in `runs` beside the plan's folder.

    Raises InputError when the plan is missing, no plan or one of another version.
    """
    if plan.is_dir():
        raise InputError(f"{plan}: this is a folder; expected the plan.json that `bayesfed plan` has written")
    if not plan.is_file():
        raise InputError(f"no plan at {plan}; make it with `bayesfed plan CONFIG --out {plan.parent}`")
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
        papers, cells = content["papers"], content["cells"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{plan} is no plan; give results/<config>/plan/plan.json, as `bayesfed plan` makes it"
        ) from None
    folder = plan.parent.parent / "runs"
    try:
        run_records.forget_changed(
            {folder / cell["folder"] for cell in cells}
        )  # a process may ask again (tests, notebooks)
        return [
            study(name, spec, content.get("notice") or "", [cell for cell in cells if cell["paper"] == name], folder)
            for name, spec in papers.items()
        ]
    except KeyError as error:
        raise InputError(f"{plan}: a plan of another version (no {error}); make it anew with `bayesfed plan`") from None


def study(
    paper: str, spec: Mapping[str, Any], notice: str, planned: Iterable[Mapping[str, Any]], runs_folder: Path
) -> Study:
    """A paper with the records of its planned cells, from the run folders below `runs_folder`."""
    records = [record for cell in planned for record in _records(cell, spec, runs_folder)]
    return Study(paper, spec, notice, records, spec["first_client"])


def _records(cell: Mapping[str, Any], spec: Mapping[str, Any], runs_folder: Path) -> list[Record]:
    """The records of a cell: the server's model (none in a multi-task run), the clients, the server's model on their
    shards, the clients' own models together and, where they are tested on the full set every round, their mean."""
    levels = levels_of(spec, cell["experiment"])
    folder = runs_folder / cell["folder"]
    summary = run_records.summary(folder)
    clients = cell["clients"]
    datasets, used = _each(cell["dataset"], clients), _each(cell["used"], clients)
    several = isinstance(cell["dataset"], list)

    def record(level: str, client: str, model: object, dataset: str, on: str, block: str, k: int | None) -> Record:
        stored = (summary or {}).get(block) or {}
        values = _values(stored, k)
        diverged = ((summary or {}).get("diverged") or {}).get("round", 0)
        return Record(
            experiment=cell["experiment"],
            dataset=dataset,
            used=on,
            setting=text(cell.get("setting")),
            alpha=text(cell.get("alpha")),
            stragglers=text(cell.get("stragglers")),
            axes={axis: text(value) for axis, value in cell["axes"].items()},
            model=text(model),
            client=client,
            method=cell["method"],
            seed=text(cell["seed"]),
            rounds=cell["rounds"],
            local_epochs=cell["local_epochs"],
            batch_size=cell["batch_size"],
            changes=tuple(cell["changes"]),
            foreign=cell.get("foreign", {}),
            asks=tuple(cell["asks"]),
            folder=folder,
            done=summary is not None,
            diverged=diverged,
            level=level,
            summary=values,
            missing="" if summary is None or diverged or values else _why(stored, k),
        )

    found = []
    shared = cell.get("model") or cell["models"].get("global")
    local = cell["models"].get("local") or [shared] * clients
    if not several:
        found.append(record("global", "global", shared, datasets[0], used[0], "global", None))
    for k in range(clients if summary or "client" in levels else 0):
        found.append(record("client", str(k), local[k], datasets[k], used[k], "clients", k))
    for k in range(clients if summary or "global_on_shard" in levels else 0):
        found.append(record("global_on_shard", str(k), shared, datasets[k], used[k], "global_on_shards", k))
    whole = slice(None if several else 1)
    together = record("personal", "all", shared, "+".join(datasets[whole]), "+".join(used[whole]), "", None)
    found.append(replace(together, missing=_why_not_together(summary)))
    if not several and cell["clients_on_test"] == "round":
        mean = record("local", "mean", shared, datasets[0], used[0], "", None)
        found.append(replace(mean, missing="" if mean.curve() or not mean.done else NOT_TESTED))
    return found


def levels_of(spec: Mapping[str, Any], experiment: str) -> set[str]:
    """The levels of the accuracies that a paper's tables, figures and claims ask of an experiment."""
    found = {
        column.get("metric", table.get("metric"))
        for table in spec.get("tables", {}).values()
        if table.get("experiment") == experiment
        for column in table.get("columns", [])
    }
    figures = spec.get("figures", {}).values()
    found |= {figure.get("accuracy") for figure in figures if figure.get("experiment") == experiment}
    found |= {claim.get("metric") for claim in spec.get("claims", []) if experiment in claim.get("experiments", [])}
    return {str(metric).partition("_accuracy_")[0] for metric in found}


def _why(block: Mapping[str, Any], client: int | None) -> str:
    """Why a finished run has no accuracy of a model."""
    if client is None:
        return NO_GLOBAL
    return str(block.get("missing", {}).get(str(client), UNRECORDED))


def _why_not_together(summary: Mapping[str, Any] | None) -> str:
    """Why a run has no accuracy of all clients together; "" for one that has, or is not finished, or diverged."""
    if summary is None or summary.get("diverged"):
        return ""
    if "test_images" not in summary:
        return UNRECORDED
    block, images = summary.get("clients") or {}, summary["test_images"]
    if not any(images):
        return _why(block, 0)
    untested = [k for k, count in enumerate(images) if count and not _values(block, k)]
    return _why(block, untested[0]) if untested else ""


def _each(names: str | list[str], clients: int) -> list[str]:
    """The dataset of every client."""
    return [names] * clients if isinstance(names, str) else (names + [names[-1]] * clients)[:clients]


def _values(block: Mapping[str, Any], client: int | None) -> dict[str, float]:
    """The statistics of one model in a summary's block, without those that are null."""
    found = {}
    for name in ("best", "last", "last5"):
        entry = block.get(f"accuracy_{name}")
        if client is not None:
            entry = entry[client] if isinstance(entry, list) and client < len(entry) else None
        value = run_records.number(entry)
        if value is not None:
            found[name] = value
    return found
