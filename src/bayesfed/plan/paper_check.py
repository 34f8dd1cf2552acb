"""A paper's tables, figures and claims, checked against its grid before anything is run."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayesfed.core.errors import InputError, nearest
from bayesfed.papers.spec import Shows
from bayesfed.results import cells, claims, formatting, selection, tables
from bayesfed.results.records import Record, of_metric, select
from bayesfed.results.statistics import LEVELS, PREDICTIVE, VALIDATION, foreign_of, read_metric
from bayesfed.results.study import Study

if TYPE_CHECKING:
    from bayesfed.runs.spec import Run


OF_KIND = {  # what each kind of claim has beside what all have
    "higher": ("method", "than"),
    "lower": ("method", "than"),
    "not higher": ("method", "than"),
    "higher at": ("methods", "along", "at", "than"),
    "falls": ("methods", "along"),
    "rises": ("methods", "along"),
    "smaller gain": ("method", "than", "dataset", "than_dataset"),
}
SHOWS = tuple(name for name in Shows.__annotations__ if name not in ("label", "round"))  # of a figure, one of these
TAKEN = {  # names of a paper's own files among its tables, and of the report's parts among its papers
    "table": ("clients", "claims", "comparison", "runs", "summary", "uncertainty", "vs-published"),
    "paper": ("close", "content", "data", "overview", "speed", "story", "theme"),
}
UNASKED = {
    "mistakes": "does not ask for it (tasks: {mistakes: true})",
    "active": "has no active learning (active: {start, add, every})",
    "validation": "sets no validation images aside (validation: 0.1)",
}


Runs = Mapping[tuple[str, str], "Run"]
"""A run of each experiment and method, by their names."""


def paper(study: Study, runs: Runs) -> None:
    """Check a paper; the study's records are those of its own grid, none of them run.

    Raises InputError that names the item, in the paper's file or in the config that added it, what is wrong in it, and the
    nearest valid name.
    """
    spec = study.spec
    check_names(study)
    check_labels(study)
    for kind, check in (("tables", check_table), ("figures", check_figure)):
        for name, item in spec.get(kind, {}).items():
            naming(place(study, kind, name), check, study, item)
    for name, table in spec.get("tables", {}).items():
        for column in table["columns"]:
            metric = column.get("metric", table.get("metric"))
            narrowed = {"experiment": table["experiment"], **{key: column[key] for key in ("method",) if key in column}}
            naming(place(study, "tables", name), check_predictor, study, narrowed, metric, runs)
    for name, figure in spec.get("figures", {}).items():
        if metric := figure.get("shows", {}).get("metric"):
            narrowed = {"experiment": figure["experiment"], "method": figure["methods"]}
            naming(place(study, "figures", name), check_predictor, study, narrowed, f"{metric}_last", runs)
    for claim in spec.get("claims", []):
        where = f"{study.paper}.yaml, claim '{claim['claim']}'"
        naming(where, check_claim, study, claim)
        naming(where, check_predictor, study, {"experiment": claim["experiments"]}, claim["metric"], runs)
    for name in spec.get("summary", []):
        naming(f"{study.paper}.yaml, summary", one_of, name, spec.get("tables", {}), "table")


def check_names(study: Study) -> None:
    """Raise InputError for a paper or table that is called as something else is, and for full names of no axis."""
    for kind, names in (("paper", [study.paper]), ("table", study.spec.get("tables", {}))):
        for name in names:
            if name in TAKEN[kind]:
                raise InputError(
                    f"{study.paper}.yaml: a {kind} cannot be called '{name}', which has another use; rename it"
                )
    for name, experiment in study.spec["experiments"].items():
        axes = {*experiment.get("axes", {}), *(axis for case in experiment.get("cases", []) for axis in case)}
        for axis in experiment.get("full_names", []):
            naming(f"{study.paper}.yaml, {name}, full_names", one_of, axis, sorted(axes), "axis")


def check_labels(study: Study) -> None:
    """Raise InputError where two names have one label, by which panels, rows and columns are told apart."""
    names: dict[str, str] = {}
    for name, label in study.spec.get("labels", {}).items():
        if (other := names.setdefault(label, name)) != name:
            raise InputError(
                f"{study.paper}.yaml, labels: '{other}' and '{name}' are both called '{label}'; tell them apart"
            )


def place(study: Study, kind: str, name: str) -> str:
    """Return where a table or a figure is written: in the config that added it, or in the paper's file."""
    return f"config.{kind}.{name}" if name in study.spec["added"][kind] else f"{study.paper}.yaml, {name}"


