"""Detection by predictive entropy: how well it tells OOD images, or misclassified ones, from the rest.

AUROC over balanced resamplings (FedPPD, Tables 3 and 4), and the false positive rate at 95 % true positives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RESAMPLINGS = 5
MOST = 1000  # images of each kind in a resampling, where there are so many


def entropy(log_probabilities: Tensor) -> Tensor:
    """Return -sum_c p_c log p_c in nats (n,), float64, of log class probabilities (n, classes)."""
    of_class: Tensor = torch.special.entr(log_probabilities.double().exp())
    return of_class.sum(-1)


def auroc(scores: Tensor, positive: Tensor, counted: Tensor) -> Tensor:
    """Return the area () under the ROC curve of scores (n,) for the positive (n,) among the counted (n,) images.

    The Mann-Whitney statistic: the fraction of pairs in which the positive has the higher score, ties counting half. NaN
    where either kind is missing, or a score is no number. Counts are whole numbers, so that a GPU repeats itself.
    """
    ordered, order = scores.sort()
    negative = counted & ~positive
    up_to = torch.cat([negative.new_zeros(1, dtype=torch.long), negative[order].long().cumsum(0)])
    below = up_to[torch.searchsorted(ordered, scores)]
    not_above = up_to[torch.searchsorted(ordered, scores, right=True)]
    chosen = counted & positive
    area = ((below + not_above) * chosen).sum().double() / (2 * chosen.sum() * negative.sum()).double()
    return torch.where((scores.isnan() & counted).any(), torch.nan, area)  # sorted, NaN is the highest of all


def fpr95(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the share () of others that score (n,) at least as high as the threshold that 95 % of the positive (n,) reach.

    The highest such threshold. NaN where either kind is missing, or a score is no number.
    """
    ranked = torch.where(positive, scores, -torch.inf).sort(descending=True).values
    needed = (19 * positive.sum() + 19) // 20  # ceil(0.95 n), exactly
    threshold = ranked.gather(0, (needed - 1).clamp(min=0)[None])
    share = ((scores >= threshold) & ~positive).sum().double() / (~positive).sum().double()
    return torch.where(scores.isnan().any() | ~positive.any(), torch.nan, share)


def balanced(positive: Tensor, order: Tensor) -> Tensor:
    """Choose as many positive images as others, the first of each in a random order (n,), as a mask (n,): all that the
    rarer kind has, but MOST of each at most.
    """
    shuffled = positive[order]
    size = torch.minimum(positive.sum(), (~positive).sum()).clamp(max=MOST)
    place = torch.where(shuffled, shuffled.long().cumsum(0), (~shuffled).long().cumsum(0))
    return torch.empty_like(positive).index_put((order,), place <= size)


def detection(scores: Tensor, positive: Tensor, orders: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and sample standard deviation, each (), of the AUROC over one balanced resampling for each order."""
    found = torch.stack([auroc(scores, positive, balanced(positive, order)) for order in orders])
    return found.mean(), found.std()
