"""A comparison as text, CSV, Markdown, LaTeX and picture."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from helpers.comparing import grounds
from scipy.stats import ttest_rel

from bayesfed.results import grounds_files
from bayesfed.results.grounds import SIDES
from bayesfed.results.paired import Comparison


def sides_of(root: Path) -> list[Comparison]:
    levels = {"FedAvg": [0.80, 0.82], "Mine": [0.90, 0.91], "Close": [0.91, 0.90]}
    found = grounds(root, {"harsh": levels})
    return [Comparison(found, side) for side in SIDES]


def test_the_best_and_what_is_near_are_marked(tmp_path: Path) -> None:
    title, head, rows = grounds_files.tables(sides_of(tmp_path))[0]
    assert (
        title
        == "Global model, harsh: mnist, Dirichlet α 0.1, mlp200, 3 clients, 6 rounds; 10 test images a client; on AMD (1 thread, fp32)"
    )
    at = head.index("NLL ↓")
    marks = {row[0]: row[at][:1] for row in rows}
    assert sorted([marks["Mine"], marks["Close"]]) in (["★", "★"], ["≈", "★"])
    assert marks["FedAvg"] == "0"
    assert [row[1] for row in rows] == ["2"] * 3
    assert rows[-1][0] == "FedAvg"  # the most accurate comes first
    lines = grounds_files.as_text(head, rows).splitlines()
    assert lines[0].startswith("Method  Seeds  Accuracy %")
    assert lines[0].index("NLL") == lines[1].index(rows[0][at])


def test_files_say_the_same_numbers(tmp_path: Path) -> None:
    written = grounds_files.write(sides_of(tmp_path / "runs"), tmp_path / "out")
    assert [path.name for path in written] == [f"comparison.{end}" for end in ("csv", "md", "tex", "png", "svg")]
    assert all(path.stat().st_size for path in written)
    rows = list(csv.DictReader(written[0].read_text().splitlines()))
    (mine,) = [row for row in rows if (row["models"], row["method"]) == ("global", "Mine")]
    assert float(mine["nll"]) == 0.095
    assert abs(float(mine["nll_difference"]) + 0.095) < 1e-9
    assert float(mine["nll_low"]) <= float(mine["nll_difference"]) <= float(mine["nll_high"])
    alone = ttest_rel([0.1, 0.09], [0.2, 0.18]).pvalue
    assert float(mine["nll_p"]) == pytest.approx(2 * alone, rel=1e-4)  # the smaller of two
    assert (mine["nll_seeds"], mine["passes"]) == ("2", "")
    assert "| Mine | 2 | " in written[1].read_text()
    assert r"Mine & 2 & " in written[2].read_text()
    assert r"$\star$" in written[2].read_text()


def test_a_mean_over_some_of_the_seeds_says_so(tmp_path: Path) -> None:
    """Of four seeds two reach FedAvg's accuracy: what these sent is no mean of all."""
    levels = {"FedAvg": [0.8] * 4, "Mine": [0.9, 0.5, 0.9, 0.5]}
    _, head, rows = grounds_files.tables([Comparison(grounds(tmp_path, {"harsh": levels}), "global")])[0]
    cells = {row[0]: row[head.index("MB to target ↓")] for row in rows}
    assert cells == {"FedAvg": "6", "Mine": "6 (2 of 4)"}


def test_differences_are_a_row_a_ground(tmp_path: Path) -> None:
    side = sides_of(tmp_path)[0]
    head, rows = grounds_files.differences(side, "Mine", "FedAvg")
    assert head[:3] == ["Ground", "Seeds", "Accuracy % ↑"]
    assert rows[0][:2] == ["harsh", "2"]
    assert grounds_files.differences(side, "FedAvg", "FedAvg")[1] == []


def test_a_chart_of_many_methods_does_without_the_baseline(tmp_path: Path) -> None:
    """As where it diverged on every seed."""
    (found,) = grounds(tmp_path / "runs", {"one": {f"M{place}": [0.5 + place / 100] * 2 for place in range(12)}})
    written = grounds_files.picture(Comparison([found], "global"), tmp_path / "chart")
    assert [path.suffix for path in written] == [".png", ".svg"]


def test_twins_follow_their_methods() -> None:
    assert grounds_files.with_twins(["B", "A, plain", "A"], ["A", "A, plain", "B"]) == ["B", "A", "A, plain"]
    assert grounds_files.with_twins(["A"], ["A"]) == ["A"]
    assert grounds_files.with_twins(["B", "A, plain"], ["B", "A, plain"]) == [
        "B",
        "A, plain",
    ]  # whose method is not there
