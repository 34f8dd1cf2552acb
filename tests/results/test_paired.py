"""Differences paired by seed, with their intervals and ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.comparing import cell, finish, grounds, history
from scipy.stats import ttest_1samp

from bayesfed.results.grounds import COLUMNS
from bayesfed.results.grounds_of_plan import load
from bayesfed.results.paired import Comparison, Difference, intervals, shown
from bayesfed.results.run_records import RunRecord

NOISE = [0.0, 0.02, -0.01, 0.01, -0.02]


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Better is 5 points above FedAvg on each seed, Near as good as Better on average; on the second ground FedAvg leads."""
    seeds = {
        "FedAvg": [0.8 + one for one in NOISE],
        "Better": [0.85 + one for one in NOISE],
        "Near": [0.85 - one for one in NOISE],
    }
    worse = {"FedAvg": [0.8] * 5, "Better": [0.7] * 5, "Near": [0.7] * 5}
    return Comparison(grounds(tmp_path, {"one": seeds, "two": worse}), "global")


def test_a_difference_is_of_the_same_seeds(comparison: Comparison) -> None:
    """What all seeds have in common is not in it: the interval of a constant difference is that difference."""
    apart = comparison.compared["nll"][0].difference("Better", "FedAvg")
    assert apart is not None
    assert (apart.mean, apart.low, apart.high) == pytest.approx((-0.05, -0.05, -0.05))
    assert (apart.seeds, apart.sign(False), apart.sign(True)) == (5, 1, -1)
    turned = comparison.compared["nll"][0].difference("FedAvg", "Better")
    assert turned is not None
    assert (turned.mean, turned.low, turned.high) == pytest.approx((0.05, 0.05, 0.05))
    assert comparison.compared["nll"][0].difference("FedAvg", "FedAvg") is None


def test_a_method_with_fewer_seeds_is_not_the_best(tmp_path: Path) -> None:
    found = Comparison(grounds(tmp_path, {"one": {"FedAvg": [0.8, 0.81], "A": [0.7, 0.71], "Once": [0.9]}}), "global")
    one = found.compared["accuracy"][0]
    assert one.best == "FedAvg"
    assert one.ranks == {"FedAvg": 1, "A": 2}
    assert max(one.means, key=one.means.__getitem__) == "Once"


def test_seeds_that_few_methods_have_do_not_count(tmp_path: Path) -> None:
    """Bad has all five, the baseline four and the others three: all are compared on three."""
    three, four = [0.8, 0.81, 0.82], [0.79, 0.81, 0.8, 0.99]
    levels = {"FedAvg": four, "Good": [0.9, 0.91, 0.93], "Other": three, "Bad": [0.6, 0.61, 0.6, 0.98, 0.97]}
    found = Comparison(grounds(tmp_path, {"one": levels}), "global")
    one = found.compared["accuracy"][0]
    assert one.ground.seeds == {"0", "1", "2"}
    assert one.best == "Good"
    assert one.ranks == {"Good": 1, "Other": 2, "FedAvg": 3, "Bad": 4}
    assert found.told_apart("accuracy", [("Bad", "FedAvg"), ("Good", "FedAvg")]) == {
        "Bad": {"one": -1},
        "Good": {"one": 1},
    }
    apart = one.difference("Bad", "FedAvg")
    assert apart is not None
    assert apart.seeds == 3


def test_an_interval_holds_what_seeds_leave_open() -> None:
    (apart,) = intervals(np.array([[0.1, -0.1, 0.2, 0.0, -0.1]]))
    assert (apart.low or 0) < 0 < apart.mean < (apart.high or 0)
    assert apart.sign(True) == 0
    assert intervals(np.array([[0.5]])) == [Difference(0.5, None, None, 1)]
    expected = ttest_1samp([1.0, 2.0, 4.0], 0).confidence_interval(0.95)
    (apart,) = intervals(np.array([[1.0, 2.0, 4.0]]))
    assert (apart.low, apart.high) == pytest.approx((expected.low, expected.high))
    assert apart.p == pytest.approx(ttest_1samp([1.0, 2.0, 4.0], 0).pvalue)
    assert [one.p for one in intervals(np.array([[0.1, 0.1, 0.1], [0.0, 0.0, 0.0]]))] == pytest.approx([0.0, 1.0])


def test_two_equal_differences_prove_nothing() -> None:
    """Of 12 test images accuracies have 13 values: two differences are the same in one case of some."""
    none, zero = intervals(np.array([[0.3 - 0.2, 0.1], [0.0, 0.0]]))
    assert (none.low, none.high, none.p, none.sign(True)) == (None, None, None, 0)
    assert (zero.low, zero.high, zero.p) == (0.0, 0.0, 1.0)


