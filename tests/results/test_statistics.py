"""Statistics of a paper's own, and tables whose columns have metrics of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesfed.core.errors import InputError
from bayesfed.results import cells, run_records, tables
from bayesfed.results import study as join
from bayesfed.results.records import of_metric
from bayesfed.results.statistics import BEST, Statistic, read_statistic

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


def test_runs_that_do_not_test_clients_there_have_no_local_accuracy(lab: Any, stored: Callable[..., None]) -> None:
    stored(lab.cell("heterogeneous", "HBFL", clients_on_test="round"), [0.5])
    stored(lab.cell("heterogeneous", "FML"), [0.5])
    (study,) = join.studies(lab.plan)
    (record,) = [record for record in study.records if record.level == "local"]
    assert (record.method, record.missing) == ("HBFL", "no local model on the full test set")
    assert record.value(BEST) is None


def test_a_clients_models_on_the_full_test_set_may_have_any_name() -> None:
    assert run_records.series_of("mean", "personal", "test_accuracy") == "mean"
    assert run_records.series_of("mean", "personal_sampled", "test_accuracy") == ""


def test_all_clients_together_are_weighted_by_their_test_images(lab: Any, stored: Callable[..., None]) -> None:
    """60 of 100 and 3 of 10 images right in round 2; the best round of the sum is not the clients' best rounds."""
    curves = [[0.5, 0.6, 0.1], [0.9, 0.3, 1.0]] + [[]] * 8
    lab.spec["statistics"] = {"middle": {"best_within": [2, 3]}, "late": {"best_within": [7, 8]}}
    stored(lab.cell("heterogeneous", "HBFL"), [0.5], curves, on_shards=curves, test_images=[100, 10] + [0] * 8)
    stored(lab.cell("heterogeneous", "FML"), [0.5], curves, on_shards=curves)
    (study,) = join.studies(lab.plan)
    hbfl, fml = of_metric(study.records, "personal_accuracy_middle", lab.spec["statistics"])[0]
    own = {name: read_statistic(name, value) for name, value in lab.spec["statistics"].items()}
    assert hbfl.curve() == pytest.approx({1: 59 / 110, 2: 63 / 110, 3: 20 / 110})
    assert hbfl.value(own["middle"]) == hbfl.value(BEST) == pytest.approx(63 / 110)
    assert hbfl.value(Statistic("last")) == pytest.approx(20 / 110)
    assert cells.score([hbfl], own["late"]).shown() == "no such rounds"
    assert (fml.missing, fml.value(BEST)) == ("not in its record", None)


def test_who_sits_a_round_out_counts_as_when_last_tested(lab: Any, stored: Callable[..., None]) -> None:
    """Of two clients one takes part in a round: the best round is not that of the better one alone."""
    clients: list[Any] = [[0.5, None, None, 0.7], [None, 0.9, 0.8, None]]
    never: list[Any] = [[]] * 10
    for method, images in (("HBFL", [30, 10] + [0] * 8), ("FML", [30, 10, 5] + [0] * 7)):
        stored(lab.cell("heterogeneous", method), [0.5], clients + never[2:], on_shards=never, test_images=images)
    (study,) = join.studies(lab.plan)
    hbfl, fml = of_metric(study.records, "personal_accuracy_best", {})[0]
    assert hbfl.curve() == pytest.approx({2: 24 / 40, 3: 23 / 40, 4: 29 / 40})
    assert fml.curve() == {}
    assert (fml.missing, fml.value(BEST)) == ("never took part", None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.3, "expected one of first, best_within, at_best_of and its value, found 0.3"),
        ({"frist": 0.3}, "no kind of statistic is named 'frist', did you mean 'first'|'frist'; did you mean 'first'"),
        ({"first": 30}, "first: expected an accuracy above 0 and up to 1, found 30"),
        ({"best_within": [80, 70]}, "best_within: expected two rounds, the first and the last"),
        ({"at_best_of": "globe"}, "at_best_of: no accuracy is named 'globe'"),
    ],
)
def test_wrong_statistics(value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"statistics.mine.*({message})"):
        of_metric([], "global_accuracy_mine", {"mine": value})
    with pytest.raises(InputError, match="this name stands for another statistic"):
        read_statistic("best", {"first": 0.3})
