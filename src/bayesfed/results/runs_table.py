"""runs.csv: one row a finished run, with every key of its run file and every number at its end, its unit in the column."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from bayesfed.core.options import flat
from bayesfed.results.formatting import text, unique
from bayesfed.results.per_run import OfRun, Rows
from bayesfed.results.records import DIVERGED, Record
from bayesfed.results.run_records import RunRecord, number
from bayesfed.results.statistics import FOREIGN_FPR, MEASURES, RUN, VALIDATION, read_metric

UNITS = {"nll": "_nats", "accuracy": "_percent"} | {
    name: "_percent" for name, scale in MEASURES.items() if scale == 100
}
"""Ends of columns; Brier scores and AUROCs have no unit."""
ACCURACIES = ("best", "last", "last5")
MODELS = {"global": "global", "clients": "client", "global_on_shards": "global_on_shard"}
"""Block of a summary -> how its columns begin; those of clients are means over clients."""
WHOLE = ("train_seconds", "megabytes_down", "megabytes_up", "megabytes")
COUNTED = {
    "cpu_seconds": "cpu_seconds",
    "client_seconds": "client_seconds",
    "server_seconds": "server_seconds",
    "testing_seconds": "testing_seconds",
    "multiply_adds": "billion_multiply_adds_a_round",
    "passes": "passes",
    "kept_numbers": "kept_numbers",
}
"""Metric -> column of what records of earlier versions lack; there is none where no run has it."""
SPREADS = tuple(f"client_accuracy_{spread}_{name}" for spread in ("sd", "worst10") for name in ACCURACIES)
FIRST = ("experiment", "method", "budget", "run")


def lay_out(runs: Iterable[OfRun]) -> Rows:
    """Lay out runs.csv; what a run has not stays empty, and `diverged_round` says where one was stopped.

    Columns: who the run is, `key`, the run file's keys with dots, then numbers: accuracies, of each predictor what is
    measured in the last round (of clients' models the mean over clients), validation, fairness, bytes and time.
    """
    found = []
    for columns, records in runs:
        (record,) = (one for one in records if one.level == RUN)
        named = {name: columns[name] for name in FIRST}
        found.append((named, dict(keys(record.run)), dict(numbers(record))))
    header = [*FIRST, *unique(name for _, own, _ in found for name in own)]
    header += [name for name in unique(name for *_, own in found for name in own) if name not in header]
    return header, [named | own | measured for named, own, measured in found]


def keys(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the key and the run file of a run, flat; lists are joined by `+`."""
    yield "key", str((run.summary or {}).get("key", ""))
    for name, value in flat(read(run.run_file)).items():
        if name != "method":
            yield name, "+".join(map(written, value)) if isinstance(value, list) else written(value)


@functools.cache
def read(run_file: str) -> dict[str, Any]:
    """Read a run file."""
    return yaml.load(run_file, yaml.CSafeLoader) or {}


def written(value: object) -> str:
    """Write a value of a run file as YAML does."""
    return str(value).lower() if isinstance(value, bool) else text(value)


def numbers(record: Record) -> Iterator[tuple[str, str]]:
    """Yield every number at the end of a run, by its column."""
    summary = record.run.summary or {}
    if record.diverged:
        yield f"{DIVERGED}_round", str(record.diverged)
        return
    for block, name in MODELS.items():
        values = summary.get(block) or {}
        means = values.get("mean", {}) if block != "global" else values
        for one in ACCURACIES:
            yield f"{name}_accuracy_{one}_percent", percent(means.get(f"accuracy_{one}"))
    yield "global_accuracy_best_round", text((summary.get("global") or {}).get("accuracy_best_round"))
    yield from predictors(record.run)
    yield from of_validation(summary.get("validation") or {})
    for metric in SPREADS:
        yield f"{metric}_percent", value(record, metric, 100)
    for metric in WHOLE:
        yield metric, value(record, metric, 1)
    for metric, name in COUNTED.items():
        if counted := value(record, metric, 1):
            yield name, counted


def value(record: Record, metric: str, scale: int) -> str:
    """Write a metric of the level RUN; "" without a value."""
    found = record.value(read_metric(metric, {})[1])
    return "" if found is None else f"{scale * found:.6g}"


def percent(value: object) -> str:
    """Write a fraction as a percentage; "" for none."""
    return "" if (finite := number(value)) is None else f"{100 * finite:.4g}"


def column(model: str, metric: str) -> str:
    """Name the column of a predictor's metric."""
    return f"{model}_{metric}{unit(metric)}"


def unit(metric: str) -> str:
    """Give the end of a metric's column."""
    return "_percent" if metric.startswith(FOREIGN_FPR) else UNITS.get(metric, "")


def measured(metric: str, value: object) -> str:
    """Write a metric in the unit of its column."""
    if unit(metric) == "_percent":
        return percent(value)
    return "" if (finite := number(value)) is None else f"{finite:.5g}"


def predictors(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the metrics in the last round of the server's predictors, and of the clients' models in the mean.

    Predictors that are numbered are a figure's curve, and left out.
    """
    of_server: Mapping[str, Mapping[str, Any]] = (run.summary or {}).get("uncertainty", {})
    for model, values in of_server.items():
        for metric, value in values.items() if " " not in model else ():
            if metric != "missing" and (model, metric) != ("global", "accuracy"):
                yield column(f"{model}", f"{metric}"), measured(metric, value)
    for model in run.client_models:
        for metric, curve in run.over_clients(model).items():
            yield f"client_{column(model, metric)}", measured(metric, list(curve.values())[-1])


def of_validation(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the metrics of the last round on validation images, the best round there, and its test accuracies."""
    for side, name in (("global", ""), ("clients", "client_")):
        for model, values in block.get(side, {}).items():
            for metric, value in values.items():
                yield f"{VALIDATION}{name}{column(model, metric)}", measured(metric, value)
    if block:
        yield f"{VALIDATION}best_round", str(block["best_round"])
        for side, name in (("global", "global"), ("clients", "client")):
            at_best = block["accuracy_at_best_round"][side]
            yield f"{name}_accuracy_at_{VALIDATION}best_round_percent", percent(at_best)
