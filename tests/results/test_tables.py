"""Tables against tables worked out by hand; the breakdown of every run; missing runs and budgets."""

import pytest

from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.results import cells, claims_table, formatting, tables
from bayesfed.results import study as join
from bayesfed.runs import run_folder

CHANGES = ["rounds 4 (paper 100)", "local epochs 1 (paper 5)", "batch size 32 (paper 128)"]
SMALL = {"rounds": 4, "local_epochs": 1, "batch_size": 32, "changes": CHANGES}


def test_table1_by_hand(lab, stored, tmp_path):
    # Best 0.5 and 0.7: mean 60.00, sample deviation sqrt(0.02) = 14.14. Last five: 0.4 and 0.6.
    for seed, curve in enumerate([[0.1, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4], [0.1, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6]]):
        stored(lab.cell("heterogeneous", "FML", seed=seed), curve, [[0.5]] * 10)
    stored(lab.cell("heterogeneous", "HBFL", seed=0), [0.1, 0.82104], [[0.5]] * 10)
    lab.cell("heterogeneous", "HBFL", seed=1)  # not finished
    stored(lab.cell("heterogeneous", "FML", dataset="cifar100", alpha="0.05"), [0.25], [[0.5]] * 10)
    tables.write(lab.found, tmp_path / "out")
    assert (tmp_path / "out/hbfl/table1.csv").read_text(encoding="utf-8").splitlines() == [
        "dataset,setting,FML,HBFL,FML last5,HBFL last5,seeds,rounds,local_epochs,batch_size,dataset_used,budget",
        "CIFAR10,IID,60.00 ± 14.14,82.10,50.00 ± 14.14,46.05,2 (FML); 1 of 2 (HBFL),100,5,128,CIFAR10,paper's",
        "CIFAR10,Non-IID,,,,,0,,,,,not in this plan",
        "CIFAR100,IID,,,,,0,,,,,not in this plan",
        "CIFAR100,Non-IID,25.00,,25.00,,1 (FML); 0 (HBFL),100 (FML); none (HBFL),5 (FML); none (HBFL),"
        "128 (FML); none (HBFL),CIFAR100 (FML); none (HBFL),paper's",
    ]


def test_client_tables_by_hand(lab, stored, rows, tmp_path):
    curves = [[0.2, 0.3 + k / 100] for k in range(10)]
    stored(lab.cell("heterogeneous", "HBFL", alpha="0.05"), [0.5], curves)
    tables.write(lab.found, tmp_path)
    second, third = (rows(tmp_path / f"hbfl/table{n}.csv") for n in (2, 3))
    assert [len(second), len(third)] == [20, 20]
    assert [(row["client"], row["FML"], row["HBFL"]) for row in second[5:10]] == [
        ("1", "", "30.00"), ("2", "", "31.00"), ("3", "", "32.00"), ("4", "", "33.00"), ("5", "", "34.00"),
    ]  # fmt: skip
    assert [(row["client"], row["HBFL"]) for row in third[5:10]] == [
        ("6", "35.00"), ("7", "36.00"), ("8", "37.00"), ("9", "38.00"), ("10", "39.00"),
    ]  # fmt: skip
    means = rows(tmp_path / "hbfl/client_means.csv")
    assert means[1]["HBFL"] == "34.50"
    assert means[1]["HBFL last5"] == "27.25"


def test_table4_has_a_column_a_client(lab, stored, rows, tmp_path):
    both = ["cifar10", "cifar100"]
    stored(lab.cell("multitask", "FML", both, used=["digits", "digits-parity"], **SMALL), None, [[0.7], [0.9]])
    tables.write(lab.found, tmp_path)
    table = rows(tmp_path / "hbfl/table4.csv")
    assert list(table[0])[:3] == ["method", "client 1: CIFAR10, LeNet5", "client 2: CIFAR100, CNN1"]
    assert [list(row.values())[:3] for row in table] == [
        ["Independent", "", ""],
        ["FML", "70.00", "90.00"],
        ["HBFL", "", ""],
    ]
    assert table[1]["dataset_used"] == ("digits (client 1: CIFAR10, LeNet5); digits-parity (client 2: CIFAR100, CNN1)")


def test_a_small_budget_and_stand_in_data_are_told(lab, stored, rows, tmp_path):
    stored(lab.cell("heterogeneous", "FML", used="digits", **SMALL), [0.5], [[0.5]] * 10)
    stored(lab.cell("heterogeneous", "HBFL", used="digits", **SMALL), [0.5], [[0.5]] * 10)
    tables.write(lab.found, tmp_path)
    row = rows(tmp_path / "hbfl/table1.csv")[0]
    assert (row["rounds"], row["local_epochs"], row["batch_size"], row["dataset_used"]) == ("4", "1", "32", "digits")
    assert row["budget"] == ", ".join(["digits for CIFAR10", *CHANGES])


