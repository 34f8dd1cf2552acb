"""Claims worked out by hand, one a kind."""

import pytest

from bayesfed.results import claims, claims_table
from bayesfed.results import study as join

HIGHER = {
    "claim": "above", "by": "paper", "kind": "higher", "experiments": ["heterogeneous"],
    "metric": "global_accuracy_best", "method": "HBFL", "than": ["FML"],
}  # fmt: skip


def outcome(lab, claim):
    (study,) = join.studies(lab.plan)
    return claims_table.rows(study, claims.tested(study, claim))


def counts(row):
    return row["holds"], row["of"], row["planned"], row["difference"], row["verdict"]


def test_higher_counts_the_seeds_of_each_cell(lab, stored):
    for seed, (ours, theirs) in enumerate([(0.6, 0.5), (0.5, 0.55), (0.7, None)]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [ours])
        folder = lab.cell("heterogeneous", "FML", seed=seed)
        if theirs:
            stored(folder, [theirs])
    stored(lab.cell("heterogeneous", "HBFL", alpha="0.05"), [0.5])
    stored(lab.cell("heterogeneous", "FML", alpha="0.05"), [0.5])  # equal is not above
    total, iid, non_iid = outcome(lab, HIGHER)
    assert counts(iid) == ("1", "2", "3", "+2.50", "mixed")
    assert counts(non_iid) == ("0", "1", "1", "+0.00", "contradicted")
    assert [row["ties"] for row in (total, iid, non_iid)] == ["1", "0", "1"]
    assert [row["flags"] for row in (total, iid, non_iid)] == ["preliminary", "preliminary", ""]
    assert counts(total) == ("1", "3", "4", "+1.67", "mixed")
    assert (iid["alpha"], iid["dataset"], iid["method"], iid["than"]) == ("100", "CIFAR10", "HBFL", "FML")


def test_not_higher_holds_where_both_tie(lab, stored):
    for alpha, ours in (("100", 0.5), ("0.05", 0.6)):
        stored(lab.cell("heterogeneous", "HBFL", alpha=alpha), [ours])
        stored(lab.cell("heterogeneous", "FML", alpha=alpha), [0.5])
    total, tie, above = outcome(lab, {**HIGHER, "kind": "not higher"})
    assert counts(tie) == ("1", "1", "1", "+0.00", "supported")
    assert counts(above) == ("0", "1", "1", "+10.00", "contradicted")
    assert (total["ties"], total["verdict"]) == ("0", "mixed")


def test_a_side_that_has_diverged_loses(lab, stored):
    gone = {"round": 3, "client": "1", "tensor": "mu"}
    for seed, (ours, theirs) in enumerate([(None, gone), (gone, None), (gone, gone)]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [0.5], diverged=ours)
        stored(lab.cell("heterogeneous", "FML", seed=seed), [0.6], diverged=theirs)
    total, cell = outcome(lab, HIGHER)
    assert counts(total) == counts(cell) == ("1", "2", "3", "", "mixed")
    assert total["flags"] == (
        "no difference in 2: a side diverged or never gets there; nothing to compare in 1, which diverged"
    )


@pytest.mark.parametrize(("ours", "verdict"), [(True, "diverged"), (False, "not run")])
def test_nothing_to_compare_has_diverged_or_is_not_run(lab, stored, ours, verdict):
    gone = {"round": 3, "client": "1", "tensor": "mu"}
    folder = lab.cell("heterogeneous", "HBFL")
    if ours:
        stored(folder, [0.5], diverged=gone)
    stored(lab.cell("heterogeneous", "FML"), [0.6], diverged=gone)
    total, cell = outcome(lab, HIGHER)
    assert counts(total) == counts(cell) == ("", "0", "1", "", verdict)


@pytest.mark.parametrize(("kind", "metric"), [("higher", "global_accuracy_best"), ("lower", "global_accuracy_to_half")])
def test_the_side_that_has_diverged_is_the_worse_one(lab, stored, kind, metric):
    """Of a metric that is better when it rises, and of one that is better when it falls."""
    lab.spec["statistics"] = {"to_half": {"first": 0.5}}
    gone = {"round": 1, "client": "1", "tensor": "mu"}
    for alpha, ours, theirs in (("100", None, gone), ("0.05", gone, None)):
        stored(lab.cell("heterogeneous", "HBFL", alpha=alpha), [0.6], diverged=ours)
        stored(lab.cell("heterogeneous", "FML", alpha=alpha), [0.6], diverged=theirs)
    _, theirs, ours = outcome(lab, {**HIGHER, "kind": kind, "metric": metric})
    assert counts(theirs) == ("1", "1", "1", "", "supported")
    assert counts(ours) == ("0", "1", "1", "", "contradicted")


