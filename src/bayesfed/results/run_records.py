"""The record of a run as results read it: each file once, when it is first asked for."""

from __future__ import annotations

import csv
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesfed.results.formatting import unique
from bayesfed.runs import run_folder

Curve = dict[int, float]
"""Round, from 1 and in order -> value."""


class RunRecord:
    """The record of a run in its folder: its summary, provenance and run file, and every row of `metrics.csv`.

    The first question reads and verifies all files together. Raises InputError for a record that was altered.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _whole(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        return run_folder.read_whole(self.folder)

    def _text(self, name: str) -> str:
        """Return the text of a file of a finished run, once; what is made of it is kept in its place."""
        assert self._whole is not None
        return self._whole[1].pop(name).decode()

    @property
    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, or None when the run is not finished."""
        return None if self._whole is None else self._whole[0]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """`provenance.json` of a finished run: how and where it was made."""
        return json.loads(self._text("provenance.json"))  # type: ignore[no-any-return]

    @cached_property
    def run_file(self) -> str:
        """`run.yaml` of a finished run, as text."""
        return self._text("run.yaml")

    @property
    def rounds(self) -> int:
        """The number of rounds that a finished run has had."""
        content = self.summary or {}
        return int((content.get("diverged") or {}).get("round", content["rounds"]))

    @cached_property
    def sent_later(self) -> dict[str, list[int]]:
        """Bytes in each round, `down` and `up`, of a record that has none, if they were computed later; else nothing."""
        path = self.folder / run_folder.LATER
        if self.summary is None or "bytes" in self.summary or not path.exists():
            return {}
        later = json.loads(path.read_text(encoding="utf-8"))
        return {way: later[way] for way in ("down", "up")} if later["key"] == self.summary["key"] else {}

    @property
    def sent(self) -> dict[str, Curve]:
        """Bytes by round and way; nothing where neither the record has them nor a later computation."""
        later = {way: dict(enumerate(each, start=1)) for way, each in self.sent_later.items()}
        counted = self._models.get("communication", {})
        return {name.removeprefix("bytes_"): values for name, values in counted.items()} or later  # type: ignore[return-value]

    @cached_property
    def megabytes(self) -> Curve:
        """Megabytes (10^6 bytes) sent from the start to the end of each round, both ways; nothing where `sent` is empty."""
        ways = self.sent.values()
        rounds = sorted({at for way in ways for at in way})
        each = (sum(way.get(at, 0) for way in ways) / 1e6 for at in rounds)
        return dict(zip(rounds, itertools.accumulate(each), strict=True))

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], dict[str, str]]:
        """`metrics.csv` of a finished run: (client, model, metric) -> round -> value, as texts."""
        found: dict[str, dict[str, str]] = {}
        # The names between round and value are few: csv, which is slow, reads each of them once.
        for line in self._text("metrics.csv").splitlines()[1:]:
            at, _, rest = line.partition(",")
            names, _, value = rest.rpartition(",")
            try:
                found[names][at] = value
            except KeyError:
                found[names] = {at: value}
        return {tuple(names): values for names, values in zip(csv.reader(found), found.values(), strict=True)}

    @cached_property
    def _models(self) -> dict[str, dict[str, Curve]]:
        """Model of the server -> metric -> values by round; its diagnostics have the model `server`."""
        found: dict[str, dict[str, Curve]] = {}
        for (client, model, metric), values in self._rows.items():
            if client == "global":
                found.setdefault(model, {})[metric] = numbers(values)
        return found

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Accuracy in [0, 1] by series: `global`, the server's model on the full test set, `global on 3` on a client's
        shard; `3`, the best of a client's models on its own shard; `mean`, of the clients' on the full test set.

        A client's value is the larger of its models' after that round (meme, local), as in the HBFL paper and in the
        engine's summary.
        """
        found: dict[str, list[Curve]] = {}
        for names, values in self._rows.items():
            if series := series_of(*names):
                found.setdefault(series, []).append(numbers(values))
        highest = {series: highest_of(curves) for series, curves in found.items()}
        return {series: curve for series, curve in highest.items() if curve}

    @cached_property
    def together(self) -> tuple[Curve, dict[int, int]]:
        """The accuracy of all clients' own models on their own test images together, right ones among all of them, by
        round; and the round in which the first of them was tested.

        A client who sits a round out counts as when last tested; so a round has a value once every client with test images
        has been tested. Nothing where the record does not say how many images each has.
        """
        images: list[int] = (self.summary or {}).get("test_images", [])
        counts = {k: count for k, count in enumerate(images) if count}
        tested = {k: self.curves.get(str(k), {}) for k in counts}
        latest: dict[int, int] = {}
        values: Curve = {}
        oldest: dict[int, int] = {}
        for at in range(1, self.rounds + 1 if counts else 1):
            latest |= {k: at for k, curve in tested.items() if at in curve}
            if len(latest) == len(counts):
                right = sum(counts[k] * tested[k][when] for k, when in latest.items())
                values[at], oldest[at] = right / sum(counts.values()), min(latest.values())
        return values, oldest

    @property
    def diagnostics(self) -> Mapping[str, Curve]:
        """The values that the method's server has logged, by name."""
        return self._models.get("server", {})

    def along(self, family: str, at: int) -> dict[float, float]:
        """Return the accuracy in [0, 1] on the full test set in one round of the server's predictors `<family>
        <number>`, by number.
        """
        return {
            float(model.removeprefix(f"{family} ")): metrics["test_accuracy"][at]
            for model, metrics in self._models.items()
            if model.startswith(f"{family} ") and at in metrics.get("test_accuracy", {})
        }

    def errors(self, family: str) -> list[tuple[str, float, float]]:
        """List the networks of which the server has logged a value as `<family> <network>`, in the order of the log.

        Each with that value, and its accuracy in [0, 1] on the full test set in the same round; of clients' networks
        the mean.
        """
        found = []
        for name, values in self.diagnostics.items():
            if name.startswith(f"{family} "):
                network = name.removeprefix(f"{family} ")
                mean = numbers(self._rows.get(("mean", network, "test_accuracy"), {}))
                accuracy = self._models.get(network, {}).get("test_accuracy", mean)
                found += [(network, value, accuracy[at]) for at, value in values.items() if at in accuracy]
        return found

    def measured(self, model: str = "global") -> dict[str, Curve]:
        """Return the metrics of a server's model on the full test set, and the bins of its reliability diagram, by
        round.

        Metric -> value by round, for the rounds in which it was measured.
        """
        return {metric.removeprefix("test_"): values for metric, values in self._models.get(model, {}).items()}

    def over_clients(self, model: str, *, shards: bool = True) -> dict[str, Curve]:
        """Compute the mean over clients of what is measured of their models of a name.

        On their own shards, or on the full test set. Metric -> mean over the clients that were tested in a round, by round.
        """
        found: dict[str, list[Curve]] = {}
        images = "shard_" if shards else "test_"
        for (who, name, metric), values in self._rows.items():
            if name == model and metric.startswith(images) and model != "global" and who.isdigit():
                found.setdefault(metric.removeprefix(images), []).append(numbers(values))
        return {metric: mean_of(curves) for metric, curves in found.items()}

    def of_clients(self, model: str) -> list[Curve]:
        """Return the accuracies in [0, 1] of the clients' models of a name on their own test images, a curve a client."""
        return [
            numbers(values)
            for (who, name, metric), values in self._rows.items()
            if (name, metric) == (model, "shard_accuracy") and who.isdigit()
        ]

    @property
    def client_models(self) -> list[str]:
        """The names of the clients' models that are tested on their own shards."""
        return unique(
            m for who, m, metric in self._rows if who.isdigit() and m != "global" and metric.startswith("shard_")
        )

    @property
    def mean_of_clients(self) -> Curve:
        """The mean accuracy in [0, 1] of the clients tested in a round, of each its best model on its own shard."""
        return mean_of([curve for series, curve in self.curves.items() if series.isdigit()])

    def undefined(self, model: str = "global", last: int = 1) -> dict[str, str]:
        """Return why metrics of a server's model are no number in some of the last rounds in which they were measured.

        By metric; nothing of those that are.
        """
        of_model = self.measured(model)
        accuracy, found = of_model.get("accuracy", {}), {}
        for metric, values in of_model.items():
            odd = [at for at in list(values)[-last:] if not math.isfinite(values[at])]
            if odd:
                why = unique(run_folder.undefined(metric, values[at], accuracy.get(at, math.nan)) for at in odd)
                found[metric] = " or ".join(why)
        return found


