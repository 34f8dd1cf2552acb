"""A dataset of a user's own: a folder with `dataset.yaml` and arrays, or with a reader of the publisher's files.

Arrays: `train.npz` and `test.npz`, each with `images`, uint8 (N, H, W) or (N, H, W, C) with C from 1 to 4 behind, H = W, or
`features`, numbers (N, ...), and `labels`, whole numbers (N,) from 0 to 255. `clients`, (N,), numbers or names, says whose
each example is; without it in `test.npz`, the test examples are in common. Or `train.csv` and `test.csv` (tables.py), or the
name of a table that scikit-learn bundles under `bunch`.

A reader: `reader.py` with `read(folder)`, which gives {"train": (images, labels), "test": ...}, as above, floats for
features, `clients` behind them or not, from a folder with the files that `dataset.yaml` lists under `files`; without such a
list, from the dataset's own folder (data/reader.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import files, options
from bayesfed.core.errors import InputError, nearest
from bayesfed.core.options import option
from bayesfed.data import arrays, prepare, reader, tables
from bayesfed.data.arrays import Split
from bayesfed.data.reader import DESCRIPTION, READER
from bayesfed.data.records import SPLITS, canonical_order
from bayesfed.data.source import File, Format, Source

RECORD = "dataset.json"
TEST_SHARE = 0.2  # of a bundled table's examples
KINDS = ("npz", "csv")  # of arrays' files
FORMATS: dict[str, tuple[Format, str]] = {  # by what a folder has: the format, and the files it is read from
    "npz": ("arrays", "{split}.npz"), "csv": ("csv", "{split}.csv"), "reader": ("reader", READER), "bunch": ("bunch", "{bunch}"),
}  # fmt: skip


@dataclass(frozen=True)
class Description:
    """The content of `dataset.yaml`."""

    title: str
    licence: str = "none stated"
    homepage: str = ""
    classes: int | None = option(None, low=2, high=256)  # unless given the largest label and one
    prepare: Any = "none"  # a preparation's name, or {name: side}; the side is 32 unless given
    augment: bool = False
    mean: tuple[float, ...] = option((), low=0, high=1)
    std: tuple[float, ...] = option((), above=0, high=1)
    fingerprints: Any = None  # {train: ..., test: ...}
    bunch: str = ""  # a table that scikit-learn bundles, one of `tables.BUNCHES`
    test: float | None = option(None, above=0, high=0.5)  # its share of test examples; a fifth unless given
    files: tuple[Any, ...] = ()  # of the publisher: {name: ..., urls: [...], md5: ...} each


@dataclass(frozen=True)
class Facts:
    """Facts that the arrays of a dataset give, its first training example [1, ...] where they are at hand, what its
    record says of its reader (data/reader.py), and the names of its clients, which the data number in this order.

    shape: of an example, (C, H, W) of an image. features: whether examples are features in float32.
    """

    shape: tuple[int, ...]
    features: bool
    classes: int
    counts: Mapping[str, int]
    fingerprints: Mapping[str, str]
    first: NDArray[Any] | None = None
    reader: Mapping[str, Any] | None = None
    clients: tuple[str, ...] = ()


def describe(name: str, folder: Path, data: Path) -> Source:
    """Read and check the dataset in a folder; one with a reader as it is told of, where it is not fetched into `data`.

    Raises InputError that names the file, what is wrong in it, and what would be right.
    """
    names = (DESCRIPTION, READER, *(f"{split}.{kind}" for split in SPLITS for kind in KINDS))
    stamps = tuple(map(stamp, [*(folder / name for name in names), data / name / RECORD]))
    return _described(name, folder, data, stamps, reader.own_digest(folder) if (folder / READER).is_file() else "")


@functools.cache
def _described(name: str, folder: Path, data: Path, stamps: object, sources: str) -> Source:
    """Describe as `describe`, once, until a file changes; `sources`: a digest of the folder where there is a reader."""
    source = as_described(name, folder)
    if source.format != "reader":
        return filled(source, facts_of(read_splits(source), source))
    facts = recorded(data / name)
    return replace(filled(source, facts), reader=reader.identity(source, facts.reader)) if facts else source


def stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes with a file; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def as_described(name: str, folder: Path) -> Source:
    """Read the description of a dataset; what only its arrays say is 0 or empty."""
    where = str(folder / DESCRIPTION)
    text: Description = options.read(Description, files.read_yaml(folder / DESCRIPTION), where)
    if text.title[:1] in tuple("=+-@\t\r"):
        raise InputError(
            f"{where}.title: {text.title!r} begins as a formula of a spreadsheet does; begin with a letter"
        )
    how, target = prepare.read(text.prepare, f"{where}.prepare")
    kinds = [kind for kind in KINDS if any((folder / f"{split}.{kind}").exists() for split in SPLITS)]
    if (folder / READER).is_file():  # which may read CSV files beside it
        kinds = [*(kind for kind in kinds if kind == "npz"), "reader"]
    kinds += ["bunch"] if text.bunch else []
    if len(kinds) != 1:
        found = "both" if len(kinds) == 2 else "neither" if not kinds else ", ".join(kinds)
        raise InputError(f"{folder}: expected train.npz and test.npz (or .csv), `bunch`, or {READER}, found {found}")
    format_, names = FORMATS[kinds[0]]
    for key, given, used, by in (
        ("test", text.test, text.bunch, "bunch"),
        ("files", text.files, "reader" in kinds, READER),
    ):
        if given and not used:
            raise InputError(f"{where}.{key}: without {by} nothing reads it; leave it out")
    if text.bunch and text.bunch not in tables.BUNCHES:
        raise InputError(f"{where}.bunch: no table '{text.bunch}' is bundled; {nearest(text.bunch, tables.BUNCHES)}")
    return Source(
        name=name,
        title=text.title,
        licence=text.licence,
        homepage=text.homepage,
        classes=text.classes or 0,
        channels=0,
        size=0,
        train=0,
        test=0,
        format=format_,
        label_bytes=1,
        files=tuple(read_file(one, f"{where}.files") for one in text.files),
        parts=MappingProxyType({split: (names.format(split=split, bunch=text.bunch),) for split in SPLITS}),
        fingerprints=read_fingerprints(text.fingerprints, f"{where}.fingerprints"),
        mean=text.mean,
        std=text.std,
        prepare=how,
        target=target,
        augment="crop_flip" if text.augment else "none",
        folder=folder,
        test_share=text.test or TEST_SHARE,
    )


def read_splits(source: Source) -> dict[str, Split]:
    """Read the arrays of a dataset without a reader."""
    assert source.folder is not None
    if source.format == "bunch":
        return tables.read_bunch(source.parts["train"][0], source.test_share, str(source.folder / DESCRIPTION))
    paths = {split: source.folder / source.parts[split][0] for split in SPLITS}
    if source.format == "csv":
        return tables.read_csvs(paths)
    return {split: tables.read_npz(path) for split, path in paths.items()}


def read_file(value: object, where: str) -> File:
    """Return a publisher's file; its name is a path within a mirror, and none that leads out of it."""
    file: File = options.read(File, value, where)
    path = PurePosixPath(file.name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{where}.name: '{file.name}' leads out of the folder; give a path within it")
    return file


def read_fingerprints(value: object, where: str) -> Mapping[str, str]:
    """Return the fingerprints that a description gives, of both splits or none."""
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping) or set(value) != set(SPLITS):
        raise InputError(f"{where}: expected `train` and `test`, found {value!r}")
    return MappingProxyType({split: str(value[split]) for split in SPLITS})


