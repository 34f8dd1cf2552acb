"""Our numbers beside the printed ones, cell by cell; a verdict only where run and data are the paper's in everything."""

import csv
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.results import cells, csv_file, formatting, selection, tables
from bayesfed.results import study as join
from bayesfed.results.statistics import Statistic

KEYS = ("dataset", "setting", "alpha", "client", "model", "method", "metric")
COLUMNS = (
    "published", "mean", "sd", "seeds", "rounds", "difference", "verdict",
    "last5", "local_epochs", "batch_size", "dataset_used", "published_sd", "note",
)  # fmt: skip


def read_published(path: Path) -> list[dict[str, str]]:
    """The printed numbers in a `<paper>.published.csv`; none where there is no such file, or a value is empty. A column `sd`
    may have what is printed of their spread.

    Raises InputError when it lacks a column or has a cell twice, when a row has more or fewer fields than there are columns,
    when a value is no number, for accuracies as fractions, and for what is no UTF-8.
    """
    wanted = ["item", *KEYS, "value"]
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin it by a mark
            reader, rows = csv.DictReader(file), []
            for row in reader:
                if None in row or None in row.values():
                    found = len(row.get(None, ())) + sum(value is not None for key, value in row.items() if key)
                    raise InputError(
                        f"line {reader.line_num}: {found} fields, and there are {len(reader.fieldnames or ())} columns; a "
                        "number has a decimal point, and what tells nothing apart is left empty between two commas"
                    )
                rows.append(row)
    except UnicodeDecodeError:
        raise InputError("this is no text in UTF-8; save it so") from None
    missing = [name for name in wanted if rows and name not in rows[0]]
    if missing:
        raise InputError(f"no column '{missing[0]}'; expected {','.join(wanted)}")
    printed = [row for row in rows if row["value"]]
    once = set()
    for row in printed:
        cell = tuple(text for key, text in row.items() if key not in ("value", "sd"))
        if cell in once:
            raise InputError(f"{', '.join(filter(None, cell))}: this cell stands twice; keep one")
        once.add(cell)
    for row, column in itertools.product(printed, ("value", "sd")):
        try:
            finite = math.isfinite(float(row.get(column) or 0))
        except ValueError:
            finite = False
        named = ", ".join(f"{key} {row[key]}" for key in ("item", *KEYS) if row[key])
        if finite and "accuracy" in row["metric"] and not 0 <= float(row.get(column) or 0) <= 100:
            raise InputError(f"{column} '{row[column]}' of {named}: expected a percentage, 0 to 100")
        if not finite:
            raise InputError(
                f"{column} '{row[column]}' of {named}: expected a number, or nothing where none is printed"
            )
    for item in formatting.unique(row["item"] for row in printed):
        accuracies = [float(row["value"]) for row in printed if row["item"] == item and "accuracy" in row["metric"]]
        if accuracies and max(accuracies) <= 1 and any(0 < value < 1 for value in accuracies):
            raise InputError(f"no accuracy of {item} is above 1: these are fractions; write percent, 51.26 for 0.5126")
    return printed


def prints(study: cells.Study, cell: tables.Cell, row: Mapping[str, str]) -> bool:
    """Whether a row of printed numbers belongs to a cell of a table: its metric, and its keys as labels."""
    labels = {key: study.written(key, value) for key, value in cell.keys.items()}
    return row["metric"] == cell.metric and all(row.get(key) == value for key, value in labels.items())


def verdict(records: Sequence[cells.Record], difference: float | None, statistic: Statistic) -> str:
    """What may be said of a difference, as the statistic is shown (ours minus print; None: no result, or nothing
    printed)."""
    if not any(record.done for record in records):
        return "not run"
    if all(record.diverged for record in records if record.done):
        return cells.DIVERGED
    why = formatting.unique(record.missing for record in records if record.done and not record.diverged)
    if all(why):
        return " or ".join(why)
    if difference is None:
        return "not printed"
    if any(record.used != record.dataset for record in records):
        return "stand-in data"
    if not all(record.as_printed for record in records):
        return "not the paper's run"
    if abs(difference) <= statistic.close:
        return f"within {statistic.close:g}" + (f" {statistic.unit}" if statistic.close == 1 else "")
    return "higher" if difference > 0 else "lower"


