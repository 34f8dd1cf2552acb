"""The end of a run in few numbers, from its metric history: what tables are built from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bayesfed.engine.evaluation import Row
from bayesfed.methods.base import GLOBAL, SAMPLED
from bayesfed.runfolder import NO_GLOBAL, NOT_ON_SHARDS

LAST = 5  # rounds of the mean that stands beside the best round
ACCURACIES = ("accuracy_best", "accuracy_last", "accuracy_last5")

Curves = dict[int, dict[int, float]]  # per client: round -> accuracy

# Why a client has no accuracy.
NO_PREDICTORS = "no client predictors"  # the method evaluates nothing of its clients
NO_IMAGES = "no test images"
ABSENT = "never took part"


def curve_statistics(curve: Mapping[int, float]) -> dict[str, float]:
    """Best over rounds (the paper's number, chosen on the test set) and its round, last, mean of the last five."""
    best = max(curve, key=lambda round: (curve[round], -round))
    tail = [curve[round] for round in sorted(curve)][-LAST:]
    return {
        "accuracy_best": curve[best],
        "accuracy_best_round": best,
        "accuracy_last": tail[-1],
        "accuracy_last5": sum(tail) / len(tail),
    }


def client_curves(history: Iterable[Row], metric: str) -> Curves:
    """Per client and round the better of its models on its own test images: HBFL's max(meme, local). `metric`:
    `shard_accuracy`, after the round, or `epoch_shard_accuracy`, the best after any of its local epochs, where a run tests
    after each."""
    curves: Curves = {}
    for row in history:
        if row.model != GLOBAL and not row.model.endswith(SAMPLED) and row.metric == metric:
            curve = curves.setdefault(int(row.client), {})
            curve[row.round] = max(curve.get(row.round, 0.0), row.value)
    return curves


def own_shards(history: Sequence[Row]) -> dict[int, dict[str, float]]:
    """The statistics of each client's curve. Only the best, which is chosen on the test set anyway, is over epochs where a
    run tests after each: the last and the last five are what was there after a round."""
    found = {k: curve_statistics(curve) for k, curve in client_curves(history, "shard_accuracy").items()}
    epochs = client_curves(history, "epoch_shard_accuracy")
    for k, one in found.items():
        one["accuracy_best"] = max([one["accuracy_best"], *epochs.get(k, {}).values()])
    return found


def global_on_shards(history: Iterable[Row]) -> dict[int, dict[str, float]]:
    """The statistics of the server's model on each client's test images."""
    curves: Curves = {}
    for row in history:
        if (row.model, row.metric) == (GLOBAL, "shard_accuracy"):
            curves.setdefault(int(row.client), {})[row.round] = row.value
    return {k: curve_statistics(curve) for k, curve in curves.items()}


def per_client(found: Mapping[int, Mapping[str, float]], test_images: Sequence[int], nobody: str) -> dict[str, Any]:
    """Each statistic client by client, null where a client has none; its mean over those that have; and, by the client's
    number, why one has none. `found`: the clients' statistics; `nobody`: the reason where no client has any."""
    missing = {}
    for k, images in enumerate(test_images):
        if k not in found:
            missing[str(k)] = NO_IMAGES if not images else ABSENT if found else nobody
    means = {name: statistics.fmean(one[name] for one in found.values()) for name in ACCURACIES} if found else {}
    each = {name: [found.get(k, {}).get(name) for k in range(len(test_images))] for name in ACCURACIES}
    return {**each, "mean": means, "missing": missing}


def summarise(history: list[Row], test_images: Sequence[int]) -> dict[str, Any]:
    """The `test_images`, `global`, `clients`, `global_on_shards` and `uncertainty` parts of summary.json.

    `test_images`: how many each client has. Null stands for a client without an accuracy, and for a value that is not
    finite.
    """
    server = {row.round: row.value for row in history if (row.model, row.metric) == (GLOBAL, "test_accuracy")}
    last = max((row.round for row in history), default=0)
    uncertainty: dict[str, dict[str, float | None]] = {}
    for row in history:
        if row.client == "global" and row.round == last and row.metric.startswith("test_"):
            value = row.value if math.isfinite(row.value) else None
            uncertainty.setdefault(row.model, {})[row.metric.removeprefix("test_")] = value
    return {
        "test_images": list(test_images),
        "global": curve_statistics(server) if server else {},
        "clients": per_client(own_shards(history), test_images, NO_PREDICTORS),
        "global_on_shards": per_client(global_on_shards(history), test_images, NOT_ON_SHARDS if server else NO_GLOBAL),
        "uncertainty": uncertainty,
    }
