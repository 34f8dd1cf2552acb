"""The run folder as results read it: the summary of a finished run, and its accuracy round by round."""

import csv
import math
from functools import cache
from pathlib import Path
from typing import Any

from bayesfed import runfolder

Curves = dict[str, dict[int, float]]
"""Per series (`global`, `mean` of the clients, a client's number from 1, or `global on` that number): round -> accuracy in
[0, 1]."""


OWN_SHARD = ("shard_accuracy", "epoch_shard_accuracy")


@cache
def summary(folder: Path) -> dict[str, Any] | None:
    """`summary.json` of a run, or None when the run is not finished. Raises InputError for a changed record."""
    return runfolder.read(folder)


def number(value: object) -> float | None:
    """A finite number, or None: a client without test images has no accuracy (null or NaN)."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@cache
def of_server(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """By round, what is recorded of the server under each (model, metric); its diagnostics have the model `server`.

    The run must be finished: `summary` has verified its record.
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["client"] == "global":
                found.setdefault((row["model"], row["metric"]), {})[int(row["round"])] = float(row["value"])
    return found


def diagnostic(folder: Path, name: str) -> dict[int, float]:
    """What the method's server has logged under a name, by round; nothing where it has not."""
    return of_server(folder).get(("server", name), {})


def along(folder: Path, family: str, round: int) -> dict[float, float]:
    """The accuracy in [0, 1] on the full test set, in one round, of the server's predictors `<family> <number>`, by number."""
    return {
        float(model.removeprefix(f"{family} ")): values[round]
        for (model, metric), values in of_server(folder).items()
        if model.startswith(f"{family} ") and metric == "test_accuracy" and round in values
    }


@cache
def curves(folder: Path) -> Curves:
    """Accuracy per round: the server's model on the full test set and on each client's shard, a client's best model on
    its own shard, and the clients' models, their mean, on the full test set.

    A client's value is the larger of its models' in that round (meme, local), as in the HBFL paper and in the
    engine's summary, which counts an epoch's accuracy like the round's where a run tests after every epoch.
    The run must be finished: `summary` has verified its record.
    """
    found: Curves = {}
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["client"] == "global":
                if (row["model"], row["metric"]) != ("global", "test_accuracy"):
                    continue
                series = "global"
            elif row["client"] == "mean":
                if (row["model"], row["metric"]) != ("local", "test_accuracy"):
                    continue
                series = "mean"
            elif row["model"] == "global":
                if row["metric"] != "shard_accuracy":
                    continue
                series = f"global on {int(row['client']) + 1}"
            elif row["metric"] in OWN_SHARD and not row["model"].endswith("_sampled"):
                series = str(int(row["client"]) + 1)
            else:
                continue
            value = float(row["value"])
            if math.isfinite(value):
                of_series = found.setdefault(series, {})
                of_series[int(row["round"])] = max(value, of_series.get(int(row["round"]), value))
    return found


@cache
def measured(folder: Path, model: str = "global") -> dict[str, dict[int, float]]:
    """What is measured of a model of the server on the full test set beside accuracy, and the bins of its reliability
    diagram: metric -> round -> value, for the rounds in which it was. The run must be finished, as for `curves`."""
    found: dict[str, dict[int, float]] = {}
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["client"], row["model"]) == ("global", model):
                found.setdefault(row["metric"].removeprefix("test_"), {})[int(row["round"])] = float(row["value"])
    return found
