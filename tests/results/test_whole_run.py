"""Metrics with one value a run: any predictor, validation images, communication, time, and fairness over clients."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesfed.core.errors import InputError
from bayesfed.plan import paper_check
from bayesfed.results import cells, published_numbers, selection, summary_page, tables
from bayesfed.results import study as join
from bayesfed.results.records import Record, of_metric
from bayesfed.results.study import Study
from bayesfed.runs import run_folder

TABLE = {
    "title": "Of runs",
    "experiment": "heterogeneous",
    "rows": {"alpha": [100]},
    "columns": [{"title": "ECE", "method": "HBFL", "metric": "global_ece_last"}],
}
VALIDATION = {
    "global": {"global": {"accuracy": 0.6, "nll": 1.5, "ece": 0.2}, "global_sampled": {"accuracy": 0.5, "nll": 1.25}},
    "clients": {
        "meme": {"accuracy": 0.7, "nll": 0.9, "ece": 0.1},
        "local": {"accuracy": 0.8, "nll": 0.7, "ece": 0.3},
        "meme_sampled": {"accuracy": 0.9, "nll": 0.1, "ece": 0.0},
    },
    "best_round": 2,
    "accuracy_at_best_round": {"global": 0.6, "clients": 0.75},
}


def add(folder: Path, rows: list[tuple[int, object, str, str, float]], **more: Any) -> None:
    """Add rows to the history of a stored run, and keys to its summary."""
    summary = run_folder.read(folder) or {}
    with (folder / "metrics.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    run_folder.seal(folder, summary | more)


@pytest.fixture
def study(lab: Any, stored: Callable[..., None]) -> Study:
    """HBFL with everything that a record may have, FML with a record of an earlier version."""
    folder = lab.cell("heterogeneous", "HBFL", foreign={"svhn": "cifar100"}, asks=["validation"])
    stored(folder, [0.3, 0.5, 0.6], [[0.2, 0.4, 0.9], [0.4, 0.6, 0.5]])
    ece = [(at, "global", "global", "test_ece", 0.2) for at in (1, 3)]
    sampled = [(1, "global", "global_sampled", "test_ece", 0.1), (3, "global", "global_sampled", "test_ece", 0.06)]
    shards = [(3, k, "meme_sampled", "shard_nll", 1.0 + k) for k in (0, 1)]
    sent = [(at, "global", "communication", f"bytes_{way}", 1e6) for at in (1, 2, 3) for way in ("down", "up")]
    more = [(3, "global", "global_sampled", "test_auroc_foreign_cifar100", 0.8)]
    more += [(3, "global", "global_sampled", "test_fpr95_foreign_cifar100", 0.3), (3, 0, "meme", "shard_aurc", 0.04)]
    more += [(3, "global", "global", f"test_{name}", 0.05) for name in ("adaptive_ece", "classwise_ece")]
    add(
        folder,
        [*ece, *sampled, *shards, *sent, *more],
        validation=VALIDATION,
        bytes={"down": 3_000_000, "up": 3_500_000},
        train_seconds=12.0,
        seconds={"clients": 7.0, "server": 2.0, "testing": 3.0},
        multiply_adds={"clients": 4_000_000_000, "server": 500_000_000},
        passes={"global": {"global": 1, "global_sampled": 10}, "clients": {"meme": 1, "meme_sampled": 5, "local": 1}},
        kept_numbers=[10, 0, 30],
        uncertainty={"global": {"accuracy": 0.6, "ece": 0.2}, "global_sampled": {"accuracy": 0.0, "ece": 0.06}},
        key="abc",
    )
    stored(lab.cell("heterogeneous", "FML"), [0.5])
    (found,) = join.studies(lab.plan)
    return found


def shown(study: Study, metric: str, method: str = "HBFL") -> str:
    records, statistic = of_metric(study.records, metric, {})
    return cells.score([one for one in records if one.method == method], statistic).shown()


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("predictive_ece_last", "6.00"),
        ("predictive_ece_last5", "8.00"),
        ("global_sampled_ece_last", "6.00"),
        ("global_ece_last", "20.00"),
        ("predictive_auroc_foreign_svhn_last", "0.800"),
        ("predictive_fpr95_foreign_svhn_last", "30.00"),
        ("global_adaptive_ece_last", "5.00"),
        ("global_classwise_ece_last5", "5.00"),
        ("meme_aurc_last", "4.00"),
        ("meme_accuracy_best", "70.00"),  # the mean over clients, round by round: 30, 50, 70
        ("meme_accuracy_last5", "50.00"),
        ("meme_sampled_nll_last", "1.500"),
        ("teacher_ece_last", "no predictor teacher"),
        ("meme_ece_last", "not in its record"),
        ("validation_nll", "0.700"),  # of the clients, since HBFL is personal: their most accurate model, `local`
        ("validation_accuracy", "80.00"),
        ("validation_ece", "30.00"),
        ("megabytes_down", "3"),
        ("megabytes_up", "3.5"),
        ("megabytes", "6.5"),
        ("megabytes_to_50", "4"),
        ("megabytes_to_75", "never reached"),
        ("train_seconds", "12"),
        ("client_seconds", "7"),
        ("server_seconds", "2"),
        ("testing_seconds", "3"),
        ("multiply_adds", "1.500"),  # billions, in each of three rounds
        ("passes", "5"),  # of the clients, since HBFL is personal
        ("kept_numbers", "20"),
        ("client_accuracy_sd_last", "20.00"),
        ("client_accuracy_worst10_last", "50.00"),
        ("client_accuracy_worst10_best", "60.00"),
    ],
)
def test_a_value_of_a_run(study: Study, metric: str, value: str) -> None:
    assert shown(study, metric) == value


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("predictive_accuracy_last", "0.00"),
        ("predictive_ece_last", "not in its record"),
        ("validation_nll", "no validation images"),
        ("megabytes", "not in its record"),
        ("megabytes_to_50", "not in its record"),
        ("train_seconds", "not in its record"),
        ("multiply_adds", "not in its record"),
        ("passes", "not in its record"),
        ("global_on_shard_accuracy_sd_last", "not in its record"),
    ],
)
def test_a_record_of_an_earlier_version_says_what_it_lacks(study: Study, metric: str, value: str) -> None:
    assert shown(study, metric, "FML") == value


def test_the_server_judges_methods_that_are_not_personal(lab: Any, stored: Callable[..., None]) -> None:
    folder = lab.cell("heterogeneous", "HBFL", personal=False)
    stored(folder, [0.5])
    add(
        folder,
        [],
        validation=VALIDATION,
        passes={"global": {"global": 1, "global_sampled": 10}, "clients": {"meme": 1}},
    )
    (study,) = join.studies(lab.plan)
    assert shown(study, "passes") == "10"
    assert (shown(study, "validation_nll"), shown(study, "validation_accuracy")) == ("1.250", "50.00")


def test_calibration_of_the_mean_network_is_told(study: Study, rows: Any, lab: Any, told: Any, tmp_path: Path) -> None:
    """The record has the average over weight samples, too: a reader of the table learns that, and where it is."""
    note = "of the mean network; the average over weight samples: predictive_ece_last"
    found = cells.rows(study, TABLE)
    header, (row,) = tables.layout(study, TABLE, found)
    assert (header[-1], row["note"]) == ("note", note)
    assert note in published_numbers.compare(study, "t", TABLE, found, [])[0].row["note"]
    predictive = TABLE | {"columns": [{"title": "ECE", "method": "HBFL", "metric": "predictive_ece_last"}]}
    assert "note" not in tables.layout(study, predictive, cells.rows(study, predictive))[0]
    assert (
        note not in published_numbers.compare(study, "t", predictive, cells.rows(study, predictive), [])[0].row["note"]
    )
    lab.spec["tables"] = {"of_runs": TABLE}
    (of,) = lab.found
    assert "Of the mean network; the average" in summary_page.table(of, "of_runs")


def choices(lab: Any, stored: Callable[..., None]) -> Study:
    """Two learning rates: the one with the larger test accuracy has the larger validation NLL."""
    lab.spec["experiments"] = {"grid": {"axes": {"method": ["HBFL"], "lr": [0.1, 0.01]}}}
    for lr, accuracy, nll in ((0.1, 0.9, 2.0), (0.01, 0.5, 1.0)):
        folder = lab.cell("grid", "HBFL", axes={"lr": lr}, personal=False, asks=["validation"])
        stored(folder, [accuracy])
        values = {"accuracy": 1 - accuracy, "nll": nll, "ece": 0.1}
        add(folder, [], validation=VALIDATION | {"global": {"global": values}})
    (study,) = join.studies(lab.plan)
    return study


@pytest.mark.parametrize(
    ("by", "lr", "how"),
    [
        ("validation_nll", "0.01", "chosen on validation images"),
        ("validation_accuracy", "0.01", "chosen on validation images"),
        ("global_accuracy_last", "0.1", "chosen on test accuracy"),
    ],
)
def test_a_search_says_on_which_images_it_chose(
    by: str, lr: str, how: str, lab: Any, stored: Callable[..., None]
) -> None:
    study, search = choices(lab, stored), {"over": ["lr"], "by": by}
    table = TABLE | {"experiment": "grid", "search": search}
    paper_check.check_table(study, table)
    chosen: list[Record] = [one for one in selection.choose(study, study.records, search) if one.level == "global"]
    assert [one.chosen for one in chosen] == [f"lr {lr} (best of 2, {how})"]
    assert how in selection.words(search)
    assert how in tables.layout(study, table, cells.rows(study, table))[1][0]["chosen"]


def test_a_search_on_validation_images_needs_some(lab: Any, stored: Callable[..., None]) -> None:
    study = choices(lab, stored)
    for record in study.records:
        object.__setattr__(record, "asks", ())
    table = TABLE | {"experiment": "grid", "search": {"over": ["lr"], "by": "validation_nll"}}
    with pytest.raises(InputError, match="'validation_nll': experiment 'grid' sets no validation images aside"):
        paper_check.check_table(study, table)


def test_files_beside_a_table(study: Study, lab: Any, rows: Any, tmp_path: Path) -> None:
    """Numbers alone for programs, Markdown and LaTeX for people; runs.csv with a row a run."""
    note = {"title": "A title of 100 % & more", "columns": [{"title": "HBFL", "method": "HBFL", "metric": "megabytes"}]}
    lab.spec["tables"] = {"sent": TABLE | note}
    for one in study.records:
        summary = run_folder.read(one.folder) or {}
        (one.folder / "run.yaml").write_text("method: {name: hbfl, lr: 0.1}\nmodels: {local: [mlp, cnn1]}\n")
        run_folder.seal(one.folder, summary)
    written = tables.write(lab.found, tmp_path)
    assert {f"sent.{end}" for end in ("csv", "numbers.csv", "md", "tex")} < {path.name for path in written}
    assert rows(tmp_path / "hbfl/sent.numbers.csv") == [
        {"alpha": "100", "HBFL mean": "6.5", "HBFL sd": "", "HBFL n": "1"}
    ]
    under = "seeds: 1; rounds: 100; local epochs: 5; batch size: 128; dataset used: CIFAR10; budget: paper's"
    assert (tmp_path / "hbfl/sent.md").read_text() == (
        f"**A title of 100 % & more**\n\n| alpha | HBFL |\n| --- | --- |\n| 100 | 6.5 |\n\n{under}\n"
    )
    latex = (tmp_path / "hbfl/sent.tex").read_text()
    assert rf"\caption{{A title of 100 \% \& more. {under}}}" in latex
    assert "alpha & HBFL \\\\\n\\midrule\n100 & 6.5 \\\\\n" in latex
    hbfl, fml = rows(tmp_path / "hbfl/runs.csv")
    assert (hbfl["key"], hbfl["method"], hbfl["method.name"], hbfl["models.local"]) == (
        "abc",
        "HBFL",
        "hbfl",
        "mlp+cnn1",
    )
    assert (hbfl["global_accuracy_last_percent"], hbfl["megabytes_down"], hbfl["train_seconds"]) == ("60", "3", "12")
    assert (hbfl["global_sampled_ece_percent"], hbfl["client_meme_sampled_nll_nats"]) == ("6", "1.5")
    assert (hbfl["validation_client_local_nll_nats"], hbfl["validation_best_round"]) == ("0.7", "2")
    assert (fml["megabytes_down"], fml["validation_best_round"]) == ("", "")


def test_bytes_that_were_computed_later_are_told(lab: Any, stored: Callable[..., None]) -> None:
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.3, 0.6], key="abc")
    (folder / "bytes.json").write_text('{"key": "abc", "how": "later", "down": [1000000, 2000000], "up": [0, 500000]}')
    (study,) = join.studies(lab.plan)
    assert [shown(study, name) for name in ("megabytes", "megabytes_down", "megabytes_to_30")] == ["3.5", "3", "1"]
    table = TABLE | {"columns": [{"title": "MB", "method": "HBFL", "metric": "megabytes"}]}
    _, (row,) = tables.layout(study, table, cells.rows(study, table))
    assert row["note"] == "computed later, without training"
