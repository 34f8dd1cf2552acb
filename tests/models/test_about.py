"""What `bayesfed list models` says of a network."""

import pytest

from bayesfed import models


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cnn2", "3x3 convolutions with 32, 64 and 64 maps, 64 hidden units."),
        ("mlp200", "200 hidden units."),
        ("softmax", "One linear layer."),
        ("fedppd_cifar10", "5x5 convolutions with 6 and 16 maps, 120 and 84 hidden units."),
        ("resnet18", "Torchvision's ResNet-18, with ImageNet's stem."),
    ],
)
def test_a_network_in_a_line(name: str, told: str) -> None:
    assert models.about(models.NETWORKS[name]) == told


def test_every_network_of_ours_has_a_line() -> None:
    assert all(models.about(builder) for builder in models.NETWORKS.values())
    assert models.about(lambda classes, channels, size: None) == ""
