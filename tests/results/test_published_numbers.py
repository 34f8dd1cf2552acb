"""The comparison with the published numbers, and the published numbers themselves."""

from collections import Counter
from pathlib import Path

import pytest

from bayesfed.core.errors import InputError
from bayesfed.results import claims_table, published_numbers, published_page, tables

PAPERS = Path(__file__).parents[2] / "config/papers"
CHANGES = ["rounds 4 (paper 100)", "local epochs 1 (paper 5)", "batch size 32 (paper 128)"]
SMALL = {"rounds": 4, "local_epochs": 1, "batch_size": 32, "changes": CHANGES}


def test_the_verdict_follows_the_difference_only_at_the_papers_budget(lab, stored, rows, tmp_path):
    own = [[0.8]] * 10
    stored(lab.cell("heterogeneous", "FML"), [0.80], own)  # print 80.71
    stored(lab.cell("heterogeneous", "HBFL"), [0.85], own)  # print 82.10
    stored(lab.cell("heterogeneous", "FML", alpha="0.05"), [0.40], own)  # print 51.26
    stored(lab.cell("heterogeneous", "HBFL", alpha="0.05", **SMALL), [0.40], own)
    stored(lab.cell("heterogeneous", "FML", "cifar100", used="digits", **SMALL), [0.47], own)
    lab.cell("heterogeneous", "HBFL", "cifar100")
    tables.write_comparison(lab.found, tmp_path)
    found = rows(tmp_path / "hbfl/table1.compare.csv")
    assert [(row["published"], row["mean"], row["difference"], row["verdict"]) for row in found] == [
        ("80.71", "80.00", "-0.71", "within 1 point"),
        ("82.10", "85.00", "+2.90", "higher"),
        ("51.26", "40.00", "-11.26", "lower"),
        ("62.69", "40.00", "-22.69", "not the paper's run"),
        ("47.96", "47.00", "", "stand-in data"),
        ("51.19", "", "", "not run"),
        ("38.95", "", "", "not run"),
        ("40.01", "", "", "not run"),
    ]
    assert found[0]["note"] == ""
    assert found[3]["note"] == "rounds 4 (paper 100), local epochs 1 (paper 5), batch size 32 (paper 128)"
    assert found[4]["note"].startswith("digits for CIFAR100, rounds 4")
    assert "seeds: 0 of 1" in found[5]["note"]
    assert list(found[0])[:13] == [
        "dataset", "setting", "alpha", "client", "model", "method", "metric",
        "published", "mean", "sd", "seeds", "rounds", "difference",
    ]  # fmt: skip


def test_a_published_number_that_no_run_can_have_is_not_run_with_its_reason(lab, stored, rows, tmp_path):
    published = tmp_path / "hbfl.published.csv"
    head, *lines = (PAPERS / "hbfl.published.csv").read_text().splitlines()
    own = "table1,CIFAR10,wrong labels,,,,FML,global_accuracy_best,70.5,labels are right here"
    published.write_text("\n".join([f"{head},unplanned", *(f"{line}," for line in lines), own, ""]))
    lab.spec["published_file"] = str(published)
    stored(lab.cell("heterogeneous", "FML"), [0.80], [[0.8]] * 10)
    tables.write_comparison(lab.found, tmp_path)
    found = rows(tmp_path / "hbfl/table1.compare.csv")
    assert (found[0]["published"], found[0]["verdict"]) == ("80.71", "within 1 point")
    told = [found[-1][key] for key in ("setting", "method", "published", "mean", "verdict")]
    assert told == ["wrong labels", "FML", "70.50", "", "not run"]
    assert "labels are right here" in found[-1]["note"]
    assert sum("labels are right here" in row["note"] for row in found) == 1
    (page,) = published_page.write(lab.found, tmp_path)
    assert "| table1 | 1 | labels are right here |" in page.read_text()


def test_a_point_away_is_within_a_point(lab, stored, rows, tmp_path):
    """As shown: in floating-point numbers 81.71 - 80.71 is more than 1."""
    stored(lab.cell("heterogeneous", "FML"), [0.8171], [[0.8]] * 10)
    tables.write_comparison(lab.found, tmp_path)
    found = rows(tmp_path / "hbfl/table1.compare.csv")[0]
    assert (found["difference"], found["verdict"]) == ("+1.00", "within 1 point")
    assert 100 * 0.8171 - 80.71 > 1