def test_no_run_at_all_gives_empty_cells(lab, rows, tmp_path):
    lab.cell("heterogeneous", "FML")
    written = tables.write(lab.found, tmp_path)
    csv_files = {path.name for path in written if path.suffix == ".csv" and not path.name.endswith(".numbers.csv")}
    assert csv_files == {
        "table1.csv", "table2.csv", "table3.csv", "table4.csv", "client_means.csv", "figure3_mlp.csv", "figure3_lenet5.csv", "figure3_cnn1.csv", "figure3_cnn2.csv", "ablation.csv", "falling_rate.csv", "falling_once.csv", "by_adam.csv", "proximal.csv",
        "clients.csv", "uncertainty.csv", "runs.csv",
    }  # fmt: skip
    for name in (
        "table1",
        "table2",
        "table3",
        "table4",
        "client_means",
        "figure3_mlp",
        "figure3_lenet5",
        "figure3_cnn1",
        "figure3_cnn2",
        "ablation",
        "falling_rate",
        "falling_once",
        "by_adam",
        "proximal",
    ):
        table = rows(tmp_path / f"hbfl/{name}.csv")
        printed = [key for key in table[0] if key.endswith("last5") or f"{key} last5" in table[0]]
        assert {row[key] for row in table for key in printed} == {""}
    assert rows(tmp_path / "hbfl/clients.csv") == []
    assert rows(tmp_path / "hbfl/uncertainty.csv") == []
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_clients_are_broken_down_and_a_shared_run_stands_once(lab, stored, rows, tmp_path):
    shared = lab.cell("homogeneous", "FedAvg", model="cnn2", alpha="0.05", seed=2, clients=3)
    lab.cells.append({**lab.cells[-1], "experiment": "stragglers"})
    stored(shared, [0.6, 0.55], [[0.2, 0.1], [0.4, 0.4], [0.9, 0.1]])
    tables.write(lab.found, tmp_path)
    found = rows(tmp_path / "hbfl/clients.csv")
    columns = ("client", *(f"accuracy_{name}_percent" for name in ("best", "last", "last5")))
    assert [tuple(row[column] for column in columns) for row in found] == [
        ("0", "20.00", "10.00", "15.00"),
        ("1", "40.00", "40.00", "40.00"),
        ("2", "90.00", "10.00", "50.00"),
        ("mean", "50.00", "20.00", "35.00"),
        ("global", "60.00", "55.00", "57.50"),
    ]
    assert {row["experiment"] for row in found} == {"homogeneous+stragglers"}
    assert {(row["method"], row["alpha"], row["seed"]) for row in found} == {("FedAvg", "0.05", "2")}


def test_uncertainty_of_every_predictor(lab, stored, rows, tmp_path):
    values = {"nll": 0.51234, "brier": 0.3, "ece": 0.02, "mce": 0.1}
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.5], [[0.5]], {"global": values, "global_sampled": {**values, "ece": 0.01, "mce": None}})
    tables.write(lab.found, tmp_path)
    assert [
        (row["predictor"], row["nll"], row["ece"], row["mce"]) for row in rows(tmp_path / "hbfl/uncertainty.csv")
    ] == [
        ("global", "0.5123", "0.0200", "0.1000"),
        ("global_sampled", "0.5123", "0.0100", ""),
    ]


def test_a_client_without_test_images_is_an_empty_cell(lab, stored, rows, tmp_path):
    best = [0.5, None, *[0.5] * 8]
    clients = dict.fromkeys(("accuracy_best", "accuracy_last", "accuracy_last5"), best)
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.5])
    run_folder.seal(folder, run_folder.read(folder) | {"clients": clients | {"missing": {"1": "no test images"}}})
    tables.write(lab.found, tmp_path)
    assert [row["HBFL"] for row in rows(tmp_path / "hbfl/table2.csv")[:3]] == ["50.00", "no test images", "50.00"]


SHARDS = [[0.2, 0.3], [0.4, 0.6]]  # of the server's model, on the shards of two clients


def on_shard(lab, **more):
    """A table of the server's model on the clients' shards, and the mean over them."""
    common = {"title": "", "experiment": "heterogeneous", "metric": "global_on_shard_accuracy_best", **more}
    columns = [{"method": "FML"}, {"method": "HBFL"}]
    lab.spec["tables"] = {
        "each": {**common, "rows": {"setting": ["IID"], "client": [0, 1]}, "columns": columns},
        "mean": {**common, "rows": {"setting": ["IID"]}, "columns": columns},
    }


