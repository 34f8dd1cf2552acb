"""The arrays of a dataset of a user's own: checked, and written as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core.errors import InputError
from bayesfed.data.records import FEATURE, NOBODY, Records, joined

CHANNELS = 4  # at most
MOST = 3 * 224 * 224  # features of an example

Values = NDArray[Any]  # images uint8 [N, C, H, W], or features float32 [N, ...]


@dataclass(frozen=True)
class Split:
    """One split: images or features, labels [N], and, where the data say it, whose each example is, [N] numbers or names."""

    values: Values
    labels: NDArray[np.uint8]
    clients: NDArray[Any] | None = None


def checked(values: NDArray[Any], labels: NDArray[Any], clients: NDArray[Any] | None = None, *, where: str) -> Split:
    """Return images (N, H, W) or (N, H, W, C) in bytes as [N, C, H, W], or floats as features, labels as bytes, and clients.

    Raises InputError for any others.
    """
    if values.dtype.kind == "f":
        return checked_features(values, labels, clients, where=where)
    return checked_images(values, labels, clients, where=where)


def checked_images(images: NDArray[Any], labels: NDArray[Any], clients: NDArray[Any] | None, *, where: str) -> Split:
    """Return images [N, C, H, W] with labels and clients."""
    check_images(images, where)
    check_labels(labels, images.shape, "images", where)
    check_clients(clients, images.shape, "images", where)
    images = images[..., None] if images.ndim == 3 else images
    return Split(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.uint8), clients)


def checked_features(
    features: NDArray[Any], labels: NDArray[Any], clients: NDArray[Any] | None, *, where: str
) -> Split:
    """Return features float32 [N, ...] with labels and clients."""
    if features.dtype.kind not in "fiu":
        raise InputError(
            f"{where}: features are {features.dtype}; expected numbers: write texts and classes as numbers"
        )
    if features.ndim < 2 or not features.size:
        raise InputError(f"{where}: features {features.shape}; expected (N, ...), the examples first")
    if (count := features[0].size) > MOST:
        raise InputError(
            f"{where}: an example has {count} features, at most {MOST} (3 x 224 x 224) can be; make them fewer"
        )
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(features, FEATURE)
    if not np.isfinite(found).all():
        rows = ~np.isfinite(found.reshape(len(found), -1)).all(1)
        raise InputError(
            f"{where}: {rows.sum()} of {len(found)} examples have missing or infinite values, the first is number "
            f"{np.argmax(rows)} from 0; fill them in, or leave these examples out"
        )
    check_labels(labels, features.shape, "features", where)
    check_clients(clients, features.shape, "features", where)
    return Split(found, labels.astype(np.uint8), clients)


def check_images(images: NDArray[Any], where: str) -> None:
    """Raise InputError for what are no square images (N, H, W) or (N, H, W, C) in bytes."""
    shape = images.shape
    if images.dtype != np.uint8:
        raise InputError(
            f"{where}: images are {images.dtype}; expected uint8, from 0 to 255; other numbers are `features`, channels first"
        )
    if len(shape) == 4 and shape[2] == shape[3] != shape[1]:
        raise InputError(f"{where}: images {shape} have their channels first; expected (N, H, W, C)")
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) not in (3, 4) or not 1 <= channels <= CHANNELS or not images.size:
        raise InputError(f"{where}: images {shape}; expected (N, H, W) or (N, H, W, C) with 1 to {CHANNELS} channels")
    if shape[1] != shape[2]:
        raise InputError(
            f"{where}: images of {shape[1]}x{shape[2]} pixels; expected square ones: crop or pad them, or give them as `features`, "
            "channels first"
        )


def check_labels(labels: NDArray[Any], shape: tuple[int, ...], what: str, where: str) -> None:
    """Raise InputError for what are no labels from 0 to 255 for examples of a shape."""
    if labels.shape != shape[:1]:
        raise InputError(f"{where}: labels {labels.shape} for {what} {shape}; expected one for each")
    if labels.dtype.kind in "US":
        some = ", ".join(map(str, np.unique(labels)[:3]))
        raise InputError(f"{where}: labels are texts ({some}); expected whole numbers: number the classes from 0")
    if labels.dtype.kind not in "iu":
        raise InputError(f"{where}: labels are {labels.dtype}; expected whole numbers")
    if labels.min() < 0 or labels.max() > 255:
        raise InputError(f"{where}: labels from {labels.min()} to {labels.max()}; expected 0 to 255")


def check_clients(clients: NDArray[Any] | None, shape: tuple[int, ...], what: str, where: str) -> None:
    """Raise InputError for what are no clients of examples of a shape."""
    if clients is None:
        return
    if clients.shape != shape[:1]:
        raise InputError(f"{where}: clients {clients.shape} for {what} {shape}; expected one for each")
    if clients.dtype.kind not in "iuU":
        raise InputError(f"{where}: clients are {clients.dtype}; expected whole numbers or names")


def client_names(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """Return the names of all clients, in order; their places are their numbers."""
    return tuple(map(str, numbered(splits)[0]))


def numbered(splits: Mapping[str, Split]) -> tuple[NDArray[Any], dict[str, NDArray[np.int32]]]:
    """Return the clients of both splits in order, and by split the number of each example's client, NOBODY in a split
    without clients.
    """
    held = {split: one.clients for split, one in splits.items() if one.clients is not None}
    nobodys = {split: np.full(len(one.labels), NOBODY, np.int32) for split, one in splits.items()}
    if not held:
        return np.array([], str), nobodys
    every = np.concatenate(list(held.values()))
    if every.dtype.kind == "f":  # NumPy's common type of signed and unsigned numbers, which rounds
        every = np.concatenate([one.astype(object) for one in held.values()])
    names, numbers = np.unique(every, return_inverse=True)
    cut = np.cumsum([len(one) for one in held.values()])[:-1]
    return names, nobodys | dict(zip(held, np.split(numbers.astype(np.int32), cut), strict=True))


def records(splits: Mapping[str, Split]) -> dict[str, Records]:
    """Return the records of each split."""
    names, clients = numbered(splits)
    return {
        split: joined(one.labels[:, None], clients[split] if len(names) else None, one.values)
        for split, one in splits.items()
    }
