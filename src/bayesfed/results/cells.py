"""What a plan asks for, joined with what its run folders hold: the records behind all results."""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bayesfed.errors import InputError, nearest
from bayesfed.results import runs

BUDGET = ("rounds", "local_epochs", "batch_size")

AS_PAPER = "paper's"  # what is said of a cell whose run and data are the paper's in everything
DIVERGED = "diverged"  # what a cell says whose runs stopped because a value was no longer finite
NOT_TESTED = "no local model on the full test set"
NO_GLOBAL = "no global model"  # what a cell says whose server has no whole network
UNRECORDED = "not in its record"  # what a cell says that is missing in a record of an earlier version

LEVELS = ("global", "client", "global_on_shard", "local", "personal")
"""Whose accuracy it is: the server's model on the full test set, a client's best model on its own test shard, the server's
model on that shard, the mean of the clients' models on the full test set, weighted by their images (FOLA's LA), in
runs that test clients there every round, and the clients' best models on their own shards together: the images that they
label right among all of them (pFedBayes' PM)."""

STATISTICS = ("best", "last", "last5", "early", "jitter", "labelled")
"""What can be asked of an accuracy over rounds; `Record.value` defines them. A paper's YAML adds others under `statistics`,
by a name of its own: {first: 0.3}, the first round that reaches a value; {best_within: [70, 80]}, the maximum over these
rounds; {at_best_of: global}, the value in the round in which the accuracy of another level is best."""

CURVES_ALONE = ("local", "personal")  # levels that a summary has no statistics of

MEASURES = {"nll": 1, "brier": 1, "ece": 100, "mce": 100, "auroc_mistakes": 1, "auroc_mistakes_sd": 1}
"""What is measured of the server's model in detailed rounds, and what it is multiplied by to be shown; also
`auroc_foreign_<dataset>` and `auroc_foreign_<dataset>_sd`, 1. `last` and `last5` are of these rounds alone."""

FOREIGN = "auroc_foreign_"
OF_KIND = ("first", "best_within", "at_best_of")
NEVER = "never reached"
TOO_SHORT = "no such rounds"  # what a run says that ended before them
ALL_LABELLED = "no active learning"


@dataclass(frozen=True)
class Statistic:
    """A statistic by name; one of a paper's own has a kind and its argument. `of`: accuracy, or what else is measured."""

    name: str
    kind: str = ""
    argument: Any = None
    of: str = "accuracy"

    @property
    def scale(self) -> int:
        """What its values are multiplied by to be shown: accuracies are percent, a round is a round."""
        return 1 if self.kind == "first" else MEASURES.get(self.of, 1 if self.of.startswith(FOREIGN) else 100)

    @property
    def decimals(self) -> int | None:
        """Places behind the point as shown; None: one at most."""
        return None if self.kind == "first" else 2 if self.scale == 100 else 3

    @property
    def unit(self) -> str:
        """What `close` is one of, as shown."""
        return "round" if self.kind == "first" else "point"

    @property
    def close(self) -> float:
        """How near to the printed number is near, as shown: a round, a point of a percentage, or a hundredth."""
        return 0.01 if self.decimals == 3 else 1.0

    @property
    def rising(self) -> bool:
        """Whether more is better: of an accuracy, or of how well wrong and foreign images are told."""
        return self.kind != "first" and self.name != "jitter" and (self.of == "accuracy" or self.of.startswith("auroc"))

    @property
    def chosen(self) -> bool:
        """Whether its round is chosen by test accuracy, from more than one."""
        if self.kind == "best_within":
            return bool(self.argument[0] < self.argument[1])
        return self.name == "best" or self.kind == "at_best_of"

    @property
    def last5(self) -> Statistic:
        """The mean of the last five of what it is of."""
        return Statistic("last5", of=self.of)


BEST = Statistic("best")


