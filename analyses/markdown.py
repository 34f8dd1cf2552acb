"""Markdown tables of the pages that commands write."""

from collections.abc import Iterable
from typing import Any

from bayesfed.results.markdown import table as markdown


def table(head: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table and an empty line."""
    return markdown(head, [[str(cell) for cell in row] for row in rows]) + "\n"


def listed(*tables: Iterable[dict[str, str]]) -> str:
    """Tables of rows that have their heads with them, the first row all."""
    made = [list(rows) for rows in tables]
    return "".join(
        table(heads := list(rows[0]), [[row.get(head, "") for head in heads] for row in rows]) for rows in made
    )


def pivot(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """Return a Markdown table of (row, column, value), rows and columns in order of first appearance."""
    cells = list(cells)
    values = {(row, column): value for row, column, value in cells}
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    rows = dict.fromkeys(row for row, _, _ in cells)
    return table([corner, *columns], [[row, *(values.get((row, column), "") for column in columns)] for row in rows])