def test_seeds_and_spread(lab, stored, rows, tmp_path):
    for seed, best in enumerate([0.80, 0.82, 0.84]):
        stored(lab.cell("heterogeneous", "HBFL", seed=seed), [best, 0.1], [[0.8]] * 10)
    tables.write_comparison(lab.found, tmp_path)
    row = rows(tmp_path / "hbfl/table1.compare.csv")[1]
    assert (row["mean"], row["sd"], row["seeds"], row["difference"]) == ("82.00", "2.00", "3", "-0.10")
    assert (row["last5"], row["rounds"], row["dataset_used"]) == ("46.00", "100", "CIFAR10")


def test_client_rows_say_that_the_partition_is_ours(lab, stored, rows, tmp_path):
    stored(lab.cell("heterogeneous", "HBFL"), [0.8], [[0.8 + k / 1000] for k in range(10)])
    tables.write_comparison(lab.found, tmp_path)
    table2, table3 = (rows(tmp_path / f"hbfl/table{n}.compare.csv") for n in (2, 3))
    assert len(table2) == len(table3) == 40
    assert all("our sampled partition is not the paper's" in row["note"] for row in table2 + table3)
    row = table3[9]
    assert (row["client"], row["method"], row["published"], row["mean"]) == ("10", "HBFL", "79.36", "80.90")


def test_client_means_stand_against_the_mean_of_the_printed_cells(lab, stored, rows, tmp_path):
    stored(lab.cell("heterogeneous", "HBFL"), [0.8], [[0.8 + k / 1000] for k in range(10)])
    tables.write_comparison(lab.found, tmp_path)
    row = rows(tmp_path / "hbfl/client_means.compare.csv")[1]
    assert (row["published"], row["mean"], row["client"]) == ("80.97", "80.45", "")
    assert row["note"] == "published value: mean of 10 published cells"


def test_table4_matches_client_dataset_and_model(lab, stored, rows, tmp_path):
    stored(lab.cell("multitask", "Independent", ["cifar10", "cifar100"]), None, [[0.74], [0.35]])
    tables.write_comparison(lab.found, tmp_path)
    found = rows(tmp_path / "hbfl/table4.compare.csv")
    keys = ("dataset", "client", "model", "method", "published", "mean", "verdict")
    assert [tuple(row[key] for key in keys) for row in found][:3] == [
        ("CIFAR10", "1", "LeNet5", "Independent", "73.99", "74.00", "within 1 point"),
        ("CIFAR100", "2", "CNN1", "Independent", "35.16", "35.00", "within 1 point"),
        ("CIFAR10", "1", "LeNet5", "FML", "73.94", "", "not run"),
    ]


def test_every_printed_number_has_its_cell(lab, rows, tmp_path):
    tables.write_comparison(lab.found, tmp_path)
    published = published_numbers.read_published(PAPERS / "hbfl.published.csv")
    assert Counter(row["item"] for row in published) == {"table1": 8, "table2": 40, "table3": 40, "table4": 6}
    for item in ("table1", "table2", "table3", "table4"):
        found = rows(tmp_path / f"hbfl/{item}.compare.csv")
        own = [row for row in published if row["item"] == item]
        keys = (*published_numbers.KEYS, "published")
        assert [tuple(row[key] for key in keys) for row in found] == [
            (*(row[key] for key in published_numbers.KEYS), row["value"]) for row in own
        ]


def test_the_mean_of_the_printed_clients():
    # The means of Tables 2 and 3 as the spec works them out: a check on the copied numbers.
    published = published_numbers.read_published(PAPERS / "hbfl.published.csv")
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in published:
        if row["client"] and row["setting"] != "multi-task":
            sums[row["dataset"], row["setting"], row["method"]] += float(row["value"])
    assert {key: round(value / 10, 3) for key, value in sums.items()} == {
        ("CIFAR10", "IID", "FML"): 79.326, ("CIFAR10", "IID", "HBFL"): 80.969,
        ("CIFAR10", "Non-IID", "FML"): 96.540, ("CIFAR10", "Non-IID", "HBFL"): 97.070,
        ("CIFAR100", "IID", "FML"): 44.146, ("CIFAR100", "IID", "HBFL"): 47.446,
        ("CIFAR100", "Non-IID", "FML"): 73.344, ("CIFAR100", "Non-IID", "HBFL"): 74.155,
    }  # fmt: skip


