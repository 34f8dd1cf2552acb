"""A small ResNet (He et al. 2016) with group normalisation (Wu and He 2018), an ordinary module."""

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """relu(x + f(x)), f two convolutions with group normalisation; x by a 1x1 convolution where the size changes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.skip(x) + self.norms[1](self.second(inner)))


def resnet8(classes: int, channels: int, size: int) -> nn.Module:
    """Three blocks of 8, 16 and 32 channels."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.ReLU(),
        Block(8, 8, 1),
        Block(8, 16, 2),
        Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


NETWORKS = {"resnet8": resnet8}
