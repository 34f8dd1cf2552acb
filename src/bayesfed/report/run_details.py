"""The page's account of one run: its place in the papers, how it was made, and all that its record holds."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.report import chart_specs
from bayesfed.report.html_tables import run_id
from bayesfed.results import formatting, per_run
from bayesfed.results.derived import Derived
from bayesfed.results.records import Record
from bayesfed.results.run_records import RunRecord, number
from bayesfed.results.study import Study

POINTS = 50  # of a client's curve at most, evenly spaced, and the last; the server's has four times as many

Json = dict[str, Any]


def of_study(of: Derived, plan: Mapping[str, Any]) -> dict[str, Json]:
    """Return the finished runs of a paper, by their names on the page."""
    entries = {run_id(Path(run["folder"])): run for run in plan["runs"]}
    client_rows: dict[str, list[dict[str, str]]] = {}
    for row in of.clients[1]:
        client_rows.setdefault(row["run"], []).append(row)
    return {
        run_id(records[0].folder): story(of.study, columns, records, client_rows[columns["run"]], entries)
        for columns, records in of.runs
    }


def story(
    study: Study,
    columns: Mapping[str, str],
    records: Sequence[Record],
    client_rows: Sequence[Mapping[str, str]],
    entries: Mapping[str, Mapping[str, Any]],
) -> Json:
    """One run, as JSON: accuracies in percent."""
    first = records[0]
    folder, entry = first.folder, entries.get(run_id(first.folder), {})
    run, provenance, summary = first.run, first.run.provenance, first.run.summary
    assert summary is not None  # these are finished runs
    return {
        "columns": {key: value for key, value in columns.items() if value and key != "run"},
        "folder": folder.as_posix(),
        "partition": entry.get("partition") or "",
        "reproduces": study.reproduces,
        "changes": study.changes(records),
        "diverged": first.diverged,
        "file": run.run_file,
        "provenance": provenance,
        "command": command(folder, entry, provenance, study.spec),
        "clients": [[row.get(key, "") for key in CLIENT_COLUMNS] for row in client_rows if row["client"] != "global"],
        "server": {name: round(100 * value, 2) for name, value in first.summary.items()}
        if first.level == "global"
        else {},
        "curves": {
            series: thin(values, 4 * POINTS if series in ("global", "mean") else POINTS)
            for series, values in run.curves.items()
            if not series.startswith("global on")
        },
        "calibration": {
            model: {metric: round(value, 4) for metric, value in values.items() if number(value) is not None}
            | run.undefined(model)
            for model, values in summary.get("uncertainty", {}).items()
        },
        "reliability": {
            model: [[round(middle, 2), round(100 * accuracy, 2)] for middle, accuracy in bins.items()]
            for model in summary.get("uncertainty", {})
            if (bins := first.reliability(model))
        },
        "diagnostics": {name: thin(values, 4 * POINTS, scale=1) for name, values in diagnostics(run).items()},
    }


CLIENT_COLUMNS = (
    "client",
    "model",
    "dataset",
    *per_run.COLUMNS.values(),
    *map(per_run.on_shard, per_run.COLUMNS.values()),
    "note",
)


def thin(values: Mapping[int, float], points: int, scale: float = 100) -> list[tuple[int, float]]:
    """(round, value) of at most so many rounds."""
    return [(at, float(f"{scale * values[at]:.4g}")) for at in formatting.thinned([*values], points)]


def diagnostics(run: RunRecord) -> dict[str, dict[int, float]]:
    """Return what the method's server has logged, by name and round, as far as it is finite."""
    finite = {
        name: {at: value for at, value in values.items() if math.isfinite(value)}
        for name, values in run.diagnostics.items()
    }
    return {name: values for name, values in finite.items() if values}


def command(folder: Path, entry: Mapping[str, Any], provenance: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return the commands that check a run's first rounds against its record, and that make it again, from its own run
    file, on the same kind of device and in the same precision.

    `spec`, the paper's, names the folders that its config has: of the user's own plugins, which may hold datasets and which
    the run file names itself, and of pretrained weights.
    """
    own = {key: f" --{key} {shlex.quote(spec[key])}" if spec.get(key) else "" for key in ("plugins", "weights")}
    run_file, out = shlex.quote(f"{folder.as_posix()}/run.yaml"), shlex.quote(f"again/{folder.name}")
    threads = f"OMP_NUM_THREADS={provenance['threads']} " if provenance["device"] == "cpu" else ""
    given = "".join(f" --{key} {provenance[key]}" for key in ("device", "precision"))
    datasets = " ".join(map(shlex.quote, entry.get("datasets", [])))
    lines = [f"bayesfed fetch {datasets}{own['plugins']}"] if datasets else []
    lines.append(f"bayesfed verify {shlex.quote(folder.as_posix())}{own['weights']}")
    return "\n".join([*lines, f"{threads}bayesfed train {run_file} --out {out}{given}{own['weights']}"])


def terms(runs: Iterable[Json], plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List what the servers of these runs log, with what their methods say that it means."""
    methods = {run_id(Path(run["folder"])): run["method"] for run in plan["runs"]}
    found = []
    for run in runs:
        meaning = plan.get("logs", {}).get(methods.get(run_id(Path(run["folder"]))), {})
        for name in run["diagnostics"]:
            known = name if name in meaning else name.split()[0]
            found += [(known, meaning[known])] if known in meaning else []
    return list(dict.fromkeys(found))


def specs() -> dict[str, Json]:
    """Return the specifications of a run's charts: images held, clients by size, accuracy over rounds, reliability, and
    logged values.
    """
    return {
        "heat": chart_specs.heat_map(),
        "clients": chart_specs.clients(),
        "curve": chart_specs.of_run("round", "accuracy (%)"),
        "reliability": chart_specs.of_run("confidence (%)", "accuracy (%)", diagonal_line=True),
        "logged": chart_specs.of_run("round", "value"),
    }