def test_the_servers_model_on_every_clients_shard(lab, stored, rows, tmp_path):
    stored(lab.cell("heterogeneous", "HBFL", clients=2), [0.5, 0.1], [[0.9, 0.9], [0.8, 0.7]], on_shards=SHARDS)
    stored(lab.cell("heterogeneous", "FML", clients=2), [0.5], [[0.9], [0.8]])  # an older record
    on_shard(lab)
    tables.write(lab.found, tmp_path)
    table = rows(tmp_path / "hbfl/each.csv")
    assert [(row["FML"], row["HBFL"], row["HBFL last5"]) for row in table] == [
        ("not in its record", "30.00", "25.00"),
        ("not in its record", "60.00", "50.00"),
    ]
    assert table[0]["seeds"] == "not in its record (FML); 1 (HBFL)"
    (mean,) = rows(tmp_path / "hbfl/mean.csv")
    assert (mean["FML"], mean["HBFL"]) == ("not in its record", "45.00")
    found = {(row["method"], row["client"]): row for row in rows(tmp_path / "hbfl/clients.csv")}
    names = ["accuracy_best", "accuracy_last", *(f"global_accuracy_{name}" for name in ("best", "last", "last5"))]
    names = [*(f"{name}_percent" for name in names), "note"]
    assert [found["HBFL", "1"][name] for name in names] == ["80.00", "70.00", "60.00", "60.00", "50.00", ""]
    assert [found["HBFL", "mean"][name] for name in names] == ["85.00", "80.00", "45.00", "45.00", "37.50", ""]
    assert [found["HBFL", "global"][name] for name in names] == ["50.00", "10.00", "", "", "", ""]
    older = ["80.00", "80.00", "", "", "", "global: not in its record"]
    assert [found["FML", "1"][name] for name in names] == older


def test_an_empty_cell_says_why(lab, stored, rows, tmp_path):
    """A method without client predictors; a client that never took part, alone and in a mean; no global model."""
    stored(lab.cell("heterogeneous", "FML", clients=2), [0.5], on_shards=[[0.2], [0.4]])
    stored(lab.cell("heterogeneous", "HBFL", clients=2), None, [[], [0.7]], on_shards=[[], []])
    stored(lab.cell("heterogeneous", "HBFL", clients=2, seed=1), None, [[0.5], [0.9]], on_shards=[[], []])
    on_shard(lab, metric="client_accuracy_best")
    lab.spec["tables"]["server"] = {**lab.spec["tables"]["mean"], "metric": "global_accuracy_best"}
    lab.spec["claims"] = [
        {**claim, "metric": "client_accuracy_best"}
        for claim in lab.spec["claims"]
        if claim["claim"].startswith("Table 1, HBFL's global model is above FML's")
    ]
    tables.write(lab.found, tmp_path)
    tables.write_comparison(lab.found, tmp_path)
    claims_table.write(lab.found, tmp_path)
    first, second = rows(tmp_path / "hbfl/each.csv")
    assert (first["FML"], first["HBFL"]) == ("no client predictors", "50.00")
    assert first["seeds"] == "no client predictors (FML); 1 of 2, 1 never took part (HBFL)"
    assert (second["FML last5"], second["HBFL"]) == ("no client predictors", "80.00 ± 14.14")
    (mean,) = rows(tmp_path / "hbfl/mean.csv")
    assert mean["seeds"] == "no client predictors (FML); 2, without 1 client: never took part (HBFL)"
    (server,) = rows(tmp_path / "hbfl/server.csv")
    assert (server["FML"], server["HBFL"]) == ("50.00", "no global model")
    compared = rows(tmp_path / "hbfl/each.compare.csv")
    assert [(row["mean"], row["verdict"]) for row in compared[:2]] == [
        ("", "no client predictors"),
        ("50.00", "not published"),
    ]
    assert "seeds: 1 of 2, 1 never took part" in compared[1]["note"]
    assert "without 1 client: never took part" in rows(tmp_path / "hbfl/mean.compare.csv")[1]["note"]
    verdicts = {row["client"]: row["verdict"] for row in rows(tmp_path / "hbfl/claims.csv")}
    assert verdicts["1"] == "no client predictors or never took part"
    found = {(row["method"], row["seed"], row["client"]): row for row in rows(tmp_path / "hbfl/clients.csv")}
    assert found["HBFL", "0", "0"]["note"] == "never took part; global: no global model"
    assert found["HBFL", "0", "mean"]["note"] == "without 1 client: never took part; global: no global model"
    first = found["FML", "0", "0"]
    assert (first["accuracy_best_percent"], first["global_accuracy_best_percent"]) == ("", "20.00")
    assert found["FML", "0", "mean"]["note"] == "no client predictors"
    assert found["HBFL", "0", "global"]["note"] == "no global model"


