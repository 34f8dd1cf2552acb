"""Partitions: which images each client holds; made once, stored, and shared by all methods of a cell.

A partition is one file, `partitions/<dataset>/<label>-seed~S.npz` under the data folder, with four int64
arrays and `parameters`, the JSON of what it was made from.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesfed import streams
from bayesfed.data import store
from bayesfed.data.sources import Source, source
from bayesfed.errors import InputError, nearest

SCHEMES = ("dirichlet_class_shared", "whole")
DRAWS = 1000  # how often a Dirichlet draw with too small a client is drawn again
LARGEST_ALPHA = 1e9  # far above it the draw overflows; long before it all shares are equal

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionSpec:
    """How a dataset is divided; raises InputError for a scheme, alpha or count that cannot be.

    `dirichlet_class_shared`: spec 1 and 2.4. `whole`: client k holds all of the run's dataset k (multi-task).
    `min_train` and `min_test` are the images every client must hold (reading A17; 0 takes any draw).
    """

    scheme: str = "dirichlet_class_shared"
    alpha: float | None = None
    clients: int = 10
    min_train: int = 10
    min_test: int = 1

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(f"partition.scheme: unknown '{self.scheme}', {nearest(self.scheme, SCHEMES)}")
        for key, least in (("clients", 1), ("min_train", 0), ("min_test", 0)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"partition.{key}: {value!r} is not a whole number from {least}")
        if self.scheme == "whole":
            if self.alpha is not None:
                raise InputError(f"partition.alpha: {self.alpha!r} means nothing with scheme whole; leave it out")
            return
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise InputError(f"partition.alpha: {self.alpha!r} is not a number above 0, for example 0.05")
        if not 0 < self.alpha <= LARGEST_ALPHA:
            raise InputError(f"partition.alpha: {self.alpha!r} is not above 0 and up to {LARGEST_ALPHA:g}")
        if not math.isclose(float(f"{self.alpha:g}"), self.alpha, rel_tol=1e-12):
            raise InputError(f"partition.alpha: {self.alpha!r} has more digits than names hold; write {self.alpha:g}")

    @property
    def label(self) -> str:
        """The spec as part of a file name: `dirichlet_class_shared-alpha~0.05-clients~10`."""
        parts = [self.scheme]
        if self.alpha is not None:
            parts.append(f"alpha~{self.alpha:g}")
        parts.append(f"clients~{self.clients}")
        for key in ("min_train", "min_test"):
            if getattr(self, key) != getattr(PartitionSpec, key):
                parts.append(f"{key}~{getattr(self, key)}")
        return "-".join(parts)


@dataclass(frozen=True)
class Partition:
    """Client k holds `indices[offsets[k]:offsets[k + 1]]` of each split, ascending; all arrays int64."""

    train_indices: Indices
    train_offsets: Indices
    test_indices: Indices
    test_offsets: Indices

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train_offsets) - 1

    def train(self, client: int) -> Indices:
        """The training images of `client`, counted from 0."""
        return self.train_indices[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test(self, client: int) -> Indices:
        """The test images of `client`, counted from 0."""
        return self.test_indices[self.test_offsets[client] : self.test_offsets[client + 1]]


def dirichlet_class_shared(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Divide both splits by the same Dirichlet shares of each class (HBFL; spec 1 and 2.4).

    For each class c one draw p_c ~ Dir(alpha * 1_N); the class's images, shuffled, are cut at
    floor(cumsum(p_c) * n_c), in the training and in the test split alike. While a client has fewer images
    than `spec` asks for, all shares are drawn again (A17). Raises InputError where the splits cannot feed so
    many clients, and when no draw succeeds.
    """
    for split, labels, least in (
        ("training", train_labels, max(spec.min_train, 1)),
        ("test", test_labels, spec.min_test),
    ):
        if spec.clients * least > len(labels):
            raise InputError(
                f"partition.clients: {spec.clients} clients with at least {least} {split} images need "
                f"{spec.clients * least}, there are {len(labels)}: at most {len(labels) // least} clients fit"
            )
    assert spec.alpha is not None  # checked by PartitionSpec
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    counts = [np.bincount(labels, minlength=classes) for labels in (train_labels, test_labels)]
    random = streams.generator(seed, "partition")
    best = (-1, -1)
    for _ in range(DRAWS):
        shares = random.dirichlet(np.full(spec.clients, spec.alpha), size=classes)
        cuts = [_cuts(shares, count) for count in counts]
        train_size, test_size = (int(np.diff(cut, axis=1).sum(axis=0).min()) for cut in cuts)
        if train_size >= spec.min_train and test_size >= spec.min_test:
            return Partition(
                *_deal(train_labels, cuts[0], random),
                *_deal(test_labels, cuts[1], random),
            )
        best = max(best, (train_size, test_size))
    raise InputError(
        f"partition: none of {DRAWS} draws with alpha {spec.alpha:g} gave each of {spec.clients} clients "
        f"{spec.min_train} training and {spec.min_test} test images (the best left one with {best[0]} and "
        f"one with {best[1]}): take a larger alpha, fewer clients, or lower min_train and min_test"
    )


