"""Calibration, detection and reliability diagrams in tables, comparison with the published numbers, and figures."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.lab import measure

from bayesfed.core.errors import InputError
from bayesfed.plan import paper_check
from bayesfed.report import build, charts
from bayesfed.results import cells, claims, claims_table, figures, per_run, plots, published_numbers, tables
from bayesfed.results import study as join
from bayesfed.results.study import Study
from bayesfed.runs import run_folder

TABLE = {
    "title": "uncertainty",
    "experiment": "heterogeneous",
    "rows": {"method": ["HBFL", "FML"]},
    "columns": [
        {"title": "ECE", "metric": "global_ece_last"},
        {"title": "BS", "metric": "global_brier_last5"},
        {"title": "AUROC", "metric": "global_auroc_foreign_svhn_last"},
        {"title": "sd", "metric": "global_auroc_foreign_svhn_sd_last"},
    ],
}
DIAGRAM = {
    "title": "Reliability", "accuracy": "global", "shows": {"reliability": "global", "label": "confidence (%)"}, "experiment": "heterogeneous", "where": {"alpha": 100},
    "rows": [], "columns": ["dataset"], "methods": ["HBFL", "FML"],
}  # fmt: skip


@pytest.fixture
def study(lab: Any, stored: Callable[..., None]) -> Study:
    """HBFL in two seeds with all of it, its foreign data standing in for SVHN; FML with a record of before."""
    for seed, more in ((0, 0.0), (1, 0.1)):
        folder = lab.cell("heterogeneous", "HBFL", seed=seed, foreign={"svhn": "cifar100"})
        stored(folder, [0.5, 0.6], uncertainty={"global": {"ece": 0.2 + more, "auroc_foreign_cifar100": 0.7}})
        measured = [(round, "test_brier", 0.01 * round) for round in (10, 20, 30, 40, 50, 60)]
        measured += [
            (10, "test_ece", 0.9),
            (60, "test_ece", 0.2 + more),
            (60, "test_auroc_foreign_cifar100", 0.7 + more),
        ]
        measured += [(60, "test_auroc_foreign_cifar100_sd", 0.01)]
        for number, images, right in ((1, 0, 0), (2, 10, 4), (3, 30, 24 + 3 * seed)):
            measured += [(60, f"reliability_{number}_images", images), (60, f"reliability_{number}_right", right)]
        measure(folder, measured)
    stored(lab.cell("heterogeneous", "FML"), [0.5])
    (found,) = join.studies(lab.plan)
    return found


def test_a_table_of_them(study: Study) -> None:
    """Of the last round, and of the last five in which it is measured; percent or fraction as the paper prints them."""
    _, (hbfl, fml) = tables.layout(study, TABLE, cells.rows(study, TABLE))
    assert hbfl["ECE"] == "25.00 ± 7.07"
    assert hbfl["BS"] == "0.400 ± 0.000"
    assert hbfl["AUROC"] == "0.750 ± 0.071"
    assert hbfl["sd"] == "0.010 ± 0.000"
    assert hbfl["ECE last5"] == "57.50 ± 3.54"
    assert (fml["ECE"], fml["AUROC"], fml["seeds"]) == ("not in its record",) * 3


def test_compared_with_print(study: Study) -> None:
    printed = [
        {"item": "t", "dataset": "", "setting": "", "alpha": "", "client": "", "model": "", "method": "HBFL",
         "metric": metric, "value": value}
        for metric, value in (("global_ece_last", "26.5"), ("global_auroc_foreign_svhn_last", "0.745"))
    ]  # fmt: skip
    found = published_numbers.compare(study, "t", TABLE, cells.rows(study, TABLE), printed)
    rows = {(one.row["method"], one.row["metric"]): one.row for one in found if one.row["method"] == "HBFL"}
    ece, auroc = rows["HBFL", "global_ece_last"], rows["HBFL", "global_auroc_foreign_svhn_last"]
    assert (ece["published"], ece["mean"], ece["difference"], ece["verdict"]) == ("26.50", "25.00", "-1.50", "lower")
    assert (auroc["published"], auroc["mean"], auroc["difference"]) == ("0.745", "0.750", "+0.005")
    assert auroc["verdict"] == "within 0.01"


def test_every_run_taken_apart(study: Study) -> None:
    header, rows = per_run.uncertainty(study, per_run.by_run(study))
    assert header[header.index("mce") + 1 :][:5] == list(per_run.TASKS)
    assert [(row["seed"], row["ece"], row["foreign"], row["auroc_foreign"], row["auroc_mistakes"]) for row in rows] == [
        ("0", "0.2000", "CIFAR100", "0.7000", ""),
        ("1", "0.3000", "CIFAR100", "0.7000", ""),
    ]


def test_a_reliability_diagram(study: Study) -> None:
    """Accuracy by the middle of each bin that has images; a record without bins has no curve."""
    paper_check.check_figure(study, DIAGRAM)
    data = figures.content(study, DIAGRAM)
    found = {(row.curve, row.seed, round(row.round, 9)): row.accuracy for row in data.curves.itertuples()}
    second, third = 50.0, round(250 / 3, 9)
    assert found == {
        ("HBFL", "0", second): 40, ("HBFL", "0", third): 80, ("HBFL", "1", second): 40, ("HBFL", "1", third): 90
    }  # fmt: skip
    made = plots.draw(study, DIAGRAM, figures.content(study, DIAGRAM))
    (axes,) = made.axes
    assert axes.get_xlabel() == "confidence (%)"
    assert [0, 100] in [list(line.get_xdata()) for line in axes.lines]
    words = " ".join(text.get_text() for text in made.texts).replace("\n", " ")
    assert "dashed: where they are equal" in words
    assert "Without a curve: FML (not in its record)" in words


def test_errors_of_networks(lab: Any, stored: Callable[..., None]) -> None:
    """A point for each network that the server has a value of, its accuracy of the same round, of clients the mean."""
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.5, 0.6, 0.7])
    lab.cell("heterogeneous", "FML")
    rows = [
        (2, "global", "server", "AE FOLA", 0.3), (2, "global", "FOLA", "test_accuracy", 0.7),
        (2, "global", "server", "AE FedAvg", 2.5), (2, "global", "FedAvg", "test_accuracy", 0.4),
        (2, "global", "server", "AE lost", 1.0), (1, "global", "lost", "test_accuracy", 0.9),
        (3, "global", "server", "LF FOLA 1", 0.1), (3, "mean", "FOLA 1", "test_accuracy", 0.8),
        (3, "global", "server", "LF FOLA 2", 0.2), (3, "mean", "FOLA 2", "test_accuracy", 0.6),
    ]  # fmt: skip
    with (folder / "metrics.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    run_folder.seal(folder, json.loads((folder / "summary.json").read_text()))
    (study,) = join.studies(lab.plan)
    points = {}
    for family in ("AE", "LF"):
        figure = DIAGRAM | {"shows": {"error": family, "label": "how far"}}
        paper_check.check_figure(study, figure)
        data = figures.content(study, figure)
        points[family] = [(row.curve, row.round, row.accuracy) for row in data.curves.itertuples()]
        (axes,) = plots.draw(study, figure, figures.content(study, figure)).axes
        assert axes.get_xlabel() == "how far"
        assert len(axes.collections) == len(data.names)  # points, and no line
        assert not axes.lines
        chart = charts.of_figure(study, "errors", figure)
        assert [curve.name for curve in chart.curves] == data.names
    assert points["AE"] == [("FOLA", 0.3, pytest.approx(70)), ("FedAvg", 2.5, pytest.approx(40))]
    assert points["LF"] == [("FOLA", 0.1, pytest.approx(80)), ("FOLA", 0.2, pytest.approx(60))]


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        (
            DIAGRAM | {"shows": {"reliable": "global"}},
            "shows: expected one of diagnostic, metric, predictors, labelled, megabytes, reliability, against, error and a label",
        ),
        (
            DIAGRAM | {"shows": {"reliability": "global", "error": "AE", "label": ""}},
            "shows: expected one of diagnostic, metric, predictors, labelled, megabytes, reliability, against, error and a label",
        ),
        (DIAGRAM | {"shows": {"predictors": "ridge", "round": 0}}, "shows.round: expected a round from 1, or -1"),
        (DIAGRAM | {"shows": {"metric": "client_accuracy_sd", "label": "sd"}}, "shows.metric: expected a predictor's"),
        (DIAGRAM | {"shows": {"metric": "predictive_ecc", "label": "ECE"}}, "unknown metric 'predictive_ecc_last'"),
    ],
)
def test_wrong_diagrams(figure: dict[str, Any], message: str, study: Study) -> None:
    with pytest.raises(InputError, match=message):
        paper_check.check_figure(study, figure)


def test_accuracy_along_labelled_images(lab: Any, stored: Callable[..., None]) -> None:
    """Of the last round with so many."""
    folder = lab.cell("heterogeneous", "HBFL", asks=["active"])
    stored(folder, [0.3, 0.4, 0.5, 0.45, 0.6])
    with (folder / "metrics.csv").open("a", newline="", encoding="utf-8") as file:
        rows = [(round, "global", "server", "labelled_images", 100 * (1 + (round - 1) // 2)) for round in range(1, 6)]
        csv.writer(file).writerows(rows)
    run_folder.seal(folder, json.loads((folder / "summary.json").read_text()))
    (study,) = join.studies(lab.plan)
    figure = {**DIAGRAM, "methods": ["HBFL"], "shows": {"labelled": True, "label": "labelled images"}}
    paper_check.check_figure(study, figure)
    data = figures.content(study, figure)
    assert dict(zip(data.curves["round"], data.curves["accuracy"], strict=True)) == {100: 40, 200: 45, 300: 60}
    (axes,) = plots.draw(study, figure, figures.content(study, figure)).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("labelled images", "accuracy (%)")
    stored(lab.cell("heterogeneous", "FML"), [0.9])
    (study,) = join.studies(lab.plan)
    table = {**TABLE, "columns": [{"title": "height", "metric": "global_accuracy_labelled"}]}
    _, (hbfl, fml) = tables.layout(study, table, cells.rows(study, table))
    assert (hbfl["height"], fml["height"]) == (f"{(40 + 45 + 60) / 3:.2f}", "no active learning")


def test_a_metric_over_rounds(study: Study) -> None:
    """In its unit, in the rounds in which it is measured; who has none is named."""
    figure = {**DIAGRAM, "shows": {"metric": "global_ece", "label": "ECE (%)"}}
    paper_check.check_figure(study, figure)
    data = figures.content(study, figure)
    of_seed = {seed: dict(zip(own["round"], own["accuracy"], strict=True)) for seed, own in data.curves.groupby("seed")}
    assert of_seed == {"0": {10: 90, 60: 20}, "1": {10: 90, 60: pytest.approx(30)}}
    assert figures.without(study, data.records) == ["FML (not in its record)"]
    (axes,) = plots.draw(study, figure, data).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "ECE (%)")
    brier = {**figure, "shows": {"metric": "global_brier", "label": "Brier score"}}
    assert figures.content(study, brier).curves["accuracy"].max() == pytest.approx(0.6)


def test_accuracy_along_megabytes(lab: Any, stored: Callable[..., None]) -> None:
    """Bytes of both ways are added up; the n-th points of two seeds lie at their mean; without bytes there is no curve."""
    for seed, down in ((0, [1, 2, 4]), (1, [3, 2, 2])):
        folder = lab.cell("heterogeneous", "HBFL", seed=seed)
        stored(folder, [0.3, 0.5, 0.4], key="abc")
        sent = {"down": [1_000_000 * each for each in down], "up": [500_000] * 3}
        (folder / "bytes.json").write_text(json.dumps({"key": "abc", "how": "later"} | sent))
    stored(lab.cell("heterogeneous", "FML"), [0.9])
    (study,) = join.studies(lab.plan)
    figure = {**DIAGRAM, "shows": {"megabytes": True, "label": "megabytes sent, both ways"}}
    paper_check.check_figure(study, figure)
    data = figures.content(study, figure)
    for _, of_run in data.curves.groupby("run"):
        assert dict(zip(of_run["round"], of_run["accuracy"], strict=True)) == {2.5: 30, 5: 50, 8.5: 40}
    assert figures.without(study, data.records) == ["FML (not in its record)"]
    (axes,) = plots.draw(study, figure, data).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("megabytes sent, both ways", "accuracy (%)")


MISTAKES = {
    "title": "AUROC of mistakes", "experiment": "heterogeneous", "metric": "global_auroc_mistakes_last",
    "rows": {"setting": ["IID"]}, "columns": [{"method": "HBFL"}, {"method": "FML"}, {"method": "ABAVG"}],
}  # fmt: skip
AUROC = "test_auroc_mistakes"


@pytest.fixture
def faultless(lab: Any, stored: Callable[..., None]) -> Any:
    """HBFL makes no mistake in the last round, FML in that of one seed of two; ABAVG's record is from before."""
    for method, seed, value in (("HBFL", 0, "nan"), ("FML", 0, "nan"), ("FML", 1, 0.9)):
        folder = lab.cell("heterogeneous", method, seed=seed)
        accuracy = 1.0 if value == "nan" else 0.5
        shown = {"ece": 0.1, "auroc_mistakes": None if value == "nan" else value}
        stored(folder, [0.5, accuracy], uncertainty={"global": shown})
        measure(folder, [(1, AUROC, 0.8), (2, AUROC, value), (2, "test_ece", 0.1)])
    stored(lab.cell("heterogeneous", "ABAVG"), [0.5, 0.5], uncertainty={"global": {"ece": 0.1}})
    claim = {"by": "us", "kind": "higher", "experiments": ["heterogeneous"], "metric": "global_auroc_mistakes_last"}
    lab.spec["claims"] = [
        {**claim, "claim": "none", "method": "FML", "than": ["HBFL"]},
        {**claim, "claim": "one", "method": "FML", "than": ["ABAVG"]},
    ]
    lab.spec["tables"], lab.spec["figures"], lab.spec["summary"] = {"mistakes": MISTAKES}, {}, ["mistakes"]
    return lab


