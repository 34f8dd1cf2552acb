"""The CSV files of results, written whole."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesfed.core.files import replacing


def write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows in the order of `columns`; a key that a row lacks is an empty cell. Returns `path`."""
    with replacing(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
