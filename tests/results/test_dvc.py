"""What DVC shows of results: the tables' numbers, and their curves."""

import json

from bayesfed.results import dvc, tables


def test_numbers_are_those_of_the_tables(lab, stored, rows, tmp_path):
    for seed, best in enumerate([0.80, 0.82]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [best, 0.1], [[0.8]] * 10)
    lab.cell("heterogeneous", "FML")
    dvc.write(lab.found, tmp_path / "tables")
    found = json.loads((tmp_path / "metrics.json").read_text())["hbfl"]
    assert found["table1"] == {"CIFAR10, IID": {"HBFL": 81.0}}
    assert found["table2"]["CIFAR10, IID, 5"] == {"HBFL": 80.0}
    tables.write(lab.found, tmp_path / "tables")
    assert rows(tmp_path / "tables/hbfl/table1.csv")[0]["HBFL"].startswith("81.00")


def test_a_curve_is_the_mean_over_seeds_and_short(lab, stored, rows, tmp_path):
    for seed in range(2):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [seed / 10] * 250, [[0.8] * 250] * 10)
    stored(lab.cell("heterogeneous", "FML"), [0.2], [[0.8]] * 10)  # one round is no curve
    broke = {"round": 2, "client": "server", "tensor": "theta"}
    stored(lab.cell("heterogeneous", "HBFL", seed=2), [0.9] * 250, [[0.8] * 250] * 10, diverged=broke)
    dvc.write(lab.found, tmp_path / "tables")
    found = rows(tmp_path / "curves.csv")
    assert {(row["paper"], row["cell"], row["curve"], row["accuracy_percent"]) for row in found} == {
        ("hbfl", "heterogeneous, CIFAR10, IID, alpha 100, CNN2", "HBFL", "5.00")
    }
    assert [int(row["round"]) for row in found] == list(range(1, 251, 3))


def test_nothing_finished_is_no_number(lab, rows, tmp_path):
    lab.cell("heterogeneous", "HBFL")
    written = dvc.write(lab.found, tmp_path / "tables")
    assert json.loads(written[0].read_text()) == {}
    assert rows(written[1]) == []
