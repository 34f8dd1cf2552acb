"""Files with the arrays of a dataset of a user's own: npz and CSV files, and tables that scikit-learn bundles."""

from __future__ import annotations

import csv
import itertools
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesfed.core.errors import InputError, nearest
from bayesfed.data.arrays import Split, checked_features, checked_images, records
from bayesfed.data.records import SPLITS, canonical_order, in_test_split

LABEL, CLIENT = "label", "client"  # columns of a CSV file; all others are features
BUNCHES = ("breast_cancer", "digits", "iris", "wine")


def read_npz(path: Path) -> Split:
    """Read and check the arrays of an npz file; no pickle is read."""
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise InputError(f"{path}: not readable as npz: it is no such file, which np.savez writes, or was cut off")
        with np.load(path, allow_pickle=False) as held:
            kinds = [kind for kind in ("images", "features") if kind in held.files]
            if len(kinds) == 2:
                raise InputError(f"{path}: it has images and features; keep one of the two arrays")
            kind = kinds[0] if kinds else "images"
            for name in (kind, "labels"):
                if name not in held.files:
                    raise InputError(f"{path}: there is no array '{name}'; {nearest(name, held.files)}")
            found = {name: plain(held, name, path) for name in (kind, "labels", "clients") if name in held.files}
            check = checked_images if kind == "images" else checked_features
            return check(found[kind], found["labels"], found.get("clients"), where=str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (
        OSError,
        EOFError,
        ValueError,
        AttributeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(f"{path}: not readable as npz: {' '.join(str(error).split())}") from None


def plain(held: Mapping[str, NDArray[np.generic]], name: str, path: Path) -> NDArray[np.generic]:
    """Return an array of an npz file; raise InputError for one of Python objects, which would be unpickled."""
    try:
        return held[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        remedy = {"labels": "number the classes from 0", "clients": "give their names as text, by .astype(str)"}
        told = remedy.get(name, "give numbers")
        raise InputError(f"{path}: '{name}' holds Python objects, which are not read; {told}") from None


def read_csvs(paths: Mapping[str, Path]) -> dict[str, Split]:
    """Read and check a table for each split: a column `label`, perhaps a column `client`, and features, in the order of the
    columns, which is the same in all tables.
    """
    read = {split: columns_of(path) for split, path in paths.items()}
    (first, train), *others = [
        (paths[split], [name for name in columns if name not in (LABEL, CLIENT)]) for split, columns in read.items()
    ]
    for path, names in others:
        if apart := next((pair for pair in itertools.zip_longest(names, train) if pair[0] != pair[1]), None):
            here, there = (f"'{name}'" if name is not None else "no further column" for name in apart)
            raise InputError(
                f"{path}: {here} where {first.name} has {there}; give both the same columns in the same order"
            )
    return {split: split_of(columns, paths[split]) for split, columns in read.items()}


def columns_of(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the columns of a table by their names, as texts."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head, *rows = csv.reader(file)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (ValueError, csv.Error):
        raise InputError(f"{path}: not readable as CSV; expected a line of names, then one line an example") from None
    if "" in (head := [name.strip() for name in head]):
        raise InputError(
            f"{path}: column {head.index('') + 1} has no name; name it or leave it out, as pandas' to_csv(index=False) does"
        )
    if twice := [name for name in head if head.count(name) > 1]:
        raise InputError(f"{path}: the column '{twice[0]}' occurs twice; rename one")
    if len(head) == 1 and (other := next((sign for sign in ";\t" if sign in head[0]), "")):
        raise InputError(
            f"{path}: its columns are parted by {'tabs' if other == chr(9) else repr(other)}; write commas"
        )
    if LABEL not in head:
        raise InputError(f"{path}: there is no column '{LABEL}'; {nearest(LABEL, head)}")
    while rows and not rows[-1]:  # blank lines at the end
        rows.pop()
    for line, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise InputError(f"{path}, line {line}: {len(row)} values for {len(head)} columns")
    return dict(zip(head, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(head, ())


def split_of(columns: Mapping[str, Sequence[str]], path: Path) -> Split:
    """Return the examples in the columns of a table, checked."""
    clients = np.array([name.strip() for name in columns[CLIENT]]) if CLIENT in columns else None
    if clients is not None and "" in clients:
        line = clients.tolist().index("") + 2
        raise InputError(f"{path}, line {line}: '{CLIENT}' is missing; fill it in, or leave the line out")
    if not columns.keys() - {LABEL, CLIENT}:
        raise InputError(
            f"{path}: there is no column beside '{LABEL}' and '{CLIENT}'; give the features, a column each"
        )
    features = [numbers(column, name, path, float) for name, column in columns.items() if name not in (LABEL, CLIENT)]
    labels = numbers(columns[LABEL], LABEL, path, int)
    return checked_features(np.array(features).T, labels, clients, where=str(path))


def numbers(column: Sequence[str], name: str, path: Path, kind: type) -> NDArray[np.generic]:
    """Return a column as numbers; raise InputError that names the line of what is none."""
    found = []
    for line, text in enumerate(column, 2):
        try:
            found.append(kind(text))
        except ValueError:
            what = "is missing; fill it in, or leave the line out" if not text.strip() else f"is {text!r}; expected a "
            what += "" if not text.strip() else f"{'whole ' if kind is int else ''}number"
            raise InputError(f"{path}, line {line}: '{name}' {what}") from None
    return np.array(found)


def read_bunch(name: str, share: float, where: str) -> dict[str, Split]:
    """Load a table that scikit-learn bundles; of each class, in canonical order, the first `share` is the test split."""
    if name not in BUNCHES:
        raise InputError(f"{where}: scikit-learn bundles no such table '{name}'; {nearest(name, BUNCHES)}")
    from sklearn import datasets

    loaded = getattr(datasets, f"load_{name}")()
    whole = checked_features(loaded.data, loaded.target, None, where=where)
    order = canonical_order(records({"train": whole})["train"])[0]
    is_test = in_test_split(whole.labels[order], share)
    return {
        split: Split(whole.values[order][rows], whole.labels[order][rows])
        for split, rows in zip(SPLITS, (~is_test, is_test), strict=True)
    }