def numbers(texts: dict[str, str]) -> Curve:
    """Values by round, as numbers and in order."""
    found = dict(zip(map(int, texts), map(float, texts.values()), strict=True))
    rounds = sorted(found)
    return found if rounds == list(found) else {at: found[at] for at in rounds}


def mean_of(curves: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
    """Compute the mean of curves in each round in which any has a value."""
    rounds = sorted(set(itertools.chain(*curves)))
    return {at: statistics.fmean(curve[at] for curve in curves if at in curve) for at in rounds}


def highest_of(curves: list[Curve]) -> Curve:
    """Return the largest finite value of curves, round by round."""
    first, *others = map(finite, curves)
    for other in others:
        first = first | {at: max(value, first.get(at, value)) for at, value in other.items()}
    return dict(sorted(first.items())) if others else first


def finite(curve: Curve) -> Curve:
    """Return the finite values of a curve."""
    if math.isfinite(sum(curve.values())):
        return curve
    return {at: value for at, value in curve.items() if math.isfinite(value)}


def series_of(client: str, model: str, metric: str) -> str:
    """Name the curve to which a row of `metrics.csv` belongs; "" for none."""
    if client == "global":
        return client if (model, metric) == ("global", "test_accuracy") else ""
    if client == "mean":
        return client if metric == "test_accuracy" and not model.endswith("_sampled") else ""
    if model == "global":
        return f"global on {client}" if metric == "shard_accuracy" else ""
    return client if metric == "shard_accuracy" and not model.endswith("_sampled") else ""


def number(value: object) -> float | None:
    """Return a finite number, or None: a client without test images has no accuracy (null or NaN)."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