def compare(
    study: cells.Study, table: Mapping[str, Any], items: Sequence[str], published: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """One row a cell of the table, in the paper's order, with the number of `items` that has its keys.

    Where a cell has no client but the printed rows have, the printed value is their mean (our number, not the
    paper's; the note says so). A cell without a printed number has none, and no verdict.
    """
    candidates = [row for row in published if row["item"] in items]
    return [beside(study, table, cell, candidates) for _, of_row in tables.rows(study, table) for cell in of_row]


def beside(
    study: cells.Study, table: Mapping[str, Any], cell: tables.Cell, published: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """The row of a cell; `published` are the printed numbers of its table."""
    printed = [row for row in published if prints(study, cell, row)]
    value = statistics.fmean(float(row["value"]) for row in printed) if printed else None
    score, last5 = cell.score(), cell.score(cell.statistic.last5)
    places = 1 if cell.statistic.decimals is None else cell.statistic.decimals
    # As it is shown, lest a point away be more than a point by a rounding.
    difference = None if score.mean is None or value is None else round(score.scale * score.mean - value, places)
    stand_in = any(record.used != record.dataset for record in cell.records)
    seeds = "" if score.seeds == score.planned else f"{score.count()} seeds finished"
    notes = [
        *remarks(study, cell, published),
        f"seeds: {score.count()}" if score.missing else seeds,
        table.get("note", ""),
    ]
    own = {"metric": cell.metric, **{key: study.written(key, value) for key, value in cell.keys.items()}}
    keys = {key: formatting.unique(row[key] for row in printed) or [own.get(key, "")] for key in KEYS}
    keys |= {key: [own.get(key, "")] for key in axes_of(table)}
    return {
        **{key: values[0] if len(values) == 1 else "" for key, values in keys.items()},
        "published": "" if value is None else score.number(value / score.scale),
        "mean": score.number(score.mean),
        "sd": score.number(score.sd),
        "seeds": str(score.seeds),
        "rounds": tables.budget(cell.records, "rounds"),
        # A number on other data is no difference to print.
        "difference": "" if difference is None or stand_in else f"{difference:+.{places}f}",
        "verdict": verdict(cell.records, difference, cell.statistic)
        if score.mean is not None or not score.missing
        else " or ".join(score.missing),
        "last5": last5.number(last5.mean) if cell.statistic.kind != "first" else "",
        "local_epochs": tables.budget(cell.records, "local_epochs"),
        "batch_size": tables.budget(cell.records, "batch_size"),
        "dataset_used": tables.used(study, cell.records),
        "published_sd": printed[0].get("sd", "") if len(printed) == 1 else "",
        "note": "; ".join(note for note in notes if note),
    }


def remarks(study: cells.Study, cell: tables.Cell, published: Sequence[Mapping[str, str]]) -> list[str]:
    """What is to be said of a cell beside how many seeds it has; `published` are the printed numbers of its table."""
    printed = [row for row in published if prints(study, cell, row)]
    score = cell.score()
    notes = [
        selection.chosen(cell.records),
        cell.of_rounds(),
        study.changes(cell.records),
        "" if score.missing else ", ".join(score.without()),
        f"printed value: mean of {len(printed)} printed cells" if len(printed) > 1 else "",
    ]
    return [note for note in notes if note]


def axes_of(table: Mapping[str, Any]) -> list[str]:
    """The keys of a table that printed numbers have no column for: axes such as `lr`."""
    asked = [*table["rows"], *(key for column in table["columns"] for key in tables.keys_of(column))]
    return [key for key in formatting.unique(asked) if key not in KEYS]


def write(plan: Path, out: Path) -> list[Path]:
    """Write `<out>/<paper>/<table>.compare.csv` for each table of each paper in the plan; returns the files.

    Errors are as in `tables.write`; one where printed numbers are not where they were when it was planned.
    """
    written = []
    for study in join.studies(plan):
        published = read_published(study.published)
        for name, table in study.spec.get("tables", {}).items():
            rows = compare(study, table, table.get("published", [name]), published)
            header = [*KEYS, *axes_of(table), *COLUMNS]
            written.append(csv_file.write(out / study.paper / f"{name}.compare.csv", header, rows))
    return written
