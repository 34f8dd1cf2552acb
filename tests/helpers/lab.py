"""Tiny stored runs: a plan over the real paper file, and run folders with chosen accuracies."""

import csv
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayesfed.results import derived
from bayesfed.results.derived import Derived
from bayesfed.runs import run_folder

PAPER = Path(__file__).parents[2] / "config/papers/hbfl.yaml"

PROVENANCE = {
    "train_seconds": 60.0,
    "samples_per_second": 0.0,
    "device": "cpu",
    "hardware": "AMD",
    "threads": 1,
    "precision": "fp32",
}


class Lab:
    """A results folder of one config: cells are added by hand, each with or without a finished run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cells: list[dict[str, Any]] = []
        self.notice = ""
        self.spec = yaml.safe_load(PAPER.read_text()) | {"published_file": str(PAPER.with_suffix(".published.csv"))}

    @property
    def plan(self) -> Path:
        path = self.root / "plan/plan.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        runs = {cell["folder"]: {"folder": cell["folder"], "method": cell["method"]} for cell in self.cells}
        papers = {"hbfl": self.spec}
        logs = {"HBFL": {"log": "no such value", "log_precision_spread": "how far <apart>"}}
        content = {
            "config": "test",
            "notice": self.notice,
            "benchmarks": False,
            "runs": list(runs.values()),
            "cells": self.cells,
            "logs": logs,
        }
        path.write_text(json.dumps({**content, "papers": papers}))
        return path

    @property
    def found(self) -> list[Derived]:
        """The plan's studies, loaded anew."""
        return derived.load(self.plan)

    def cell(self, experiment: str, method: str, dataset: Any = "cifar10", **more: Any) -> Path:
        """Ask for a cell, by default at the paper's budget; returns its run folder, not yet made."""
        alpha = more.pop("alpha", "" if isinstance(dataset, list) else "100")
        cell = {
            "paper": "hbfl",
            "experiment": experiment,
            "dataset": dataset,
            "used": dataset,
            "alpha": alpha,
            "setting": {"100": "IID", "0.05": "Non-IID"}.get(alpha, ""),
            "method": method,
            "model": None,
            "models": self.spec["experiments"][experiment].get("models", {}),
            "clients": 2 if isinstance(dataset, list) else 10,
            "stragglers": "0",
            "axes": {},
            "seed": 0,
            "rounds": 100,
            "local_epochs": 5,
            "batch_size": 128,
            "clients_on_test": "detailed",
            "asks": [],
            "personal": method in ("HBFL", "FML"),
            "changes": [],
            **more,
        }
        names = dataset if isinstance(dataset, list) else [dataset]
        key = "-".join(str(cell[name]) for name in ("alpha", "model", "stragglers", "seed"))
        key += "".join(f"-{value}" for value in cell["axes"].values())
        # The last part names a run alone, as a run's key does.
        cell["folder"] = f"{'+'.join(names)}/{method}/{key}-{'+'.join(names)}-{method.replace(' ', '-')}"
        self.cells.append(cell)
        return self.root / "runs" / cell["folder"]


def finish(
    folder: Path,
    server: list[float] | None = None,
    clients: Sequence[Sequence[float | None]] | None = None,
    uncertainty: Mapping[str, Mapping[str, float]] | None = None,
    on_shards: Sequence[Sequence[float | None]] | None = None,
    mean: list[float] | None = None,
    **more: Any,
) -> None:
    """Store a finished run with these accuracies a round; a client's local model stays 0.1 below its meme.

    `mean`: of the clients' models on the full test set. None is a round that a client sits out, and an empty curve that of
    one that never took part. Without `on_shards`, the server's model on each client's shard, it is a record as they were
    before there was that metric. `more`: keys of the summary beside those that every run has.
    """
    folder.mkdir(parents=True, exist_ok=True)

    names = ("accuracy_best", "accuracy_last", "accuracy_last5")

    def summed(rounds: Sequence[float | None]) -> tuple[float | None, ...]:
        curve = [value for value in rounds if value is not None]
        return (max(curve), curve[-1], sum(curve[-5:]) / len(curve[-5:])) if curve else (None,) * 3

    def block(curves: Sequence[Sequence[float | None]]) -> dict[str, Any]:
        return {name: [summed(curve)[i] for curve in curves] for i, name in enumerate(names)}

    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "client", "model", "metric", "value"])
        for round, value in enumerate(server or [], 1):
            writer.writerow([round, "global", "global", "test_accuracy", value])
            writer.writerow([round, "global", "server", "log_precision_spread", 0.1])
            writer.writerow([round, "global", "global_sampled", "test_accuracy", 0.0])
        for round, value in enumerate(mean or [], 1):
            writer.writerow([round, "mean", "local", "test_accuracy", value])
        for (k, curve), (model, less) in itertools.product(enumerate(clients or []), [("meme", 0.0), ("local", 0.1)]):
            for round, value in enumerate(curve, 1):
                if value is not None:
                    writer.writerow([round, k, model, "shard_accuracy", value - less])
                    writer.writerow([round, k, model, "test_accuracy", 0.999])
        for k, curve in enumerate(on_shards or []):
            tested = ((round, value) for round, value in enumerate(curve, 1) if value is not None)
            writer.writerows([round, k, "global", "shard_accuracy", value] for round, value in tested)
    curves = [server or [], mean or [], *(clients or []), *(on_shards or [])]
    summary = {
        "seed": 0,
        "rounds": max(map(len, curves)),
        "global": dict(zip(names, summed(server), strict=True)) if server else {},
        "clients": block(clients or []),
        "uncertainty": uncertainty or {},
        **more,
    }
    if on_shards is not None:
        for name, curves, nobody in (
            ("clients", clients or [[]] * len(on_shards), "no client predictors"),
            ("global_on_shards", on_shards, "no global model"),
        ):
            why = "never took part" if any(curves) else nobody
            missing = {str(k): why for k, curve in enumerate(curves) if not curve}
            summary[name] = block(curves) | {"missing": missing}
    for name in run_folder.SEALED:
        (folder / name).touch()
    (folder / "provenance.json").write_text(json.dumps(PROVENANCE))
    run_folder.seal(folder, summary)


def measure(folder: Path, rows: list[tuple[int, str, float]]) -> None:
    """Add rows of the server's model to a stored run, and seal it again."""
    with (folder / "metrics.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([round, "global", "global", metric, value] for round, metric, value in rows)
    summary = json.loads((folder / "summary.json").read_text())
    run_folder.seal(folder, summary)


def tell(folder: Path, **more: object) -> None:
    """Tell where a stored run was computed, and seal it again."""
    summary = run_folder.read(folder)
    (folder / "provenance.json").write_text(json.dumps(PROVENANCE | more))
    run_folder.seal(folder, summary)


@pytest.fixture
def told() -> Callable[..., None]:
    return tell


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "results/test")


@pytest.fixture
def stored() -> Callable[..., None]:
    return finish


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def rows() -> Callable[[Path], list[dict[str, str]]]:
    return read
