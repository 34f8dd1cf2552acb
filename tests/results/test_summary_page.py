"""The results at a glance: what has a run, beside the published numbers, with its cost; nothing else."""

from pathlib import Path

import pytest

from bayesfed.results import summary_page

PAPERS = Path(__file__).parents[2] / "config/papers"


def test_summary_by_hand(lab, stored, told, tmp_path):
    folders = [lab.cell("heterogeneous", "FML", seed=seed) for seed in (0, 1)]
    for folder, best in zip(folders, (0.78, 0.80), strict=True):
        stored(folder, [0.1, best], [[0.5]] * 10)
    told(folders[0], train_seconds=7200.0, threads=2)
    told(folders[1], train_seconds=3600.0, device="cuda", hardware="H200")
    lab.cell("heterogeneous", "FML", seed=2)
    lab.cell("heterogeneous", "HBFL")
    (path,) = summary_page.write(lab.found, tmp_path)
    text = path.read_text()
    assert text.startswith("### HBFL\n\n2 of 4 planned runs are finished. Of 94 published percentages 11 are run")
    assert "|  | FML | seeds | cost of a run |" in text
    assert "| CIFAR10, IID | 79.00 ± 1.41 / 44.50 (80.71) | 2 of 3 | 1.0 to 2.0 h |" in text
    assert "On AMD (2 threads, fp32) and H200 (fp32)." in text
    assert (
        "|  | seed 0 | seed 1 | seed 2 |\n| --- | --- | --- | --- |\n| heterogeneous | 1 of 2 | 1 of 1 | 0 of 1 |\n"
        in text
    )
    assert "Non-IID" not in text
    assert "multitask" not in text
    assert "| not run" not in text


def test_methods_on_other_seeds_are_told_seed_by_seed(lab, stored, tmp_path):
    for alpha, runs in (("100", (("FML", 0), ("HBFL", 0))), ("0.05", (("FML", 0), ("FML", 1), ("HBFL", 1)))):
        for method, seed in runs:
            folder = lab.cell("heterogeneous", method, alpha=alpha, seed=seed)
            stored(folder, [0.5, 0.6 + seed / 10], [[0.5]] * 10)
    lab.cell("heterogeneous", "HBFL", alpha="0.05", seed=0)
    lab.spec["summary"] = ["table1"]
    (path,) = summary_page.write(lab.found, tmp_path)
    told = path.read_text().partition("seed by seed:\n\n")[2].splitlines()
    assert told[:4] == [
        "|  | CIFAR10, Non-IID, seed 0 | CIFAR10, Non-IID, seed 1 |",
        "| --- | --- | --- |",
        "| FML | 60.00 / 55.00 | 70.00 / 60.00 |",
        "| HBFL |  | 70.00 / 60.00 |",
    ]


def test_a_seed_that_diverged_is_told_among_the_others(lab, stored, tmp_path):
    broke = {"round": 1, "client": "1", "tensor": "mu"}
    for method in ("FML", "HBFL"):
        for seed in (0, 1):
            folder = lab.cell("heterogeneous", method, seed=seed)
            stored(folder, [0.5], [[0.5]] * 10, diverged=broke if (method, seed) == ("HBFL", 1) else None)
    lab.spec["summary"] = ["table1"]
    (path,) = summary_page.write(lab.found, tmp_path)
    told = path.read_text().partition("seed by seed:\n\n")[2].splitlines()
    assert told[2:4] == ["| FML | 50.00 / 50.00 | 50.00 / 50.00 |", "| HBFL | 50.00 / 50.00 | diverged |"]


def test_each_kind_of_machine_is_named_once(lab, stored, told, tmp_path):
    runs = ("100", 0, "AMD", 2, "bf16"), ("100", 1, "AMD", 1, "bf16"), ("0.05", 0, "Intel", 1, "fp32")
    for alpha, seed, hardware, threads, precision in runs:
        folder = lab.cell("heterogeneous", "FML", alpha=alpha, seed=seed)
        stored(folder, [0.5], [[0.5]] * 10)
        told(folder, hardware=hardware, threads=threads, precision=precision)
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "On AMD (1 or 2 threads, bf16) and Intel (1 thread, fp32)." in text


