"""A plan's finished runs, loaded once: each paper as a config runs it, and its records behind all results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.results.formatting import spoken, text, unique
from bayesfed.results.records import BUDGET, FIELDS, IN_SUMMARY, Record, grouped
from bayesfed.results.run_records import RunRecord, number
from bayesfed.results.statistics import RUN
from bayesfed.results.whole_run import UNRECORDED
from bayesfed.runs.planned import home
from bayesfed.runs.run_folder import NO_GLOBAL

AS_PAPER = "paper's"  # what is said of a cell whose run and data are the paper's in everything
AS_ASKED = "as asked"  # the same of a comparison of one's own
NOT_TESTED = "no local model on the full test set"


@dataclass(frozen=True)
class Study:
    """One paper as one config runs it: the paper's YAML, the config's notice, the records, and what the paper calls client
    0."""

    paper: str
    spec: Mapping[str, Any]
    notice: str
    records: Sequence[Record]
    first_client: int

    @property
    def tables(self) -> Mapping[str, Any]:
        """The tables of the paper's YAML by their names."""
        return self.spec.get("tables", {})  # type: ignore[no-any-return]

    @cached_property
    def _by_experiment(self) -> Mapping[str, list[Record]]:
        """The records of each experiment."""
        return {name: records for (name,), records in grouped(self.records, ["experiment"]).items()}

    def of_experiments(self, *names: str) -> list[Record]:
        """Return the records of these experiments, in the order of the plan."""
        return [record for name, records in self._by_experiment.items() if name in names for record in records]

    @cached_property
    def methods_of(self) -> Mapping[str, Set[str]]:
        """The methods that each experiment runs."""
        return {name: {record.method for record in records} for name, records in self._by_experiment.items()}

    @property
    def own_method(self) -> str:
        """The label of the paper's own method: the first that bears the paper's name, else its first."""
        methods: Mapping[str, Mapping[str, Any]] = self.spec["methods"]
        return next((label for label, block in methods.items() if block.get("name") == self.paper), next(iter(methods)))

    @property
    def heading(self) -> str:
        """The title of the paper: the label of the method that bears its name, else its file's name."""
        return self.own_method if self.spec["methods"][self.own_method].get("name") == self.paper else self.paper

    @property
    def published(self) -> Path:
        """The file of the published numbers, if there are any.

        Raises InputError where the paper had some when it was planned, and they are not there.
        """
        path = Path(self.spec["published_file"])
        if self.spec.get("printed") and not path.is_file():
            raise InputError(
                f"{path}: the published numbers are not there; run this in the folder that the plan was made in"
            )
        return path

    @property
    def reproduces(self) -> bool:
        """True if it is of a paper that claims or publishes something, and no comparison of one's own."""
        return bool(self.spec.get("printed")) or any(claim["by"] == "paper" for claim in self.spec.get("claims", []))

    def label(self, name: object) -> str:
        """Return a name as the paper writes it (`cifar10` -> `CIFAR10`)."""
        return str(self.spec.get("labels", {}).get(str(name), name))

    def written(self, field: str, value: str) -> str:
        """Return the value of a field as the paper writes it: a client by its own count, all else by its label."""
        return str(int(value) + self.first_client) if field == "client" and value.isdigit() else self.label(value)

    def labelled(self, field: str, value: str) -> str:
        """Return a value by its label, with the name of its axis before it if it has none: `lr 0.1`."""
        label = self.written(field, value)
        plain = field in FIELDS and field not in BUDGET
        return label if label != value or plain else f"{spoken(field)} {value}"

    def axes(self, record: Record) -> str:
        """Write the axes of a record that have no field of their own: `lr 0.1, participation 0.5`."""
        return ", ".join(self.labelled(axis, value) for axis, value in record.axes.items())

    def labels(self, names: str) -> str:
        """`label` of names that are joined by `+` (the datasets of a multi-task run)."""
        return "+".join(self.label(name) for name in names.split("+"))

    def stand_ins(self, records: Iterable[Record]) -> str:
        """`digits for CIFAR10`, for the records trained on another dataset than the paper's; else ""."""
        pairs = {
            f"{used} for {self.label(asked)}": None
            for record in records
            for used, asked in zip(record.used.split("+"), record.dataset.split("+"), strict=True)
            if used != asked
        }
        return ", ".join(pairs)

    @property
    def unchanged(self) -> str:
        """The words for runs that are as the paper's file asks for."""
        return AS_PAPER if self.reproduces else AS_ASKED

    def changes(self, records: Sequence[Record]) -> str:
        """Everything in which the records' runs and data differ from the paper's, in words; "" without any."""
        if not records:
            return "not in this plan"
        changes = unique(change for record in records for change in record.changes)
        return ", ".join(part for part in (self.stand_ins(records), *changes) if part)

    def budget(self, records: Sequence[Record]) -> str:
        """Return `changes`, or the words for runs without any."""
        return self.changes(records) or self.unchanged


