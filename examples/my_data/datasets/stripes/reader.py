"""Stripes: 8 x 8 grey images in a CSV file, one a line: split, label, 64 pixels."""

from pathlib import Path

import numpy as np

NAMES = ("train", "test")


def read(folder):
    """Return {"train": (images, labels), "test": (images, labels)}: uint8 (N, 8, 8), and whole numbers (N,)."""
    lines = [line.split(",") for line in Path(folder, "stripes.csv").read_text().splitlines()[1:]]
    rows = {name: np.array([line[1:] for line in lines if line[0] == name], int) for name in NAMES}
    return {name: (found[:, 1:].reshape(-1, 8, 8).astype(np.uint8), found[:, 0]) for name, found in rows.items()}
