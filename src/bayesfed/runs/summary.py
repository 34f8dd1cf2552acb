"""The end of a run in few numbers, from its metric history: what tables are built from.

`last` is of the last round, and `last5` the mean of the last five, of every model that is tested then: the server's, on the
full test set and on each client's shard. A model that is not, as that of a client who does not take part, has them of the
rounds in which it was tested last; then the block holds these rounds, under `rounds`.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bayesfed.methods.node import GLOBAL, SAMPLED
from bayesfed.runs.run_folder import NO_GLOBAL, NOT_ON_SHARDS, Row, undefined

DIGITS = 1e-5  # of a number of a summary: its metrics, as `metrics.csv` has them, have six digits
LAST = 5  # rounds at the end: of these is `last5`, and in these the server's model is tested on every client's shard
ACCURACIES = ("accuracy_best", "accuracy_last", "accuracy_last5")

Curves = dict[int, dict[int, float]]  # per client: round -> accuracy

COMMUNICATION = "communication"  # the model of rows about bytes sent
COMPUTATION = "computation"  # the model of rows about multiply-adds
PASSES = "passes"  # the metric of a predictor's passes through networks for one prediction

# Why a client has no accuracy.
NO_PREDICTORS = "no client predictors"  # the method evaluates nothing of its clients
NO_IMAGES = "no test images"
ABSENT = "never took part"


def curve_statistics(curve: Mapping[int, float]) -> dict[str, float]:
    """Return the best over rounds (the paper's number, chosen on the test set) and its round, last, mean of the last
    five.
    """
    best = max(curve, key=lambda number: (curve[number], -number))
    tail = [curve[number] for number in tail_of(curve)]
    return {
        "accuracy_best": curve[best],
        "accuracy_best_round": best,
        "accuracy_last": tail[-1],
        "accuracy_last5": sum(tail) / len(tail),
    }


def tail_of(rounds: Iterable[int]) -> list[int]:
    """Return the last of these rounds, LAST at most, in order: those that `last5` is a mean of."""
    return sorted(rounds)[-LAST:]


def at_the_end(tail: Sequence[int], rounds: int) -> bool:
    """Return whether these are the last rounds of a run that has had so many."""
    return list(tail) == tail_of(range(1, rounds + 1))


def client_curves(history: Iterable[Row], metric: str) -> Curves:
    """Return, per client and round, the better of its models on its own test images: HBFL's max(meme, local).

    `metric`: `shard_accuracy`, after the round, or `epoch_shard_accuracy`, the best after any of its local epochs,
    where a run tests after each.
    """
    curves: Curves = {}
    for row in history:
        if row.model != GLOBAL and not row.model.endswith(SAMPLED) and row.metric == metric:
            curve = curves.setdefault(int(row.client), {})
            curve[row.round] = max(curve.get(row.round, 0.0), row.value)
    return curves


def own_shards(history: Sequence[Row], curves: Curves) -> dict[int, dict[str, float]]:
    """Return the statistics of each client's curve.

    Only the best, which is chosen on the test set anyway, is over epochs where a run tests after each: the last and
    the last five are what was there after a round.
    """
    found = {k: curve_statistics(curve) for k, curve in curves.items()}
    epochs = client_curves(history, "epoch_shard_accuracy")
    for k, one in found.items():
        one["accuracy_best"] = max([one["accuracy_best"], *epochs.get(k, {}).values()])
    return found


def global_on_shards(history: Iterable[Row]) -> Curves:
    """Return, per client and round, the server's model on the client's test images."""
    curves: Curves = {}
    for row in history:
        if (row.model, row.metric) == (GLOBAL, "shard_accuracy"):
            curves.setdefault(int(row.client), {})[row.round] = row.value
    return curves


def per_client(
    found: Mapping[int, Mapping[str, float]], curves: Curves, test_images: Sequence[int], rounds: int, nobody: str
) -> dict[str, Any]:
    """Return each statistic client by client, null where a client has none; its mean over those that have; by the
    client's number, why one has none; and the `rounds` of `last` and `last5`, where they are not the last of the run
    for all. `found`: the statistics of the clients' `curves`; `nobody`: the reason where no client has any.
    """
    missing = {}
    for k, images in enumerate(test_images):
        if k not in found:
            missing[str(k)] = NO_IMAGES if not images else ABSENT if found else nobody
    means = {name: statistics.fmean(one[name] for one in found.values()) for name in ACCURACIES} if found else {}
    clients = range(len(test_images))
    each = {name: [found.get(k, {}).get(name) for k in clients] for name in ACCURACIES}
    tails = [tail_of(curves.get(k, ())) for k in clients]
    block = {**each, "mean": means, "missing": missing}
    if all(at_the_end(tail, rounds) for tail in tails if tail):
        return block
    return block | {"rounds": {"last": [max(tail, default=None) for tail in tails], "last5": tails}}


def validation_curve(history: Iterable[Row]) -> dict[int, float]:
    """Return the validation accuracy by round: the global model's; without one, the best of the clients' models."""
    of_server: dict[int, float] = {}
    of_clients: dict[int, float] = {}
    for row in history:
        if row.metric == "validation_accuracy" and not row.model.endswith(SAMPLED):
            if (row.client, row.model) == ("global", GLOBAL):
                of_server[row.round] = row.value
            elif row.client != "global":
                of_clients[row.round] = max(of_clients.get(row.round, 0.0), row.value)
    return of_server or of_clients


def validation(history: Sequence[Row], server: Mapping[int, float], own: Curves) -> dict[str, Any]:
    """Return the validation metrics of the last round, by model of the server and of the clients.

    With them the round of the best validation accuracy, and the test accuracies of that round: the global model's, and
    the clients' mean.
    """
    curve = validation_curve(history)
    if not curve:
        return {}
    last = max(row.round for row in history)
    found: dict[str, dict[str, dict[str, float | None]]] = {"global": {}, "clients": {}}
    for row in history:
        if row.round == last and row.metric.startswith("validation_"):
            level = found["global" if row.client == "global" else "clients"]
            value = row.value if math.isfinite(row.value) else None
            level.setdefault(row.model, {})[row.metric.removeprefix("validation_")] = value
    best = max(curve, key=lambda number: (curve[number], -number))
    clients = [of_client[best] for of_client in own.values() if best in of_client]
    at_best = {"global": server.get(best), "clients": statistics.fmean(clients) if clients else None}
    return {"validation": {**found, "best_round": best, "accuracy_at_best_round": at_best}}


def communication(history: Iterable[Row]) -> dict[str, Any]:
    """Count the bytes from the server to the clients (`down`) and back (`up`), of all rounds and clients together."""
    found = {"down": 0, "up": 0}
    for row in history:
        if row.model == COMMUNICATION:
            found[row.metric.removeprefix("bytes_")] += int(row.value)
    return {"bytes": found}


def computation(history: Iterable[Row]) -> dict[str, Any]:
    """Count the multiply-adds of training, of all rounds together, and the passes of each predictor for one prediction."""
    passes: dict[str, dict[str, int]] = {"clients": {}, "global": {}}
    counted = {"clients": 0, "server": 0}
    for row in history:
        if row.model == COMPUTATION:
            counted[row.metric.removeprefix("multiply_adds_")] += int(row.value)
        elif row.metric == PASSES:
            passes["global" if row.client == "global" else "clients"][row.model] = int(row.value)
    return {"multiply_adds": counted, "passes": passes if any(passes.values()) else {}}


def of_server(curve: Mapping[int, float], rounds: int) -> dict[str, Any]:
    """Return the statistics of the server's model on the full test set, and the rounds of `last` and `last5` as in
    `per_client`.
    """
    if not curve:
        return {}
    tail = tail_of(curve)
    told = {} if at_the_end(tail, rounds) else {"rounds": {"last": tail[-1], "last5": tail}}
    return curve_statistics(curve) | told


def uncertainty(history: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return, by predictor of the server, what is measured of it on the full test set in the last round; null for what
    is no finite number, which has its reason under `missing`.
    """
    last = max((row.round for row in history), default=0)
    found: dict[str, dict[str, Any]] = {}
    for row in history:
        if row.client == "global" and row.round == last and row.metric.startswith("test_"):
            found.setdefault(row.model, {})[row.metric.removeprefix("test_")] = row.value
    for values in found.values():
        why = {name: undefined(name, value, values["accuracy"]) for name, value in values.items()}
        if missing := {name: reason for name, reason in why.items() if reason}:
            values |= dict.fromkeys(missing) | {"missing": missing}
    return found


def summarise(history: list[Row], test_images: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return the parts of summary.json that the metric history gives.

    They are `test_images`, `global`, `clients`, `global_on_shards`, `uncertainty`, `bytes`, `multiply_adds`, `passes` and,
    with validation images, `validation`.

    `test_images`: how many each client has. `rounds`: how many the run has had. Null stands for a client without an
    accuracy, and for a value that is not finite.
    """
    server = {row.round: row.value for row in history if (row.model, row.metric) == (GLOBAL, "test_accuracy")}
    own, on_shards = client_curves(history, "shard_accuracy"), global_on_shards(history)
    return (
        {
            "test_images": list(test_images),
            "global": of_server(server, rounds),
            "clients": per_client(own_shards(history, own), own, test_images, rounds, NO_PREDICTORS),
            "global_on_shards": per_client(
                {k: curve_statistics(curve) for k, curve in on_shards.items()},
                on_shards,
                test_images,
                rounds,
                NOT_ON_SHARDS if server else NO_GLOBAL,
            ),
            "uncertainty": uncertainty(history),
        }
        | validation(history, server, own)
        | communication(history)
        | computation(history)
    )


def not_given(stored: Mapping[str, Any], metrics: str) -> list[str]:
    """Return the fields of a stored summary that the text of its `metrics.csv` does not give, by dotted names.

    Numbers, and which of them are missing, are compared, to six digits. A record of an earlier version lacks some fields.
    """
    rows = list(csv.reader(metrics.splitlines()))[1:]
    history = [Row(int(number), client, model, metric, float(value)) for number, client, model, metric, value in rows]
    rounds = max((row.round for row in history), default=0)
    # Where an early record has no counts of images, the reasons alone, which are not compared, would need them.
    images = stored.get("test_images") or [1] * len(stored["clients"]["accuracy_last"])
    made = summarise(history, images, rounds) | ({} if stored.get("diverged") else {"rounds": rounds})
    there = {name: stored[name] for name in made if name in stored}
    return list(dict.fromkeys(unlike(json.loads(json.dumps(made)), there)))


def unlike(made: Any, stored: Any, name: str = "") -> Iterator[str]:
    """Name the numbers of `stored`, which is JSON, that `made` has not, or has otherwise."""
    if isinstance(made, dict) and isinstance(stored, dict):
        for key, value in stored.items():
            yield from unlike(made.get(key, {}), value, f"{name}.{key}" if name else key)
    elif isinstance(made, list) and isinstance(stored, list) and len(made) == len(stored):
        for one, other in zip(made, stored, strict=True):
            yield from unlike(one, other, name)
    elif isinstance(made, int | float) and isinstance(stored, int | float):
        if not math.isclose(made, stored, rel_tol=DIGITS):
            yield name
    elif made != stored and not isinstance(stored, str):
        yield name