def naming(where: str, check: Any, *arguments: Any) -> None:
    """Run a check; its place is put before what is wrong."""
    try:
        check(*arguments)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def one_of(value: object, valid: Iterable[object], what: str) -> None:
    """Raise InputError where a value is none of the valid ones."""
    valid = list(valid)
    if value not in valid:
        raise InputError(f"no {what} is named '{value}'; {nearest(value, valid)}")


def of_experiments(study: Study, names: Iterable[str]) -> list[Record]:
    """Return the records of experiments; raises InputError for an unknown one."""
    names = list(names)
    for name in names:
        one_of(name, study.spec["experiments"], "experiment")
    return select(study.records, {"experiment": names})


def of_level(records: Sequence[Record], metric: str, own: Mapping[str, Any]) -> list[Record]:
    """Return the records of a metric; raises InputError where none of these experiments has any."""
    found, statistic = of_metric(records, metric, own)
    if asked := foreign_of(statistic.of):
        one_of(asked, formatting.unique(name for record in found for name in record.foreign), "OOD dataset of its runs")
    if records and not found:
        raise InputError(f"'{metric}': {named(records)} {without(metric.partition('_')[0])}")
    if statistic.of.startswith(VALIDATION):
        asked_for(found, "validation", metric)
    if statistic.of.startswith(("auroc_mistakes", "fpr95_mistakes")):
        asked_for(found, "mistakes", metric)
    if statistic.name == "labelled":
        asked_for(found, "active", metric)
    return found


def check_predictor(study: Study, where: Mapping[str, Any], metric: str, runs: Runs) -> None:
    """Raise InputError where a metric is of a predictor that no method of these cells has."""
    _, statistic = read_metric(metric, study.spec.get("statistics", {}))
    if statistic.predictor in ("", PREDICTIVE):
        return
    from bayesfed.engine.dry import predictor_names

    records = select(study.records, where)
    found = [predictor_names(runs[pair]) for pair in {(record.experiment, record.method): None for record in records}]
    known = [name for of_method in found for name in sorted(of_method or ())]
    if None not in found and statistic.predictor not in known:
        whose = " or ".join(formatting.unique(record.method for record in records))
        raise InputError(
            f"'{metric}': {whose} has no predictor '{statistic.predictor}'; {nearest(statistic.predictor, known)}"
        )


def asked_for(records: Sequence[Record], what: str, where: str) -> None:
    """Raise InputError where no run of these experiments is asked for it."""
    if records and not any(what in record.asks for record in records):
        raise InputError(f"'{where}': {named(records)} {UNASKED[what]}")


def named(records: Iterable[Record]) -> str:
    """Return the experiments of records: `experiment 'one', 'other'`."""
    return "experiment " + ", ".join(f"'{name}'" for name in formatting.unique(record.experiment for record in records))


def without(level: str) -> str:
    """Return why an experiment has no accuracy of a level."""
    return "has no global model" if level == "global" else "does not test clients every round (clients_on_test: round)"


def number(record: Record, axis: str, key: str) -> None:
    """Raise InputError where a record's value of an axis is no number."""
    try:
        float(record.field(axis))
    except ValueError:
        raise InputError(f"{key}: '{record.field(axis)}' of {axis} is no number for an axis") from None


