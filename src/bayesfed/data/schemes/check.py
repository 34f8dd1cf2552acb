"""The check that a partition deals images as its scheme says."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesfed.data.schemes.base import NO_IMAGES, Indices, Partition, Scheme


def wrongly_dealt(found: Any, scheme: Scheme, train: int, test: int) -> str:
    """Name what is wrong with a partition of splits of so many images; "" if nothing is."""
    if not isinstance(found, Partition):
        return f"expected a Partition of `draw`, found {type(found).__name__}"
    for name, array in vars(found).items():
        if not (isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1):
            return f"{name}: expected int64 (n,), found {getattr(array, 'dtype', type(array).__name__)}"
    splits = [
        (train, found.train_indices, found.train_offsets, found.server_indices),
        (test, found.test_indices, found.test_offsets, NO_IMAGES),
    ]
    if scheme.pooled:
        if len(found.server_indices):
            return "server_indices: a pooled scheme sets no images aside; deal them to clients, or to none"
        splits = [
            (train + test, found.train_indices, found.train_offsets, found.test_indices),
            (train + test, found.test_indices, found.test_offsets, found.train_indices),
        ]
    for count, indices, offsets, aside in splits:
        if len(offsets) != scheme.clients + 1:
            return f"it deals to {len(offsets) - 1} clients of {scheme.clients}"
        if offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
            return (
                f"its offsets must go from 0 to {len(indices)} and never fall, found {reprlib.repr(offsets.tolist())}"
            )
        if not once(np.split(indices, offsets[1:-1]), aside, count, scheme):
            return "it does not deal each image once"
    return ""


def once(hands: Sequence[Indices], aside: Indices, count: int, scheme: Scheme) -> bool:
    """Return True if each of `count` images is dealt as the scheme says.

    Once, if the scheme deals all; else to one client at most. If clients may have images in common, once to each, and none
    that is set aside.
    """
    dealt = np.concatenate([*hands, aside])
    if len(dealt) and not (dealt.min() >= 0 and dealt.max() < count):
        return False
    if scheme.deals_all:
        return np.array_equal(np.sort(dealt), np.arange(count))
    if scheme.in_common:
        return all(len(np.unique(hand)) == len(hand) and not np.isin(hand, aside).any() for hand in hands)
    return len(np.unique(dealt)) == len(dealt)