def filled(source: Source, facts: Facts) -> Source:
    """Return a dataset with what its arrays say. Raises InputError where that is not what its description says."""
    assert source.folder is not None
    where = source.folder / DESCRIPTION
    for split, given in source.fingerprints.items():
        if given != facts.fingerprints[split]:
            raise InputError(
                f"{source.folder / source.parts[split][0]}: the {split} images and labels have the fingerprint "
                f"{facts.fingerprints[split]}, {where} gives {given}"
            )
    if source.classes and source.classes < facts.classes:
        raise InputError(
            f"{where}.classes: {source.classes}, but there is a label {facts.classes - 1}; labels count from 0"
        )
    if facts.features:
        check_features(source, where)
        source = replace(source, shape=facts.shape)
    else:
        channels, size, _ = facts.shape
        for key, values in (("mean", source.mean), ("std", source.std)):
            if bool(source.mean) != bool(source.std) or (values and len(values) != channels):
                raise InputError(
                    f"{where}.{key}: expected one value for each of {channels} channels, or no mean and std"
                )
        source = replace(source, channels=channels, size=size)
    source = replace(
        source,
        classes=source.classes or facts.classes,
        train=facts.counts["train"],
        test=facts.counts["test"],
        fingerprints=facts.fingerprints,
        clients=len(facts.clients),
    )
    if facts.first is not None:
        prepare.seen(
            facts.first, source, facts.first
        )  # so that what cannot be prepared is refused when runs are planned
    return source


