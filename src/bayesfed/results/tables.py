"""The CSV files of tables: the paper's layout, with budget, seeds and data beside every number, and the comparison with
the published numbers."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.results import cells, csv_file, latex, markdown, per_run, runs_table, selection
from bayesfed.results.derived import Derived
from bayesfed.results.formatting import spoken, unique
from bayesfed.results.published_numbers import COLUMNS, KEYS, axes_of
from bayesfed.results.records import BUDGET
from bayesfed.results.study import Study

BESIDE = ("seeds", *BUDGET, "dataset_used", "budget")  # columns beside those of a table's YAML
ALSO = ("of_rounds", "chosen", "note")  # and these, where there is something to say


def layout(study: Study, table: Mapping[str, Any], rows: Sequence[cells.Row]) -> tuple[list[str], list[dict[str, str]]]:
    """Lay a table out as columns and rows of text, numbers as `cells.Score.shown` writes them.

    Beside each column but those of rounds `... last5` gives the mean of the last five rounds, since the best round is chosen
    on the test set; of what is not measured every round, of the last five in which it is. Where a last round, or the last
    five, are not those of the run, `of_rounds` says which they are. A cell without a finished run is empty.
    """
    titles = [cells.title(study, column) for column in table["columns"]]
    rounds = [(cell.column, cell.statistic) for _, of_row in rows for cell in of_row if cell.statistic.over_rounds]
    scored = unique(column for column, statistic in rounds if statistic.name != "last5")
    found = []
    for keys, of_row in rows:
        row = {key: study.written(key, value) for key, value in keys.items()}
        for cell in of_row:
            row[cell.column] = cell.score.shown()
            if cell.column in scored:
                row[f"{cell.column} last5"] = cell.last5.shown()
        row["seeds"] = _common({cell.column: cell.score.count() for cell in of_row})
        for field in BUDGET:
            row[field] = _common({cell.column: cells.budget(cell.records, field) for cell in of_row})
        row["dataset_used"] = _common({cell.column: cells.used(study, cell.records) for cell in of_row})
        row["budget"] = study.budget([record for cell in of_row for record in cell.records])
        row["of_rounds"] = _where({cell.column: cell.of_rounds for cell in of_row})
        row["note"] = _where({cell.column: cell.caveat for cell in of_row})
        row["chosen"] = _common({cell.column: selection.chosen(cell.records) for cell in of_row})
        found.append(row)
    said = {name: any(row[name] for row in found) for name in ("of_rounds", "note")} | {"chosen": "search" in table}
    also = [name for name in ALSO if said[name]]
    header = [*table["rows"], *titles, *(f"{each} last5" for each in scored), *BESIDE, *also]
    return header, [{name: row[name] for name in header} for row in found]


def numbers(
    study: Study, table: Mapping[str, Any], rows: Sequence[cells.Row]
) -> tuple[list[str], list[dict[str, str]]]:
    """Lay a table out with the mean, the standard deviation over seeds and the number of seeds of each cell in columns of
    their own, in the units in which the table shows them."""
    found, header = [], list(table["rows"])
    for keys, of_row in rows:
        row = {key: study.written(key, value) for key, value in keys.items()}
        for cell in of_row:
            score = cell.score
            for name, value in (("mean", score.mean), ("sd", score.sd)):
                row[f"{cell.column} {name}"] = "" if value is None else f"{score.scale * value:.6g}"
            row[f"{cell.column} n"] = str(score.seeds)
        header = list(row)
        found.append(row)
    return header, found


def shortened(header: Sequence[str], rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[list[str]], str]:
    """Return the columns and rows of a table that people read, and a line on what is the same in all rows."""
    same = {
        name: rows[0][name] for name in (*BESIDE, *ALSO) if name in header and len({row[name] for row in rows}) == 1
    }
    kept = [name for name in header if name not in same]
    told = "; ".join(f"{spoken(name)}: {value}" for name, value in same.items() if value)
    return (
        [spoken(name) if name in BESIDE else name for name in kept],
        [[row[name] for name in kept] for row in rows],
        told,
    )


def _common(values: Mapping[str, str]) -> str:
    """Return the one value of a row's cells, or each with its column's title behind it."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{value or 'none'} ({column})" for column, value in values.items())


def _where(values: Mapping[str, str]) -> str:
    """Return the one value of a row's cells, or each that is not empty with the titles of its columns behind it."""
    columns: dict[str, list[str]] = {}
    for column, value in values.items():
        columns.setdefault(value, []).append(column)
    return (
        next(iter(columns))
        if len(columns) == 1
        else "; ".join(f"{value} ({', '.join(of)})" for value, of in columns.items() if value)
    )


def write(found: Iterable[Derived], out: Path) -> list[Path]:
    """Write each paper's tables, clients.csv, uncertainty.csv and runs.csv as `<out>/<paper>/<name>.csv`; returns the files.

    A table is also written as Markdown, as LaTeX, and as `<name>.numbers.csv`, whose cells are numbers alone. Raises
    InputError for a table that asks for what does not exist.
    """
    written = []
    for one in found:
        study, folder = one.study, out / one.study.paper
        for name, table in study.tables.items():
            header, rows = layout(study, table, one.rows[name])
            written.append(csv_file.write(folder / f"{name}.csv", header, rows))
            written.append(csv_file.write(folder / f"{name}.numbers.csv", *numbers(study, table, one.rows[name])))
            for end, form in (("md", markdown.page), ("tex", latex.table)):
                files.write_text(folder / f"{name}.{end}", form(table["title"], *shortened(header, rows)))
                written.append(folder / f"{name}.{end}")
        written.append(csv_file.write(folder / "clients.csv", *one.clients))
        written.append(csv_file.write(folder / "uncertainty.csv", *per_run.uncertainty(study, one.runs)))
        written.append(csv_file.write(folder / "runs.csv", *runs_table.lay_out(one.runs)))
    return written


def write_comparison(found: Iterable[Derived], out: Path) -> list[Path]:
    """Write `<out>/<paper>/<table>.compare.csv` for each table of each paper; returns the files.

    Errors are as in `write`; one where published numbers are not where they were when it was planned.
    """
    written = []
    for one in found:
        for name, compared in one.compared.items():
            path, table = out / one.study.paper / f"{name}.compare.csv", one.study.tables[name]
            rows = [of_cell.row for of_cell in compared]
            written.append(csv_file.write(path, [*KEYS, *axes_of(table), *COLUMNS], rows))
    return written
