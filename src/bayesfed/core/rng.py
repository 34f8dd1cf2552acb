"""Random streams: every random number of a run comes from a generator keyed by (seed, purpose, round, client).

The key alone decides what a stream yields. So a resumed run draws what an uninterrupted one does, the methods of
a cell share partition, initialisation, batch order, augmentation and stragglers, and the order in which clients
run changes nothing. The key is hashed (SHA-256) to a 128-bit key of the counter-based Philox generator.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

PURPOSES = (
    "partition", "server-images", "init", "init-layers", "init-network", "participation", "stragglers",
    "order", "augment", "noise", "predict", "resampling", "labelling", "validation",
    "skew-train", "skew-test", "label-noise", "wrong-classes",
)  # fmt: skip


def digest(seed: int, purpose: str, round_number: int = 0, client: int = -1) -> int:
    """Return the 128-bit key of a stream; client -1 is the server. Raises ValueError for a purpose nobody declared."""
    if purpose not in PURPOSES:
        raise ValueError(f"no random stream is named {purpose!r}")
    text = f"{seed}/{purpose}/{round_number}/{client}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def generator(seed: int, purpose: str, round_number: int = 0, client: int = -1) -> np.random.Generator:
    """Return a NumPy generator for draws made on the host (partitions, stragglers, participation, batch order)."""
    return np.random.Generator(np.random.Philox(key=digest(seed, purpose, round_number, client)))


def seed_torch(
    into: torch.Generator, seed: int, purpose: str, round_number: int = 0, client: int = -1
) -> torch.Generator:
    """Set a torch generator, on any device, to the start of a stream (augmentation, weight noise).

    A CPU's takes the lowest 32 bits of the seed: of 100 000 streams one or two pairs are the same.
    """
    return into.manual_seed(digest(seed, purpose, round_number, client) & (2**63 - 1))
