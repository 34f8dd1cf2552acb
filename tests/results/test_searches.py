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
    student = [{"validation": {"global": {"teacher": {"nll": 0.1}, "global": {"nll": nll}}}} for nll in (0.3, 0.2)]
    assert found(*student).scores == [0.3, 0.2]
    assert found(summary(math.nan), {}, summary(None), summary(5.0)).best == 3


def test_of_several_models_the_most_accurate_counts_as_in_the_tables() -> None:
    models = {"meme": {"nll": 0.1, "accuracy": 0.8}, "meme_sampled": {"nll": 0.5, "accuracy": 0.99}}
    own = [{"validation": {"clients": models | {"local": {"nll": 0.3, "accuracy": of}}}} for of in (0.9, 0.7)]
    assert found(*own, personal=True).scores == [0.3, 0.5]


def test_a_search_that_diverged_gives_no_choice() -> None:
    one = found({}, {})
    assert not one.settled
    assert comparison.rules([one], ["FedAvg"]) == ""


def test_an_open_run_leaves_a_search_open() -> None:
    one = found(summary(0.3), None)
    assert not one.finished
    assert one.rows == [["lr 0.1, alpha 0.5", "0.3000", ""], ["lr 0.2, alpha 0.5", "open", ""]]
    assert found(summary(0.3), {}).rows[0][2] == "yes"
    assert found(summary(0.3), {}).rows[1][1] == "diverged"


def test_choices_and_grounds_are_written_between_their_marks() -> None:
    """A method without a choice is named and left out; a dataset without any has no ground."""
    done, waits = found(summary(0.3), summary(0.2), summary(0.3)), found(None, method="HBFL")
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


def test_a_choice_at_the_end_of_its_grid_waits_for_the_next_rate() -> None:
    assert [searches.beyond(0.3, larger=larger) for larger in (True, False)] == [1, 0.1]
    assert [searches.beyond(0.055, larger=larger) for larger in (True, False)] == [0.1, 0.03]
    assert searches.beyond(0.002, larger=True) == 0.003
    assert found(summary(0.3), None).wider is None
    inside = found(summary(0.3), summary(0.2), {})
    assert inside.wider is None
    assert comparison.wider([inside]) == ""
    assert found(summary(0.3), summary(0.2)).wider == {"lr": 0.3, "method.alpha": 0.5}
    due = found(summary(0.2), summary(0.3))
    made = yaml.safe_load(comparison.wider([due, inside]))["search_wider_mnist"]
    assert made["axes"] == {"dataset": ["mnist"], "models.global": ["mlp200"]}
    assert made["cases"] == [{"partition.alpha": 0.1, "method": "FedAvg", "method.lr": 0.03, "method.alpha": 0.5}]
    assert comparison.rules([due], []) == ""
    assert "no choice yet for any method" in comparison.grounds([due], {}, [])


def test_what_was_tried_beyond_a_grid_stays_in_the_file() -> None:
    """A rate is set against those that were tried with the same options."""
    tried = [("search", 0.01, 1), ("search", 0.003, 10), ("search", 0.001, 10), ("search_wider_mnist", 0.0003, 10)]
    cells = [
        cell(name, "pFedBayes", 100, alpha="0.1", axes={"lr": lr, "lr_w": lr, "zeta": zeta}, folder=str(lr))
        for name, lr, zeta in tried
    ]

    def wider(*scores: float) -> list[float]:
        of = {one["folder"]: summary(score) for one, score in zip(cells, scores, strict=True)}
        made = yaml.safe_load(comparison.wider(searches.load(cells, of.get)))
        return [case["method.lr_w"] for case in made["search_wider_mnist"]["cases"]]

    assert wider(0.5, 0.3, 0.2, 0.4) == [0.0003]
    assert wider(0.5, 0.3, 0.2, 0.1) == [0.0003, 0.0001]
    assert wider(0.5, 0.2, 0.3, 0.4) == [0.0003, 0.01]


def test_small_numbers_stay_numbers_in_the_file() -> None:
    """YAML reads 3e-05 as text."""
    values = {"lr": [3e-05, 1e-10, 1.5e-07, 0.1], "rule": "a2e-3"}
    assert yaml.safe_load(comparison.flow(values)) == values


def test_a_plain_twin_has_the_options_of_its_method() -> None:
    labels = ["FedAvg", "FedAvg, plain"]
    (rule,) = yaml.safe_load(comparison.rules([found(summary(0.3), summary(0.2), {})], labels))
    assert rule["where"] == {"dataset": "mnist", "method": labels}
    assert rule["methods"] == {label: {"lr": 0.2, "alpha": 0.5} for label in labels}
    made = yaml.safe_load(comparison.grounds([found({}, summary(0.3), {})], {"1": "mild"}, labels))
    assert made["mnist-mild"]["axes"]["method"] == labels


def test_what_is_a_search() -> None:
    assert [searches.is_search(one) for one in ("search", "search_wider_fashion-mnist", "search_called")] == [True] * 3
    assert not any(map(searches.is_search, ("searched", "mnist-harsh")))
