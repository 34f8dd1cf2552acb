"""The networks of further papers: their numbers of parameters, and what makes them."""

import numpy as np
import pytest
import torch

from bayesfed.models import build
from bayesfed.models.bayesadmm import Block


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size", "parameters"),
    [
        ("sigmoid_mlp", 10, 1, 28, 178_110),
        ("zenke_cnn", 10, 3, 32, 1_250_858),
        ("acar_cnn", 10, 3, 32, 797_962),
        ("resnet20_gn", 100, 3, 32, 275_572),
        ("lenet5", 10, 1, 28, 44_426),
        ("lenet5", 10, 3, 32, 62_006),
        ("fedgvi_mlp", 10, 1, 28, 159_010),
        ("fedgvi_mlp2", 10, 1, 28, 89_610),
        ("pfedvem_cnn", 10, 3, 32, 121_182),
    ],
)
def test_numbers_of_parameters(name: str, classes: int, channels: int, size: int, parameters: int) -> None:
    network = build(name, classes, channels, size)
    assert network.parameters == parameters
    theta = torch.from_numpy(network.initial(np.random.default_rng(0)))
    with torch.no_grad():
        logits = network.logits(theta, torch.rand(2, channels, size, size), {}, torch.Generator())
    assert logits.shape == (2, classes)


def test_a_resnet_without_its_convolutions_passes_the_image_on() -> None:
    """Every weight of a block 0: its shortcut alone, of every second pixel, with new maps 0."""
    block, x = Block(16, 32), torch.rand(2, 16, 8, 8)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
        y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert y.shape == (2, 32, 4, 4)
    assert not y[:, 16:].any()