def _cuts(shares: NDArray[np.float64], counts: Indices) -> Indices:
    """Where to cut each class, [classes, clients + 1]: 0, floor(cumsum(share) * count), count."""
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None]).astype(np.int64)
    # A sum may round to just above 1: never cut behind the end.
    inner = np.minimum(inner, counts[:, None])
    return np.concatenate([np.zeros((len(counts), 1), np.int64), inner, counts[:, None]], axis=1)


def _deal(labels: Indices, cuts: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Indices and offsets of one split, from the cut points of each class."""
    hands: list[list[Indices]] = [[] for _ in range(cuts.shape[1] - 1)]
    for label, cut in enumerate(cuts):
        # Shuffled, so that other seeds give other images and not only other counts.
        images = random.permutation(np.flatnonzero(labels == label))
        for hand, piece in zip(hands, np.split(images, cut[1:-1]), strict=True):
            hand.append(piece)
    indices = [np.sort(np.concatenate(hand)) for hand in hands]
    offsets = np.cumsum([0, *map(len, indices)], dtype=np.int64)
    return np.concatenate(indices).astype(np.int64), offsets


def filename(dataset: str, spec: PartitionSpec, seed: int) -> str:
    """The partition's path relative to the data folder."""
    return f"partitions/{dataset}/{spec.label}-seed~{seed}.npz"


def build(dataset: str, spec: PartitionSpec, seed: int, data_dir: Path) -> Path:
    """Make the partition's file where it is missing, verify it where it is there; return its path.

    Needs the fetched dataset. Raises InputError for a damaged file, and where `store.load` or
    `dirichlet_class_shared` do.
    """
    if spec.scheme == "whole":
        raise InputError("partition.scheme: whole needs no partition file; each client holds a dataset")
    path = data_dir / filename(dataset, spec, seed)
    if path.exists():
        load(dataset, spec, seed, data_dir)
        return path
    data = store.load(dataset, data_dir)
    partition = dirichlet_class_shared(data.train_labels, data.test_labels, spec, seed)
    parameters = {"parameters": np.array(_parameters(data.source, spec, seed))}
    store.write_npz(path, parameters | vars(partition))
    return path


def load(dataset: str, spec: PartitionSpec, seed: int, data_dir: Path) -> Partition:
    """Read a partition and verify it against the dataset's fingerprint and the parameters asked for.

    Raises InputError where the file is missing, damaged, or made from other data or parameters.
    """
    path = data_dir / filename(dataset, spec, seed)
    wanted = source(dataset)
    again = "delete it and run `bayesfed partition` again"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            parameters = str(arrays["parameters"])
            names = ("train_indices", "train_offsets", "test_indices", "test_offsets")
            partition = Partition(*(arrays[name] for name in names))
    except FileNotFoundError:
        raise InputError(f"no partition {path}: run `bayesfed partition` first") from None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        raise InputError(f"partition {path} is truncated or changed: {again}") from None
    if parameters != _parameters(wanted, spec, seed):
        raise InputError(f"partition {path} was made from other data or parameters ({parameters}): {again}")
    for count, indices, offsets in (
        (wanted.train, partition.train_indices, partition.train_offsets),
        (wanted.test, partition.test_indices, partition.test_offsets),
    ):
        if not np.array_equal(np.sort(indices), np.arange(count)) or len(offsets) != spec.clients + 1:
            raise InputError(f"partition {path} does not deal each image once: {again}")
    return partition


def _parameters(wanted: Source, spec: PartitionSpec, seed: int) -> str:
    values = {"dataset": wanted.name, "fingerprint": wanted.fingerprint, "seed": seed, **asdict(spec)}
    values["alpha"] = f"{spec.alpha:g}"  # 100 and 100.0 are the same partition
    return json.dumps(values, sort_keys=True)