def values(records: Sequence[Record], where: Mapping[str, Any]) -> None:
    """Raise InputError for a field that records do not have, or a value that none of them has."""
    for field, value in where.items():
        select(records, {field: []})
        valid = formatting.unique(record.field(field) for record in records)
        for each in value if isinstance(value, list) else [value]:
            if formatting.text(each) not in valid:
                raise InputError(
                    f"no cell has {field} '{formatting.text(each)}'; {nearest(formatting.text(each), valid)}"
                )


def check_table(study: Study, table: Mapping[str, Any]) -> None:
    """Check a table: its experiment and metric, every value of rows and columns, and their crossings."""
    records, own = of_experiments(study, [table["experiment"]]), study.spec.get("statistics", {})
    values(records, {field: list(each) for field, each in table["rows"].items()})
    if "metric" in table:
        of_level(records, table["metric"], own)
    for column in table["columns"]:
        metric = column.get("metric", table.get("metric"))
        if metric is None:
            raise InputError("metric is missing; give the table one, or each of its columns")
        values(of_level(records, metric, own), cells.keys_of(column))
    titles = [cells.title(study, column) for column in table["columns"]]
    taken = [*table["rows"], *tables.BESIDE, *tables.ALSO, *(f"{title} last5" for title in titles)]
    for title in titles:
        if title in taken or titles.count(title) > 1:
            raise InputError(f"columns: two columns would be called '{title}'; give one of them another title")
    if "search" in table:
        metrics = [column.get("metric", table.get("metric")) for column in table["columns"]]
        used = [*table["rows"], *(key for column in table["columns"] for key in cells.keys_of(column))]
        check_search(study, table["search"], [table["experiment"]], metrics, used)
    for _, of_row in cells.rows(study, table):
        for cell in of_row:
            if not cell.records:
                crossing = ", ".join(f"{key} {value}" for key, value in cell.keys.items())
                raise InputError(f"no cell of experiment '{table['experiment']}' has {crossing}")


def check_figure(study: Study, figure: Mapping[str, Any]) -> None:
    """Check a figure: its experiment and accuracy, what it narrows to, its panels and curves."""
    one_of(figure["accuracy"], LEVELS, "accuracy")
    records_of = of_experiments(study, [figure["experiment"]])
    records = of_level(records_of, f"{figure['accuracy']}_accuracy_best", {})
    values(records, {"method": figure["methods"], **figure.get("where", {})})
    if "shows" in figure:
        check_shows(figure, records_of)
    along = [figure["x"]] if "x" in figure else []
    if "search" in figure:
        used = [*figure["rows"], *figure["columns"], figure.get("curves", "method"), *along]
        check_search(study, figure["search"], [figure["experiment"]], [f"{figure['accuracy']}_accuracy_best"], used)
    for field in [*figure["rows"], *figure["columns"], figure.get("curves", "method"), *along]:
        select(records, {field: []})
    for record in records if along else []:
        number(record, figure["x"], "x")


