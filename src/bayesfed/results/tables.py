"""The paper's tables in its own layout, with budget, seeds and data beside every number."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.results import cells, csv_file, formatting, per_run, selection, tails
from bayesfed.results import study as join
from bayesfed.results.statistics import Statistic

BESIDE = ("seeds", *cells.BUDGET, "dataset_used", "budget")  # columns beside those of a table's YAML
ALSO = ("of_rounds", "chosen")  # and these, where there is something to say


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

    def of_rounds(self) -> str:
        """Of which rounds its last values are, and those of the last five beside it, where not of the run's last."""
        return tails.of_rounds(self.records, self.statistic, self.statistic.last5)


def title(study: cells.Study, keys: Mapping[str, Any]) -> str:
    """A column's title, given or from its keys: `HBFL`, `client 1: CIFAR10, LeNet5`."""
    if "title" in keys:
        return str(keys["title"])
    words = [study.labelled(key, formatting.text(value)) for key, value in keys_of(keys).items() if key != "client"]
    client = f"client {study.written('client', str(keys['client']))}" if "client" in keys else ""
    return ": ".join(part for part in (client, ", ".join(words)) if part)


def rows(study: cells.Study, table: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], list[Cell]]]:
    """Row by row in the paper's order: the row's keys and its cells.

    A table's YAML: `experiment`, `metric`, `rows` (key -> values, crossed in order), `columns` (a list of
    keys each, with a `title` and a `metric` where a column has its own), `published` (items of the published CSV;
    default: the table's name), `title`, `note`, `search` (results/selection.py).
    """
    records = cells.select(study.records, {"experiment": table["experiment"]})
    records = selection.choose(study, records, table.get("search"))
    own = study.spec.get("statistics", {})
    for values in itertools.product(*table["rows"].values()):
        keys = dict(zip(table["rows"], map(formatting.text, values), strict=True))
        of_row = cells.select(records, keys)
        found = []
        for column in table["columns"]:
            metric, asked = column.get("metric", table.get("metric")), keys_of(column)
            of_column, statistic = cells.of_metric(cells.select(of_row, asked), metric, own)
            named = {**keys, **{key: formatting.text(value) for key, value in asked.items()}}
            found.append(Cell(named, title(study, column), of_column, metric, statistic))
        yield keys, found


def keys_of(column: Mapping[str, Any]) -> dict[str, Any]:
    """What a column asks of its cells."""
    return {key: value for key, value in column.items() if key not in ("metric", "title")}


def layout(study: cells.Study, table: Mapping[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """A table's columns and rows as text: percent with two decimals, fractions with three, `mean ± sd` over several seeds.

    Beside each column but those of rounds `... last5` gives the mean of the last five rounds, since the best round is chosen
    on the test set; of what is not measured every round, of the last five in which it is. Where a last round, or the last
    five, are not those of the run, `of_rounds` says which they are. A cell without a finished run is empty.
    """
    whole = list(rows(study, table))
    titles = [title(study, column) for column in table["columns"]]
    scored = formatting.unique(cell.column for _, of_row in whole for cell in of_row if cell.statistic.kind != "first")
    found = []
    for keys, of_row in whole:
        row = {key: study.written(key, value) for key, value in keys.items()}
        for cell in of_row:
            row[cell.column] = cell.score().shown()
            if cell.column in scored:
                row[f"{cell.column} last5"] = cell.score(cell.statistic.last5).shown()
        row["seeds"] = _common({cell.column: cell.score().count() for cell in of_row})
        for field in cells.BUDGET:
            row[field] = _common({cell.column: budget(cell.records, field) for cell in of_row})
        row["dataset_used"] = _common({cell.column: used(study, cell.records) for cell in of_row})
        row["budget"] = study.budget([record for cell in of_row for record in cell.records])
        row["of_rounds"] = _where({cell.column: cell.of_rounds() for cell in of_row})
        row["chosen"] = _common({cell.column: selection.chosen(cell.records) for cell in of_row})
        found.append(row)
    said = {"of_rounds": any(row["of_rounds"] for row in found), "chosen": "search" in table}
    also = [name for name in ALSO if said[name]]
    header = [*table["rows"], *titles, *(f"{each} last5" for each in scored), *BESIDE, *also]
    return header, [{name: row[name] for name in header} for row in found]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rows))


def budget(records: list[cells.Record], field: str) -> str:
    """The records' value of a budget field; several are joined by ` or `."""
    return " or ".join(formatting.unique(str(getattr(record, field)) for record in records))


def used(study: cells.Study, records: list[cells.Record]) -> str:
    """The dataset trained on, in the paper's writing where it is the paper's."""
    return " or ".join(formatting.unique(study.labels(record.used) for record in records))


def _common(values: Mapping[str, str]) -> str:
    """The one value of a row's cells, or each with its column's title behind it."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{value or 'none'} ({column})" for column, value in values.items())


def _where(values: Mapping[str, str]) -> str:
    """The one value of a row's cells, or each that is not empty with the titles of its columns behind it."""
    columns: dict[str, list[str]] = {}
    for column, value in values.items():
        columns.setdefault(value, []).append(column)
    return (
        next(iter(columns))
        if len(columns) == 1
        else "; ".join(f"{value} ({', '.join(of)})" for value, of in columns.items() if value)
    )


def write(plan: Path, out: Path) -> list[Path]:
    """Write each paper's tables, clients.csv and uncertainty.csv as `<out>/<paper>/<name>.csv`.

    Returns the files written. Raises InputError for a missing plan, a damaged run folder or a table that asks for what does
    not exist.
    """
    written = []
    for study in join.studies(plan):
        folder = out / study.paper
        for name, table in study.spec.get("tables", {}).items():
            written.append(csv_file.write(folder / f"{name}.csv", *layout(study, table)))
        written.append(csv_file.write(folder / "clients.csv", *per_run.clients(study)))
        written.append(csv_file.write(folder / "uncertainty.csv", *per_run.uncertainty(study)))
    return written
