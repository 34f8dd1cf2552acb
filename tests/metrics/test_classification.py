"""Metrics against numbers worked out by hand and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from bayesfed.metrics.classification import accuracy, uncertainty


def test_by_hand() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.3, 0.7]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    found = uncertainty(p.log(), y)
    assert accuracy(p.log(), y) == 0.75
    assert found["nll"] == pytest.approx(-np.log([0.9, 0.2, 0.55, 0.7]).mean())
    assert found["brier"] == pytest.approx((2 * 0.01 + 2 * 0.64 + 2 * 0.45**2 + 2 * 0.09) / 4)
    # Each confidence falls into a bin of its own: 0.9, 0.8, 0.55, 0.7 with gaps 0.1, 0.8, 0.45, 0.3.
    assert found["ece"] == pytest.approx((0.1 + 0.8 + 0.45 + 0.3) / 4)
    assert found["mce"] == pytest.approx(0.8)


def test_images_of_one_bin_are_averaged() -> None:
    p = torch.tensor([[0.91, 0.09], [0.92, 0.08], [0.93, 0.07]], dtype=torch.float64)
    found = uncertainty(p.log(), torch.tensor([0, 0, 1]))
    assert found["ece"] == found["mce"] == pytest.approx(0.92 - 2 / 3)


def test_against_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(500, 10, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    y = torch.randint(0, 10, (500,), generator=generator)
    found = uncertainty(log_p, y)
    assert found["nll"] == pytest.approx(log_loss(y.numpy(), log_p.exp().numpy(), labels=range(10)))
    assert 0 <= found["ece"] <= found["mce"] <= 1
    assert 0 <= found["brier"] <= 2


def test_a_certain_and_right_prediction_is_perfect() -> None:
    found = uncertainty(torch.tensor([[0.0, -1e9]]), torch.tensor([0]))
    assert found == {"nll": 0.0, "brier": 0.0, "ece": 0.0, "mce": 0.0}
