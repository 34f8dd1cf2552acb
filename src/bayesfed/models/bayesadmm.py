"""BayesADMM's networks that are no chain: a sigmoid MLP, the CNN of Zenke et al. 2017, and a ResNet-20."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sigmoid_mlp(classes: int, channels: int, size: int) -> nn.Module:
    """Two hidden layers of 200 and 100 sigmoid units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * size**2, 200), nn.Sigmoid(), nn.Linear(200, 100), nn.Sigmoid(), nn.Linear(100, classes)
    )  # fmt: skip


def zenke(classes: int, channels: int, size: int) -> nn.Module:
    """Four 3x3 convolutions of 32 and 64 maps in two blocks, 512 hidden units, dropout behind each."""
    layers: list[nn.Module] = []
    for width in (32, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
        channels, size = width, (size - 2) // 2
    hidden = [nn.Flatten(), nn.Linear(channels * size**2, 512), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, *hidden, nn.Linear(512, classes))


class Block(nn.Module):
    """Two 3x3 convolutions with group normalisation, and a shortcut without parameters: every second pixel, new maps 0."""

    def __init__(self, inputs: int, maps: int) -> None:
        super().__init__()
        self.stride, self.new = maps // inputs, maps - inputs
        self.first = nn.Conv2d(inputs, maps, 3, stride=self.stride, padding=1, bias=False)
        self.second = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, maps), nn.GroupNorm(2, maps)])

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.new:
            shortcut = torch.cat([shortcut, shortcut.new_zeros(len(x), self.new, *shortcut.shape[2:])], 1)
        return F.relu(self.norms[1](self.second(y)) + shortcut)


def resnet20(classes: int, channels: int, size: int) -> nn.Module:
    """CIFAR's ResNet-20 with two groups of group normalisation and Kaiming's normal draw."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.GroupNorm(2, 16), nn.ReLU()]
    inputs = 16
    for maps in (16, 32, 64):
        for _ in range(3):
            layers.append(Block(inputs, maps))
            inputs = maps
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return network
