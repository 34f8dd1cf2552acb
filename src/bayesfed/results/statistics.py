"""Metrics of a run by name: whose accuracy, or what else is measured, and which statistic of it over the rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bayesfed.core.errors import InputError, nearest
from bayesfed.results import formatting

LEVELS = ("global", "client", "global_on_shard", "local", "personal")
"""The model and images of an accuracy, in this order.

The server's model on the full test set; a client's best model on its own test shard; the server's model on that shard;
the mean of the clients' models on the full test set, weighted by their images (FOLA's LA), in runs that test clients there
every round; the clients' best models on their own shards together: the share of all these images that they label right
(pFedBayes' PM)."""

STATISTICS = ("best", "last", "last3", "last5", "first10pct", "round_std", "labelled")
"""Statistics of an accuracy over rounds; `Record.value` defines them. A paper's YAML adds others under `statistics`,
by a name of its own: {first: 0.3}, the first round that reaches a value; {best_within: [70, 80]}, the maximum over these
rounds; {at_best_of: global}, the value in the round in which the accuracy of another level is best."""

IN_WORDS = {
    "best": "best round",
    "last": "last round",
    "last3": "mean of the last three rounds",
    "last5": "mean of the last five rounds",
    "first10pct": "mean of the first tenth of the rounds",
    "round_std": "standard deviation of its change from round to round in the second half",
    "labelled": "mean over the numbers of labelled images",
}
"""Statistics of an accuracy in words (`records.Record.value`)."""

TAILS = {"last": 1, "last3": 3, "last5": 5}
"""Statistics of the end of a run, and of how many rounds each is: the run's last ones, or those in which a model was tested
last, where it was not in these (`tails.of_rounds` says so). Of what is not measured every round they are of the rounds in
which it is."""

CURVES_ALONE = ("local", "personal")  # levels that a summary has no statistics of

RUN = "run"
"""The level of whatever has one value a run, beside the accuracies of LEVELS (results/whole_run.py)."""

CALIBRATION = {"nll": 1, "brier": 1} | dict.fromkeys(
    ("ece", "ece100", "mce", "adaptive_ece", "classwise_ece", "aurc"), 100
)
MEASURES = CALIBRATION | {"auroc_mistakes": 1, "auroc_mistakes_sd": 1, "fpr95_mistakes": 100}
"""Metrics of a predictor in detailed rounds, and the factor by which they are shown; also
`auroc_foreign_<dataset>` and `auroc_foreign_<dataset>_sd`, 1, and `fpr95_foreign_<dataset>`, 100. `last` and `last5` are of
these rounds alone."""

PREDICTIVE = "predictive"
"""The server's predictor that a method is for: `global_sampled` where the record has it, else `global`."""

VALIDATION = "validation_"
COSTS = {
    "megabytes": "megabyte",
    "megabytes_down": "megabyte",
    "megabytes_up": "megabyte",
    "train_seconds": "second",
    "client_seconds": "second",
    "server_seconds": "second",
    "testing_seconds": "second",
    "cpu_seconds": "second",
    "multiply_adds": "billion",
    "passes": "pass",
    "kept_numbers": "number",
}
"""Costs of a run, and their units. `megabytes_to_<percent>`: sent until an accuracy is reached for the first time."""

SPREADS = {"sd": "standard deviation over clients", "worst10": "mean of the worst tenth of the clients"}
"""Measures of the spread of accuracies on clients' own shards: `client_accuracy_sd_last5`, and so on."""

FOREIGN, FOREIGN_FPR = "auroc_foreign_", "fpr95_foreign_"
OF_FOREIGN = (FOREIGN, FOREIGN_FPR)
MEASURED = "|".join([*MEASURES, *(f"{kind}.+" for kind in OF_FOREIGN)])  # as a regular expression
POINTS = {"against", "error"}  # of what a figure shows: a point a run or a network, and no line
OF_KIND = ("first", "best_within", "at_best_of")


@dataclass(frozen=True)
class Statistic:
    """A statistic by name; one of a paper's own has a kind and its argument. `of`: accuracy, or what else is measured;
    `predictor`: of which predictor, for those of the level RUN."""

    name: str
    kind: str = ""
    argument: Any = None
    of: str = "accuracy"
    predictor: str = ""

    @property
    def scale(self) -> int:
        """The factor by which its values are multiplied to be shown: accuracies are percent, a round is a round."""
        if self.kind == "first" or self.of in COSTS or self.of.startswith(FOREIGN):
            return 1
        return MEASURES.get(self.of.removeprefix(VALIDATION), 100)

    @property
    def decimals(self) -> int | None:
        """Places behind the point as shown; None: one at most."""
        if self.of == "multiply_adds":
            return 3
        return None if self.kind == "first" or self.of in COSTS else 2 if self.scale == 100 else 3

    @property
    def unit(self) -> str:
        """The unit of `close`, as shown."""
        return COSTS.get(self.of, "round" if self.kind == "first" else "point")

    @property
    def close(self) -> float:
        """The distance from the published number that counts as near, as shown: a round, a percentage point, or a
        hundredth.
        """
        return 0.01 if self.decimals == 3 else 1.0

    @property
    def rising(self) -> bool:
        """True if more is better: of an accuracy, or of the AUROC of wrong and OOD images."""
        better = self.of.removeprefix(VALIDATION).startswith(("accuracy", "auroc")) or self.of == "worst10"
        return self.kind != "first" and self.name != "round_std" and better

    @property
    def chosen(self) -> bool:
        """True if its round is chosen by test accuracy, from more than one."""
        if self.kind == "best_within":
            return bool(self.argument[0] < self.argument[1])
        return self.name == "best" or self.kind == "at_best_of"

    @property
    def over_rounds(self) -> bool:
        """True if it is of values of rounds, such as accuracies, of which a mean of the last five can be shown beside."""
        return self.kind != "first" and self.of not in COSTS and not self.of.startswith(VALIDATION)

    @property
    def last5(self) -> Statistic:
        """The mean of the last five of what it is of."""
        return (
            replace(self, name="last5")
            if self.of in SPREADS
            else Statistic("last5", of=self.of, predictor=self.predictor)
        )


BEST = Statistic("best")


def read_metric(metric: str, own: Mapping[str, Any]) -> tuple[str, Statistic]:
    """Read a metric: `client_accuracy_best` -> (client, best), `global_ece_last` -> (global, the ECE of the last
    round).

    `own` are the statistics of the paper's YAML. Raises InputError for an unknown metric.
    """
    found = {name: Statistic(name) for name in STATISTICS} | {name: read_statistic(name, own[name]) for name in own}
    known = [f"{level}_accuracy_{name}" for level in LEVELS for name in found]
    if metric in known:
        level, _, name = metric.partition("_accuracy_")
        return level, found[name]
    if measured := re.fullmatch(f"global_({MEASURED})_(last|last5)", metric):
        return "global", Statistic(measured[2], of=measured[1])
    if of_run := of_whole_run(metric):
        return RUN, of_run
    valid = [*known, *COSTS, *(f"{VALIDATION}{name}" for name in ("accuracy", "nll", "ece"))]
    valid += [
        f"{of}_{name}_last"
        for of in ("global", PREDICTIVE)
        for name in (*MEASURES, *(f"{kind}DATASET" for kind in OF_FOREIGN))
    ]
    raise InputError(f"unknown metric '{metric}'; {nearest(metric, valid)}")


def foreign_of(metric: str) -> str:
    """Name the OOD dataset that a metric is about; "" for none."""
    for kind in OF_FOREIGN:
        if metric.startswith(kind):
            return metric.removeprefix(kind).removesuffix("_sd")
    return ""


def of_whole_run(metric: str) -> Statistic | None:
    """Read a metric of the level RUN; None for another."""
    if metric in COSTS:
        return Statistic("total", of=metric)
    if metric in (f"{VALIDATION}accuracy", f"{VALIDATION}nll", f"{VALIDATION}ece"):
        return Statistic("last", of=metric)
    if (reached := re.fullmatch(r"megabytes_to_(\d+(?:\.\d+)?)", metric)) and 0 < float(reached[1]) <= 100:
        return Statistic(metric, "first", float(reached[1]) / 100, of="megabytes")
    if spread := re.fullmatch(f"(client|global_on_shard)_accuracy_({'|'.join(SPREADS)})_(best|last|last5)", metric):
        return Statistic(spread[3], "spread", spread[1], of=spread[2])
    measured = rf"([a-z]\w*?)_(?:accuracy_(best|last|last5)|({MEASURED})_(last|last5))"
    found = re.fullmatch(measured, metric)
    if not found or found[1] in ("global", "client", "global_on_shard", "validation"):
        return None
    return Statistic(found[2] or found[4], of=found[3] or "accuracy", predictor=found[1])


def read_statistic(name: str, value: object) -> Statistic:
    """Read a statistic of a paper's own; raise InputError that says what is wrong with it."""
    where = f"statistics.{name}"
    if not isinstance(value, Mapping) or len(value) != 1:
        raise InputError(f"{where}: expected one of {', '.join(OF_KIND)} and its value, found {value!r}")
    ((kind, argument),) = value.items()
    if kind not in OF_KIND:
        raise InputError(f"{where}: no kind of statistic is named '{kind}'; {nearest(kind, OF_KIND)}")
    if name in STATISTICS:
        raise InputError(f"{where}: this name stands for another statistic; choose another")
    if kind == "first" and not (isinstance(argument, int | float) and 0 < argument <= 1):
        raise InputError(f"{where}.first: expected an accuracy above 0 and up to 1, found {argument!r}")
    whole = isinstance(argument, list) and len(argument) == 2 and all(isinstance(each, int) for each in argument)
    if kind == "best_within" and not (whole and 1 <= argument[0] <= argument[1]):
        raise InputError(f"{where}.best_within: expected two rounds, the first and the last, found {argument!r}")
    if kind == "at_best_of" and argument not in LEVELS:
        raise InputError(f"{where}.at_best_of: no accuracy is named '{argument}'; {nearest(argument, LEVELS)}")
    return Statistic(name, kind, argument)


def in_words(metric: str) -> str:
    """Write a metric in words: `global accuracy, mean of the first tenth of the rounds`."""
    level, accuracy, name = metric.rpartition("_accuracy_")
    return (
        f"{formatting.spoken(level)} accuracy, {IN_WORDS.get(name, formatting.spoken(name))}"
        if accuracy
        else formatting.spoken(metric)
    )
