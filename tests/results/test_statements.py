"""Statements that follow from the numbers of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparing import grounds

from bayesfed.results import statements
from bayesfed.results.grounds import Ground
from bayesfed.results.paired import Comparison


def of(path: Path, **found: dict[str, list[float]]) -> Comparison:
    """The global side of grounds by name: method -> accuracy of each seed, from which all other values follow."""
    return Comparison(grounds(path, found), "global")


def test_who_leads_and_at_what_cost(tmp_path: Path) -> None:
    alone = of(tmp_path / "a", harsh={"FedAvg": [0.8, 0.81], "Mine": [0.9, 0.911]})
    told = statements.of(alone)
    assert told[0] == "Most accurate: Mine on harsh (81.78 ± 0.70, FedAvg 72.70), and costs what FedAvg does."
    assert [line.partition(":")[0] for line in told[1:4]] == list(statements.LEADS.values())[1:]
    assert len(told) == 4
    assert statements.by_side([alone]).keys() == {"Global model"}
    assert statements.lines([alone])[0].startswith("Global model: Most accurate: Mine on harsh")
    assert statements.of(of(tmp_path / "b", harsh={"FedAvg": [0.8, 0.81]})) == []
    assert statements.of(of(tmp_path / "f", harsh={"FedAvg": [0.8], "Mine": [0.9]})) == [statements.ONE_SEED]


def test_the_price_is_what_differs_on_the_ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = {"FedAvg": [0.8, 0.81], "Mine": [0.9, 0.911]}
    two = of(tmp_path, harsh=level, mild=level)
    price = lambda ground="harsh": statements.price(two, "Mine", ground)  # noqa: E731
    two.compared["megabytes"][0].means["Mine"] *= 2
    assert price() == ", with 2.0 times the bytes of FedAvg"
    assert price("mild") == ", and costs what FedAvg does"
    two.compared["time"][0].means["Mine"] *= 1.04
    assert price() == ", with 2.0 times the bytes of FedAvg"
    two.compared["time"][0].means["Mine"] *= 2
    assert price() == ", with 2.0 times the bytes and 2.1 times the time of FedAvg"
    two.compared["server_images"][1].means["Mine"] = 2000
    assert price("mild") == ", with 2000 images of the server's own"
    assert statements.price(two, "FedAvg", "harsh") == ""
    monkeypatch.setattr(Ground, "rough", lambda self, method: True)  # other work ran beside it
    busy = of(tmp_path / "busy", harsh=level)
    assert statements.price(busy, "Mine", "harsh") == ", and sends and computes what FedAvg does"
    busy.compared["time"][0].means["Mine"] *= 3.6
    assert statements.price(busy, "Mine", "harsh") == ", with about 4 times the time of FedAvg"


def test_a_model_at_the_ece_of_chance_leads_only_those_that_are_not(tmp_path: Path) -> None:
    """100 images at a confidence of 0.8: a calibrated share is sqrt(2 * 0.16 / (100 pi)), 3.19 points, away on average."""
    levels = {"FedAvg": [0.8, 0.81], "Mine": [0.98, 0.97], "Worse": [0.2, 0.21], "Worst": [0.1, 0.11]}
    two = of(tmp_path, harsh=levels)
    for trial in two.grounds[0].trials["Mine"].values():
        bins = {f"reliability_{place}_{what}": {6: 0.0} for place in range(1, 16) for what in ("images", "confidence")}
        trial.run._models["global"] |= bins | {
            "reliability_12_images": {6: 100.0},
            "reliability_12_confidence": {6: 80.0},
        }
    (told,) = [line for line in statements.leads(two) if "ECE" in line]
    assert "Mine on harsh (1.25 ± 0.35, FedAvg 9.75, a calibrated model has 3.19 by chance)" in told
    for trial in two.grounds[0].trials["FedAvg"].values():
        trial.run._models["global"] |= bins | {"reliability_8_images": {6: 2.0}, "reliability_8_confidence": {6: 1.0}}
    (told,) = [line for line in statements.leads(two) if "ECE" in line]
    assert (
        told
        == "Best calibrated (ECE): none on harsh (best mean 1.25 ± 0.35 of Mine, FedAvg 9.75, a calibrated model has 3.19 by chance)."
    )


def test_where_half_of_the_methods_are_near_none_leads(tmp_path: Path) -> None:
    good, bad = [0.8, 0.81, 0.83], [0.5, 0.51, 0.53]
    near = dict.fromkeys(("FedAvg", "A", "B", "C", "D"), good)
    some = of(tmp_path / "d", harsh=near | {f"worse {place}": bad for place in range(4)})
    assert "none on harsh (4 others not distinguishable from the best mean" not in statements.leads(some)[0]
    assert "FedAvg on harsh (73.45 ± 1.38, 4 others not distinguishable)" in statements.leads(some)[0]
    split = of(tmp_path / "e", harsh=near, mild=dict(near) | {f"worse {place}": bad for place in range(4)})
    assert statements.leads(split)[0].startswith(
        "Most accurate: none on harsh (best mean 73.45 ± 1.38 of FedAvg, 4 others not distinguishable); FedAvg on mild ("
    )
    # A mean over one seed is not one over three, and leaves open who is better.
    seldom = of(tmp_path / "i", one={"FedAvg": good, "A": good, "B": bad, "C": bad, "D": bad, "Once": [0.9]})
    assert statements.leads(seldom)[0].startswith("Most accurate: FedAvg on one (73.45 ± 1.38, 2 others not")
    one_seed = of(tmp_path / "j", one={"FedAvg": [0.8], "Mine": [0.9]})
    assert not one_seed.compared["accuracy"][0].is_near("FedAvg")
    both = of(tmp_path / "k", one={"FedAvg": [0.8, 0.81], "Mine": [0.9, 0.911]}, two={"FedAvg": [0.9], "Mine": [0.8]})
    assert "two" not in statements.leads(both)[0]
    assert statements.of(both)[-1] == f"On two there is one seed. {statements.ONE_SEED}"


def test_nobody_leads_who_cannot_be_told_to_be_better_than_the_baseline(tmp_path: Path) -> None:
    """However many weak methods there are beside the two."""
    weak = {f"worse {place}": [0.5, 0.51, 0.53] for place in range(4)}
    found = of(tmp_path, harsh={"FedAvg": [0.8, 0.81, 0.83], "Mine": [0.81, 0.81, 0.84]} | weak)
    told = statements.leads(found)[0]
    assert told == (
        "Most accurate: none on harsh (best mean 74.06 ± 1.56 of Mine, FedAvg 73.45, 1 other not distinguishable)."
    )


def test_seeds_that_fail(tmp_path: Path) -> None:
    steady, fallen = [0.9, 0.9, 0.89, 0.9, 0.81], [0.9, 0.9, 0.4, 0.9, 0.75]
    found = of(tmp_path, harsh={"FedAvg": steady, "SCAFFOLD": fallen}, mild={"FedAvg": steady})
    assert statements.failing(found) == [
        "On harsh seeds fail, without an accuracy or 10 points or more below the method's median: SCAFFOLD (2 of 5)."
    ]
    two = of(tmp_path / "two", harsh={"FedAvg": [0.9, 0.9], "Mine": [0.9, 0.3]})
    assert statements.failing(two) == []


def test_differences_between_precisions_are_told(tmp_path: Path) -> None:
    """Of the seeds that are paired with the baseline's."""
    found = of(tmp_path, harsh={"FedAvg": [0.9, 0.91], "A": [0.9, 0.9], "B": [0.9, 0.9]}, mild={"FedAvg": [0.9, 0.9]})
    assert statements.precisions(found) == []
    found.grounds[0].trials["B"]["1"].run.provenance["precision"] = "bf16"
    assert statements.precisions(found) == [
        "On harsh 1 of 2 methods has seeds in another precision than FedAvg (bf16 beside fp32), which is in its differences."
    ]


def test_a_side_without_models_says_nothing(tmp_path: Path) -> None:
    """As the clients' where nobody has test images of its own."""
    found = grounds(tmp_path, {"harsh": {"FedAvg": [0.8, 0.82], "Mine": [0.7, 0.71]}}, server=False)
    assert statements.of(Comparison(found, "global")) == []


def test_names_in_words() -> None:
    assert statements.listed(["a"]) == "a"
    assert statements.listed(["a", "b", "c"]) == "a, b and c"
