"""Plans of a few runs, as `bayesfed plan` leaves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.runs import run_file


def write(home: Path, entries: Iterable[Mapping[str, Any]], jobs: Sequence[Sequence[str]] = ()) -> Path:
    """A plan.json in `home`/plan with these entries of its runs, the first the most valuable; each is a job unless
    `jobs` say which are one.
    """
    runs = [{"datasets": ["digits"], "method": "fedavg", "cost": 100} | entry for entry in entries]
    for place, run in enumerate(runs):
        run["priority"] = len(runs) - place
    cells = [
        {"paper": "hbfl", "experiment": run.get("experiment", "homogeneous"), "folder": run["folder"]} for run in runs
    ]
    plan = home / "plan" / "plan.json"
    each = jobs or [[run["folder"]] for run in runs]
    files.write_json(plan, {"config": home.name, "runs": runs, "cells": cells, "jobs": each})
    return plan


def of_runs(home: Path, mappings: Iterable[Mapping[str, Any]], data: Path) -> Path:
    """The plan of runs that can be trained, by the mappings of their run files."""
    entries = []
    for mapping in mappings:
        run = run_file.resolve(mapping, data)
        files.write_yaml(home / "plan" / "runs" / f"{run.key}.yaml", run.to_dict())
        entries.append({"key": run.key, "folder": run.folder, "method": run.method, "datasets": run.all_datasets})
    return write(home, entries)


def of_scripts(home: Path, scripts: Mapping[str, str]) -> Path:
    """The plan of runs that `fake_worker.py` plays: name -> what becomes of it."""
    for name, text in scripts.items():
        files.write_text(home / "plan" / "runs" / f"{name}.yaml", text)
    return write(home, [{"key": name, "folder": name} for name in scripts])
