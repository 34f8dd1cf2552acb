"""Metrics of which a run has one value, beside the accuracies of `statistics.LEVELS`: of its predictors, on validation
images, of what it sent and took, and of how its clients differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayesfed.results.run_records import Curve, RunRecord, number
from bayesfed.results.statistics import (
    CALIBRATION,
    COSTS,
    PREDICTIVE,
    SPREADS,
    TAILS,
    VALIDATION,
    Statistic,
    foreign_of,
)
from bayesfed.runs.run_folder import NO_GLOBAL

UNRECORDED = "not in its record"  # what a cell says that is missing in a record of an earlier version
NO_VALIDATION = "no validation images"
NEVER = "never reached"
MEAN_NETWORK = "of the mean network"
"""Said of calibration that is not of the average over weight samples, where a record has that, too."""

LATER = "computed later, without training"
"""Said of bytes that are not in a record."""

Found = float | str
"""A value, or why a finished run has none."""


def find(run: RunRecord, statistic: Statistic, personal: bool, foreign: Mapping[str, str]) -> Found:
    """Find a value in the record of a finished run.

    `personal`: its method is for a model a client. `foreign`: the dataset used for each OOD dataset of the paper.
    """
    summary = run.summary or {}
    if statistic.of in COSTS:
        return reached(run, statistic.argument) if statistic.kind == "first" else cost(run, statistic.of, personal)
    if statistic.of.startswith(VALIDATION):
        return validation(summary, statistic.of.removeprefix(VALIDATION), personal)
    if statistic.of in SPREADS:
        return spread(summary, statistic)
    return of_predictor(run, statistic, foreign)


def recorded(metric: str, foreign: Mapping[str, str]) -> str:
    """Return the name of a metric in the record of a run, which has the names of the datasets used."""
    asked = foreign_of(metric)
    return metric.replace(asked, foreign.get(asked, asked)) if asked else metric


def predictive(run: RunRecord) -> str:
    """Name the server's predictor that a run's method is for: the average over weight samples where there is one, if the
    method names no other.
    """
    if named := (run.summary or {}).get("predictive"):
        return str(named)
    return "global_sampled" if "accuracy" in run.measured("global_sampled") else "global"


def curve(run: RunRecord, statistic: Statistic, foreign: Mapping[str, str]) -> Curve | str:
    """Find what is measured of a predictor by round: the server's on the full test set, else the mean over the clients that
    have one, each on its own shard."""
    model, metric = model_of(run, statistic), recorded(statistic.of, foreign)
    of_model = run.measured(model) or run.over_clients(model)
    if not of_model:
        return NO_GLOBAL if statistic.predictor == PREDICTIVE else f"no predictor {model}"
    return of_model.get(metric, UNRECORDED)


def model_of(run: RunRecord, statistic: Statistic) -> str:
    """Name the predictor that a statistic is of in a record."""
    return predictive(run) if statistic.predictor == PREDICTIVE else statistic.predictor


def of_predictor(run: RunRecord, statistic: Statistic, foreign: Mapping[str, str]) -> Found:
    """Find a statistic of `curve`."""
    found, model, metric = curve(run, statistic, foreign), model_of(run, statistic), recorded(statistic.of, foreign)
    if isinstance(found, str):
        return found
    values = list(found.values())
    value = max(values) if statistic.name == "best" else statistics.fmean(values[-TAILS[statistic.name] :])
    if math.isfinite(value):
        return value
    return run.undefined(model, TAILS.get(statistic.name, 1)).get(metric) or "not a number"


def cost(run: RunRecord, name: str, personal: bool) -> Found:
    """Find what a run costs, in the units of COSTS: in all its rounds, but multiply-adds in one.

    Kept numbers are the mean over the clients that keep any.
    """
    summary, (key, find) = run.summary or {}, COST_OF[name]
    if later := run.sent_later:
        summary = summary | {"bytes": {way: sum(each) for way, each in later.items()}}
    return float(find(summary[key], summary["rounds"], personal)) if summary.get(key) else UNRECORDED


COST_OF: Mapping[str, tuple[str, Callable[[Any, int, bool], float]]] = {
    "megabytes": ("bytes", lambda sent, *_: sum(sent.values()) / 1e6),
    "megabytes_down": ("bytes", lambda sent, *_: sent["down"] / 1e6),
    "megabytes_up": ("bytes", lambda sent, *_: sent["up"] / 1e6),
    "train_seconds": ("train_seconds", lambda seconds, *_: seconds),
    "cpu_seconds": ("cpu_seconds", lambda seconds, *_: seconds),
    "client_seconds": ("seconds", lambda seconds, *_: seconds["clients"]),
    "server_seconds": ("seconds", lambda seconds, *_: seconds["server"]),
    "testing_seconds": ("seconds", lambda seconds, *_: seconds["testing"]),
    "multiply_adds": ("multiply_adds", lambda counted, rounds, _: sum(counted.values()) / rounds / 1e9),
    "passes": ("passes", lambda counted, _, personal: passes(counted, personal)),
    "kept_numbers": ("kept_numbers", lambda kept, *_: statistics.fmean(list(filter(None, kept)) or [0])),
}
"""Cost -> the key of a summary that has it, and what it is there, given the rounds and whether the method is personal."""


def passes(counted: Mapping[str, Mapping[str, int]], personal: bool) -> float:
    """Find the most passes of an image through a network that a prediction takes, by the server's predictors, or of a
    personal method by the clients'.
    """
    return float(max(((counted["global"] if not personal else {}) or counted["clients"]).values()))


def reached(run: RunRecord, accuracy: float) -> Found:
    """Find the megabytes sent, both ways, until an accuracy in [0, 1] is reached first.

    It is that of the server's model on the full test set, or without one the mean of the clients' on their shards.
    """
    return sent_until(run, run.curves.get("global") or run.mean_of_clients, accuracy)


def sent_until(run: RunRecord, curve: Curve, accuracy: float) -> Found:
    """Find the megabytes sent, both ways, until a curve of accuracies in [0, 1] reaches one first."""
    sent = run.megabytes
    if not sent:
        return UNRECORDED
    return next((sent[at] for at, value in sorted(curve.items()) if value >= accuracy), NEVER)


def validation(summary: Mapping[str, Any], name: str, personal: bool) -> Found:
    """Find a metric of the last round on validation images: the server's, or of a personal method the clients'.

    It is of what the method predicts with, as in `predictive`. Of several models of clients the most accurate counts, of
    the server's `global`.
    """
    if "validation" not in summary:
        return NO_VALIDATION
    models: Mapping[str, Mapping[str, float]] = summary["validation"]["clients" if personal else "global"]
    if not models:
        return "not tested on validation images"
    plain = [model for model in models if not model.endswith("_sampled")] or list(models)
    best = max(plain, key=lambda model: number(models[model].get("accuracy")) or 0.0) if personal else "global"
    named = None if personal else models.get(summary.get("predictive", ""))
    value = number((named or models.get(f"{best}_sampled", models[best])).get(name))
    return "not a number" if value is None else value


def spread(summary: Mapping[str, Any], statistic: Statistic) -> Found:
    """Find how accuracies on the clients' shards differ: their standard deviation (of all clients, none is a sample), or the
    mean of the worst tenth, at least one client."""
    block = summary.get("clients" if statistic.argument == "client" else "global_on_shards") or {}
    known = map(number, block.get(f"accuracy_{statistic.name}", []))
    values = sorted(value for value in known if value is not None)
    if not values:
        return next(iter(block.get("missing", {}).values()), UNRECORDED)
    return statistics.pstdev(values) if statistic.of == "sd" else statistics.fmean(values[: tenth(values)])


def computed_later(statistic: Statistic, runs: Sequence[RunRecord]) -> str:
    """Say that bytes are not from the records, where that is so."""
    return LATER if statistic.of.startswith("megabytes") and any(run.sent_later for run in runs) else ""


def of_mean_network(statistic: Statistic, runs: Sequence[RunRecord]) -> str:
    """Write that a calibration is of the mean network, and the metric of the average over samples, if there is one."""
    if statistic.predictor or statistic.of not in CALIBRATION:
        return ""
    sampled = any(run.summary and "accuracy" in run.measured("global_sampled") for run in runs)
    return f"{MEAN_NETWORK}; the average over weight samples: {PREDICTIVE}_{statistic.of}_{statistic.name}" * sampled


def tenth(clients: Sequence[object]) -> int:
    """Count a tenth of the clients, at least one of them."""
    return -(-len(clients) // 10)