@pytest.mark.parametrize(
    ("claim", "ties"),
    [
        ({"kind": "higher"}, "1"),
        ({"kind": "lower"}, "1"),
        ({"kind": "higher at", "methods": ["HBFL"], "along": "alpha", "at": 100, "than": [0.05]}, "1"),
        ({"kind": "falls", "methods": ["HBFL"], "along": "alpha"}, "0"),
        ({"kind": "rises", "methods": ["HBFL"], "along": "alpha"}, "0"),
        ({"kind": "smaller gain", "dataset": "cifar100", "than_dataset": ["cifar10"]}, "0"),
    ],
)
def test_equal_is_neither_more_nor_less(lab, stored, claim, ties):
    for dataset, alpha in (("cifar10", "100"), ("cifar100", "100"), ("cifar10", "0.05"), ("cifar100", "0.05")):
        for method in ("HBFL", "FML"):
            stored(lab.cell("heterogeneous", method, dataset, alpha=alpha), [0.5])
    total, cell, *_ = outcome(lab, {**HIGHER, **claim})
    assert (cell["holds"], cell["of"], cell["ties"], cell["difference"]) == ("0", "1", ties, "+0.00")
    assert total["verdict"] == "contradicted"


def test_a_side_that_never_reaches_a_value_is_later_than_any_other(lab, stored):
    lab.spec["statistics"] = {"to_half": {"first": 0.5}}
    for seed, (ours, theirs) in enumerate([([0.1, 0.5], [0.1, 0.2]), ([0.1, 0.2], [0.5, 0.5]), ([0.1], [0.2])]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), ours)
        stored(lab.cell("heterogeneous", "FML", seed=seed), theirs)
    _, cell = outcome(lab, {**HIGHER, "kind": "lower", "metric": "global_accuracy_to_half"})
    assert counts(cell) == ("1", "3", "3", "", "mixed")
    assert cell["ties"] == "1"
    _, cell = outcome(lab, {**HIGHER, "kind": "not higher", "metric": "global_accuracy_to_half"})
    assert (cell["holds"], cell["ties"]) == ("2", "0")  # the earlier one, and where neither gets there


def test_a_comparison_of_two_precisions_is_told(lab, stored, told):
    for method, precision in (("HBFL", "bf16"), ("FML", "fp32")):
        folder = lab.cell("heterogeneous", method)
        stored(folder, [0.5])
        told(folder, precision=precision)
    total, cell = outcome(lab, HIGHER)
    assert total["precision"] == cell["precision"] == "bf16 against fp32"


def test_higher_over_clients_matches_client_with_client(lab, stored):
    stored(lab.cell("heterogeneous", "HBFL", clients=2), [0.5], [[0.6], [0.4]])
    stored(lab.cell("heterogeneous", "FML", clients=2), [0.5], [[0.5], [0.5]])
    total, first, second = outcome(lab, {**HIGHER, "metric": "client_accuracy_best"})
    assert [counts(row)[:2] for row in (total, first, second)] == [("1", "2"), ("1", "1"), ("0", "1")]
    assert [row["client"] for row in (first, second)] == ["1", "2"]


def test_ablations_stand_in_another_experiment(lab, stored):
    stored(lab.cell("heterogeneous", "HBFL"), [0.6])
    stored(lab.cell("ablation", "HBFL plain mean"), [0.5])
    claim = {**HIGHER, "experiments": ["heterogeneous", "ablation"], "than": ["HBFL plain mean"]}
    total, cell = outcome(lab, claim)
    assert counts(cell) == counts(total) == ("1", "1", "1", "+10.00", "supported")


def test_lower_on_the_stability_of_a_curve(lab, stored):
    stored(lab.cell("homogeneous", "HBFL", model="mlp", alpha="0.05", rounds=10), [0.5, 0.6] * 5)
    stored(lab.cell("homogeneous", "FedAvg", model="mlp", alpha="0.05", rounds=10), [0.3, 0.6] * 5)
    stored(lab.cell("homogeneous", "HBFL", model="mlp", rounds=10), [0.3, 0.6] * 5)
    stored(lab.cell("homogeneous", "FedAvg", model="mlp", rounds=10), [0.5, 0.6] * 5)
    claim = {
        **HIGHER, "kind": "lower", "experiments": ["homogeneous"], "metric": "global_accuracy_round_std",
        "than": ["FedAvg"], "where": {"setting": "Non-IID"},
    }  # fmt: skip
    total, cell = outcome(lab, claim)
    assert counts(total)[:2] == ("1", "1")
    assert cell["alpha"] == "0.05"