def test_a_paper_need_not_print_a_number(lab, stored, rows, tmp_path):
    """No file of published numbers, no row, or an empty value: an empty cell, which says so when it has a run."""
    stored(lab.cell("heterogeneous", "HBFL"), [0.8], [[0.8]] * 10)
    lab.spec["published_file"] = str(tmp_path / "hbfl.published.csv")
    tables.write_comparison(lab.found, tmp_path / "none")
    fml, hbfl = rows(tmp_path / "none/hbfl/table1.compare.csv")[:2]
    assert (fml["published"], fml["verdict"]) == ("", "not run")
    assert (hbfl["published"], hbfl["difference"], hbfl["mean"], hbfl["verdict"]) == ("", "", "80.00", "not published")
    assert (hbfl["dataset"], hbfl["setting"], hbfl["method"], hbfl["metric"]) == (
        "CIFAR10", "IID", "HBFL", "global_accuracy_best",
    )  # fmt: skip
    (tmp_path / "hbfl.published.csv").write_text(
        (PAPERS / "hbfl.published.csv")
        .read_text()
        .replace("HBFL,global_accuracy_best,82.10", "HBFL,global_accuracy_best,")
    )
    tables.write_comparison(lab.found, tmp_path / "empty")
    fml, hbfl = rows(tmp_path / "empty/hbfl/table1.compare.csv")[:2]
    assert (fml["published"], hbfl["published"], hbfl["verdict"]) == ("80.71", "", "not published")


def test_a_table_along_any_axis(lab, stored, rows, tmp_path):
    """Rows by the learning rate, which published numbers have no column for: an empty cell beside ours."""
    for lr, best in ((0.1, 0.5), (0.01, 0.7)):
        stored(lab.cell("homogeneous", "FedAvg", model="mlp", axes={"lr": lr}, alpha=f"{lr}"), [best], [[0.5]])
    lab.spec["tables"] = {
        "sweep": {"title": "A sweep", "experiment": "homogeneous", "metric": "global_accuracy_best",
                  "rows": {"lr": [0.1, 0.01]}, "columns": [{"method": "FedAvg"}]}
    }  # fmt: skip
    lab.spec["claims"] = [{"claim": "a smaller rate is worse", "by": "us", "kind": "falls", "along": "lr",
                           "experiments": ["homogeneous"], "metric": "global_accuracy_best", "methods": ["FedAvg"]}]  # fmt: skip
    lab.cells = [{**cell, "alpha": "1"} for cell in lab.cells]
    tables.write(lab.found, tmp_path)
    tables.write_comparison(lab.found, tmp_path)
    claims_table.write(lab.found, tmp_path)
    assert [(row["lr"], row["FedAvg"]) for row in rows(tmp_path / "hbfl/sweep.csv")] == [
        ("0.1", "50.00"),
        ("0.01", "70.00"),
    ]
    found = rows(tmp_path / "hbfl/sweep.compare.csv")
    assert [(row["lr"], row["mean"], row["verdict"]) for row in found] == [
        ("0.1", "50.00", "not published"), ("0.01", "70.00", "not published"),
    ]  # fmt: skip
    total, cell = rows(tmp_path / "hbfl/claims.csv")
    assert (cell["than"], cell["difference"], total["verdict"]) == ("lr 0.1 > 0.01", "+20.00", "contradicted")
    assert {row["axes"] for row in rows(tmp_path / "hbfl/clients.csv")} == {"lr 0.1", "lr 0.01"}


def test_a_printed_value_is_a_number(tmp_path):
    for value in ("nan", "inf", "82,10", "82.10 %"):
        path = tmp_path / "hbfl.published.csv"
        path.write_text((PAPERS / "hbfl.published.csv").read_text().replace("82.10", f'"{value}"'))
        with pytest.raises(InputError, match=f"value '{value}' of item table1, dataset CIFAR10.*: expected a number"):
            published_numbers.read_published(path)
    path.write_text("item,value\ntable1,3\n")
    with pytest.raises(InputError, match="no column 'dataset'"):
        published_numbers.read_published(path)
