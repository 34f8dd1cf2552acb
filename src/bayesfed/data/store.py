"""Datasets on disk: written once by `fetch`, verified at every load, images brought to the size that networks see.

A bundled dataset is fetched by the first load; any other one by the user, whom the error tells the command.

`data/<name>/` holds `train.npz` and `test.npz` (`images` uint8 [N, C, H, W] in native size, or `features` float32 [N, ...],
and `labels` uint8 [N], in canonical order; `clients` int32 [N] where the data name some) and `dataset.json`, written last: a
dataset is there when its `dataset.json` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.data import prepare, reader
from bayesfed.data.catalogue import how_to_fetch, source
from bayesfed.data.records import SPLITS
from bayesfed.data.source import Source

DRIFT = 1e-4  # of mean and standard deviation since they were pinned: no more than rounding on another processor


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory, in canonical order: images uint8 [N, C, side, side], or features float32 [N, ...], and labels
    int64 [N].

    clients: the number of each image's client, int32 [N], NOBODY (-1) in a test split that is in common; None where the data
    name no clients. train_numbers: where a scheme has dealt from both splits together, each training image's number in
    them, the training split first, int64 [N]; else None.

    The source of a dataset of a user's own has its mean and standard deviation, given or measured.
    """

    source: Source
    train_images: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_images: NDArray[Any]
    test_labels: NDArray[np.int64]
    train_clients: NDArray[np.int32] | None = None
    test_clients: NDArray[np.int32] | None = None
    train_numbers: NDArray[np.int64] | None = None
    placed: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # what the engine has made of it


def load(name: str, data_dir: Path, seen: prepare.Seen = prepare.AS_IT_IS) -> Dataset:
    """Load the dataset `name` under `data_dir`, its images as a run sees them; raise InputError if it is missing,
    truncated or changed.
    """
    wanted = seen.of(source(name))
    fetch_or_check(wanted, data_dir)
    (training, train_labels, train_clients), (test, test_labels, test_clients) = (
        native(wanted, split, data_dir) for split in SPLITS
    )
    seen_train, seen_test = (prepare.seen(values, wanted, training) for values in (training, test))
    own = normalised(wanted, seen_train, data_dir)
    return Dataset(own, seen_train, train_labels, seen_test, test_labels, train_clients, test_clients)


def native(
    wanted: Source, split: str, data_dir: Path
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32] | None]:
    """Read the images or features of a split as they were fetched, the labels, and the clients, if the data name some."""
    with np.load(data_dir / wanted.name / f"{split}.npz", allow_pickle=False) as arrays:
        clients = arrays["clients"] if wanted.clients else None
        return arrays[wanted.array], arrays["labels"].astype(np.int64), clients


def load_foreign(name: str, data_dir: Path, seen: prepare.Seen, own: Source) -> NDArray[np.uint8]:
    """Load the test images of another dataset as those of `own` are seen, uint8 [N, C, own.side, own.side].

    Prepared as the run says, or, where that cannot be or gives another side, as their dataset does and then resized;
    brought to the channels of the run's own. Raises InputError as `load` does.
    """
    wanted = prepare.Seen(prepare=seen.prepare).of(source(name))
    if wanted.side != own.side:
        wanted = source(name)
    check_channels(wanted, own)
    fetch_or_check(wanted, data_dir)
    with np.load(data_dir / name / "test.npz", allow_pickle=False) as arrays:
        native = arrays["images"]
    try:
        images = prepare.prepared(native, wanted)
    except InputError:
        if wanted.prepare not in prepare.OF_SOME_IMAGES:
            raise
        wanted = source(name)
        images = prepare.prepared(native, wanted)
    images = images if wanted.side == own.side else prepare.resize(images, own.side)
    return prepare.in_channels(images, own.seen_channels)


def check_channels(foreign: Source, own: Source) -> None:
    """Raise InputError where the images of one dataset cannot be shown as those of another."""
    if foreign.shape or own.shape:
        raise InputError(
            f"tasks.foreign: '{foreign.name}' cannot be shown as '{own.name}': only images are told from others; leave it out"
        )
    if foreign.channels != own.seen_channels and {foreign.channels, own.seen_channels} != {1, 3}:
        raise InputError(
            f"tasks.foreign: images of '{foreign.name}' have {foreign.channels} channels, those of '{own.name}' "
            f"{own.seen_channels}; only grey and three channels are brought together"
        )


