"""The run folder as results read it: the summary of a finished run, and its accuracy round by round."""

import csv
import math
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from bayesfed.results.formatting import unique
from bayesfed.runs import run_folder

Curves = dict[str, dict[int, float]]
"""Per series (`global`, `mean` of the clients, a client's number from 0, or `global on` that number): round -> accuracy in
[0, 1]."""


OfServer = dict[tuple[str, str], dict[int, float]]
"""Per (model, metric) of the server: round -> value."""

Means = dict[str, dict[int, float]]
"""Per model of the clients: round -> their mean accuracy on the full test set, in [0, 1]."""


@cache
def summary(folder: Path) -> dict[str, Any] | None:
    """`summary.json` of a run, or None when the run is not finished. Raises InputError for a changed record."""
    return run_folder.read(folder)


@cache
def provenance(folder: Path) -> dict[str, Any]:
    """`provenance.json` of a finished run: how and where it was made."""
    return run_folder.provenance(folder)


def number(value: object) -> float | None:
    """A finite number, or None: a client without test images has no accuracy (null or NaN)."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def had(folder: Path) -> int:
    """How many rounds a finished run has had."""
    content = summary(folder) or {}
    return int((content.get("diverged") or {}).get("round", content["rounds"]))


@cache
def together(folder: Path) -> tuple[dict[int, float], dict[int, int]]:
    """Per round the accuracy of all clients' own models on their own test images together, right ones among all of them, and
    the round in which the first of them was tested. A client who sits a round out counts as when last tested; so a round has
    a value once every client with test images has been tested. Nothing where the record does not say how many images each
    has."""
    images: list[int] = (summary(folder) or {}).get("test_images", [])
    counts = {k: count for k, count in enumerate(images) if count}
    tested = {k: curves(folder).get(str(k), {}) for k in counts}
    latest: dict[int, int] = {}
    values: dict[int, float] = {}
    oldest: dict[int, int] = {}
    for round in range(1, had(folder) + 1 if counts else 1):
        latest |= {k: round for k, curve in tested.items() if round in curve}
        if len(latest) == len(counts):
            right = sum(counts[k] * tested[k][at] for k, at in latest.items())
            values[round], oldest[round] = right / sum(counts.values()), min(latest.values())
    return values, oldest


@cache
def metrics(folder: Path) -> tuple[OfServer, Curves, Means]:
    """A finished run's `metrics.csv`, read once: what is recorded of the server, the curves (see `curves`), and means over
    clients."""
    server: OfServer = {}
    means: Means = {}
    found: Curves = {}
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        next(lines, None)
        for at, client, model, metric, text in lines:
            round, value = int(at), float(text)
            if client == "global":
                server.setdefault((model, metric), {})[round] = value
            elif client == "mean" and metric == "test_accuracy":
                means.setdefault(model, {})[round] = value
            series = series_of(client, model, metric)
            if series and math.isfinite(value):
                of_series = found.setdefault(series, {})
                of_series[round] = max(value, of_series.get(round, value))
    return server, found, means


def series_of(client: str, model: str, metric: str) -> str:
    """The curve to which a row of `metrics.csv` belongs; "" for none."""
    if client == "global":
        return client if (model, metric) == ("global", "test_accuracy") else ""
    if client == "mean":
        return client if metric == "test_accuracy" and not model.endswith("_sampled") else ""
    if model == "global":
        return f"global on {client}" if metric == "shard_accuracy" else ""
    return client if metric == "shard_accuracy" and not model.endswith("_sampled") else ""


def of_server(folder: Path) -> OfServer:
    """By round, what is recorded of the server under each (model, metric); its diagnostics have the model `server`.

    The run must be finished: `summary` has verified its record.
    """
    return metrics(folder)[0]


def diagnostic(folder: Path, name: str) -> dict[int, float]:
    """What the method's server has logged under a name, by round; nothing where it has not."""
    return of_server(folder).get(("server", name), {})


def along(folder: Path, family: str, round: int) -> dict[float, float]:
    """The accuracy in [0, 1] on the full test set, in one round, of the server's predictors `<family> <number>`, by
    number."""
    return {
        float(model.removeprefix(f"{family} ")): values[round]
        for (model, metric), values in of_server(folder).items()
        if model.startswith(f"{family} ") and metric == "test_accuracy" and round in values
    }


def errors(folder: Path, family: str) -> list[tuple[str, float, float]]:
    """Networks of which the server has logged a value as `<family> <network>`, in the order of the log: the network, that
    value, and its accuracy in [0, 1] on the full test set in the same round, of clients' networks the mean."""
    server, _, means = metrics(folder)
    found = []
    for (model, metric), values in server.items():
        if model == "server" and metric.startswith(f"{family} "):
            network = metric.removeprefix(f"{family} ")
            accuracy = server.get((network, "test_accuracy"), means.get(network, {}))
            found += [(network, value, accuracy[round]) for round, value in values.items() if round in accuracy]
    return found


def curves(folder: Path) -> Curves:
    """Accuracy per round: the server's model on the full test set and on each client's shard, a client's best model on
    its own shard, and the clients' models, their mean, on the full test set.

    A client's value is the larger of its models' after that round (meme, local), as in the HBFL paper and in the
    engine's summary.
    The run must be finished: `summary` has verified its record.
    """
    return metrics(folder)[1]


def measured(folder: Path, model: str = "global") -> dict[str, dict[int, float]]:
    """What is measured of a model of the server on the full test set beside accuracy, and the bins of its reliability
    diagram: metric -> round -> value, for the rounds in which it was. The run must be finished, as for `curves`."""
    return {metric.removeprefix("test_"): values for (of, metric), values in of_server(folder).items() if of == model}


def undefined(folder: Path, model: str = "global", last: int = 1) -> dict[str, str]:
    """Why a metric of a model of the server is no number in some of the last rounds in which it was measured, by metric;
    nothing of those that are."""
    of_model = measured(folder, model)
    accuracy, found = of_model.get("accuracy", {}), {}
    for metric, values in of_model.items():
        tail = sorted(values)[-last:]
        why = unique(run_folder.undefined(metric, values[at], accuracy.get(at, math.nan)) for at in tail)
        if told := " or ".join(filter(None, why)):
            found[metric] = told
    return found


def forget_changed(folders: Iterable[Path]) -> None:
    """Forget what has been read of records where one of these runs is new, or has changed, since the last call."""
    stored = (folder / name for folder in sorted(folders) for name in (*run_folder.SEALED, run_folder.SUMMARY))
    states = ((path, path.stat()) for path in stored if path.exists())
    forget(tuple((path, state.st_ino, state.st_size, state.st_mtime_ns) for path, state in states))


@lru_cache(maxsize=1)
def forget(_: tuple[tuple[Path, int, int, int], ...]) -> None:
    """Forget what has been read, but for records that are as they were in the last call."""
    for reader in (summary, provenance, metrics, together):
        reader.cache_clear()