def check_shows(figure: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Check what a figure of these records shows in place of the accuracy over rounds: one thing, that its runs have."""
    shows = figure["shows"]
    kinds = [kind for kind in SHOWS if kind in shows]
    if len(kinds) != 1 or "x" in figure:
        raise InputError(
            f"shows: expected one of {', '.join(SHOWS)} and a label, and no `x` beside it, found {shows!r}"
        )
    if (asked := shows.get("round", 1)) < 1 and asked != -1:
        raise InputError(f"shows.round: expected a round from 1, or -1 for the last, found {asked}")
    if "metric" in shows:
        level, statistic = read_metric(f"{shows['metric']}_last", {})
        if not (statistic.predictor or level == "global"):
            raise InputError(f"shows.metric: expected a predictor's, as predictive_ece, found {shows['metric']}")
        of_level(records, f"{shows['metric']}_last", {})
    if "against" in shows:
        one_of(shows["against"], LEVELS, "accuracy")
        of_level(records, f"{shows['against']}_accuracy_best", {})
    if "labelled" in shows:
        asked_for(records, "active", "shows")


def check_claim(study: Study, claim: Mapping[str, Any]) -> None:
    """Check a claim: the keys of its kind, all its names, and that the paper's grid has a cell in which it can be tested."""
    kind = claim["kind"]
    for key in dict.fromkeys(itertools.chain(*OF_KIND.values())):
        if key in OF_KIND[kind] and key not in claim:
            raise InputError(f"{key} is missing; a claim of kind '{kind}' has {', '.join(OF_KIND[kind])}")
        if key in claim and key not in OF_KIND[kind]:
            raise InputError(f"{key}: no key of a claim of kind '{kind}'; valid: {', '.join(OF_KIND[kind])}")
    own = study.spec.get("statistics", {})
    records = of_level(of_experiments(study, claim["experiments"]), claim["metric"], own)
    if "along" in claim:
        select(records, {claim["along"]: []})
        for record in records if kind in ("falls", "rises") else []:
            number(record, claim["along"], "along")
    if "at" in claim:
        values(records, {"method": claim["methods"], claim["along"]: [claim["at"], *claim["than"]]})
    than = [] if "at" in claim else claim.get("than", [])
    methods = [*claim.get("methods", []), *than, *([claim["method"]] if "method" in claim else [])]
    datasets = [*claim.get("than_dataset", []), *([claim["dataset"]] if "dataset" in claim else [])]
    select(records, {axis: [] for axis in claim.get("apart", [])})
    values(records, {"method": methods, "dataset": datasets, **claim.get("where", {})})
    if "search" in claim:
        used = ["method", *([claim["along"]] if "along" in claim else [])]
        check_search(study, claim["search"], claim["experiments"], [claim["metric"]], used)
    if not claims.tests(study, claim):
        raise InputError("no cell of these experiments can test it")


def check_search(
    study: Study,
    asked: Mapping[str, Any],
    experiments: Sequence[str],
    metrics: Sequence[str],
    used: Sequence[str],
) -> None:
    """Check a search: axes of the experiments that their item does not tell cells apart by, and one accuracy a run."""
    try:
        records = of_experiments(study, experiments)
        found = {(record.experiment, record.level) for record in records}
        own = study.spec.get("statistics", {})
        _, by = of_metric([], asked["by"], own)
        if by.of.startswith(VALIDATION):
            asked_for(records, "validation", asked["by"])
        elif by.scale != 100 or by.of != "accuracy":
            valid = "or by validation_accuracy, validation_nll or validation_ece"
            raise InputError(f"by: '{asked['by']}' is no accuracy, and the best is chosen by one, {valid}")
        check_axes(records, asked["over"], used)
        for key, metric in [("by", asked["by"]), *(("metric", metric) for metric in metrics)]:
            level, _ = read_metric(metric, own)
            if level not in selection.LEVELS:
                raise InputError(
                    f"{key}: '{metric}' is one accuracy a client; a search is for one a run, such as global_accuracy_last"
                )
            for name in experiments:
                if (name, level) not in found:
                    raise InputError(f"{key}: '{metric}': experiment '{name}' {without(level)}")
    except InputError as error:
        raise InputError(f"search: {error}") from None


def check_axes(records: Sequence[Record], over: Sequence[str], used: Sequence[str]) -> None:
    """Raise InputError where a search is over no axis, or one that its item tells cells apart by."""
    known = [*selection.FIELDS[1:], *formatting.unique(axis for record in records for axis in record.axes)]
    for axis in over:
        one_of(axis, known, "axis")
        if axis in used:
            raise InputError(f"over: '{axis}' tells cells apart here, so the best cannot be chosen over it")
    if not over:
        raise InputError("over: expected the axes to choose the best over, found none")