def test_a_model_without_mistakes_says_so_in_tables(faultless: Any, rows: Callable[..., Any], tmp_path: Path) -> None:
    tables.write(faultless.found, tmp_path)
    (row,) = rows(tmp_path / "hbfl/mistakes.csv")
    assert (row["HBFL"], row["FML"], row["ABAVG"]) == ("no mistakes", "0.900", "not in its record")
    assert (row["HBFL last5"], row["FML last5"]) == ("no mistakes", "0.850")
    assert row["seeds"] == "no mistakes (HBFL); 1 of 2, 1 no mistakes (FML); not in its record (ABAVG)"
    tables.write_comparison(faultless.found, tmp_path)
    found = rows(tmp_path / "hbfl/mistakes.compare.csv")
    assert [one["verdict"] for one in found] == ["no mistakes", "not published", "not in its record"]
    assert "1 of 2, 1 no mistakes" in found[1]["note"]
    apart = {(one["method"], one["seed"]): one["auroc_mistakes"] for one in rows(tmp_path / "hbfl/uncertainty.csv")}
    assert apart == {
        ("HBFL", "0"): "no mistakes", ("FML", "0"): "no mistakes", ("FML", "1"): "0.9000", ("ABAVG", "0"): "",
    }  # fmt: skip


def test_claims_and_the_report_say_so(faultless: Any, rows: Callable[..., Any], tmp_path: Path) -> None:
    claims_table.write(faultless.found, tmp_path)
    found = {one["claim"]: one["verdict"] for one in rows(tmp_path / "hbfl/claims.csv") if one["dataset"] == "all"}
    assert found == {"none": "no mistakes", "one": "no mistakes or not in its record"}
    page = build.write(faultless.plan, tmp_path / "page.html")[0].read_text()
    assert "<td>no mistakes</td>" in page
    assert "<td>0.9000 (without 1 of 2: no mistakes)</td>" in page
    data = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    told = {(one["columns"]["method"], one["columns"]["seed"]): one["calibration"] for one in data["runs"].values()}
    assert told["HBFL", "0"] == {"global": {"ece": 0.1, "auroc_mistakes": "no mistakes"}}
    assert told["FML", "1"] == {"global": {"ece": 0.1, "auroc_mistakes": 0.9}}


def test_a_claim_says_which_seeds_it_lacks(lab: Any, stored: Callable[..., None]) -> None:
    for seed in (0, 1):
        for method, value in (("HBFL", 0.9), ("FML", "nan" if seed else 0.8)):
            folder = lab.cell("heterogeneous", method, seed=seed)
            stored(folder, [0.5, 0.0 if value == "nan" else 0.5])
            measure(folder, [(2, AUROC, value)])
    (study,) = join.studies(lab.plan)
    claim = {"claim": "", "by": "us", "kind": "higher", "experiments": ["heterogeneous"], "method": "HBFL"}
    asked = {**claim, "metric": "global_auroc_mistakes_last", "than": ["FML"]}
    total = claims.tested(study, asked).total
    assert (total.told, total.of, total.planned) == (
        "supported 1/1, preliminary (no value in some: only mistakes)",
        1,
        2,
    )
