"""A search whose best is shown: what is chosen, by what rule, and how every output says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesfed.core.errors import InputError
from bayesfed.plan import paper_check
from bayesfed.results import cells, claims_table, figures, plots, selection, summary_page, tables
from bayesfed.results import study as join
from bayesfed.results.statistics import BEST
from bayesfed.runs import run_folder

Rows = Callable[[Path], list[dict[str, str]]]
Stored = Callable[..., None]
SEARCH = {"over": ["lr", "local_epochs"], "by": "global_accuracy_last"}
TABLE = {
    "title": "Best of a grid", "experiment": "grid", "metric": "global_accuracy_last", "search": SEARCH,
    "rows": {"alpha": [1, 0.1]}, "columns": [{"method": "HBFL"}, {"method": "FML"}],
}  # fmt: skip
FIGURE = {
    "title": "Best of a grid", "experiment": "grid", "accuracy": "global", "x": "alpha", "rows": [], "columns": [],
    "methods": ["HBFL", "FML"], "search": SEARCH,
}  # fmt: skip
CLAIM = {
    "claim": "HBFL is above FML", "by": "us", "kind": "higher", "experiments": ["grid"], "metric": "global_accuracy_last",
    "method": "HBFL", "than": ["FML"], "search": SEARCH,
}  # fmt: skip
FALLS = {
    "claim": "less by alpha", "by": "us", "kind": "falls", "experiments": ["grid"], "metric": "global_accuracy_last",
    "methods": ["HBFL"], "along": "alpha", "search": SEARCH,
}  # fmt: skip


@pytest.fixture
def grid(lab: Any, stored: Stored) -> Any:
    """Two methods, two alphas, learning rates and epochs, two seeds; HBFL's best choice at alpha 1 is lr 0.1, 5 epochs.

    At alpha 1 HBFL has an unfinished seed where it would be the best; at alpha 0.1 FML has nothing finished.
    """
    axes = {
        "dataset": ["cifar10"],
        "alpha": [1, 0.1],
        "lr": [0.1, 0.01],
        "local_epochs": [1, 5],
        "method": ["HBFL", "FML"],
    }
    lab.spec["experiments"] = {"grid": {"axes": axes}}
    lab.spec["tables"], lab.spec["figures"], lab.spec["claims"] = {"best": TABLE}, {"best": FIGURE}, [CLAIM, FALLS]
    lab.spec["summary"] = ["best"]
    accuracy = {
        ("HBFL", "1", 0.1, 1): (0.5, 0.5), ("HBFL", "1", 0.1, 5): (0.6, 0.7), ("HBFL", "1", 0.01, 1): (0.1, 0.9),
        ("HBFL", "1", 0.01, 5): (0.9, None),
        ("HBFL", "0.1", 0.1, 1): (0.4, 0.4), ("HBFL", "0.1", 0.1, 5): (0.4, 0.4), ("HBFL", "0.1", 0.01, 1): (0.3, 0.2),
        ("HBFL", "0.1", 0.01, 5): ("diverged", 0.99),
        ("FML", "1", 0.1, 1): (0.2, 0.2), ("FML", "1", 0.1, 5): (0.2, 0.2), ("FML", "1", 0.01, 1): (0.55, 0.65),
        ("FML", "1", 0.01, 5): (0.2, 0.1),
    }  # fmt: skip
    for method in ("HBFL", "FML"):
        for alpha in ("1", "0.1"):
            for lr in (0.1, 0.01):
                for epochs in (1, 5):
                    for seed, value in enumerate(accuracy.get((method, alpha, lr, epochs), (None, None))):
                        point = {"lr": lr, "local_epochs": epochs}
                        folder = lab.cell("grid", method, alpha=alpha, axes=point, local_epochs=epochs, seed=seed)
                        if value == "diverged":
                            stored(folder, [0.9], diverged={"round": 1, "client": "0", "tensor": "theta"})
                        elif value is not None:
                            stored(folder, [0.95, value])
    return lab


def test_the_best_mean_over_seeds_that_have_all_been_run(grid: Any) -> None:
    (study,) = join.studies(grid.plan)
    found = selection.choose(study, study.records, SEARCH)
    by = {(r.method, r.alpha, r.seed): (r.axes["lr"], r.axes["local_epochs"], r.chosen) for r in found if r.done}
    told = "chosen on test accuracy"
    assert (
        by["HBFL", "1", "0"] == by["HBFL", "1", "1"] == ("0.1", "5", f"lr 0.1, local epochs 5 (best of 3 of 4, {told})")
    )
    assert by["HBFL", "0.1", "0"] == ("0.1", "1", f"lr 0.1, local epochs 1 (best of 4, {told})")  # the first of equals
    assert by["FML", "1", "1"] == ("0.01", "1", f"lr 0.01, local epochs 1 (best of 4, {told})")
    assert len(by) == 6
    unrun = [r for r in found if (r.method, r.alpha) == ("FML", "0.1")]
    assert {r.chosen for r in unrun} == {""}
    assert all("best of 0 of 4 choices of lr, local epochs" in r.changes for r in unrun)


def test_a_choice_of_the_paper_that_is_not_planned_is_missing(grid: Any) -> None:
    grid.spec["experiments"]["grid"]["axes"]["lr"].append(1)
    (study,) = join.studies(grid.plan)
    chosen = {r.chosen for r in selection.choose(study, study.records, SEARCH) if (r.method, r.alpha) == ("FML", "1")}
    assert chosen == {"lr 0.01, local epochs 1 (best of 4 of 6, chosen on test accuracy)"}


def test_all_choices_diverged(lab: Any, stored: Stored) -> None:
    lab.spec["experiments"] = {"grid": {"axes": {"lr": [0.1]}}}
    stored(lab.cell("grid", "HBFL", axes={"lr": 0.1}), [0.5], diverged={"round": 1, "client": "0", "tensor": "theta"})
    (study,) = join.studies(lab.plan)
    (record,) = (r for r in selection.choose(study, study.records, SEARCH | {"over": ["lr"]}) if r.level == "global")
    assert cells.score([record], BEST).shown() == "diverged"


def test_tables_name_what_was_chosen(grid: Any, rows: Rows, tmp_path: Path) -> None:
    tables.write(grid.found, tmp_path)
    first, second = rows(tmp_path / "hbfl/best.csv")
    assert (first["HBFL"], first["FML"], first["seeds"]) == ("65.00 ± 7.07", "60.00 ± 7.07", "2")
    assert first["chosen"] == (
        "lr 0.1, local epochs 5 (best of 3 of 4, chosen on test accuracy) (HBFL); "
        "lr 0.01, local epochs 1 (best of 4, chosen on test accuracy) (FML)"
    )
    assert first["budget"] == "best of 3 of 4 choices of lr, local epochs"
    assert first["local_epochs"] == "5 (HBFL); 1 (FML)"
    assert (second["HBFL"], second["FML"]) == ("40.00 ± 0.00", "")
    for summary in (grid.root / "runs").rglob("summary.json"):
        provenance = {"train_seconds": 60, "hardware": "here", "threads": 1, "device": "cpu", "precision": "fp32"}
        (summary.parent / "provenance.json").write_text(json.dumps(provenance))
        run_folder.seal(summary.parent, json.loads(summary.read_text()))
    summary_page.write(grid.found, tmp_path)
    shown = (tmp_path / "hbfl/summary.md").read_text()
    assert "†; lr 0.1, local epochs 5 (best of 3 of 4, chosen on test accuracy)" in shown


def test_claims_compare_best_with_best(grid: Any, rows: Rows, tmp_path: Path) -> None:
    claims_table.write(grid.found, tmp_path)
    found = rows(tmp_path / "hbfl/claims.csv")
    total, at_one, at_tenth, falls, _ = found
    assert (total["holds"], total["of"], total["planned"]) == ("2", "2", "4")
    assert (at_one["alpha"], at_one["difference"], at_one["verdict"]) == ("1", "+5.00", "supported")
    assert "FML, alpha 1: lr 0.01, local epochs 1" in at_one["chosen"]
    assert at_tenth["verdict"] == "not run"
    assert (falls["holds"], falls["difference"]) == ("2", "-25.00")


def test_figures_name_what_was_chosen(grid: Any, rows: Rows, tmp_path: Path) -> None:
    plots.write(join.studies(grid.plan), tmp_path)
    (study,) = join.studies(grid.plan)
    data = figures.content(study, FIGURE)
    assert set(data.curves["round"]) == {1.0, 0.1}
    drawn = " ".join((tmp_path / "hbfl/best.svg").read_text().split())
    assert "Best over lr, local epochs by the mean of" in drawn
    assert "chosen on test accuracy" in drawn
    told = figures.notes(FIGURE, data.records)
    assert "local epochs 1 (2), local epochs 5 (1), lr 0.01 (1), lr 0.1 (2)" in told
    chosen = {(row["method"], row["alpha"]): row["chosen"] for row in rows(tmp_path / "hbfl/best.chosen.csv")}
    assert chosen["FML", "0.1"] == ""
    assert chosen["HBFL", "0.1"].startswith("lr 0.1, local epochs 1 (best of 4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"over": []}, "search: over: expected the axes to choose the best over"),
        ({"over": ["lrs"]}, "search: no axis is named 'lrs'; did you mean 'lr'"),
        ({"over": ["alpha"]}, "search: over: 'alpha' tells cells apart here"),
        ({"by": "global_acuracy_last"}, "search: unknown metric 'global_acuracy_last'"),
        ({"by": "global_accuracy_to_half"}, "search: by: 'global_accuracy_to_half' is no accuracy"),
        ({"by": "client_accuracy_last"}, "search: by: 'client_accuracy_last' is one accuracy a client"),
    ],
)
def test_mistakes_are_named_before_any_run(grid: Any, change: dict[str, Any], message: str) -> None:
    grid.spec["statistics"] = {"to_half": {"first": 0.5}}
    (study,) = join.studies(grid.plan)
    for function, item in (
        (paper_check.check_table, TABLE),
        (paper_check.check_figure, FIGURE),
        (paper_check.check_claim, FALLS),
    ):
        function(study, item)
        with pytest.raises(InputError, match=message):
            function(study, {**item, "search": {**SEARCH, **change}})


def test_an_accuracy_that_no_round_has_is_not_searched(grid: Any) -> None:
    (study,) = join.studies(grid.plan)
    message = "search: by: 'local_accuracy_last': experiment 'grid' does not test clients every round"
    with pytest.raises(InputError, match=message):
        paper_check.check_table(study, {**TABLE, "search": {**SEARCH, "by": "local_accuracy_last"}})


def test_an_accuracy_of_each_client_is_not_searched(grid: Any) -> None:
    (study,) = join.studies(grid.plan)
    with pytest.raises(InputError, match="search: metric: 'client_accuracy_best' is one accuracy a client"):
        paper_check.check_claim(study, {**CLAIM, "metric": "client_accuracy_best"})
