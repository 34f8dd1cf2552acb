"""Cells of tables: mean and spread over seeds, worked out by hand, and columns with metrics of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesfed.results import cells, tables
from bayesfed.results import study as join
from bayesfed.results.records import of_metric

Rows = Callable[[Path], list[dict[str, str]]]
STATISTICS = {
    "to_half": {"first": 0.5}, "to_all": {"first": 1.0}, "middle": {"best_within": [2, 3]}, "at_best": {"at_best_of": "global"},
}  # fmt: skip
TABLE = {
    "title": "Two metrics",
    "experiment": "heterogeneous",
    "rows": {"method": ["HBFL", "FML"]},
    "columns": [
        {"title": "GA", "metric": "global_accuracy_best"},
        {"title": "LA", "metric": "local_accuracy_at_best"},
        {"title": "to 50 %", "metric": "global_accuracy_to_half"},
        {"title": "rounds 2, 3", "metric": "global_accuracy_middle"},
        {"title": "to 100 %", "metric": "global_accuracy_to_all"},
    ],
}
PUBLISHED = """item,dataset,setting,alpha,client,model,method,metric,value
two,,,,,,HBFL,global_accuracy_best,70
two,,,,,,HBFL,local_accuracy_at_best,14
two,,,,,,HBFL,global_accuracy_to_half,5
two,,,,,,FML,global_accuracy_to_half,
"""


def test_every_column_has_its_metric(lab: Any, stored: Callable[..., None], rows: Rows, tmp_path: Path) -> None:
    lab.spec["statistics"], lab.spec["tables"] = STATISTICS, {"two": TABLE}
    curves = {"HBFL": [0.2, 0.4, 0.6, 0.7, 0.5], "FML": [0.1, 0.3, 0.2, 0.4, 0.4]}
    for method, curve in curves.items():
        folder = lab.cell("heterogeneous", method, clients_on_test="round", rounds=5)
        stored(folder, curve, mean=[value / 10 for value in (3, 2, 5, 1, 4)])
    tables.write(lab.found, tmp_path / "out")
    hbfl, fml = rows(tmp_path / "out/hbfl/two.csv")
    assert [hbfl[name] for name in ("GA", "LA", "to 50 %", "rounds 2, 3")] == ["70.00", "10.00", "3", "60.00"]
    assert [fml[name] for name in ("GA", "LA", "to 50 %", "rounds 2, 3")] == [
        "40.00",
        "10.00",
        "never reached",
        "30.00",
    ]
    assert hbfl["to 100 %"] == "never reached"
    assert (hbfl["GA last5"], hbfl["LA last5"]) == ("48.00", "30.00")
    assert "to 50 % last5" not in hbfl

    (tmp_path / "hbfl.published.csv").write_text(PUBLISHED)
    lab.spec["published_file"] = str(tmp_path / "hbfl.published.csv")
    tables.write_comparison(lab.found, tmp_path / "out")
    found = {(row["method"], row["metric"]): row for row in rows(tmp_path / "out/hbfl/two.compare.csv")}
    steps = found["HBFL", "global_accuracy_to_half"]
    assert (steps["published"], steps["mean"], steps["difference"], steps["verdict"]) == ("5", "3", "-2.0", "lower")
    assert steps["last5"] == ""
    assert found["HBFL", "global_accuracy_best"]["verdict"] == "within 1 point"
    assert found["FML", "global_accuracy_to_half"]["verdict"] == "never reached"
    assert found["FML", "global_accuracy_middle"]["verdict"] == "not published"


def test_a_seed_is_the_mean_of_its_clients_and_counts_once(lab: Any, stored: Callable[..., None]) -> None:
    """Seeds of 0.3, 0.9 and 0.3, of two, one and one clients: mean 0.5, and sd sqrt((0.04 + 0.16 + 0.04) / 2)."""
    for seed, clients in enumerate([[[0.2], [0.4]], [[0.9], []], [[0.3], []]]):
        folder = lab.cell("heterogeneous", "HBFL", clients=2, seed=seed)
        stored(folder, [0.5], clients, on_shards=[[0.5], [0.5]])
    (study,) = join.studies(lab.plan)
    score = cells.score(*of_metric(study.records, "client_accuracy_best", {}))
    assert score.mean == pytest.approx(0.5)
    assert score.sd == pytest.approx(0.12**0.5)
    assert (score.seeds, score.planned, score.diverged, score.missing) == (3, 3, 0, {})
    assert score.left_out == {"never took part": 1}  # one client, in two seeds
    assert score.shown() == "50.00 ± 34.64"
    assert score.count() == "3, without 1 client: never took part"
