"""The networks of the papers, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from bayesfed.errors import InputError, nearest
from bayesfed.models.network import Conv, Linear, Network

__all__ = ["CONVOLUTIONS", "NETWORKS", "Network", "build", "check"]

# As `models.global`, this word means that the server holds the convolutions alone (multi-task learning).
CONVOLUTIONS = "convolutions"

# Layers for a number of classes. MLP, LeNet5 and CNN2 as in the public code of FML; the widths of CNN1's two
# fully connected layers are printed nowhere, 400-120-C is our reading.
NETWORKS: dict[str, Callable[[int], tuple[Conv | Linear, ...]]] = {
    "mlp": lambda classes: (Linear(200), Linear(200), Linear(classes)),
    "lenet5": lambda classes: (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(84), Linear(classes)),
    "cnn1": lambda classes: (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(classes)),
    "cnn2": lambda classes: (Conv(32, 3, 2), Conv(64, 3, 2), Conv(64, 3), Linear(64), Linear(classes)),
}


def check(name: object, key: str) -> str:
    """`name` if a network has it; raises InputError that names the run file's `key` otherwise."""
    if name not in NETWORKS:
        raise InputError(f"{key}: no model is named '{name}'; {nearest(name, NETWORKS)}")
    return str(name)


@cache
def build(name: str, classes: int, channels: int, size: int) -> Network:
    """The network `name` for images of channels x size x size and that many classes; one object for each request.

    Raises InputError for an unknown name or images too small for the network.
    """
    return Network(name, NETWORKS[check(name, "model")](classes), channels, size)
