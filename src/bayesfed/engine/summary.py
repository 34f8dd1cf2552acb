"""The end of a run in few numbers, from its metric history: what tables are built from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from bayesfed.engine.rounds import Row
from bayesfed.methods.base import SAMPLED

LAST = 5  # rounds of the mean that stands beside the best round


def curve_statistics(curve: dict[int, float]) -> dict[str, float]:
    """Best over rounds (the paper's number, chosen on the test set) and its round, last, mean of the last five."""
    best = max(curve, key=lambda round: (curve[round], -round))
    tail = [curve[round] for round in sorted(curve)][-LAST:]
    return {
        "accuracy_best": curve[best],
        "accuracy_best_round": best,
        "accuracy_last": tail[-1],
        "accuracy_last5": sum(tail) / len(tail),
    }


def client_curves(history: Iterable[Row]) -> dict[int, dict[int, float]]:
    """Per client and round the better of its models on its own test images: HBFL's max(meme, local).

    Where a run tests after every local epoch, an epoch's accuracy counts like the round's.
    """
    curves: dict[int, dict[int, float]] = {}
    for row in history:
        if row.metric in ("shard_accuracy", "epoch_shard_accuracy") and not row.model.endswith(SAMPLED):
            curve = curves.setdefault(int(row.client), {})
            curve[row.round] = max(curve.get(row.round, 0.0), row.value)
    return curves


def summarise(history: list[Row], clients: int) -> dict[str, Any]:
    """The `global`, `clients` and `uncertainty` parts of summary.json.

    Null stands for a client that never took part, and for a value that is not finite.
    """
    server = {row.round: row.value for row in history if (row.model, row.metric) == ("global", "test_accuracy")}
    curves = {client: curve_statistics(curve) for client, curve in client_curves(history).items()}
    names = ("accuracy_best", "accuracy_last", "accuracy_last5")
    last = max(row.round for row in history)
    uncertainty: dict[str, dict[str, float | None]] = {}
    for row in history:
        if row.client == "global" and row.round == last and row.metric.startswith("test_"):
            value = row.value if math.isfinite(row.value) else None
            uncertainty.setdefault(row.model, {})[row.metric.removeprefix("test_")] = value
    return {
        "global": curve_statistics(server) if server else {},
        "clients": {name: [curves.get(k, {}).get(name) for k in range(clients)] for name in names},
        "uncertainty": uncertainty,
    }