def studies(plan: Path) -> list[Study]:
    """Load `plan.json` and the records of the runs it names, in `runs` beside the plan's folder.

    Raises InputError when the plan is missing, no plan or one of another version, and for a damaged record.
    """
    if plan.is_dir():
        raise InputError(f"{plan}: this is a folder; expected the plan.json that `bayesfed plan` has written")
    if not plan.is_file():
        raise InputError(
            f"no plan at {plan}; make it with `bayesfed plan CONFIG --out DIR`, and give its plan.json, or the name of a config "
            "whose plan is in results/<name>/plan/"
        )
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
        papers, cells = content["papers"], content["cells"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{plan} is no plan; give results/<config>/plan/plan.json, as `bayesfed plan` makes it"
        ) from None
    runs_folder, notice = home(plan) / "runs", content.get("notice") or ""
    try:
        # Papers may share a run: it is read once for all of them.
        runs = {folder: RunRecord(runs_folder / folder) for folder in unique(cell["folder"] for cell in cells)}
        return [
            Study(
                name,
                spec,
                notice,
                records_of([cell for cell in cells if cell["paper"] == name], spec, runs),
                spec["first_client"],
            )
            for name, spec in papers.items()
        ]
    except KeyError as error:
        raise InputError(f"{plan}: a plan of another version (no {error}); make it anew with `bayesfed plan`") from None


def study(
    paper: str, spec: Mapping[str, Any], notice: str, planned: Iterable[Mapping[str, Any]], runs_folder: Path
) -> Study:
    """Return a paper with the records of its planned cells, from the run folders below `runs_folder`."""
    planned = list(planned)
    runs = {folder: RunRecord(runs_folder / folder) for folder in unique(cell["folder"] for cell in planned)}
    return Study(paper, spec, notice, records_of(planned, spec, runs), spec["first_client"])


def records_of(
    planned: Iterable[Mapping[str, Any]], spec: Mapping[str, Any], runs: Mapping[str, RunRecord]
) -> list[Record]:
    """Return the records of a paper's planned cells; `runs` are those of the plan by their folders in it."""
    planned = list(planned)
    levels = {name: levels_of(spec, name) for name in unique(cell["experiment"] for cell in planned)}
    return [record for cell in planned for record in _records(cell, levels[cell["experiment"]], runs[cell["folder"]])]


def _records(cell: Mapping[str, Any], levels: Set[str], run: RunRecord) -> list[Record]:
    """Return the records of a cell, one for each level that is asked.

    The server's model (none in a multi-task run), the clients, the server's model on their shards, the clients' own
    models together, the run as a whole and, if clients are tested on the full set every round, their mean.
    """
    summary = run.summary or {}
    done, diverged = run.summary is not None, (summary.get("diverged") or {}).get("round", 0)
    clients, several = cell["clients"], isinstance(cell["dataset"], list)
    datasets, used = _each(cell["dataset"], clients), _each(cell["used"], clients)
    common: dict[str, Any] = {
        **{name: cell[name] for name in ("experiment", "method", *BUDGET)},
        **{name: text(cell.get(name)) for name in ("setting", "alpha", "stragglers")},
        "seed": text(cell["seed"]),
        "axes": {axis: text(value) for axis, value in cell["axes"].items()},
        "changes": tuple(cell["changes"]),
        "foreign": cell.get("foreign", {}),
        "asks": tuple(cell["asks"]),
        "personal": cell["personal"],
        "run": run,
        "done": done,
        "diverged": diverged,
    }

    def record(level: str, client: str, model: object, k: int | None, block: str) -> Record:
        stored = summary.get(block) or {}
        values = _values(stored, k)
        missing = "" if not done or diverged or values else _why(stored, k)
        where: dict[str, Any] = {"dataset": datasets[k or 0], "used": used[k or 0], "model": text(model)}
        return Record(**common, **where, client=client, level=level, summary=values, missing=missing)

    found = []
    shared = cell.get("model") or cell["models"].get("global")
    local = cell["models"].get("local") or [shared] * clients
    if not several:
        found.append(record("global", "global", shared, None, "global"))
    for k in range(clients if summary or "client" in levels else 0):
        found.append(record("client", str(k), local[k], k, "clients"))
    for k in range(clients if summary or "global_on_shard" in levels else 0):
        found.append(record("global_on_shard", str(k), shared, k, "global_on_shards"))
    whole = slice(None if several else 1)
    of_run = replace(
        record(RUN, "all", shared, None, ""),
        dataset="+".join(datasets[whole]),
        used="+".join(used[whole]),
        missing="",
    )
    found += [replace(of_run, level="personal", missing=_why_not_together(run.summary)), of_run]
    if not several and cell["clients_on_test"] == "round":
        mean = record("local", "mean", shared, None, "")
        found.append(replace(mean, missing="" if mean.curve() or not done else NOT_TESTED))
    return found


def levels_of(spec: Mapping[str, Any], experiment: str) -> set[str]:
    """Return the levels of the accuracies that a paper's tables, figures and claims ask of an experiment."""
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
    """Return why a finished run has no accuracy of a model."""
    if client is None:
        return NO_GLOBAL
    return str(block.get("missing", {}).get(str(client), UNRECORDED))


def _why_not_together(summary: Mapping[str, Any] | None) -> str:
    """Return why a run has no accuracy of all clients together; "" for one that has, or is not finished, or diverged."""
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
    """Return the dataset of every client."""
    return [names] * clients if isinstance(names, str) else (names + [names[-1]] * clients)[:clients]


def _values(block: Mapping[str, Any], client: int | None) -> dict[str, float]:
    """Return the statistics of one model in a summary's block, without those that are null."""
    found = {}
    for name in IN_SUMMARY:
        entry = block.get(f"accuracy_{name}")
        if client is not None:
            entry = entry[client] if isinstance(entry, list) and client < len(entry) else None
        value = number(entry)
        if value is not None:
            found[name] = value
    return found
