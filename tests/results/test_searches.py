"""Searches: what is chosen of a method's configurations, and the lines that `analyses.comparison` writes of it."""

from __future__ import annotations

import math
from typing import Any

import yaml
from helpers.comparing import cell

from analyses import comparison
from bayesfed.results import searches


def summary(nll: float | None, sampled: float | None = None, side: str = "global") -> dict[str, Any]:
    models = {"global": {"nll": nll}} | ({"global_sampled": {"nll": sampled}} if sampled is not None else {})
    return {"validation": {"global": {}, "clients": {}, side: models}}


def found(*summaries: dict[str, Any] | None, method: str = "FedAvg", personal: bool = False) -> searches.Searched:
    cells = [
        cell("search", method, 100, axes={"lr": 0.1 * (at + 1), "method.alpha": 0.5}, personal=personal, folder=str(at))
        for at in range(len(summaries))
    ]
    (one,) = searches.load([*cells, cell("mnist-harsh", method, 0)], lambda folder: summaries[int(folder)])
    return one


def test_the_smallest_validation_nll_of_the_predictive_is_chosen() -> None:
    assert found(summary(0.3), summary(0.2), summary(0.2)).best == 1
    assert found(summary(0.1, sampled=0.4), summary(0.2, sampled=0.3)).best == 1
    assert found(summary(0.1), summary(0.3, side="clients"), personal=True).best == 1
    named = [summary(0.1, sampled=0.4) | {"predictive": "global"}, summary(0.2, sampled=0.3) | {"predictive": "global"}]
    assert found(*named).best == 0
    assert found(summary(math.nan), {}, summary(None), summary(5.0)).best == 3


def test_an_open_run_leaves_a_search_open() -> None:
    one = found(summary(0.3), None)
    assert not one.finished
    assert one.rows == [["lr 0.1, alpha 0.5", "0.3000", ""], ["lr 0.2, alpha 0.5", "open", ""]]
    assert found(summary(0.3), {}).rows[0][2] == "yes"
    assert found(summary(0.3), {}).rows[1][1] == "diverged"


def test_choices_and_grounds_are_written_between_their_marks() -> None:
    """A method without a choice is named and left out; a dataset without any has no ground."""
    done, waits = found(summary(0.3), summary(0.2)), found(None, method="HBFL")
    rules = yaml.safe_load(comparison.rules([done, waits], ["FedAvg", "HBFL"]))
    assert rules == [
        {"where": {"dataset": "mnist", "method": "FedAvg"}, "methods": {"FedAvg": {"lr": 0.2, "alpha": 0.5}}}
    ]
    text = comparison.grounds([done, waits], {"1": "mild", "0.1": "harsh"}, ["FedAvg", "HBFL"])
    assert "# mnist: no choice yet for HBFL\n" in text
    made = yaml.safe_load(text)
    assert list(made) == ["mnist-mild", "mnist-harsh"]
    axes = {"dataset": ["mnist"], "models.global": ["mlp200"], "partition.alpha": [0.1], "method": ["FedAvg"]}
    assert made["mnist-harsh"] == {"seeds": 5, "axes": axes}
    assert comparison.grounds([waits], {"1": "mild"}, []) == "  # mnist: no choice yet for any method\n"
    begin, end = comparison.BEGIN.format("grounds"), comparison.END.format("grounds")
    once = comparison.between(f"a\n{begin}old\n{end}b\n", "grounds", text)
    assert once == f"a\n{begin}{text}{end}b\n"
    assert comparison.between(once, "grounds", text) == once


def test_a_plain_twin_has_the_options_of_its_method() -> None:
    labels = ["FedAvg", "FedAvg, plain"]
    (rule,) = yaml.safe_load(comparison.rules([found(summary(0.3), summary(0.2))], labels))
    assert rule["where"] == {"dataset": "mnist", "method": labels}
    assert rule["methods"] == {label: {"lr": 0.2, "alpha": 0.5} for label in labels}
    made = yaml.safe_load(comparison.grounds([found(summary(0.3))], {"1": "mild"}, labels))
    assert made["mnist-mild"]["axes"]["method"] == labels