def test_a_claim_on_rounds_that_no_run_has_waits_for_none(lab, stored):
    lab.spec["statistics"] = {"late": {"best_within": [50, 60]}}
    for method in ("HBFL", "FML"):
        stored(lab.cell("heterogeneous", method), [0.1, 0.2])
    total, cell = outcome(lab, {**HIGHER, "metric": "global_accuracy_late"})
    assert total["verdict"] == cell["verdict"] == "no such rounds"


def test_higher_at_a_value_of_an_axis(lab, stored):
    """Each method with itself, cell by cell and seed by seed."""
    for (method, level), of_seeds in {
        ("HBFL", "0"): [0.6, 0.7], ("HBFL", "0.5"): [0.5, 0.75], ("HBFL", "0.9"): [0.1, 0.1],
        ("FML", "0"): [0.5], ("FML", "0.5"): [0.4], ("FedAvg", "0"): [0.9], ("FedAvg", "0.5"): [0.1],
    }.items():  # fmt: skip
        for seed, value in enumerate(of_seeds):
            stored(lab.cell("stragglers", method, stragglers=level, seed=seed), [value])
    claim = {
        "claim": "stragglers cost", "by": "us", "kind": "higher at", "experiments": ["stragglers"],
        "metric": "global_accuracy_best", "methods": ["HBFL", "FML"], "along": "stragglers", "at": 0, "than": [0.5],
    }  # fmt: skip
    total, hbfl, fml = outcome(lab, claim)
    assert counts(hbfl) == ("1", "2", "2", "+2.50", "mixed")
    assert counts(fml) == ("1", "1", "1", "+10.00", "supported")
    assert counts(total)[:3] == ("2", "3", "3")
    assert (hbfl["method"], hbfl["than"], hbfl["stragglers"], total["than"]) == (
        "HBFL", "stragglers 0 > 0.5", "", "0.5"
    )  # fmt: skip


def test_falls_holds_between_more_than_half_of_all_pairs(lab, stored):
    """Of seed 0 in five of six, of seed 1 in three."""
    values = {"100": [0.9, 0.8], "1": [0.95, 0.85], "0.1": [0.7, 0.9], "0.05": [0.6, 0.5]}
    for alpha, of_seeds in values.items():
        for seed, value in enumerate(of_seeds):
            stored(lab.cell("homogeneous", "HBFL", model="mlp", alpha=alpha, seed=seed), [value])
        lab.cell("homogeneous", "HBFL", model="mlp", alpha=alpha, seed=2)
    claim = {
        "claim": "falls", "by": "paper", "kind": "falls", "experiments": ["homogeneous"],
        "metric": "global_accuracy_best", "methods": ["HBFL", "FML"], "along": "alpha",
    }  # fmt: skip
    total, cell = outcome(lab, claim)
    assert counts(cell) == counts(total) == ("1", "2", "3", "-30.00", "mixed")
    assert cell["than"] == "alpha 100 > 1 > 0.1 > 0.05"
    assert cell["alpha"] == ""


def test_rises_is_the_other_way_round(lab, stored):
    for alpha, value in (("100", 0.5), ("1", 0.6), ("0.05", 0.7)):
        stored(lab.cell("heterogeneous", "HBFL", alpha=alpha), [value])
        stored(lab.cell("heterogeneous", "FML", alpha=alpha), [0.6 if alpha == "1" else 0.5])
    claim = {
        "claim": "up", "by": "us", "kind": "rises", "experiments": ["heterogeneous"], "metric": "global_accuracy_best",
        "methods": ["HBFL", "FML"], "along": "alpha",
    }  # fmt: skip
    (study,) = join.studies(lab.plan)
    total, ours, theirs = claims_table.rows(study, claims.tested(study, claim))
    assert (total["holds"], total["of"]) == ("1", "2")
    assert (ours["verdict"], ours["difference"], theirs["verdict"]) == ("supported", "+20.00", "contradicted")


def test_a_difference_of_rounds_is_in_rounds(lab, stored):
    lab.spec["statistics"] = {"to_half": {"first": 0.5}}
    stored(lab.cell("heterogeneous", "HBFL"), [0.4, 0.5])
    stored(lab.cell("heterogeneous", "FML"), [0.1, 0.2, 0.3, 0.4, 0.6])
    total, _ = outcome(lab, {**HIGHER, "kind": "lower", "metric": "global_accuracy_to_half"})
    assert counts(total) == ("1", "1", "1", "-3.0", "supported")