def check_features(source: Source, where: Path) -> None:
    """Raise InputError for what a description says of features and only images can have."""
    for key, given in (("mean", source.mean), ("std", source.std), ("augment", source.augment != "none")):
        if given:
            raise InputError(
                f"{where}.{key}: this is for images; leave it out, and take `prepare: standardise` for features"
            )


def facts_of(splits: Mapping[str, Split], source: Source) -> Facts:
    """Return what the arrays of both splits say.

    Raises InputError for images of two sizes, for clients of the test images alone, and for training labels that do not
    count from 0 without gaps where the description gives no number of classes.
    """
    kinds = {split: (one.values.dtype, one.values.shape[1:]) for split, one in splits.items()}
    if kinds["train"] != kinds["test"]:
        told = [f"{'(C, H, W) ' if dtype == np.uint8 else f'{dtype} '}{shape}" for dtype, shape in kinds.values()]
        raise InputError(
            f"{source.folder}: training images have {told[0]}, test images {told[1].removeprefix('(C, H, W) ')}"
        )
    if splits["test"].clients is not None and splits["train"].clients is None:
        raise InputError(f"{source.folder}: the test images have `clients`, the training images none; give those, too")
    dtype, shape = kinds["train"]
    classes = 1 + max(int(one.labels.max()) for one in splits.values())
    if not source.classes and (gaps := missing_labels(splits["train"].labels, splits["test"].labels)):
        labels = splits["train"].labels
        raise InputError(
            f"{source.folder}: training images have labels from {labels.min()} to {labels.max()}; they count from 0 "
            f"without gaps, but {gaps}; mend the labels, or, where that is meant, write `classes: {classes}` in {DESCRIPTION}"
        )
    if max(source.classes or 0, classes) < 2:
        raise InputError(f"{source.folder}: all labels are 0; a dataset needs two classes or more")
    return Facts(
        shape,
        dtype != np.uint8,
        classes,
        MappingProxyType({split: len(one.labels) for split, one in splits.items()}),
        MappingProxyType({split: canonical_order(rows)[1] for split, rows in arrays.records(splits).items()}),
        splits["train"].values[:1],
        clients=arrays.client_names(splits),
    )


def missing_labels(train: NDArray[np.uint8], test: NDArray[np.uint8]) -> str:
    """Name the labels up to the largest that no training image has; "" if there is none."""
    missing = np.setdiff1d(np.arange(1 + max(int(train.max()), int(test.max()))), train)
    in_test = np.isin(missing, test)
    said = [
        f"{spans(labels)} {'is' if len(labels) == 1 else 'are'} {where}"
        for labels, where in ((missing[~in_test], "missing"), (missing[in_test], "among the test images alone"))
        if len(labels)
    ]
    return " and ".join(said)


def spans(numbers: NDArray[np.int64]) -> str:
    """Write ascending numbers in words: `1 to 4, 6`."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def recorded(folder: Path) -> Facts | None:
    """Return what the record of a fetched dataset says; None if there is none that can be read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        shape, features = tuple(record["shape"]), record.get("dtype", "uint8") != "uint8"
        classes, counts, fingerprints = (
            record.get("labels", record["classes"]),
            record["images"],
            record["fingerprints"],
        )
        names = tuple(record.get("clients", ()))
        return Facts(shape, features, classes, counts, fingerprints, reader=reader.noted(record), clients=names)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_reader(source: Source, place: Path, mirror: Path | None) -> tuple[dict[str, Split], dict[str, Any]]:
    """Run the reader of a dataset on the files in a folder; return its checked images, and what is noted of it
    (`reader.run`).
    """
    assert source.folder is not None
    path = source.folder / READER
    given, noted = reader.run(source, place, mirror)
    try:
        splits = {split: arrays.checked(*map(np.asarray, given[split]), where=f"{path}, {split}") for split in SPLITS}
    except (KeyError, IndexError, TypeError, ValueError):  # the last of lists that are no arrays
        raise InputError(
            f'{path}: expected {{"train": (images, labels), "test": (images, labels)}} of read, `clients` behind them or not'
        ) from None
    return splits, noted