def test_p_values_are_corrected_for_the_number_of_pairs(tmp_path: Path) -> None:
    """By hand, Benjamini and Hochberg: the i-th smallest of n times n / i, and no larger than those behind it."""
    random = np.random.default_rng(3)
    names = [f"M{place}" for place in range(6)]
    levels = {name: (0.8 + 0.02 * random.normal(size=4) + 0.01 * at).tolist() for at, name in enumerate(names)}
    one = Comparison(grounds(tmp_path, {"one": {"FedAvg": [0.8, 0.79, 0.81, 0.8]} | levels}), "global").compared["nll"][
        0
    ]
    pairs = [(name, "FedAvg") for name in names]
    found = one.corrected([*pairs, ("FedAvg", "FedAvg"), ("nobody", "FedAvg")])
    plain = sorted((apart.p, pair) for pair in pairs if (apart := one.difference(*pair)) and apart.p is not None)
    assert len(plain) == len(found) == 6
    least = 1.0
    for place, (p, pair) in reversed(list(enumerate(plain, 1))):
        least = min(least, p * 6 / place)
        assert found[pair] == pytest.approx(least)


def test_a_method_with_a_failing_seed_is_not_near(tmp_path: Path) -> None:
    """Its interval reaches to the best for no other reason than that seed."""
    levels = {"FedAvg": [0.8, 0.8, 0.8, 0.8], "Best": [0.9, 0.9, 0.91, 0.9], "Falls": [0.9, 0.91, 0.9, 0.4]}
    one = Comparison(grounds(tmp_path, {"one": levels}), "global").compared["accuracy"][0]
    apart = one.difference("Falls", "Best")
    assert apart is not None
    assert apart.sign(True) == 0
    assert one.ground.failing["global"] == {"Falls": 1}
    assert not one.is_near("Falls")


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_chance_is_taken_for_a_difference_as_often_as_it_says(seeds: int) -> None:
    """In one case of twenty, however few the seeds; the bound is four standard deviations of 20 000 cases."""
    found = intervals(np.random.default_rng(0).normal(size=(20_000, seeds)))
    assert np.mean([one.sign(True) != 0 for one in found]) == pytest.approx(0.05, abs=0.0062)


def test_wins_ranks_and_the_best(comparison: Comparison) -> None:
    ece = comparison.compared["ece"]
    assert ece[0].best in ("Better", "Near")
    assert {name for name in ("Better", "Near", "FedAvg") if ece[0].is_near(name) or name == ece[0].best} == {
        "Better",
        "Near",
    }
    assert comparison.told_apart("ece", [("Better", "FedAvg")]) == {"Better": {"one": 1, "two": -1}}
    first = Comparison(comparison.grounds[:1], comparison.side)
    assert first.told_apart("ece", [("Better", "FedAvg")]) == {"Better": {"one": 1}}
    assert first.told_apart("ece", [("FedAvg", "Better")]) == {"FedAvg": {"one": -1}}
    assert 0 in comparison.told_apart("ece", [("Near", "Better")])["Near"].values()
    assert ece[1].ranks == {"FedAvg": 1.0, "Better": 2.5, "Near": 2.5}
    found = comparison.mean_rank("ece", "FedAvg")
    assert found == (2.0, 2)
    assert comparison.mean_rank("passes", "FedAvg") is None


def test_missing_seeds_are_left_out_of_a_pair(tmp_path: Path) -> None:
    found = Comparison(grounds(tmp_path, {"one": {"FedAvg": [0.8, 0.8, 0.9], "Mine": [0.9, 0.9]}}), "global")
    apart = found.compared["nll"][0].difference("Mine", "FedAvg")
    assert apart is not None
    assert (apart.seeds, apart.mean) == (2, pytest.approx(-0.1))


def test_differences_in_words() -> None:
    column = next(one for one in COLUMNS if one.name == "accuracy")
    assert shown(Difference(-1.234, -2.0, 0.5, 5), column) == "−1.23 [−2.00, +0.50]"
    assert shown(Difference(1.0, None, None, 1), column) == "+1.00"


def test_who_loses_seeds_is_better_than_none(tmp_path: Path) -> None:
    """X is two points better in three seeds and diverged in two: a mean over what went well proves nothing."""
    base, some = [0.80, 0.81, 0.82, 0.80, 0.81], [0.90, 0.91, 0.92, 0.9, 0.91]
    found = Comparison(grounds(tmp_path, {"g": {"FedAvg": base, "X": some, "Y": some}}), "global")
    assert found.told_apart("accuracy", [("X", "FedAvg")]) == {"X": {"g": 1}}
    for seed in (3, 4):
        finish(tmp_path / f"g/X/{seed}", history(0.9), diverged={"round": 2})
    cells = [cell("g", method, seed) for method in ("FedAvg", "X", "Y") for seed in range(5)]
    costs = {one["folder"]: 10 for one in cells}
    again = Comparison(load(cells, costs, "FedAvg", lambda folder: RunRecord(tmp_path / folder)), "global")
    pairs = [("X", "FedAvg"), ("FedAvg", "X"), ("Y", "FedAvg")]
    assert again.told_apart("accuracy", pairs) == {"X": {"g": 0}, "FedAvg": {"g": 0}, "Y": {"g": 1}}
