"""A paper's published numbers, checked against its tables before anything is run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError, nearest
from bayesfed.plan.paper_check import naming, one_of
from bayesfed.results import cells, formatting, published_numbers
from bayesfed.results.study import Study


def check(study: Study, published: Path) -> None:
    """Check the published numbers: each is in a cell of a table, and what else its row says is true of that cell's runs.

    Raises InputError that names the file.
    """
    naming(str(published), check_file, study, published)


def check_file(study: Study, published: Path) -> None:
    """Raise InputError where a row cannot be read, or has an unknown column, item or cell."""
    rows = published_numbers.read_published(published)
    axes = formatting.unique(axis for record in study.records for axis in record.axes)
    for column in rows[0] if rows else ():
        if column not in ("item", *published_numbers.KEYS, "value", "sd", "unplanned"):
            one_of(column, axes, "axis")
    by_item: dict[str, list[Mapping[str, Any]]] = {}
    for name, table in study.spec.get("tables", {}).items():
        for item in table.get("published", [name]):
            by_item.setdefault(item, []).append(table)
    for row in rows:
        one_of(row["item"], by_item, "table")
    for item, of_item in by_item.items():
        check_item(study, [row for row in rows if row["item"] == item], of_item)


def check_item(study: Study, rows: published_numbers.Published, of_item: Iterable[Mapping[str, Any]]) -> None:
    """Check the published numbers of one item: each is of a cell of its tables, and says what that cell's runs have, or
    it is of none, and says why."""
    placed = set[int]()
    every = [cell for table in of_item for _, of_row in cells.rows(study, table) for cell in of_row]
    for cell in every:
        for row in published_numbers.published_of(study, cell, rows):
            check_row(study, row, cell)
            placed.add(id(row))
    for row in rows:
        keys = ", ".join(f"{key} {row[key]}" for key in published_numbers.KEYS if row[key])
        if row.get("unplanned"):
            published_numbers.unplanned(study, row)  # raises for its metric
            if id(row) in placed:
                raise InputError(f"unplanned: a cell of {row['item']} has {keys}; leave the reason out")
        elif id(row) not in placed:
            for key in ("setting", "method"):
                written = formatting.unique(study.written(key, cell.keys[key]) for cell in every if key in cell.keys)
                if row[key] and written and row[key] not in written:
                    one_of(row[key], written, f"{key} of {row['item']}")
            raise InputError(f"no cell of {row['item']} has {keys}, which is published as {row['value']}")


def check_row(study: Study, row: Mapping[str, str], cell: cells.Cell) -> None:
    """Raise InputError where a row of published numbers says of its cell what no run of it has."""
    left = [
        key
        for key in (*published_numbers.KEYS, *cell.records[0].axes)
        if key not in ("metric", *cell.keys) and row.get(key)
    ]
    for key in left:
        found = formatting.unique(filter(None, (study.written(key, record.field(key)) for record in cell.records)))
        if found and row[key] not in found:
            raise InputError(
                f"{row['item']}: no run of the cell with {row['value']} has {key} '{row[key]}'; {nearest(row[key], found)}"
            )
