"""Partitions: which images each client holds; drawn once by a scheme (`schemes/`), stored, and shared by all methods.

A partition is one file, `partitions/<dataset>/<label>-seed~S.npz` under the data folder, or `<dataset>/...` in a folder for
partitions alone, with four int64 arrays (a fifth where it sets images aside for the server) and `parameters`, the JSON of
what it was made from.
"""

from __future__ import annotations

import contextlib
import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import plugins, rng
from bayesfed.core.errors import InputError
from bayesfed.data import store
from bayesfed.data.catalogue import source
from bayesfed.data.records import SPLITS, read_npz, write_npz
from bayesfed.data.schemes import SCHEMES, Partition, Scheme, divide, own_source, registry, wrongly_dealt
from bayesfed.data.source import Source

SERVER = "server_indices"
PARTITIONS = "partitions"  # the folder of partitions in the data folder


def filename(dataset: str, scheme: Scheme, seed: int) -> str:
    """Return the partition's path relative to the data folder; that of a user's own scheme ends with its digest."""
    source = own_source(scheme.name)[:12]
    return f"{PARTITIONS}/{dataset}/{scheme.label}-seed~{seed}{source and f'-{source}'}.npz"


def place(dataset: str, scheme: Scheme, seed: int, data_dir: Path, folder: Path | None) -> Path:
    """Return the path of the partition's file: in a folder for partitions, or, if that is None, in the data folder's
    own.
    """
    name = filename(dataset, scheme, seed)
    return data_dir / name if folder is None else folder / Path(name).relative_to(PARTITIONS)


def build(dataset: str, scheme: Scheme, seed: int, data_dir: Path, folder: Path | None = None) -> Path:
    """Make the partition's file where it is missing, verify it where it is there; return its path.

    Needs the fetched dataset. `folder`: of partitions, where it is not the data folder's. Raises InputError for a damaged
    file, for a folder that cannot be written to, and where `store.load` or the scheme does.
    """
    path = place(dataset, scheme, seed, data_dir, folder)
    if path.exists():
        load(dataset, scheme, seed, data_dir, folder)
        return path
    data = store.load(dataset, data_dir)
    scheme.check_data(data.source)
    train, test = (getattr(data, f"{split}_{scheme.by}") for split in SPLITS)
    partition = divide(train, test, scheme, seed)
    arrays = {"parameters": np.array(_parameters(data.source, scheme, seed))} | vars(partition)
    try:
        write_npz(path, {name: array for name, array in arrays.items() if name != SERVER or scheme.aside is not None})
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise InputError(
            f"{path.parent}: partitions cannot be written here ({error.strerror}); give another folder for them by "
            "--partitions DIR, or `partitions` in a config"
        ) from None
    return path


def load(dataset: str, scheme: Scheme, seed: int, data_dir: Path, folder: Path | None = None) -> Partition:
    """Read a partition and verify it against the dataset's fingerprint and the parameters asked for.

    `folder`: of partitions, where it is not the data folder's. Raises InputError where the file is missing, damaged, or made
    from other data or parameters.
    """
    path = place(dataset, scheme, seed, data_dir, folder)
    wanted = source(dataset)
    again = "delete it and run `bayesfed partition` again"
    try:
        arrays = read_npz(path)
        parameters = str(arrays["parameters"])
        names = ["train_indices", "train_offsets", "test_indices", "test_offsets"]
        names += [SERVER] if scheme.aside is not None else []
        partition = Partition(*(arrays[name] for name in names))
    except FileNotFoundError:
        raise InputError(f"no partition {path}: run `bayesfed partition` first") from None
    except (OSError, KeyError, ValueError):
        raise InputError(f"partition {path} is truncated or changed: {again}") from None
    if parameters != _parameters(wanted, scheme, seed):
        raise InputError(f"partition {path} was made from other data or parameters ({parameters}): {again}")
    if wrongly_dealt(partition, scheme, wanted.train, wanted.test):
        raise InputError(f"partition {path} does not deal each image once: {again}")
    return partition


def as_dealt(data: store.Dataset, partition: Partition, scheme: Scheme, seed: int) -> tuple[store.Dataset, Partition]:
    """Return a dataset and its partition as a run uses them.

    If a scheme deals from both splits together, the training split is what clients train on, the test split what they
    are tested on, in the order of the clients. If its clients see images in another way, they are changed. Else both stay.
    """
    if scheme.pooled:
        train_images, test_images = dealt(data.train_images, data.test_images, partition)
        train_labels, test_labels = dealt(data.train_labels, data.test_labels, partition)
        counted = (np.arange(len(train_labels)), np.arange(len(test_labels)))
        data = replace(data, train_images=train_images, train_labels=train_labels, test_images=test_images,
                       test_labels=test_labels, train_numbers=partition.train_indices, placed={})  # fmt: skip
        partition = Partition(counted[0], partition.train_offsets, counted[1], partition.test_offsets)
    if scheme.changes_images:
        images = [seen(getattr(data, f"{split}_images"), split, partition, scheme, seed) for split in SPLITS]
        data = replace(data, train_images=images[0], test_images=images[1], placed={})
    return data, partition


def seen(images: NDArray[Any], split: str, partition: Partition, scheme: Scheme, seed: int) -> NDArray[Any]:
    """Return the images of a split, each as its client sees it. Raises InputError for a scheme that gives others."""
    found, origin = images.copy(), registry.plugin(scheme.name, "partition.scheme").origin
    for client in range(scheme.clients):
        own = getattr(partition, split)(client)
        random = rng.generator(seed, f"skew-{split}", 0, client)
        with contextlib.nullcontext() if scheme.name in SCHEMES else plugins.one_line(origin):
            changed = scheme.seen(images[own], client, random)
        if (changed.dtype, changed.shape) != (images.dtype, (len(own), *images.shape[1:])):
            raise InputError(
                f"{origin}: partition scheme '{scheme.name}': expected {images.dtype} {(len(own), *images.shape[1:])} of "
                f"`seen`, found {changed.dtype} {changed.shape}"
            )
        found[own] = changed
    return found


def dealt(train: np.ndarray, test: np.ndarray, partition: Partition) -> tuple[np.ndarray, np.ndarray]:
    """Take from both splits, (N, ...) each, what clients train on and what they are tested on."""
    pool = np.concatenate([train, test])
    return pool[partition.train_indices], pool[partition.test_indices]


def _parameters(wanted: Source, scheme: Scheme, seed: int) -> str:
    values = {"dataset": wanted.name, "fingerprint": wanted.fingerprint, "seed": seed, **scheme.to_dict()}
    if isinstance(values["alpha"], int | float):
        values["alpha"] = f"{values['alpha']:g}"  # 100 and 100.0 are the same partition
    if digest := own_source(scheme.name):
        values["source"] = digest
    return json.dumps(values, sort_keys=True)
