"""Metrics against numbers worked out by hand and against scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from bayesfed.metrics.classification import BINS, EXACT, Predictions, accuracy, further, uncertainty


def test_by_hand() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.3, 0.7]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    found = uncertainty(Predictions(p.log(), y))
    assert accuracy(p.log(), y) == 0.75
    assert found["nll"] == pytest.approx(-np.log([0.9, 0.2, 0.55, 0.7]).mean())
    assert found["brier"] == pytest.approx((2 * 0.01 + 2 * 0.64 + 2 * 0.45**2 + 2 * 0.09) / 4)
    # Each confidence falls into a bin of its own: 0.9, 0.8, 0.55, 0.7 with gaps 0.1, 0.8, 0.45, 0.3.
    assert found["ece"] == pytest.approx((0.1 + 0.8 + 0.45 + 0.3) / 4)
    assert found["mce"] == pytest.approx(0.8)


def test_images_of_one_bin_are_averaged() -> None:
    p = torch.tensor([[0.91, 0.09], [0.92, 0.08], [0.93, 0.07]], dtype=torch.float64)
    found = uncertainty(Predictions(p.log(), torch.tensor([0, 0, 1])))
    assert found["ece"] == found["mce"] == pytest.approx(0.92 - 2 / 3)


def test_against_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(500, 10, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    y = torch.randint(0, 10, (500,), generator=generator)
    found = uncertainty(Predictions(log_p, y))
    assert found["nll"] == pytest.approx(log_loss(y.numpy(), log_p.exp().numpy(), labels=range(10)))
    assert 0 <= found["ece"] <= found["mce"] <= 1
    assert 0 <= found["brier"] <= 2


def test_a_certain_and_right_prediction_is_perfect() -> None:
    found = uncertainty(Predictions(torch.tensor([[0.0, -1e9]]), torch.tensor([0])))
    assert found == {"nll": 0.0, "brier": 0.0, "ece": 0.0, "mce": 0.0}


def random_predictions(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    log_p = torch.randn(n, classes, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    return log_p, torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 3), (450, 10), (1000, 100)])
def test_further_metrics_by_plain_loops(n: int, classes: int) -> None:
    """The definitions, image by image in float64."""
    log_p, y = random_predictions(n, classes)
    found = {name: float(value) for name, value in further(Predictions(log_p, y)).items()}
    p, labels = log_p.exp().numpy(), y.numpy()
    right, confidence = p.argmax(1) == labels, p.max(1)
    order = sorted(range(n), key=lambda i: -confidence[i])
    risks, errors = [], 0
    for k, i in enumerate(order, 1):
        errors += not right[i]
        risks.append(errors / k)
    assert found["aurc"] == pytest.approx(sum(risks) / n, abs=1e-12)
    narrow = np.ceil(confidence * 100).clip(1)
    gaps = [abs((right - confidence)[narrow == b].sum()) for b in range(1, 101)]
    assert found["ece100"] == pytest.approx(sum(gaps) / n, abs=1e-9)
    cuts = [b * n // BINS for b in range(BINS + 1)]
    bins = [order[start:end] for start, end in itertools.pairwise(cuts)]
    gaps = [abs(sum(right[i] - confidence[i] for i in one)) for one in bins]
    assert found["adaptive_ece"] == pytest.approx(sum(gaps) / n, abs=1e-12)
    total = 0.0
    for c in range(classes):
        of_bin = np.ceil(p[:, c] * BINS).clip(1) - 1  # left ends excluded
        total += sum(abs((p[of_bin == b, c] - (labels[of_bin == b] == c)).sum()) for b in range(BINS)) / n
    assert found["classwise_ece"] == pytest.approx(total / classes, abs=EXACT)


def test_adaptive_and_classwise_ece_against_scikit_learns_curves() -> None:
    """Quantile bins of equally many images; of each class its own curve, weighted by the images in its bins."""
    log_p, y = random_predictions(450, 4)
    found = further(Predictions(log_p, y))
    p, labels = log_p.exp().numpy(), y.numpy()
    right = p.argmax(1) == labels
    # Confidences by their rank, so that no quantile lies between two images of a bin.
    ranks = p.max(1).argsort().argsort() / 449
    share, _ = calibration_curve(right, ranks, n_bins=BINS, strategy="quantile")
    means = np.sort(p.max(1)).reshape(BINS, -1).mean(1)
    assert found["adaptive_ece"] == pytest.approx(np.abs(share - means).mean(), abs=1e-12)
    total = 0.0
    for c in range(4):
        share, mean = calibration_curve(labels == c, p[:, c], n_bins=BINS)
        counts = np.histogram(p[:, c], np.linspace(0, 1, BINS + 1))[0]
        total += (counts[counts > 0] * np.abs(share - mean)).sum() / 450
    assert found["classwise_ece"] == pytest.approx(total / 4, abs=EXACT)


def test_a_certain_and_right_prediction_has_nothing_further() -> None:
    found = further(Predictions(torch.tensor([[0.0, -1e9]]), torch.tensor([0])))
    assert found == {"ece100": 0.0, "adaptive_ece": 0.0, "classwise_ece": 0.0, "aurc": 0.0}
