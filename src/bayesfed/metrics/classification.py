"""Accuracy, likelihood and calibration of predicted class probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15  # of the calibration errors, of equal width over confidence 0 to 1


def accuracy(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """The fraction () of images (n, classes) whose most probable class is the label (n,); first class on ties."""
    return (log_probabilities.argmax(-1) == labels).double().mean()


def uncertainty(log_probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """NLL, Brier score, ECE and MCE, each (), of (n, classes) against labels (n,), n at least 1.

    nll = -mean log p(y); brier = mean sum_c (p_c - [c = y])^2, from 0 to 2. With confidence the largest
    probability, in BINS equal bins (left end excluded): ece = sum_b n_b/n |acc_b - conf_b|, mce the largest such
    gap over bins that are not empty (Guo et al. 2017).
    """
    log_p = log_probabilities.double()
    p = log_p.exp()
    n = len(labels)
    target = torch.nn.functional.one_hot(labels, p.shape[-1]).double()
    confidence, predicted = p.max(-1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64, device=p.device)[1:-1]
    # Bins as a matrix (BINS, n), since a product of matrices, unlike a scattered sum, repeats itself on a GPU.
    inside = torch.nn.functional.one_hot(torch.bucketize(confidence, edges), BINS).double().T
    count = inside.sum(1)
    gap = (inside @ ((predicted == labels).double() - confidence)).abs()
    return {
        "nll": -log_p.gather(-1, labels[:, None]).mean(),
        "brier": (p - target).square().sum(-1).mean(),
        "ece": gap.sum() / n,
        "mce": (gap / count.clamp(min=1)).max(),
    }