def normalised(wanted: Source, images: NDArray[np.uint8], data_dir: Path) -> Source:
    """Return the dataset with its mean and standard deviation: as given, else of the prepared training images.

    Raises InputError where the same preparation gave others when the dataset was fetched.
    """
    if wanted.mean or wanted.shape:
        return wanted
    mean, std = prepare.statistics(images)
    if 0 in std:
        raise InputError(
            f"dataset {wanted.name}: channel {std.index(0)} of all training images is constant; give mean and std"
        )
    record = files.read_sealed_json(data_dir / wanted.name / "dataset.json")
    same = record.get("preparation") == prepare.identity(wanted)
    if same and not np.allclose([mean, std], [record["mean"], record["std"]], rtol=0, atol=DRIFT):
        raise InputError(
            f"dataset {wanted.name}: preparation '{wanted.prepare}' gives images with mean {mean} and std {std} here; "
            f"{record['mean']} and {record['std']} were pinned in {data_dir / wanted.name / 'dataset.json'}"
        )
    return replace(wanted, mean=mean, std=std)


def fetch_or_check(wanted: Source, data_dir: Path) -> None:
    """Verify a stored dataset as `check` does; fetch a bundled one first where it is missing."""
    if wanted.bundled and not (data_dir / wanted.name / "dataset.json").exists():
        from bayesfed.data.fetch import fetch  # here, since it imports this module

        fetch(wanted.name, data_dir)
    check(wanted, data_dir)


def check(wanted: Source, data_dir: Path, mirror: Path | None = None) -> None:
    """Compare a stored dataset with its record, the pinned fingerprint and what its reader would read now; InputError where
    they differ. `mirror`: where the publishers' files are now, unless where the reader found them."""
    folder = data_dir / wanted.name
    again = f"delete the folder {folder} and {how_to_fetch(wanted.name, data_dir)}"
    try:
        record = files.read_sealed_json(folder / "dataset.json")
        if record["fingerprint"] != wanted.fingerprint:
            raise other_data(wanted, record["fingerprints"], folder)
        if wanted.format == "reader":
            check_reader(wanted, record, data_dir, mirror)
        for split in SPLITS:
            path = folder / f"{split}.npz"
            # The size first: it is free, and tells a truncated file from a changed one.
            if path.stat().st_size != record["files"][path.name]["bytes"]:
                raise InputError(f"{path} is truncated or changed (size {path.stat().st_size}): {again}")
            if files.sha256(path) != record["files"][path.name]["sha256"]:
                raise InputError(f"{path} is changed (its sha256 is not the recorded one): {again}")
    except FileNotFoundError as error:
        raise InputError(
            f"dataset {wanted.name}: {error.filename} is missing: {how_to_fetch(wanted.name, data_dir)}"
        ) from None
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{folder / 'dataset.json'} is damaged: {again}") from None


def check_reader(wanted: Source, record: Mapping[str, Any], data_dir: Path, mirror: Path | None) -> None:
    """Raise InputError where the reader of a dataset would read something else than when it was fetched."""
    folder, again = data_dir / wanted.name, how_to_fetch(wanted.name, data_dir)
    then = reader.noted(record)
    if then is None:
        raise InputError(f"{folder / 'dataset.json'}: it does not say what {reader.READER} read; {again}")
    if what := reader.changed(wanted, then, mirror):
        raise InputError(f"{what} since {folder} was fetched; put the old one back, or {again}")


def other_data(wanted: Source, pinned: Mapping[str, str], folder: Path, what: str = "") -> InputError:
    """Return the error for a stored dataset with other fingerprints than the one wanted; `what` its reader now reads
    otherwise.
    """
    again = how_to_fetch(wanted.name, folder.parent)
    if wanted.folder is None:
        return InputError(
            f"{folder} holds other data than bayesfed's {wanted.name}: delete the folder {folder} and {again}"
        )
    split = next(split for split in SPLITS if pinned[split] != wanted.fingerprints[split])
    begin = f"{what}, and" if what else f"{wanted.folder / wanted.parts[split][0]}:"
    return InputError(
        f"{begin} the {split} images and labels are not those that were fetched "
        f"(fingerprint {wanted.fingerprints[split][:12]}, {folder / 'dataset.json'} has {pinned[split][:12]}); put the old "
        f"ones back, or, where the change is meant, delete {folder} and {folder.parent / 'partitions' / wanted.name} and {again}"
    )
