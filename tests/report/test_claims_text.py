"""What came out of a claim in one cell, in words."""

import pytest

from bayesfed.report import claims_text
from bayesfed.results import claims
from bayesfed.results.statistics import BEST, in_words


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("global_accuracy_first10pct", "global accuracy, mean of the first tenth of the rounds"),
        ("client_accuracy_best", "client accuracy, best round"),
        ("global_accuracy_to_half", "global accuracy, to half"),
        ("global_ece_last", "global ece last"),
    ],
)
def test_metrics_in_words(metric: str, told: str) -> None:
    assert in_words(metric) == told


@pytest.mark.parametrize(
    ("kind", "sides", "difference", "exact", "holds", "told"),
    [
        ("higher", ["FML"], "+2.90", None, 1, "HBFL 2.90 points above FML, as claimed in 1 of 1 seed"),
        ("higher", ["FML"], "-2.90", None, 0, "HBFL 2.90 points below FML, as claimed in 0 of 1 seed"),
        ("higher", ["FML"], "+0.00", 0.00004, 1, "HBFL less than 0.01 points above FML, as claimed in 1 of 1 seed"),
        ("higher", ["FML"], "0.00", None, 0, "HBFL equal to FML, as claimed in 0 of 1 seed"),
        ("higher at", ["by entropy", "random"], "+0.29", None, 1, "HBFL, by entropy: 0.29 points above random, as claimed in 1 of 1 seed"),
        ("falls", ["alpha 100", "1"], "-9.00", None, 1, "HBFL falls by 9.00 points over alpha 100 to 1, as claimed in 1 of 1 seed"),
        ("falls", ["alpha 100", "1"], "-9.00", None, 0, "HBFL falls by 9.00 points over alpha 100 to 1, but not at each step, as claimed in 0 of 1 seed"),
        ("falls", ["alpha 100", "1"], "+9.00", None, 0, "HBFL rises by 9.00 points over alpha 100 to 1, as claimed in 0 of 1 seed"),
        ("smaller gain", ["FML", "mnist"], "-0.77", None, 1, "HBFL's gain over FML 0.77 points smaller on cifar10 than on mnist, as claimed in 1 of 1 seed"),
    ],
)  # fmt: skip
def test_outcomes(kind: str, sides: list[str], difference: str, exact: float | None, holds: int, told: str) -> None:
    came = claims.Outcome(holds, 0, 1, 1, difference, "", flags=[], used="", budget="", precision="", of_rounds="")
    test = claims.Test("HBFL", sides[0], sides, [], [exact if exact else float(difference) / 100], [], BEST)
    line = claims_text.Line(
        "",
        claims_text.outcome({"kind": kind, "dataset": "cifar10"}, came, test),
        "",
        claims_text.counted(came),
        "",
        "",
        "",
        True,
        "",
    )
    assert line.words == told
