"""The arrays of a dataset of a user's own: read from a file, checked, and written as records."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core.errors import InputError, nearest
from bayesfed.data.records import NOBODY, Records, joined

CHANNELS = 4  # at most


@dataclass(frozen=True)
class Split:
    """One split: images [N, C, H, W], labels [N], and, where the data say it, whose each image is, [N] numbers or names."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    clients: NDArray[Any] | None = None


def read(path: Path) -> Split:
    """Read and check the arrays of an npz file; no pickle is read."""
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise InputError(f"{path}: not readable as npz: it is no such file, which np.savez writes, or was cut off")
        with np.load(path, allow_pickle=False) as held:
            for name in ("images", "labels"):
                if name not in held.files:
                    raise InputError(f"{path}: there is no array '{name}'; {nearest(name, held.files)}")
            clients = held["clients"] if "clients" in held.files else None
            return checked(held["images"], held["labels"], clients, where=str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not readable as npz: {' '.join(str(error).split())}") from None


def checked(images: NDArray[Any], labels: NDArray[Any], clients: NDArray[Any] | None = None, *, where: str) -> Split:
    """Return images (N, H, W) or (N, H, W, C) as [N, C, H, W], labels as bytes, and clients.

    Raises InputError for any others.
    """
    check_images(images, where)
    check_labels(labels, images.shape, where)
    if clients is not None:
        if clients.shape != images.shape[:1]:
            raise InputError(f"{where}: clients {clients.shape} for images {images.shape}; expected one for each image")
        if clients.dtype.kind not in "iuU":
            raise InputError(f"{where}: clients are {clients.dtype}; expected whole numbers or names")
    images = images[..., None] if images.ndim == 3 else images
    return Split(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.uint8), clients)


def check_images(images: NDArray[Any], where: str) -> None:
    """Raise InputError for what are no square images (N, H, W) or (N, H, W, C) in bytes."""
    shape = images.shape
    if images.dtype != np.uint8:
        raise InputError(f"{where}: images are {images.dtype}; expected uint8, from 0 to 255")
    if len(shape) == 4 and shape[2] == shape[3] != shape[1]:
        raise InputError(f"{where}: images {shape} have their channels first; expected (N, H, W, C)")
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) not in (3, 4) or not 1 <= channels <= CHANNELS or not images.size:
        raise InputError(f"{where}: images {shape}; expected (N, H, W) or (N, H, W, C) with 1 to {CHANNELS} channels")
    if shape[1] != shape[2]:
        raise InputError(f"{where}: images of {shape[1]}x{shape[2]} pixels; expected square ones: crop or pad them")


def check_labels(labels: NDArray[Any], shape: tuple[int, ...], where: str) -> None:
    """Raise InputError for what are no labels from 0 to 255 for images of a shape."""
    if labels.shape != shape[:1]:
        raise InputError(f"{where}: labels {labels.shape} for images {shape}; expected one for each image")
    if labels.dtype.kind not in "iu":
        raise InputError(f"{where}: labels are {labels.dtype}; expected whole numbers")
    if labels.min() < 0 or labels.max() > 255:
        raise InputError(f"{where}: labels from {labels.min()} to {labels.max()}; expected 0 to 255")


def client_names(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """Return the names of all clients, in order; their places are their numbers."""
    return tuple(map(str, numbered(splits)[0]))


def numbered(splits: Mapping[str, Split]) -> tuple[NDArray[Any], dict[str, NDArray[np.int32]]]:
    """Return the clients of both splits in order, and by split the number of each image's client, NOBODY in a split
    without clients.
    """
    held = {split: one.clients for split, one in splits.items() if one.clients is not None}
    nobodys = {split: np.full(len(one.labels), NOBODY, np.int32) for split, one in splits.items()}
    if not held:
        return np.array([], str), nobodys
    names, numbers = np.unique(np.concatenate(list(held.values())), return_inverse=True)
    cut = np.cumsum([len(one) for one in held.values()])[:-1]
    return names, nobodys | dict(zip(held, np.split(numbers.astype(np.int32), cut), strict=True))


def records(splits: Mapping[str, Split]) -> dict[str, Records]:
    """Return the records of each split."""
    names, clients = numbered(splits)
    return {
        split: joined(one.labels[:, None], clients[split] if len(names) else None, one.images)
        for split, one in splits.items()
    }
