"""Detection by entropy against scikit-learn, scipy's entropy by hand, and what resampling must keep."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from bayesfed.metrics import detection
from bayesfed.metrics.detection import auroc, balanced, entropy, fpr95


def test_entropy_by_hand() -> None:
    """Of a uniform, a certain and a skewed prediction; a probability of 0 adds nothing."""
    p = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.25, 0.25, 0]], dtype=torch.float64)
    assert entropy(p.log()).tolist() == pytest.approx([math.log(4), 0, 1.5 * math.log(2)])


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), min_size=2, max_size=60),
)
def test_auroc_is_scikit_learns(images: list[tuple[int, bool, bool]]) -> None:
    """With many ties, and images that are left out."""
    scores = torch.tensor([score / 7 for score, _, _ in images], dtype=torch.float64)
    positive = torch.tensor([one for _, one, _ in images])
    counted = torch.tensor([one for _, _, one in images])
    found = auroc(scores, positive, counted).item()
    truth = positive[counted].numpy()
    if truth.all() or not truth.any():
        assert math.isnan(found)
    else:
        assert found == pytest.approx(roc_auc_score(truth, scores[counted].numpy()), abs=1e-12)


@pytest.mark.parametrize("place", [0, 3])
def test_a_score_that_is_no_number_detects_nothing(place: int) -> None:
    """Not perfectly, as the highest score would; one that is not counted changes nothing."""
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    positive, counted = torch.tensor([False, False, True, True]), torch.ones(4, dtype=torch.bool)
    scores[place] = math.nan
    assert math.isnan(auroc(scores, positive, counted).item())
    counted[place] = False
    assert auroc(scores, positive, counted).item() == 1


@given(st.lists(st.booleans(), min_size=1, max_size=80), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_resamplings_are_balanced(kinds: list[bool], seed: int, most: int) -> None:
    positive = torch.tensor(kinds)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(kinds)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "MOST", most)
        chosen = balanced(positive, order)
    size = min(sum(kinds), len(kinds) - sum(kinds), most)
    assert (chosen & positive).sum() == (chosen & ~positive).sum() == size
    # Of each kind the first in the order: none that is left out stands before one that is taken.
    for kind in (positive, ~positive):
        taken = chosen[order][kind[order]]
        assert taken.tolist() == sorted(taken.tolist(), reverse=True)


def test_mean_and_sd_over_resamplings() -> None:
    random = np.random.default_rng(0)
    scores = torch.from_numpy(random.normal(size=3000))
    positive = torch.arange(3000) < 1200
    scores += positive * 0.7
    orders = [torch.from_numpy(random.permutation(3000)) for _ in range(5)]
    mean, sd = detection.detection(scores, positive, orders)
    each = []
    for order in orders:
        first = [i for i in order.tolist() if i < 1200][:1000] + [i for i in order.tolist() if i >= 1200][:1000]
        each.append(roc_auc_score(positive[first].numpy(), scores[first].numpy()))
    assert mean.item() == pytest.approx(np.mean(each), abs=1e-12)
    assert sd.item() == pytest.approx(np.std(each, ddof=1), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=2, max_size=120))
def test_fpr_at_95_percent_is_scikit_learns(images: list[tuple[int, bool]]) -> None:
    """The first point of the whole ROC curve that reaches it, with ties."""
    scores = torch.tensor([score / 31 for score, _ in images], dtype=torch.float64)
    positive = torch.tensor([one for _, one in images])
    found = fpr95(scores, positive).item()
    if positive.all() or not positive.any():
        assert math.isnan(found)
        return
    false, true, _ = roc_curve(positive.numpy(), scores.numpy(), drop_intermediate=False)
    assert found == pytest.approx(false[np.flatnonzero(true >= 0.95 - 1e-12)[0]], abs=1e-12)


def test_a_score_that_is_no_number_has_no_fpr() -> None:
    assert math.isnan(fpr95(torch.tensor([0.1, math.nan, 0.3]), torch.tensor([False, True, True])).item())