def test_a_diverged_run_is_no_result(lab, stored, rows, tmp_path):
    """Alone it is `diverged`; beside other seeds it is left out of the mean, and counted."""
    broke = {"round": 2, "client": "3", "tensor": "theta"}
    stored(lab.cell("heterogeneous", "FML"), [0.5, 0.1], [[0.5]] * 10, diverged=broke)
    stored(lab.cell("heterogeneous", "HBFL", seed=0), [0.5, 0.1], [[0.5]] * 10, diverged=broke)
    stored(lab.cell("heterogeneous", "HBFL", seed=1), [0.4, 0.6], [[0.5]] * 10)
    tables.write(lab.found, tmp_path)
    tables.write_comparison(lab.found, tmp_path)
    claims_table.write(lab.found, tmp_path)
    table = rows(tmp_path / "hbfl/table1.csv")[0]
    assert (table["FML"], table["FML last5"], table["HBFL"]) == ("diverged", "diverged", "60.00")
    assert table["seeds"] == "0 of 1, 1 diverged (FML); 1 of 2, 1 diverged (HBFL)"
    fml, hbfl = rows(tmp_path / "hbfl/table1.compare.csv")[:2]
    assert (fml["verdict"], fml["mean"], fml["difference"]) == ("diverged", "", "")
    assert (hbfl["verdict"], hbfl["mean"]) == ("1 of 2 diverged", "60.00")  # no agreement, however near it is
    assert "seeds: 1 of 2, 1 diverged" in hbfl["note"]
    assert rows(tmp_path / "hbfl/claims.csv")[0]["verdict"] == "diverged"
    assert [row["accuracy_best_percent"] for row in rows(tmp_path / "hbfl/clients.csv")[:11]] == [
        *["diverged"] * 10,
        "",
    ]


def test_a_wrong_table_is_refused_in_one_line(lab, stored, tmp_path):
    stored(lab.cell("heterogeneous", "FML"), [0.5], [[0.5]])
    lab.spec["tables"]["table1"]["metric"] = "global_acuracy_best"
    with pytest.raises(InputError, match="did you mean 'global_accuracy_best'"):
        tables.write(lab.found, tmp_path)
    lab.spec["tables"]["table1"]["metric"] = "global_accuracy_best"
    lab.spec["tables"]["table1"]["rows"] = {"datset": ["cifar10"]}
    with pytest.raises(InputError, match="did you mean 'dataset'"):
        tables.write(lab.found, tmp_path)


def test_without_a_run_the_command_says_where_it_looks(lab, tmp_path, capsys):
    lab.cell("heterogeneous", "FML")
    assert cli.main(["tables", str(lab.plan), "--out", str(tmp_path / "tables")]) == 0
    assert f"{lab.root / 'runs'}: none of the plan's 1 runs is finished" in capsys.readouterr().err


def test_seeds_and_axes_of_many_digits_stay_apart(lab, stored, rows, tmp_path):
    for seed, best in ((20240101, 0.5), (20240102, 0.9)):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [best, 0.1], [[0.8]] * 10)
    tables.write(lab.found, tmp_path)
    row = rows(tmp_path / "hbfl/table1.csv")[0]
    assert (row["HBFL"], row["seeds"]) == ("70.00 ± 28.28", "0 (FML); 2 (HBFL)")
    assert [formatting.text(value) for value in (1_000_000, 0.1, 1 / 3, 100.0)] == [
        "1e+06",
        "0.1",
        "0.3333333333333333",
        "100",
    ]


def test_clients_count_from_0_and_a_paper_may_call_them_otherwise(lab, stored, rows, tmp_path):
    """In rows, columns and published numbers; the record of a run and clients.csv have the one count."""
    curves = [[0.1 * k] for k in range(10)]
    stored(lab.cell("heterogeneous", "HBFL"), [0.5], curves)
    for first in (0, 1):
        lab.spec["first_client"] = first
        tables.write(lab.found, tmp_path)
        found = rows(tmp_path / "hbfl/table2.csv")
        assert [(row["client"], row["HBFL"]) for row in found[:2]] == [(str(first), "0.00"), (str(first + 1), "10.00")]
        assert [row["client"] for row in rows(tmp_path / "hbfl/clients.csv")][:3] == ["0", "1", "2"]
        tables.write_comparison(lab.found, tmp_path)
        printed = {row["client"]: row["published"] for row in rows(tmp_path / "hbfl/table2.compare.csv")[1:10:2]}
        assert list(printed) == [str(k + first) for k in range(5)]
        assert (printed["1"], printed.get("0", "")) == ("80.88", "")
        (study,) = join.studies(lab.plan)
        assert cells.title(study, {"client": 1, "model": "lenet5"}) == f"client {first + 1}: LeNet5"
