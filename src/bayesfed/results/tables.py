"""The paper's tables in its own layout, with budget, seeds and data beside every number."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.results import breakdown, cells, csvfile, join, search, wording
from bayesfed.results.statistic import Statistic

BESIDE = ("seeds", *cells.BUDGET, "dataset_used", "budget", "chosen")  # columns beside those of a table's YAML


@dataclass(frozen=True)
class Cell:
    """A printed cell: keys (names, not labels), column title, records, metric, and the statistic to print."""

    keys: Mapping[str, str]
    column: str
    records: list[cells.Record]
    metric: str
    statistic: Statistic

    def score(self, statistic: Statistic | None = None) -> cells.Score:
        """The cell's value over seeds, in [0, 1]; another statistic than the table's on request."""
        return cells.score(self.records, statistic or self.statistic)


def title(study: cells.Study, keys: Mapping[str, Any]) -> str:
    """A column's title, given or from its keys: `HBFL`, `client 1: CIFAR10, LeNet5`."""
    if "title" in keys:
        return str(keys["title"])
    words = [study.labelled(key, wording.text(value)) for key, value in keys_of(keys).items() if key != "client"]
    client = f"client {keys['client']}" if "client" in keys else ""
    return ": ".join(part for part in (client, ", ".join(words)) if part)


def rows(study: cells.Study, table: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], list[Cell]]]:
    """Row by row in the paper's order: the row's keys and its cells.

    A table's YAML: `experiment`, `metric`, `rows` (key -> values, crossed in order), `columns` (a list of
    keys each, with a `title` and a `metric` where a column has its own), `published` (items of the published CSV;
    default: the table's name), `title`, `note`, `search` (results/search.py).
    """
    records = cells.select(study.records, {"experiment": table["experiment"]})
    records = search.choose(study, records, table.get("search"))
    own = study.spec.get("statistics", {})
    for values in itertools.product(*table["rows"].values()):
        keys = dict(zip(table["rows"], map(wording.text, values), strict=True))
        of_row = cells.select(records, keys)
        found = []
        for column in table["columns"]:
            metric, asked = column.get("metric", table.get("metric")), keys_of(column)
            of_column, statistic = cells.of_metric(cells.select(of_row, asked), metric, own)
            named = {**keys, **{key: wording.text(value) for key, value in asked.items()}}
            found.append(Cell(named, title(study, column), of_column, metric, statistic))
        yield keys, found


def keys_of(column: Mapping[str, Any]) -> dict[str, Any]:
    """What a column asks of its cells."""
    return {key: value for key, value in column.items() if key not in ("metric", "title")}


def layout(study: cells.Study, table: Mapping[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """A table's columns and rows as text: percent with two decimals, fractions with three, `mean ± sd` over several seeds.

    Beside each column but those of rounds `... last5` gives the mean of the last five rounds, since the best round is chosen
    on the test set; of what is not measured every round, of the last five in which it is. A cell without a finished run is
    empty.
    """
    whole = list(rows(study, table))
    titles = [title(study, column) for column in table["columns"]]
    scored = wording.unique(cell.column for _, of_row in whole for cell in of_row if cell.statistic.kind != "first")
    header = [
        *table["rows"],
        *titles,
        *(f"{each} last5" for each in scored),
        *(BESIDE if "search" in table else BESIDE[:-1]),
    ]
    found = []
    for keys, of_row in whole:
        row = {key: study.label(value) for key, value in keys.items()}
        for cell in of_row:
            row[cell.column] = cell.score().shown()
            if cell.column in scored:
                row[f"{cell.column} last5"] = cell.score(cell.statistic.last5).shown()
        row["seeds"] = _common({cell.column: cell.score().count() for cell in of_row})
        for field in cells.BUDGET:
            row[field] = _common({cell.column: budget(cell.records, field) for cell in of_row})
        row["dataset_used"] = _common({cell.column: used(study, cell.records) for cell in of_row})
        row["budget"] = study.budget([record for cell in of_row for record in cell.records])
        if "search" in table:
            row["chosen"] = _common({cell.column: search.chosen(cell.records) for cell in of_row})
        found.append(row)
    return header, found


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rows))


def budget(records: list[cells.Record], field: str) -> str:
    """The records' value of a budget field; several are joined by ` or `."""
    return " or ".join(wording.unique(str(getattr(record, field)) for record in records))


def used(study: cells.Study, records: list[cells.Record]) -> str:
    """The dataset trained on, in the paper's writing where it is the paper's."""
    return " or ".join(wording.unique(study.labels(record.used) for record in records))


def _common(values: Mapping[str, str]) -> str:
    """The one value of a row's cells, or each with its column's title behind it."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{value or 'none'} ({column})" for column, value in values.items())


def write(plan: Path, out: Path) -> list[Path]:
    """Write each paper's tables, clients.csv and uncertainty.csv as `<out>/<paper>/<name>.csv`.

    Returns the files written. Raises InputError for a missing plan, a damaged run folder or a table that asks for what does
    not exist.
    """
    written = []
    for study in join.studies(plan):
        folder = out / study.paper
        for name, table in study.spec.get("tables", {}).items():
            written.append(csvfile.write(folder / f"{name}.csv", *layout(study, table)))
        written.append(csvfile.write(folder / "clients.csv", *breakdown.clients(study)))
        written.append(csvfile.write(folder / "uncertainty.csv", *breakdown.uncertainty(study)))
    return written
