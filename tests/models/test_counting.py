"""Multiply-adds of whatever operators run, against torch's own counter."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bayesfed.models.counting import CountedProducts

CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(512, 5)
)
ATTENTION = nn.TransformerEncoderLayer(16, 2, batch_first=True)


@pytest.mark.parametrize(("module", "shape"), [(CONVOLUTIONS, (2, 3, 12, 12)), (ATTENTION, (2, 5, 16))])
def test_multiply_adds_are_those_that_torch_counts(module: nn.Module, shape: tuple[int, ...]) -> None:
    images = torch.randn(shape)
    with FlopCounterMode(display=False) as flops:
        module(images).sum().backward()
    with CountedProducts() as counted:
        module(images).sum().backward()
    assert 2 * counted.multiply_adds == flops.get_total_flops() > 0


def test_a_module_is_built_without_torchs_compiler() -> None:
    code = "import sys; from bayesfed.models import build; build('fedppd_mnist', 10, 1, 28).training_operations; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch.utils.flop_counter" in found
    assert "torch._dynamo" not in found
