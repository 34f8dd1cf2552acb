"""CSV files, written whole."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesfed.core.errors import InputError
from bayesfed.core.files import replacing


def write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows in the order of `columns`; a key that a row lacks is an empty cell. Returns `path`."""
    with replacing(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; raises InputError where one has more or fewer fields than there are columns, and for what
    is no UTF-8."""
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin it by a mark
            reader = csv.DictReader(file)
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
    return rows
