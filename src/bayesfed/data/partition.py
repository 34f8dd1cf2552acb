"""Partitions: which images each client holds; drawn once by a scheme (`schemes/`), stored, and shared by all methods.

A partition is one file, `partitions/<dataset>/<label>-seed~S.npz` under the data folder, or `<dataset>/...` in a folder for
partitions alone, with four int64 arrays (a fifth where it sets images aside for the server) and `parameters`, the JSON of
what it was made from.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bayesfed.core.errors import InputError
from bayesfed.data import store
from bayesfed.data.catalogue import source
from bayesfed.data.records import SPLITS, read_npz, write_npz
from bayesfed.data.schemes import NO_IMAGES, SCHEMES, WHOLE, Indices, Partition, PartitionSpec, Scheme, divide
from bayesfed.data.sources import Source

SERVER = "server_indices"
PARTITIONS = "partitions"  # the folder of partitions in the data folder


def filename(dataset: str, spec: PartitionSpec, seed: int) -> str:
    """Return the partition's path relative to the data folder."""
    return f"{PARTITIONS}/{dataset}/{spec.label}-seed~{seed}.npz"


def place(dataset: str, spec: PartitionSpec, seed: int, data_dir: Path, folder: Path | None) -> Path:
    """Return the path of the partition's file: in a folder for partitions, or, if that is None, in the data folder's
    own.
    """
    name = filename(dataset, spec, seed)
    return data_dir / name if folder is None else folder / Path(name).relative_to(PARTITIONS)


def build(dataset: str, spec: PartitionSpec, seed: int, data_dir: Path, folder: Path | None = None) -> Path:
    """Make the partition's file where it is missing, verify it where it is there; return its path.

    Needs the fetched dataset. `folder`: of partitions, where it is not the data folder's. Raises InputError for a damaged
    file, for a folder that cannot be written to, and where `store.load` or the scheme does.
    """
    if spec.scheme == WHOLE:
        raise InputError("partition.scheme: whole needs no partition file; each client holds a dataset")
    path = place(dataset, spec, seed, data_dir, folder)
    if path.exists():
        load(dataset, spec, seed, data_dir, folder)
        return path
    data = store.load(dataset, data_dir)
    scheme = SCHEMES[spec.scheme]
    scheme.check_data(data.source, spec)
    train, test = (getattr(data, f"{split}_{scheme.by}") for split in SPLITS)
    partition = divide(train, test, spec, seed)
    arrays = {"parameters": np.array(_parameters(data.source, spec, seed))} | vars(partition)
    try:
        write_npz(path, {name: array for name, array in arrays.items() if name != SERVER or sets_aside(spec)})
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise InputError(
            f"{path.parent}: partitions cannot be written here ({error.strerror}); give another folder for them by "
            "--partitions DIR, or `partitions` in a config"
        ) from None
    return path


def load(dataset: str, spec: PartitionSpec, seed: int, data_dir: Path, folder: Path | None = None) -> Partition:
    """Read a partition and verify it against the dataset's fingerprint and the parameters asked for.

    `folder`: of partitions, where it is not the data folder's. Raises InputError where the file is missing, damaged, or made
    from other data or parameters.
    """
    path = place(dataset, spec, seed, data_dir, folder)
    wanted = source(dataset)
    again = "delete it and run `bayesfed partition` again"
    try:
        arrays = read_npz(path)
        parameters = str(arrays["parameters"])
        names = ["train_indices", "train_offsets", "test_indices", "test_offsets"]
        names += [SERVER] if sets_aside(spec) else []
        partition = Partition(*(arrays[name] for name in names))
    except FileNotFoundError:
        raise InputError(f"no partition {path}: run `bayesfed partition` first") from None
    except (OSError, KeyError, ValueError):
        raise InputError(f"partition {path} is truncated or changed: {again}") from None
    if parameters != _parameters(wanted, spec, seed):
        raise InputError(f"partition {path} was made from other data or parameters ({parameters}): {again}")
    scheme = SCHEMES[spec.scheme]
    splits = [
        (wanted.train, partition.train_indices, partition.train_offsets, partition.server_indices),
        (wanted.test, partition.test_indices, partition.test_offsets, NO_IMAGES),
    ]
    if scheme.pooled:
        pool, server = wanted.train + wanted.test, partition.server_indices
        splits = [
            (pool, partition.train_indices, partition.train_offsets, np.append(partition.test_indices, server)),
            (pool, partition.test_indices, partition.test_offsets, np.append(partition.train_indices, server)),
        ]
    for count, indices, offsets, aside in splits:
        if len(offsets) != spec.clients + 1 or not once(np.split(indices, offsets[1:-1]), aside, count, scheme):
            raise InputError(f"partition {path} does not deal each image once: {again}")
    return partition


def once(hands: Sequence[Indices], aside: Indices, count: int, scheme: Scheme) -> bool:
    """Return whether of `count` images each is dealt once, where all are; else to one client at most, or, where
    clients may have images in common, once to each; and none to a client that is set aside.
    """
    dealt = np.concatenate([*hands, aside])
    if len(dealt) and not (dealt.min() >= 0 and dealt.max() < count):
        return False
    if scheme.deals_all:
        return np.array_equal(np.sort(dealt), np.arange(count))
    if scheme.in_common:
        return all(len(np.unique(hand)) == len(hand) and not np.isin(hand, aside).any() for hand in hands)
    return len(np.unique(dealt)) == len(dealt)


def sets_aside(spec: PartitionSpec) -> bool:
    """Return whether the partition says which images are the server's."""
    return spec.server is not None


def as_dealt(data: store.Dataset, partition: Partition, spec: PartitionSpec) -> tuple[store.Dataset, Partition]:
    """Return a dataset and its partition as a run uses them.

    If a scheme deals from both splits together, the training split is what clients train on, the test split what they
    are tested on, in the order of the clients; else both stay.
    """
    if not SCHEMES[spec.scheme].pooled:
        return data, partition
    train_images, test_images = dealt(data.train_images, data.test_images, partition)
    train_labels, test_labels = dealt(data.train_labels, data.test_labels, partition)
    counted = (np.arange(len(train_labels)), np.arange(len(test_labels)))
    return (
        replace(data, train_images=train_images, train_labels=train_labels, test_images=test_images,
                test_labels=test_labels, placed={}),
        Partition(counted[0], partition.train_offsets, counted[1], partition.test_offsets),
    )  # fmt: skip


def dealt(train: np.ndarray, test: np.ndarray, partition: Partition) -> tuple[np.ndarray, np.ndarray]:
    """Take from both splits, (N, ...) each, what clients train on and what they are tested on."""
    pool = np.concatenate([train, test])
    return pool[partition.train_indices], pool[partition.test_indices]


def _parameters(wanted: Source, spec: PartitionSpec, seed: int) -> str:
    values = {"dataset": wanted.name, "fingerprint": wanted.fingerprint, "seed": seed, **spec.to_dict()}
    if spec.alpha is not None:
        values["alpha"] = f"{spec.alpha:g}"  # 100 and 100.0 are the same partition
    return json.dumps(values, sort_keys=True)
