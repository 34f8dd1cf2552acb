"""The workloads' networks as PyTorch modules, for the peers that take such."""

from torch import nn
from two_convs import two_convs
from workloads import Workload


def network(of: Workload) -> nn.Module:
    """Return a workload's network, for images (batch, channels, side, side)."""
    if of.network == "two_convs":
        return two_convs(of.classes, of.channels, of.side)
    if of.network == "lenet5":
        inner = ((of.side - 4) // 2 - 4) // 2
        return nn.Sequential(
            nn.Conv2d(of.channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16 * inner**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, of.classes),
        )  # fmt: skip
    return nn.Sequential(
        nn.Flatten(), nn.Linear(of.channels * of.side**2, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
        nn.Linear(200, of.classes),
    )  # fmt: skip
