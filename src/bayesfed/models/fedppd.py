"""FedPPD's networks (its Tables 5 and 6): a teacher, which the baselines have too, and a larger student.

Weights start by Xavier's uniform draw and biases at zero, as in the public code, which also has the student for FEMNIST
repeat an image's edges where its first two convolutions reach beyond (the third finds zeros there), and put ones around what
the second pooling gives. The tables have no activations; ReLU follows every pooling and hidden layer.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import nn


def xavier(module: nn.Module) -> nn.Module:
    """Initialise the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return module


def head(widths: list[int]) -> list[nn.Module]:
    """Build fully connected layers of these widths, from what they get to the classes, with dropout between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, next_wide in pairwise(widths):
        layers += [nn.Linear(wide, next_wide), nn.ReLU(), nn.Dropout(0.5)]
    return layers[:-2]


def two_convolutions(classes: int, channels: int, size: int, maps: tuple[int, int], hidden: int) -> nn.Module:
    """Build two convolutions of 5x5 with so many maps, and a hidden layer: the teachers, and MNIST's student."""
    side = ((size - 4) // 2 - 4) // 2
    return xavier(
        nn.Sequential(
            *(nn.Conv2d(channels, maps[0], 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(maps[0], maps[1], 5), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU()),
            *head([maps[1] * side**2, hidden, classes]),
        )
    )


def mnist_teacher(classes: int, channels: int, size: int) -> nn.Module:
    """Build convolutions with 10 and 20 maps, 50 hidden units."""
    return two_convolutions(classes, channels, size, (10, 20), 50)


def mnist_student(classes: int, channels: int, size: int) -> nn.Module:
    """Build convolutions with 20 and 40 maps, 100 hidden units."""
    return two_convolutions(classes, channels, size, (20, 40), 100)


def femnist_teacher(classes: int, channels: int, size: int) -> nn.Module:
    """Build convolutions with 32 and 64 maps, 128 hidden units."""
    return two_convolutions(classes, channels, size, (32, 64), 128)


def femnist_student(classes: int, channels: int, size: int) -> nn.Module:
    """Build three convolutions with 50, 100 and 200 maps, 1600 and 180 hidden units."""

    def conv(inputs: int, maps: int, beyond: Literal["zeros", "replicate"] = "replicate") -> nn.Conv2d:
        return nn.Conv2d(inputs, maps, 5, padding="same", padding_mode=beyond)

    side = (size // 4 + 1) // 2
    return xavier(
        nn.Sequential(
            *(conv(channels, 50), nn.MaxPool2d(2), nn.ReLU()),
            *(conv(50, 100), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU(), nn.ConstantPad2d((0, 1, 0, 1), 1.0)),
            *(conv(100, 200, "zeros"), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU()),
            *head([200 * side**2, 1600, 180, classes]),
        )
    )


def resnet(layers: int, classes: int) -> nn.Module:
    """Build torchvision's ResNet, with ImageNet's stem: for CIFAR-100.

    From scratch, except for a run with `weights`, as the paper's.

    Its last layer, which is new there too, starts like all of these networks; what precedes it, without weights, as
    torchvision starts it.
    """
    import torchvision

    build = {18: torchvision.models.resnet18, 34: torchvision.models.resnet34}[layers]
    module = build(weights=None, num_classes=classes)
    xavier(module.fc)
    return module  # type: ignore[no-any-return]  # torchvision has no types


def resnet18(classes: int, channels: int, size: int) -> nn.Module:
    """Build torchvision's ResNet-18, with ImageNet's stem."""
    return resnet(18, classes)


def resnet34(classes: int, channels: int, size: int) -> nn.Module:
    """Build torchvision's ResNet-34, with ImageNet's stem."""
    return resnet(34, classes)
