"""CIFAR's Python version, as torchvision leaves it: pickles, of which the operations are looked at and none is done.

A pickle is a program that may run anything. Here its text is searched for the images, its longest string, and for the whole
numbers behind the names of the labels.
"""

from __future__ import annotations

import pickletools
from pathlib import Path

import numpy as np

from bayesfed.core.errors import InputError
from bayesfed.data.records import Records

LABELS = ("coarse_labels", "labels", "fine_labels")  # in the order of a record
PIXELS = 3072
NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"}


def read(path: Path, width: int) -> Records:
    """Read the records [N, width] of a file: its labels, then the pixels. Raises InputError for any other file."""
    labels: dict[str, list[int]] = {}
    key, pixels = "", b""
    found: list[int] | None = None  # the labels in whose list the next numbers are
    try:
        for operation, value, _ in pickletools.genops(path.read_bytes()):
            if isinstance(value, str | bytes):
                raw = value.encode("latin-1", "replace") if isinstance(value, str) else value
                name = raw[:20].decode("latin-1")
                if name in LABELS or found is not None:  # others may be between a name and its list
                    key, found = name if name in LABELS else "", None
                pixels = raw if len(raw) > len(pixels) else pixels
            elif key and operation.name in ("EMPTY_LIST", "LIST"):
                found = labels.setdefault(key, [])
            elif found is not None and operation.name in NUMBERS:
                assert isinstance(value, int)
                found.append(value)
        columns = [np.array(labels[name], np.uint8)[:, None] for name in LABELS if labels.get(name)]
        records = np.concatenate([*columns, np.frombuffer(pixels, np.uint8).reshape(-1, PIXELS)], axis=1)
    except (ValueError, OverflowError, IndexError):
        records = np.empty((0, 0), np.uint8)
    if records.shape[1] != width:
        raise InputError(f"{path}: this is none of CIFAR's Python files; replace it, or take the binary version")
    return records