def test_a_printed_spread_stands_beside_its_number(lab, stored, tmp_path):
    stored(lab.cell("heterogeneous", "FML"), [0.5], [[0.5]] * 10)
    head, first, *rows = (PAPERS / "hbfl.published.csv").read_text().splitlines()
    printed = [f"{head},sd", f"{first},0.30", *(f"{row}," for row in rows)]
    (tmp_path / "hbfl.published.csv").write_text("\n".join(printed))
    lab.spec["published_file"] = str(tmp_path / "hbfl.published.csv")
    (path,) = summary_page.write(lab.found, tmp_path)
    assert "50.00 / 50.00 (80.71 ± 0.30)" in path.read_text()


def test_a_notice_and_the_budget_come_first(lab, stored, tmp_path):
    lab.notice = "Four rounds alone."
    stored(lab.cell("heterogeneous", "FML", rounds=4, changes=["rounds 4 (paper 100)"]), [0.5], [[0.5]] * 10)
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert text.startswith(
        "### HBFL\n\n**Four rounds alone.**\n\n**Its runs: rounds 4 (paper 100).**\n\n1 of 1 planned"
    )


def test_a_small_budget_and_divergence_are_told(lab, stored, told, tmp_path):
    small = lab.cell("heterogeneous", "FML", rounds=4, changes=["rounds 4 (paper 100)"])
    broken = lab.cell("heterogeneous", "HBFL")
    stored(small, [0.5], [[0.5]] * 10)
    stored(broken, [0.5], [[0.5]] * 10, diverged={"round": 3, "client": "1", "tensor": "mu"})
    for folder in (small, broken):
        told(folder, train_seconds=600.0)
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "|  | FML | HBFL | seeds | cost of a run |" in text
    assert "| CIFAR10, IID | 50.00 / 50.00† (80.71) | diverged (82.10) | 1 | 10 min |" in text
    assert "† not the paper's run" in text


def test_a_table_of_rounds_that_no_run_has_is_left_out(lab, stored, told, tmp_path):
    folder = lab.cell("heterogeneous", "FML", rounds=4, changes=["rounds 4 (paper 100)"])
    stored(folder, [0.1, 0.5], [[0.5]] * 10)
    told(folder, train_seconds=7200.0)
    lab.spec["statistics"] = {"late": {"best_within": [70, 80]}}
    lab.spec["tables"]["late"] = {**lab.spec["tables"]["table1"], "title": "Late", "metric": "global_accuracy_late"}
    lab.spec["summary"] = ["late", "table1"]
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "no such rounds" not in text
    assert "Late" not in text
    assert "| CIFAR10, IID | 50.00 / 30.00† (80.71) |" in text


def test_a_column_with_a_metric_of_its_own_is_told_by_its_title(lab, stored, told, tmp_path):
    folder = lab.cell("heterogeneous", "FML")
    stored(folder, [0.6, 0.5], [[0.5]] * 10)
    told(folder, train_seconds=7200.0)
    columns = [
        {"method": "FML", "title": "FML's best", "metric": "global_accuracy_best"},
        {"method": "FML", "title": "FML's last", "metric": "global_accuracy_last"},
    ]
    lab.spec["tables"]["both"] = {
        "title": "Both", "experiment": "heterogeneous", "rows": {"dataset": ["cifar10"]}, "columns": columns,
    }  # fmt: skip
    lab.spec["summary"] = ["both"]
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "|  | FML's best | FML's last | seeds | cost of a run |" in text
    assert "| CIFAR10 | 60.00 / 55.00 | 50.00 | 1 | 2.0 h |" in text


def test_a_seed_that_diverged_is_told_beside_the_mean_of_the_others(lab, stored, told, tmp_path):
    for seed, diverged in enumerate((None, {"round": 1, "client": "1", "tensor": "mu"})):
        folder = lab.cell("heterogeneous", "FML", seed=seed)
        stored(folder, [0.5], [[0.5]] * 10, diverged=diverged)
        told(folder, train_seconds=7200.0)
    text = summary_page.write(lab.found, tmp_path)[0].read_text()
    assert "| CIFAR10, IID | 50.00 / 50.00 (80.71); 1 diverged | 1 of 2 |" in text


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([180.0], "3 min"),
        ([180.0, 1080.0], "3 to 18 min"),
        ([1800.0, 7668.0], "30 min to 2.1 h"),
        ([3600.0, 7200.0, 5400.0], "1.0 to 2.0 h"),
        ([12.0, 59.6], "12 s to 1 min"),
        ([3570.0], "1.0 h"),
    ],
)
def test_cost(seconds, told):
    assert summary_page.cost(seconds) == told