def test_a_claim_of_most_settings_holds_in_more_than_half(lab, stored):
    for alpha, ours in (("100", 0.6), ("1", 0.4), ("0.05", 0.7)):
        stored(lab.cell("heterogeneous", "HBFL", alpha=alpha), [ours])
        stored(lab.cell("heterogeneous", "FML", alpha=alpha), [0.5])
    most = {**HIGHER, "most": True}
    assert [row["verdict"] for row in outcome(lab, most)] == ["supported", "supported", "contradicted", "supported"]
    stored(lab.cell("heterogeneous", "HBFL", alpha="0.1"), [0.4])
    stored(lab.cell("heterogeneous", "FML", alpha="0.1"), [0.5])
    assert outcome(lab, most)[0]["verdict"] == "mixed"
    assert outcome(lab, HIGHER)[0]["verdict"] == "mixed"


def test_a_claim_of_which_a_part_is_planned_is_no_verdict_on_all(lab, stored):
    for method, best in (("FML", 0.5), ("HBFL", 0.6)):
        stored(lab.cell("heterogeneous", method), [best], [[0.5]])
    assert outcome(lab, {**HIGHER, "cells": 1})[0]["flags"] == ""
    few = outcome(lab, {**HIGHER, "cells": 4})[0]
    assert (few["verdict"], few["flags"]) == ("supported", "preliminary (in 1 of its 4 cells)")


def test_smaller_gain_averages_over_models(lab, stored):
    accuracy = {  # gains: CIFAR100 0.02, CIFAR10 (0.05 + 0.01) / 2 = 0.03
        ("cifar100", "cnn2"): (0.42, 0.40), ("cifar10", "lenet5"): (0.75, 0.70), ("cifar10", "cnn1"): (0.71, 0.70),
    }  # fmt: skip
    for (dataset, model), (ours, theirs) in accuracy.items():
        stored(lab.cell("homogeneous", "HBFL", dataset, model=model), [ours])
        stored(lab.cell("homogeneous", "FML", dataset, model=model), [theirs])
    claim = {
        **HIGHER, "kind": "smaller gain", "experiments": ["homogeneous"],
        "dataset": "cifar100", "than_dataset": ["cifar10", "mnist"],
    }  # fmt: skip
    total, cell = outcome(lab, claim)
    assert counts(cell) == counts(total) == ("1", "1", "1", "-1.00", "supported")
    assert cell["dataset"] == "CIFAR100 and CIFAR10"


def test_a_mean_over_models_waits_for_all_of_them(lab, stored):
    for dataset, model in (("cifar100", "cnn2"), ("cifar10", "lenet5"), ("cifar10", "cnn1")):
        for method, best in (("HBFL", 0.6), ("FML", 0.5)):
            folder = lab.cell("homogeneous", method, dataset, model=model)
            if (method, model) != ("HBFL", "cnn1"):
                stored(folder, [best])
    claim = {
        **HIGHER,
        "kind": "smaller gain",
        "experiments": ["homogeneous"],
        "dataset": "cifar100",
        "than_dataset": ["cifar10"],
    }
    total, cell = outcome(lab, claim)
    assert counts(cell) == counts(total) == ("", "0", "1", "", "not run")


def test_budget_and_data_are_in_the_verdict(lab, stored):
    small = {"rounds": 4, "changes": ["rounds 4 (paper 100)"]}
    for method, value in (("HBFL", 0.6), ("FML", 0.5)):
        stored(lab.cell("heterogeneous", method, **small), [value])
        stored(lab.cell("heterogeneous", method, "cifar100", used="digits", **small), [1 - value])
    total, reduced, stand_in = outcome(lab, HIGHER)
    assert (reduced["verdict"], reduced["flags"]) == ("supported", "off-protocol (not the paper's runs)")
    assert (stand_in["verdict"], stand_in["flags"]) == ("contradicted", "off-protocol (stand-in data)")
    assert stand_in["dataset_used"] == "digits"
    assert (total["verdict"], total["flags"]) == ("mixed", "off-protocol (stand-in data)")


def test_nothing_run_claims_nothing(lab, rows, tmp_path):
    lab.cell("heterogeneous", "HBFL")
    lab.cell("heterogeneous", "FML")
    claims_table.write(lab.found, tmp_path)
    found = rows(tmp_path / "hbfl/claims.csv")
    assert {row["verdict"] for row in found} == {"not run"}
    assert {row["holds"] for row in found} == {""}
    # Every claim of the paper has its row over all cells, and the two ablations are asked for.
    assert [row["claim"] for row in found if row["dataset"] == "all"] == [
        claim["claim"] for claim in lab.spec["claims"]
    ]
    assert {"HBFL plain mean", "FedAvg Adam"} <= {
        than for claim in lab.spec["claims"] for than in claim.get("than", [])
    }
