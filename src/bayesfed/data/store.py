"""Datasets on disk: written once by `fetch`, verified at every load, images brought to 32x32.

`data/<name>/` holds `train.npz` and `test.npz` (`images` uint8 [N, C, H, W] in native size, `labels` uint8
[N], in canonical order) and `dataset.json`, written last: a dataset is there when its `dataset.json` is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed import files
from bayesfed.data.sources import Source, source
from bayesfed.errors import InputError

SPLITS = ("train", "test")
SIDE = 32  # pixels; what every network of the papers is made for


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory: images uint8 [N, C, 32, 32], labels int64 [N], both in canonical order."""

    source: Source
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def load(name: str, data_dir: Path) -> Dataset:
    """The dataset `name` under `data_dir`; raises InputError if it is missing, truncated or changed."""
    wanted = source(name)
    check(wanted, data_dir)
    splits = []
    for split in SPLITS:
        with np.load(data_dir / name / f"{split}.npz", allow_pickle=False) as arrays:
            splits += [prepared(arrays["images"], wanted.prepare), arrays["labels"].astype(np.int64)]
    return Dataset(wanted, *splits)


def check(wanted: Source, data_dir: Path) -> None:
    """Compare a stored dataset with its record and the pinned fingerprint; InputError where they differ."""
    folder = data_dir / wanted.name
    again = f"delete the folder {folder} and run `bayesfed fetch {wanted.name}`"
    try:
        record = json.loads((folder / "dataset.json").read_text())
        if record["fingerprint"] != wanted.fingerprint:
            raise InputError(f"{folder} holds other data than bayesfed's {wanted.name}: {again}")
        for split in SPLITS:
            path = folder / f"{split}.npz"
            # The size first: it is free, and tells a truncated file from a changed one.
            if path.stat().st_size != record["files"][path.name]["bytes"]:
                raise InputError(f"{path} is truncated or changed (size {path.stat().st_size}): {again}")
            if files.sha256(path) != record["files"][path.name]["sha256"]:
                raise InputError(f"{path} is changed (its sha256 is not the recorded one): {again}")
    except FileNotFoundError as error:
        raise InputError(
            f"dataset {wanted.name}: {error.filename} is missing: run `bayesfed fetch {wanted.name}`"
        ) from None
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{folder / 'dataset.json'} is damaged: {again}") from None


def prepared(images: NDArray[np.uint8], how: str) -> NDArray[np.uint8]:
    """Native images [N, C, H, W] as 32x32: "none"; "pad" (28, edges repeated); "enlarge" (8, each pixel 4x4).

    `enlarge` also scales the grey levels 0..16 of the digits to 0..255. Padding as in FML's code (spec 2.6).
    """
    if how == "pad":
        images = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    elif how == "enlarge":
        images = ((images.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8).repeat(4, axis=2).repeat(4, axis=3)
    return images


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write `arrays` uncompressed to `path`, whole or not at all. Equal arrays give equal bytes."""
    with files.replacing(path) as scratch, scratch.open("wb") as file:
        np.savez(file, **arrays)
