"""Made-up records of a comparison: a level of quality for each method, a small shift for each seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.results.grounds import Ground
from bayesfed.results.grounds_of_plan import load
from bayesfed.results.run_records import RunRecord
from bayesfed.runs import run_folder
from bayesfed.runs.run_folder import Row
from bayesfed.runs.summary import summarise
from helpers import lab

ROUNDS, CLIENTS = 6, 3
PROVENANCE = lab.PROVENANCE | {"train_seconds": 1.0}


def history(level: float, *, sampled: bool = False, server: bool = True, foreign: str = "fashion-mnist") -> list[Row]:
    """The metrics of a run whose accuracy rises to `level`, of six rounds and three clients, `client` k k points better."""
    rows = []
    for at in range(1, ROUNDS + 1):
        accuracy = level * (1 - 0.5**at)
        if server:
            rows.append(Row(at, "global", "global", "test_accuracy", accuracy))
        for k in range(CLIENTS):
            rows.append(Row(at, str(k), "local", "shard_accuracy", accuracy + 0.01 * k))
            if server:
                rows.append(Row(at, str(k), "global", "shard_accuracy", accuracy - 0.01 * k))
        for way in ("down", "up"):
            rows.append(Row(at, "global", "communication", f"bytes_{way}", 1e6))
    names = ["global", *(["global_sampled"] if sampled else [])] if server else []
    values = {"nll": 1 - level, "ece": (1 - level) / 2, "brier": 1 - level, "mce": 0.2, "auroc_mistakes": level}
    tested = {"accuracy": level, "nll": 1 - level}
    for name in names:
        gain = 0.01 if name.endswith("sampled") else 0.0
        own = {**values, f"auroc_foreign_{foreign}": level} | ({"accuracy": level} if gain else {})
        rows += [Row(ROUNDS, "global", name, f"test_{metric}", value - gain) for metric, value in own.items()]
        rows += [Row(ROUNDS, "global", name, f"validation_{metric}", value) for metric, value in tested.items()]
    for k in range(CLIENTS):
        rows += [
            Row(ROUNDS, str(k), "local", f"shard_{metric}", values[metric] / 2) for metric in ("nll", "ece", "brier")
        ]
        rows += [
            Row(ROUNDS, str(k), "local", f"test_{metric}", level / 2)
            for metric in ("auroc_mistakes", f"auroc_foreign_{foreign}")
        ]
    return [*rows, *(Row(ROUNDS, "mean", "local", f"validation_{metric}", value) for metric, value in tested.items())]


def finish(folder: Path, rows: Sequence[Row], seconds: float = 1.0, **more: Any) -> None:
    """Store a finished run of these metrics."""
    lines = [f"{row.round},{row.client},{row.model},{row.metric},{row.value:.6g}\n" for row in rows]
    files.write_text(folder / "metrics.csv", "round,client,model,metric,value\n" + "".join(lines))
    files.write_text(folder / "run.yaml", "method: {name: fedavg}\n")
    files.write_text(folder / "provenance.json", json.dumps(PROVENANCE | more.pop("provenance", {})))
    summary = {"seed": 0, "rounds": ROUNDS, "train_seconds": seconds + 0.1, "cpu_seconds": seconds, "diverged": None}
    run_folder.seal(folder, summary | summarise(list(rows), [10] * CLIENTS, ROUNDS) | more)


def cell(experiment: str, method: str, seed: int, **more: Any) -> dict[str, Any]:
    """A cell of a plan."""
    return {
        "experiment": experiment,
        "dataset": "mnist",
        "used": "mnist",
        "alpha": "0.1",
        "model": "mlp200",
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "method": method,
        "seed": seed,
        "personal": False,
        "axes": {},
        "stragglers": "0",
        "foreign": {"fashion-mnist": "fashion-mnist"},
        "folder": f"{experiment}/{method}/{seed}",
        **more,
    }


def grounds(root: Path, levels: Mapping[str, Mapping[str, Sequence[float]]], **more: Any) -> list[Ground]:
    """Grounds of finished runs: ground -> method -> level of each seed; more: of `history`."""
    cells = [
        cell(name, method, seed)
        for name, methods in levels.items()
        for method, of_seeds in methods.items()
        for seed in range(len(of_seeds))
    ]
    for one in cells:
        finish(root / one["folder"], history(levels[one["experiment"]][one["method"]][one["seed"]], **more))
    return load(cells, {one["folder"]: 10 for one in cells}, "FedAvg", lambda folder: RunRecord(root / folder))
