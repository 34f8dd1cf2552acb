"""Functions of a user's own that are called after every round: what they are told, and how they stop a run."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.core import plugins
from bayesfed.core.errors import RunStopped, in_own_part, words
from bayesfed.runs.run_folder import Row
from bayesfed.runs.summary import COMMUNICATION, COMPUTATION

STOP = "stop"  # what a function returns to stop the run
UNTOLD = (COMMUNICATION, COMPUTATION)  # models of rows that are no metrics


@dataclass(frozen=True)
class RoundDone:
    """A round that is over.

    `run`: the run file with all defaults. `folder`: the run's. `last`: whether the run is over with it. `metrics`:
    values of the round by name, `global/test_accuracy` of the server, `clients/local/shard_accuracy` the mean over the
    clients that were tested. `bytes`: that went `down` to the clients and `up`. `seconds`: that the round took, or, in a
    call that trains none since all were finished without a record, the mean over the rounds.
    """

    run: Mapping[str, Any]
    folder: Path
    round: int
    rounds: int
    last: bool
    metrics: Mapping[str, float]
    bytes: Mapping[str, int]
    seconds: float


OnRound = Callable[[RoundDone], object]


def fault(name: str, function: Any) -> str:
    """Say what keeps this from being a callback; "" if nothing does."""
    return "" if callable(function) else "expected a function of a round"


registry: plugins.Registry = plugins.Modules("callbacks", "callback", dict, "CALLBACKS", fault)


def metrics(rows: Iterable[Row]) -> dict[str, float]:
    """Return the metrics of a round by name, of clients the mean; without the bins of reliability diagrams."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.model not in UNTOLD and not row.metric.startswith("reliability_"):
            whose = {"global": "", "mean": "mean/"}.get(row.client, "clients/")
            found.setdefault(f"{whose}{row.model}/{row.metric}", []).append(row.value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def sent(rows: Iterable[Row]) -> dict[str, int]:
    """Return the bytes of a round by their way."""
    return {row.metric.removeprefix("bytes_"): int(row.value) for row in rows if row.model == COMMUNICATION}


def of(name: str | None, function: OnRound | None) -> list[OnRound]:
    """Return the functions of a run: that of its run file by name, and one that was given."""
    named = [registry.plugin(name, "on_round").value()] if name else []
    return [*named, *([function] if function else [])]


def call(functions: Sequence[OnRound], run: Mapping[str, Any], folder: Path, history: Sequence[Row], number: int, last: bool,
         seconds: float) -> None:  # fmt: skip
    """Call functions with round `number`, the last of a history; raise RunStopped where one fails, or stops a run that
    would go on.
    """
    if not functions:
        return
    rows = [*itertools.takewhile(lambda row: row.round == number, reversed(history))][::-1]
    done = RoundDone(copy.deepcopy(run), folder, number, run["rounds"], last, metrics(rows), sent(rows), seconds)
    at, in_use = f"round {number} of {done.rounds}", vars(plugins.in_use).copy()
    try:
        given = [function(done) for function in functions]
    except (Exception, SystemExit) as error:
        where = in_own_part(error) or "a function"
        raise RunStopped(
            f"on_round: {where} failed after {at}: {words(error)}; mend it, and run it again to go on"
        ) from error
    finally:
        vars(plugins.in_use).update(in_use)  # one may have looked at other runs; read again, the folder may be another
    if any(isinstance(one, str) and one == STOP for one in given) and not last:
        raise RunStopped(f"{folder}: stopped by on_round after {at}; run it again to go on")
