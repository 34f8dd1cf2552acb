"""Accuracy, likelihood and calibration of predicted class probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

EXACT = 2.0**-32  # of a probability: sums of so many parts of it are exact for two million images
BINS = 15  # of reliability diagrams and calibration errors, of equal width over confidence 0 to 1
NARROW = 100  # bins of an ECE that some papers report; it is the larger, the fewer images there are


def accuracy(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the fraction () of images (n, classes) whose most probable class is the label (n,); first class on ties."""
    return (log_probabilities.argmax(-1) == labels).double().mean()


@dataclass(frozen=True)
class Predictions:
    """Log class probabilities (n, classes) of images, n at least 1, their labels (n,), and what is made of them once."""

    log_probabilities: Tensor
    labels: Tensor

    @cached_property
    def p(self) -> Tensor:
        """Class probabilities (n, classes), float64."""
        return self.log_probabilities.double().exp()

    @cached_property
    def highest(self) -> tuple[Tensor, Tensor]:
        """The largest probability of each image (n,), and its class (n,)."""
        confidence, predicted = self.p.max(-1)
        return confidence, predicted

    @cached_property
    def residual(self) -> Tensor:
        """Each class's probability, less 1 where it is the label's (n, classes)."""
        one = self.p.new_ones(())
        return self.p.scatter_add(-1, self.labels[:, None], -one.expand(len(self.labels), 1))


@dataclass(frozen=True)
class Bins:
    """The images of equal bins of confidence, the largest probability (left end excluded), one entry a bin: how many there
    are, how many of them are predicted right, and the sum of their confidences. Each (bins,), float64."""

    images: Tensor
    right: Tensor
    confidence: Tensor


def bins(of: Predictions, count: int = BINS) -> Bins:
    """Return so many bins of predictions: what a reliability diagram shows (Guo et al. 2017)."""
    confidence, predicted = of.highest
    edges = torch.linspace(0, 1, count + 1, dtype=torch.float64, device=confidence.device)[1:-1]
    # Bins as a matrix (bins, n), since a product of matrices, unlike a scattered sum, repeats itself on a GPU.
    inside = torch.nn.functional.one_hot(torch.bucketize(confidence, edges), count).double().T
    return Bins(inside.sum(1), inside @ (predicted == of.labels).double(), inside @ confidence)


def uncertainty(of: Predictions) -> dict[str, Tensor]:
    """Return NLL, Brier score, ECE and MCE of predictions, each ().

    nll = -mean log p(y); brier = mean sum_c (p_c - [c = y])^2, from 0 to 2. Over `bins`:
    ece = sum_b n_b/n |acc_b - conf_b|, mce the largest such gap over bins that are not empty (Guo et al. 2017).
    """
    binned = bins(of)
    gap = (binned.right - binned.confidence).abs()
    return {
        "nll": -of.log_probabilities.gather(-1, of.labels[:, None]).double().mean(),
        "brier": of.residual.square().sum(-1).mean(),
        "ece": gap.sum() / len(of.labels),
        "mce": (gap / binned.images.clamp(min=1)).max(),
    }


def further(of: Predictions) -> dict[str, Tensor]:
    """Return ECE over NARROW bins, adaptive ECE, class-wise ECE and AURC of predictions, each ().

    adaptive_ece = sum_b n_b/n |acc_b - conf_b| over BINS bins of equally many images, in the order of their confidence
    (Nixon et al. 2019). classwise_ece = mean_c sum_b n_b/n |freq_bc - conf_bc| over BINS equal bins of each class's
    probability (Kull et al. 2019). aurc = mean_k (errors among the k most confident)/k, the area under risk over coverage
    (Geifman and El-Yaniv 2017). Images of one confidence keep their order.
    """
    confidence, predicted = of.highest
    # In the order of their bits, which is that of positive numbers, and faster found.
    order = confidence.view(torch.int64).sort(descending=True, stable=True).indices
    confidence = confidence[order]
    wrong = (predicted != of.labels)[order].double()
    narrow = bins(of, NARROW)
    return {
        "ece100": (narrow.right - narrow.confidence).abs().sum() / len(wrong),
        "adaptive_ece": adaptive_ece(confidence, wrong),
        "classwise_ece": classwise_ece(of),
        "aurc": (wrong.cumsum(0) / torch.arange(1, len(wrong) + 1, device=wrong.device)).mean(),
    }


def adaptive_ece(confidence: Tensor, wrong: Tensor) -> Tensor:
    """Return the adaptive ECE () from sorted confidences (n,) and whether each is wrong (n,), as numbers."""
    n = len(confidence)
    ends = torch.arange(BINS + 1, device=confidence.device) * n // BINS
    gaps = torch.cat([confidence.new_zeros(1), (1 - wrong - confidence).cumsum(0)])
    return gaps[ends].diff().abs().sum() / n


def classwise_ece(of: Predictions) -> Tensor:
    """Return the class-wise ECE () of predictions, up to EXACT."""
    classes, device = of.p.shape[-1], of.p.device
    of_class = BINS * torch.arange(classes, dtype=torch.int32, device=device)
    # A bin's left end is the one before's. What is no number has a place too: its sum is none.
    place = (of.p * BINS).ceil_().sub_(1).nan_to_num_(0).clamp_(0, BINS - 1).int().add_(of_class)
    # Whole numbers, whose sums have no rounding: so a scattered sum repeats itself on a GPU.
    gap = (of.residual / EXACT).round_()
    sums = of.p.new_zeros(BINS * classes).index_add_(0, place.flatten(), gap.flatten())
    return sums.abs().sum() * EXACT / of.p.numel()
