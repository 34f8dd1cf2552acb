"""Metrics by name, and statistics of a paper's own: what is refused."""

import pytest

from bayesfed.core.errors import InputError
from bayesfed.results.records import of_metric
from bayesfed.results.statistics import read_statistic


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.3, "expected one of first, best_within, at_best_of and its value, found 0.3"),
        ({"frist": 0.3}, "no kind of statistic is named 'frist', did you mean 'first'|'frist'; did you mean 'first'"),
        ({"first": 30}, "first: expected an accuracy above 0 and up to 1, found 30"),
        ({"best_within": [80, 70]}, "best_within: expected two rounds, the first and the last"),
        ({"at_best_of": "globe"}, "at_best_of: no accuracy is named 'globe'"),
    ],
)
def test_wrong_statistics(value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"statistics.mine.*({message})"):
        of_metric([], "global_accuracy_mine", {"mine": value})
    with pytest.raises(InputError, match="this name stands for another statistic"):
        read_statistic("best", {"first": 0.3})


@pytest.mark.parametrize(
    "metric",
    [
        "global_ecee_last", "client_ece_last", "global_ece_best", "global_auroc_foreign__last5x", "megabytes_to_0",
        "megabytes_to_101", "megabyte", "validation_brier", "mine_ecee_last",
    ],
)  # fmt: skip
def test_unknown_metrics(metric: str) -> None:
    with pytest.raises(InputError, match=f"unknown metric '{metric}'"):
        of_metric([], metric, {})
