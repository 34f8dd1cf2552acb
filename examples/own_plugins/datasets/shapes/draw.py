"""How train.npz and test.npz were drawn: 28x28 grey images of seven kinds of shapes, turned, moved, large and small."""

from pathlib import Path

import numpy as np

SIDE = 28


def inside(kind: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where the shape is, in coordinates that fill about -1 to 1."""
    radius, square = np.hypot(x, y), np.maximum(abs(x), abs(y))
    return [
        radius < 0.9,  # disc
        abs(radius - 0.75) < 0.2,  # ring
        square < 0.8,  # square
        abs(square - 0.65) < 0.18,  # frame
        (y > -0.6) & (abs(x) * 1.7 < 0.9 - y),  # triangle
        (np.minimum(abs(x), abs(y)) < 0.22) & (square < 0.95),  # cross
        (abs(y) < 0.25) & (abs(x) < 1),  # bar
    ][kind]


def draw(count: int, seed: int) -> dict[str, np.ndarray]:
    """So many images, all kinds equally often."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 7
    images = np.zeros((count, SIDE, SIDE), np.uint8)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for image, kind in zip(images, labels, strict=True):
        size, angle = random.uniform(5, 9), random.uniform(0, 2 * np.pi)
        y, x = ((axis - random.uniform(11, 16)) / size for axis in (rows, columns))
        x, y = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
        dark, bright = random.integers(0, 80), random.integers(120, 256)
        image[:] = np.where(inside(kind, x, y), bright, dark)
    return {"images": images, "labels": labels}


if __name__ == "__main__":
    for split, count, seed in (("train", 1400, 0), ("test", 420, 1)):
        np.savez_compressed(Path(__file__).with_name(f"{split}.npz"), **draw(count, seed))