@dataclass(frozen=True)
class Record:
    """An accuracy in a run that the plan asks for: of the server's model (`client` is "global") or at a client ("1", "2",
    ...), by its own models or by the server's (see LEVELS).

    `dataset` is the paper's, `used` the one trained on. `axes` are those of its experiment that have no field of their
    own here (`lr`); `field` finds either. `alpha` and `stragglers` are texts, as the plan has
    them; what does not apply is "". `foreign`: the paper's foreign datasets, and those used. `asks`: what else its run
    is asked for, `mistakes` (how well it tells its own) and `active` (learning). `summary` holds accuracies in
    [0, 1], nothing for an unfinished run; `missing` says why a finished one has none; `chosen` what a search has chosen,
    where it has (results/search.py).
    """

    experiment: str
    dataset: str
    used: str
    setting: str
    alpha: str
    stragglers: str
    axes: Mapping[str, str]
    model: str
    client: str
    method: str
    seed: str
    rounds: int
    local_epochs: int
    batch_size: int
    changes: tuple[str, ...]
    foreign: Mapping[str, str]
    asks: tuple[str, ...]
    folder: Path
    done: bool
    diverged: int
    level: str
    summary: Mapping[str, float]
    missing: str
    chosen: str = ""

    def field(self, name: str) -> str:
        """What a cell is asked by: a field or an axis, as text; "" for an axis that another experiment has."""
        value = self.__dict__[name] if name in self.__dict__ else self.axes.get(name, "")
        return value if isinstance(value, str) else text(value)

    @property
    def as_printed(self) -> bool:
        """Whether run and data are the paper's in everything, so that a number may be compared with print."""
        return self.used == self.dataset and not self.changes

    def value(self, statistic: Statistic) -> float | None:
        """An accuracy statistic in [0, 1] (for `first`, a round), or None when the run has none (yet) or diverged.

        best, last, last5: maximum over rounds, last round, mean of the last five (from the summary, where it has them).
        early: mean over the first tenth of the rounds, at least one.
        jitter: standard deviation of the change from round to round over the second half (needs two changes).
        labelled: mean over the numbers of labelled images of `along_labelled`, the height of a curve of active learning.
        """
        if not self.done or self.diverged:
            return None
        if statistic.of != "accuracy":
            values = list(self.measured(statistic.of).values())[-5 if statistic.name == "last5" else -1 :]
            return statistics.fmean(values) if values and all(map(math.isfinite, values)) else None
        if statistic.name == "labelled":
            return statistics.fmean(found) if (found := self.along_labelled().values()) else None
        if statistic.name in ("best", "last", "last5") and not statistic.kind and self.level not in CURVES_ALONE:
            return self.summary.get(statistic.name)
        curve = self.curve()
        if statistic.kind:
            return self.own(statistic, curve)
        values = list(curve.values())
        if not values:
            return None
        if statistic.name == "best":
            return max(values)
        if statistic.name in ("last", "last5"):
            return statistics.fmean(values[-1 if statistic.name == "last" else -5 :])
        if statistic.name == "early":
            return statistics.fmean(values[: max(1, self.rounds // 10)])
        half = values[len(values) // 2 :]
        changes = [after - before for before, after in itertools.pairwise(half)]
        return statistics.stdev(changes) if len(changes) > 1 else None

    def own(self, statistic: Statistic, curve: Mapping[int, float]) -> float | None:
        """A statistic of a paper's own; None where a run never reaches the value, or has none of these rounds."""
        if statistic.kind == "first":
            return next((float(round) for round, value in curve.items() if value >= statistic.argument), None)
        if statistic.kind == "best_within":
            first, last = statistic.argument
            return max((value for round, value in curve.items() if first <= round <= last), default=None)
        return self.at_best(statistic.argument, self.level)

    def at_best(self, best: str, level: str) -> float | None:
        """The accuracy of a level in the first round in which that of the level `best` is best."""
        leading, other = (replace(self, level=name).curve() for name in (best, level))
        return other.get(max(leading, key=lambda round: (leading[round], -round))) if leading else None

    def measured(self, metric: str) -> dict[int, float]:
        """Another metric than accuracy by round, in order, NaN where it has no value; nothing for an unfinished run."""
        if metric.startswith(FOREIGN):  # the record has the name of the dataset used
            asked = metric.removeprefix(FOREIGN).removesuffix("_sd")
            metric = metric.replace(asked, self.foreign.get(asked, asked))
        return dict(sorted(runs.measured(self.folder).get(metric, {}).items())) if self.done else {}

    def reliability(self, model: str = "global") -> dict[float, float]:
        """A server's model's accuracy in [0, 1] in the last round by the middle of each bin of confidence in percent, of bins with
        at least a thousandth of all images; nothing for an unfinished run, or one whose record is from before there were bins."""
        found = runs.measured(self.folder, model) if self.done and not self.diverged else {}
        last = {
            what: [next(iter(found[name].values())) for name in found if re.fullmatch(rf"reliability_\d+_{what}", name)]
            for what in ("images", "right")
        }
        bins = len(last["images"])
        each = enumerate(zip(last["images"], last["right"], strict=True))
        least = max(1, sum(last["images"]) / 1000)
        return {100 * (number + 0.5) / bins: right / images for number, (images, right) in each if images >= least}

    def along_labelled(self) -> dict[float, float]:
        """In active learning, accuracy in [0, 1] by the labelled images that all clients together trained on: of the last
        round with so many. Nothing for an unfinished run."""
        labelled = runs.diagnostic(self.folder, "labelled_images") if self.done else {}
        return {labelled[round]: value for round, value in self.curve().items() if round in labelled}

    def curve(self) -> dict[int, float]:
        """Accuracy in [0, 1] by round, in order; nothing for an unfinished run."""
        if self.level == "personal":
            return runs.together(self.folder) if self.done else {}
        of_level = {"global": "global", "local": "mean", "global_on_shard": f"global on {self.client}"}
        series = of_level.get(self.level, self.client)
        return dict(sorted(runs.curves(self.folder).get(series, {}).items())) if self.done else {}


FIELDS = [each.name for each in fields(Record)]


@dataclass(frozen=True)
class Study:
    """One paper as one config runs it: the paper's YAML, the config's notice, and the records."""

    paper: str
    spec: Mapping[str, Any]
    notice: str
    records: Sequence[Record]

    @property
    def own_method(self) -> str:
        """The label of the paper's own method: the first that bears the paper's name, else its first."""
        methods = self.spec["methods"]
        return next((label for label, block in methods.items() if block.get("name") == self.paper), next(iter(methods)))

    @property
    def heading(self) -> str:
        """What the paper is called: by the label of the method that bears its name, else by its file's name."""
        return self.own_method if self.spec["methods"][self.own_method].get("name") == self.paper else self.paper

    def published(self, papers: Path) -> Path:
        """Where the printed numbers are, if there are any: in `papers`, but for a paper among a user's own parts.

        Raises InputError where the paper had some when it was planned, and they are not there.
        """
        path = Path(self.spec.get("folder", papers), f"{self.paper}.published.csv")
        if self.spec.get("printed") and not path.is_file():
            raise InputError(
                f"{path}: the printed numbers are not there; run this in the folder that the plan was made in"
            )
        return path

    def label(self, name: object) -> str:
        """How the paper writes a name (`cifar10` -> `CIFAR10`)."""
        return str(self.spec.get("labels", {}).get(str(name), name))

    def labelled(self, field: str, value: str) -> str:
        """A value by its label, with the name of its axis before it where it has none: `lr 0.1`."""
        label = self.label(value)
        plain = field in FIELDS and field not in BUDGET
        return label if label != value or plain else f"{spoken(field)} {value}"

    def axes(self, record: Record) -> str:
        """The axes of a record that have no field of their own, in words: `lr 0.1, participation 0.5`."""
        return ", ".join(self.labelled(axis, value) for axis, value in record.axes.items())

    def labels(self, names: str) -> str:
        """`label` of names that are joined by `+` (the datasets of a multi-task run)."""
        return "+".join(self.label(name) for name in names.split("+"))

    def stand_ins(self, records: Iterable[Record]) -> str:
        """`digits for CIFAR10`, for the records trained on another dataset than the paper's; else ""."""
        pairs = {
            f"{used} for {self.label(asked)}": None
            for record in records
            for used, asked in zip(record.used.split("+"), record.dataset.split("+"), strict=True)
            if used != asked
        }
        return ", ".join(pairs)

    def budget(self, records: Sequence[Record]) -> str:
        """Everything in which the records' runs and data differ from the paper's, in words; `paper's` without any."""
        if not records:
            return "not in this plan"
        changes = unique(change for record in records for change in record.changes)
        return ", ".join(part for part in (self.stand_ins(records), *changes) if part) or AS_PAPER


@dataclass(frozen=True)
class Score:
    """A statistic over seeds: mean, sample standard deviation (None for one), the numbers of seeds with a value, diverged,
    and planned; and of finished runs that have no value, why: of how many seeds, and of how many clients elsewhere."""

    mean: float | None
    sd: float | None
    seeds: int
    diverged: int
    planned: int
    missing: Mapping[str, int]
    left_out: Mapping[str, int]
    statistic: Statistic = BEST

    @property
    def scale(self) -> int:
        """What values are multiplied by to be shown."""
        return self.statistic.scale

    def shown(self) -> str:
        """`80.71`, `80.71 ± 0.30`, or what stands in its place: `diverged`, why a finished run has no value, or "" where
        nothing is finished. Percent with two decimals, fractions with three, rounds with at most one."""
        if self.mean is None:
            return DIVERGED if self.diverged else " or ".join(self.missing)
        return self.number(self.mean) + (f" ± {self.number(self.sd)}" if self.sd is not None else "")

    def number(self, value: float | None) -> str:
        """A mean, or a standard deviation, as shown; "" for none."""
        if value is None:
            return ""
        places = self.statistic.decimals
        return f"{round(value, 1):g}" if places is None else f"{self.scale * value:.{places}f}"

    def count(self) -> str:
        """`3`, or `2 of 3` while seeds are missing, or `1 of 3, 1 diverged`; and why finished runs have no value:
        `never took part`, `2 of 3, 1 never took part`, `3, without 1 client: never took part`."""
        if list(self.missing.values()) == [self.planned]:
            return next(iter(self.missing))
        words = [str(self.seeds) if self.seeds == self.planned else f"{self.seeds} of {self.planned}"]
        words += [f"{self.diverged} {DIVERGED}"] if self.diverged else []
        words += [f"{count} {why}" for why, count in self.missing.items()]
        return ", ".join([*words, *self.without()])

    def without(self) -> list[str]:
        """The clients that a mean leaves out, and why: `without 1 client: never took part`."""
        return [f"without {count} client{'s' if count > 1 else ''}: {why}" for why, count in self.left_out.items()]


def score(records: Iterable[Record], statistic: Statistic) -> Score:
    """Mean and spread over seeds; several records of a seed (clients) are averaged first."""
    by_seed: dict[str, list[float]] = {}
    reasons: dict[str, list[tuple[str, str]]] = {}
    diverged = set()
    for record in records:
        value = record.value(statistic)
        by_seed.setdefault(record.seed, []).extend([] if value is None else [value])
        why = record.missing
        if value is None and record.done and not record.diverged:
            known = {"first": NEVER, "best_within": TOO_SHORT, "labelled": ALL_LABELLED}
            why = why or known.get(statistic.kind or statistic.name, "")
            why = UNRECORDED if statistic.of != "accuracy" else why
        reasons.setdefault(record.seed, []).extend([(record.client, why)] if why else [])
        diverged |= {record.seed} if record.diverged else set()
    values = [statistics.fmean(of_seed) for of_seed in by_seed.values() if of_seed]
    return Score(
        mean=statistics.fmean(values) if values else None,
        sd=statistics.stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        diverged=len(diverged),
        planned=len(by_seed),
        missing=Counter(why for seed, all in reasons.items() if not by_seed[seed] for why in {why for _, why in all}),
        left_out=Counter(why for _, why in {one for seed, all in reasons.items() if by_seed[seed] for one in all}),
        statistic=statistic,
    )


def precision(record: Record) -> str:
    """The precision that a finished run was computed in."""
    return str(runs.provenance(record.folder)["precision"])


def machines(provenance: Mapping[str, Any]) -> dict[str, list[str]]:
    """Where a run was computed, each machine of a resumed one in order with its numbers of threads on a CPU."""
    found: dict[str, list[str]] = {}
    for one in provenance.get("sessions", [{"by": provenance}]):
        by = one["by"]
        found.setdefault(by["hardware"], []).extend([str(by["threads"])] if by["device"] == "cpu" else [])
    return found


def place(provenance: Mapping[str, Any]) -> str:
    """Where a run was computed, and in which precision: `AMD EPYC, 1 then 2 threads, bf16`."""
    told = [", ".join([name, *in_threads(unique(of_one), " then ")]) for name, of_one in machines(provenance).items()]
    return f"{' then '.join(told)}, {provenance['precision']}"


def places(provenances: Iterable[Mapping[str, Any]]) -> str:
    """Where several runs were computed, each kind of machine once: `AMD EPYC (1 or 2 threads, bf16) and H200 (fp32)`."""
    found: dict[tuple[str, str], list[str]] = {}
    for provenance in provenances:
        for name, threads in machines(provenance).items():
            found.setdefault((name, provenance["precision"]), []).extend(threads)
    return " and ".join(
        f"{name} ({', '.join([*in_threads(sorted(set(threads), key=int), ' or '), precision])})"
        for (name, precision), threads in found.items()
    )


def in_threads(numbers: Sequence[str], between: str) -> list[str]:
    """Numbers of threads in words, or none at all where there are none, as of a GPU."""
    return [f"{between.join(numbers)} thread{'s' * (list(numbers) != ['1'])}"] if numbers else []


def select(records: Iterable[Record], where: Mapping[str, Any]) -> list[Record]:
    """The records whose fields or axes equal the values of `where` (a value, or a list of accepted values).

    Raises InputError for a field or axis that no record has, unless what stands before it in `where` already fits none.
    """
    found = records = list(records)
    for field, value in where.items():
        if found and field not in FIELDS and not any(field in record.axes for record in records):
            known = [*FIELDS, *unique(axis for record in records for axis in record.axes)]
            raise InputError(f"no field '{field}' of a cell; {nearest(field, known)}")
        accepted = {text(each) for each in (value if isinstance(value, list) else [value])}
        found = [record for record in found if record.field(field) in accepted]
    return found


def of_metric(records: Iterable[Record], metric: str, own: Mapping[str, Any]) -> tuple[list[Record], Statistic]:
    """The records and the statistic of a metric: whose, of what, and which: `client_accuracy_best` -> (of clients, best),
    `global_ece_last` -> (of the server's model, the ECE of the last round).

    `own` are the statistics of the paper's YAML. Raises InputError for an unknown metric.
    """
    found = {name: Statistic(name) for name in STATISTICS} | {name: read_statistic(name, own[name]) for name in own}
    known = [f"{level}_accuracy_{name}" for level in LEVELS for name in found]
    measured = re.fullmatch(f"global_({'|'.join(MEASURES)}|{FOREIGN}.+)_(last|last5)", metric)
    if measured:
        return [record for record in records if record.level == "global"], Statistic(measured[2], of=measured[1])
    known += [f"global_{name}_last" for name in (*MEASURES, f"{FOREIGN}DATASET")]
    if metric not in known:
        raise InputError(f"unknown metric '{metric}'; {nearest(metric, known)}")
    level, _, name = metric.partition("_accuracy_")
    return [record for record in records if record.level == level], found[name]


def read_statistic(name: str, value: object) -> Statistic:
    """A statistic of a paper's own; raises InputError that says what is wrong with it."""
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


def text(value: object) -> str:
    """A value as records and plans write it: numbers by `%g` where that is all of them, nothing as ""."""
    if value is None:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def spoken(name: object) -> str:
    """A name of the code as people write it."""
    return str(name).replace("_", " ")


def unique(values: Iterable[str]) -> list[str]:
    """The different values, in order of first appearance."""
    return list(dict.fromkeys(values))


def studies(plan: Path) -> list[Study]:
    """Read `plan.json` and the run folders it names, in `runs` beside the plan's folder.

    Raises InputError when the plan is missing, no plan or one of another version.
    """
    if plan.is_dir():
        raise InputError(f"{plan}: this is a folder; expected the plan.json that `bayesfed plan` has written")
    if not plan.is_file():
        raise InputError(f"no plan at {plan}; make it with `bayesfed plan CONFIG --out {plan.parent}`")
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
        papers, cells = content["papers"], content["cells"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{plan} is no plan; give results/<config>/plan/plan.json, as `bayesfed plan` makes it"
        ) from None
    folder = plan.parent.parent / "runs"
    try:
        runs.forget_changed({folder / cell["folder"] for cell in cells})  # a process may ask again (tests, notebooks)
        return [
            study(name, spec, content.get("notice") or "", [cell for cell in cells if cell["paper"] == name], folder)
            for name, spec in papers.items()
        ]
    except KeyError as error:
        raise InputError(f"{plan}: a plan of another version (no {error}); make it anew with `bayesfed plan`") from None


def study(
    paper: str, spec: Mapping[str, Any], notice: str, planned: Iterable[Mapping[str, Any]], runs_folder: Path
) -> Study:
    """A paper with the records of its planned cells, from the run folders below `runs_folder`."""
    return Study(paper, spec, notice, [record for cell in planned for record in _records(cell, spec, runs_folder)])


def _records(cell: Mapping[str, Any], spec: Mapping[str, Any], runs_folder: Path) -> list[Record]:
    """The records of a cell: the server's model (none in a multi-task run), the clients, the server's model on their
    shards, the clients' own models together and, where they are tested on the full set every round, their mean."""
    levels = levels_of(spec, cell["experiment"])
    folder = runs_folder / cell["folder"]
    summary = runs.summary(folder)
    clients = cell["clients"]
    datasets, used = _each(cell["dataset"], clients), _each(cell["used"], clients)
    several = isinstance(cell["dataset"], list)

    def record(level: str, client: str, model: object, dataset: str, on: str, block: str, k: int | None) -> Record:
        stored = (summary or {}).get(block) or {}
        values = _values(stored, k)
        diverged = ((summary or {}).get("diverged") or {}).get("round", 0)
        return Record(
            experiment=cell["experiment"],
            dataset=dataset,
            used=on,
            setting=text(cell.get("setting")),
            alpha=text(cell.get("alpha")),
            stragglers=text(cell.get("stragglers")),
            axes={axis: text(value) for axis, value in cell["axes"].items()},
            model=text(model),
            client=client,
            method=cell["method"],
            seed=text(cell["seed"]),
            rounds=cell["rounds"],
            local_epochs=cell["local_epochs"],
            batch_size=cell["batch_size"],
            changes=tuple(cell["changes"]),
            foreign=cell.get("foreign", {}),
            asks=tuple(cell["asks"]),
            folder=folder,
            done=summary is not None,
            diverged=diverged,
            level=level,
            summary=values,
            missing="" if summary is None or diverged or values else _why(stored, k),
        )

    found = []
    shared = cell.get("model") or cell["models"].get("global")
    local = cell["models"].get("local") or [shared] * clients
    if not several:
        found.append(record("global", "global", shared, datasets[0], used[0], "global", None))
    for k in range(clients if summary or "client" in levels else 0):
        found.append(record("client", str(k + 1), local[k], datasets[k], used[k], "clients", k))
    for k in range(clients if summary or "global_on_shard" in levels else 0):
        found.append(record("global_on_shard", str(k + 1), shared, datasets[k], used[k], "global_on_shards", k))
    whole = slice(None if several else 1)
    together = record("personal", "all", shared, "+".join(datasets[whole]), "+".join(used[whole]), "", None)
    found.append(replace(together, missing=_why_not_together(summary)))
    if not several and cell["clients_on_test"] == "round":
        mean = record("local", "mean", shared, datasets[0], used[0], "", None)
        found.append(replace(mean, missing="" if mean.curve() or not mean.done else NOT_TESTED))
    return found


def levels_of(spec: Mapping[str, Any], experiment: str) -> set[str]:
    """The levels of the accuracies that a paper's tables, figures and claims ask of an experiment."""
    found = {
        column.get("metric", table.get("metric"))
        for table in spec.get("tables", {}).values()
        if table.get("experiment") == experiment
        for column in table.get("columns", [])
    }
    figures = spec.get("figures", {}).values()
    found |= {figure.get("accuracy") for figure in figures if figure.get("experiment") == experiment}
    found |= {claim.get("metric") for claim in spec.get("claims", []) if experiment in claim.get("experiments", [])}
    return {str(metric).partition("_accuracy_")[0] for metric in found}


def _why(block: Mapping[str, Any], client: int | None) -> str:
    """Why a finished run has no accuracy of a model."""
    if client is None:
        return NO_GLOBAL
    return str(block.get("missing", {}).get(str(client), UNRECORDED))


def _why_not_together(summary: Mapping[str, Any] | None) -> str:
    """Why a run has no accuracy of all clients together; "" for one that has, or is not finished, or diverged."""
    if summary is None or summary.get("diverged"):
        return ""
    if "test_images" not in summary:
        return UNRECORDED
    block, images = summary.get("clients") or {}, summary["test_images"]
    if not any(images):
        return _why(block, 0)
    untested = [k for k, count in enumerate(images) if count and not _values(block, k)]
    return _why(block, untested[0]) if untested else ""


def _each(names: str | list[str], clients: int) -> list[str]:
    """The dataset of every client."""
    return [names] * clients if isinstance(names, str) else (names + [names[-1]] * clients)[:clients]


def _values(block: Mapping[str, Any], client: int | None) -> dict[str, float]:
    """The statistics of one model in a summary's block, without those that are null."""
    found = {}
    for name in ("best", "last", "last5"):
        entry = block.get(f"accuracy_{name}")
        if client is not None:
            entry = entry[client] if isinstance(entry, list) and client < len(entry) else None
        value = runs.number(entry)
        if value is not None:
            found[name] = value
    return found
