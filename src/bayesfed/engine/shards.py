"""Images of nodes: a dataset put on the device, label noise, and the images that are set aside."""

from __future__ import annotations

import copy
import functools

import numpy as np
import torch

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.data import store
from bayesfed.data.augment import Features, Images, on_device
from bayesfed.engine.device import Compute


def placed(one: store.Dataset, compute: Compute) -> tuple[Images | Features, Images | Features]:
    """Put a dataset's training and test images on the device: once, however many runs of the process share the
    dataset.
    """
    key = (compute.device, compute.cast)
    if key not in one.placed:
        place = functools.partial(on_device, device=compute.device, dtype=compute.cast)
        one.placed[key] = (
            place(one.source, one.train_images, one.train_labels, augment=one.source.augment),
            place(one.source, one.test_images, one.test_labels, augment="none"),
        )
    found: tuple[Images | Features, Images | Features] = one.placed[key]
    return found


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, halves up, those too that a product of floats has just missed: 32 of 90
    clients at 0.35.
    """
    return int(value + 0.5 + 1e-9)


def held_out(labels: np.ndarray, share: float, seed: int, client: int) -> np.ndarray:
    """Return which of a client's training images, of labels (n,), are its validation images: (n,) bool.

    `share` of them, rounded; of each class its own share rounded down, and one more of the classes with the largest rest.
    A client keeps at least one image to train on.
    """
    held = np.zeros(len(labels), dtype=bool)
    if not share:
        return held
    classes, counts = np.unique(labels, return_counts=True)
    wanted = share * counts
    taken = np.floor(wanted + 1e-9).astype(int)
    more = min(round_half_up(share * len(labels)), len(labels) - 1) - taken.sum()
    taken[np.argsort(taken - wanted, kind="stable")[: max(more, 0)]] += 1
    generator = rng.generator(seed, "validation", 0, client)
    for label, count in zip(classes, taken, strict=True):
        held[generator.permutation(np.flatnonzero(labels == label))[:count]] = True
    return held


def mislabelled(data: store.Dataset, kept: np.ndarray, share: float, kind: str, seed: int, task: int) -> np.ndarray:
    """Return training labels (N,) of which each is wrong with probability `share`. Those at the indices `kept` stay.

    `symmetric`: a wrong label is one of the other classes, all alike. `class_dependent`: it is the one class for which
    images of its class are taken, drawn once. An image's number in its dataset decides, not who holds it. What is wrong at
    one share is wrong at every larger one.
    """
    labels, classes = data.train_labels, data.source.classes
    numbers = np.arange(len(labels)) if data.train_numbers is None else data.train_numbers
    draws = rng.generator(seed, "label-noise", 0, task).random((numbers.max() + 1, 2))[numbers]
    wrong = draws[:, 0] < share
    wrong[kept] = False
    if kind == "symmetric":
        further = 1 + (draws[:, 1] * (classes - 1)).astype(np.int64)
    else:
        further = rng.generator(seed, "wrong-classes", 0, task).integers(1, classes, size=classes)[labels]
    return np.where(wrong, (labels + further) % classes, labels)


def relabelled(images: Images | Features, labels: np.ndarray) -> Images | Features:
    """Return the same images, in the same memory, with other labels (N,)."""
    other = copy.copy(images)
    other.labels = torch.from_numpy(labels).to(images.labels.device)
    return other


def images_for_server(labels: np.ndarray, count: int, seed: int, asked: str) -> np.ndarray:
    """Draw the indices of `count` training images for the server, as equal over the classes as they come, sorted.

    Raises InputError, which begins with what is `asked`, when a class has too few images.
    """
    classes = np.unique(labels)
    generator = rng.generator(seed, "server-images")
    chosen = []
    for place, label in enumerate(classes):
        wanted = count // len(classes) + (place < count % len(classes))
        members = generator.permutation(np.flatnonzero(labels == label))
        if wanted > len(members) // 2:
            raise InputError(
                f"{asked}: that would take {wanted} of the {len(members)} images of class {label}; "
                f"at most half of a class may leave the clients"
            )
        chosen.append(members[:wanted])
    return np.sort(np.concatenate(chosen)).astype(np.int64)
