"""Networks that are ordinary modules, as a user writes them, for tests."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesfed import models


class Residual(nn.Module):
    """Convolutions beside each other, batch normalisation, dropout of channels and of entries, a shared layer, a
    constant."""

    def __init__(self, classes: int, channels: int, size: int) -> None:
        super().__init__()
        # No bias, nor a stride of 4, in which the digits' pixels are enlarged: behind it stands the norm, so that their
        # gradients would be rounding alone, which Adam makes steps of.
        self.first = nn.Conv2d(channels, 6, 3, stride=3, bias=False)
        self.norm = nn.BatchNorm2d(6, momentum=0.3)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
        self.register_buffer("bias", torch.linspace(-1, 1, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = x + self.inner(self.inner(x))
        x = F.dropout2d(x, 0.2, self.training)
        return self.head(F.dropout(x, 0.3, self.training)) + self.bias


def grouped(classes: int, channels: int, size: int) -> nn.Module:
    """Group normalisation, and noise on the logits in training: nothing that looks at the batch."""

    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.01 * torch.randn_like(x) if self.training else x

    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, stride=4),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(classes),
        Noisy(),
    )


def normalised(classes: int, channels: int, size: int) -> nn.Module:
    """Batch normalisation, and a gradient for every parameter: nothing random, no dead unit, no bias behind which stands a
    norm."""
    return nn.Sequential(
        nn.Conv2d(channels, 3, 5, stride=3, bias=False),
        nn.BatchNorm2d(3, momentum=0.3),
        nn.Softplus(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def smooth(classes: int, channels: int, size: int) -> nn.Module:
    """Each image by itself: group and layer normalisation, and a layer that is called twice."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(torch.tanh(self.inner(x)))

    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, stride=4), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.LazyLinear(12),
        nn.LayerNorm(12), Twice(), nn.Linear(12, classes),
    )  # fmt: skip


MODULES = {"residual": Residual, "grouped": grouped, "normalised": normalised, "smooth": smooth}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of networks with these beside the papers'."""
    for name, build in MODULES.items():
        monkeypatch.setitem(models.NETWORKS, name, build)
