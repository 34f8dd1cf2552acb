"""A dataset's records: their canonical order, their fingerprint, and sealed archives of arrays."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import files

SPLITS = ("train", "test")
Records = NDArray[np.uint8]  # [N, label bytes + client's bytes, if the data have clients + values], one record a row
CLIENT = np.dtype("<i4")  # of a client's number in a record
FEATURE = np.dtype("<f4")  # of each feature in a record
NOBODY = -1  # the client of what is in common
SEAL = 64  # hexadecimal digits of a sha256


def canonical_order(records: NDArray[np.uint8]) -> tuple[NDArray[np.int64], str]:
    """Return the order of `records` by their sha256, and the fingerprint: sha256 over the digests in that order."""
    digests = np.array([hashlib.sha256(row.tobytes()).digest() for row in records], dtype="V32")
    order = np.argsort(digests)
    return order, hashlib.sha256(digests[order].tobytes()).hexdigest()


def in_test_split(labels: NDArray[np.integer], share: float) -> NDArray[np.bool_]:
    """Return which of examples in canonical order, of labels (N,), are the test split: the first `share` of each class."""
    is_test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        is_test[rows[: round(share * len(rows))]] = True
    return is_test


def joined(labels: Records, clients: NDArray[np.int32] | None, values: NDArray[Any]) -> Records:
    """Return records from labels [N, label bytes], clients [N] if there are some, and values [N, ...]."""
    count = len(labels)
    parts = [] if clients is None else [clients.astype(CLIENT).view(np.uint8).reshape(count, -1)]
    return np.concatenate([labels, *parts, np.ascontiguousarray(values).reshape(count, -1).view(np.uint8)], axis=1)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write `arrays` uncompressed to `path`, whole or not at all, sealed: the archive's comment, its last 64 bytes, is the
    sha256 of all before. Equal arrays give equal bytes."""
    with files.replacing(path) as scratch, scratch.open("w+b") as file:
        np.savez(file, **arrays)
        file.seek(-2, os.SEEK_END)  # the length of the comment
        file.write(SEAL.to_bytes(2, "little"))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, os.SEEK_END)
        file.write(digest.encode())


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays that `write_npz` wrote; raise ValueError if the file was altered, FileNotFoundError."""
    content = path.read_bytes()
    if hashlib.sha256(content[:-SEAL]).hexdigest().encode() != content[-SEAL:]:
        raise ValueError(f"{path} is not as it was written")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)
