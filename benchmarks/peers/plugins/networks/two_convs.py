"""EMNIST's CNN with dropout, as pfl-research and fedjax have it: a network of our own, and the peers' that take modules."""

from torch import nn


def two_convs(classes: int, channels: int, size: int) -> nn.Module:
    """Two convolutions of 3x3, one pooling, 128 units."""
    inner = (size - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * inner**2, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes),
    )  # fmt: skip


NETWORKS = {"two_convs": two_convs}
