"""A comparison of one's own has no published numbers and no paper's claims, and nothing is said of any."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from bayesfed.report import build, chart_specs, charts, run_details
from bayesfed.results import figure_axes, figures, per_run, plots, published_page, summary_page, tables
from bayesfed.results import study as join

PRINT = re.compile(r"\b(print(ed)?|claims?|paper's|papers')\b")


@pytest.fixture
def own(lab: Any, stored: Callable[..., None], tmp_path: Path) -> Any:
    """Two methods, one of them at another budget than the file asks for; a table and a figure."""
    stored(lab.cell("heterogeneous", "HBFL"), [0.5, 0.6], [[0.9, 0.95]] * 10)
    stored(lab.cell("heterogeneous", "FML", changes=["rounds 2 (paper 3)"]), [0.4, 0.5], [[0.8, 0.85]] * 10)
    lab.spec["tables"], lab.spec["summary"] = (
        {"table1": lab.spec["tables"]["table1"] | {"rows": {"setting": ["IID"]}}},
        ["table1"],
    )
    lab.spec["figures"] = {"figure4": lab.spec["figures"]["figure4"] | {"title": "Accuracy"}}
    lab.spec |= {"claims": [], "first_client": 0, "published_file": str(tmp_path / "none.csv"), "title": "Ours"}
    (lab.root / "speed").mkdir(parents=True)
    (lab.root / "speed/steps-cpu.csv").write_text("method,seconds\nhbfl,1\n")
    return lab


def shown(lab: Any, tmp_path: Path) -> str:
    """What a reader sees of the page, in one line; not its scripts and styles."""
    page = build.write(lab.plan, tmp_path / "page.html")[0].read_text()
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_report_says_nothing_of_print(own: Any, tmp_path: Path) -> None:
    told = shown(own, tmp_path)
    assert "All 2 planned runs are finished." in told
    assert PRINT.findall(told.replace("learning papers, checked", "")) == []
    assert "A cell: mean (± sd over seeds). ★ the best method of a row. Without a number: not run." in told
    assert "budget or data are other than the file asks for" in told
    assert "Speed" not in told


def test_claims_of_ones_own_are_told_as_such(own: Any, tmp_path: Path) -> None:
    own.spec["claims"] = [
        {"claim": "HBFL is ahead", "by": "us", "kind": "higher", "experiments": ["heterogeneous"], "method": "HBFL",
         "than": ["FML"], "metric": "global_accuracy_best"}
    ]  # fmt: skip
    told = shown(own, tmp_path)
    assert "Of our 1 claim 1 has been tested" in told
    assert "claims tested 1 of 1" in told


def test_speed_stands_in_a_report_that_asks_for_it(own: Any, tmp_path: Path) -> None:
    content = json.loads(own.plan.read_text())
    (own.root / "plan/plan.json").write_text(json.dumps(content | {"benchmarks": True}))
    page = build.write(own.root / "plan/plan.json", tmp_path / "page.html")[0].read_text()
    assert 'id="tab-speed"' in page


def test_nothing_of_print_in_files(own: Any, rows: Callable[..., Any], tmp_path: Path) -> None:
    for write in (tables.write, tables.write_comparison, summary_page.write, published_page.write):
        write(own.found, tmp_path)
    assert [row["budget"] for row in rows(tmp_path / "hbfl/table1.csv")] == ["rounds 2 (paper 3)"]
    (study,) = join.studies(own.plan)
    assert {row["budget"] for row in per_run.clients(study, per_run.by_run(study))[1]} == {
        "as asked",
        "rounds 2 (paper 3)",
    }
    told = (tmp_path / "hbfl/summary.md").read_text()
    assert told.startswith(
        "### HBFL\n\n2 of 2 planned runs are finished.\n\nMeans over seeds ± standard deviation. Behind a slash"
    )
    assert "† other than its file asks for." in told
    assert PRINT.findall(told) == PRINT.findall((tmp_path / "hbfl/vs-published.md").read_text()) == []
    figure = own.spec["figures"]["figure4"]
    words = " ".join(text.get_text() for text in plots.draw(study, figure, figures.content(study, figure)).texts)
    assert "2 rounds" not in words  # the cells' own: a hundred
    assert "100 rounds, local epochs 5, batch size 128; other than its file asks for: rounds 2 (paper 3)." in words


def labels(spec: dict[str, Any], rounds: int, **ends: float) -> list[str]:
    """What stands at the axis of rounds of a chart, as Vega draws it."""
    lines = [f"a,0,{round},{round},r,#000,1" for round in range(1, rounds + 1)]
    whole = json.loads(json.dumps(spec))
    for one in whole["params"]:
        one |= {"value": ends[one["name"]]} if one["name"] in ends else {}
    data = {"values": "\n".join(["curve,seed,x,value,run,colour,width", *lines])}
    data["format"] = {"type": "csv", "parse": {"x": "number", "value": "number"}}  # type: ignore[assignment]
    svg = vl_convert.vegalite_to_svg(json.dumps({**whole, "width": 300, "data": data}))
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.partition(">round<")[0])


@pytest.mark.parametrize(
    ("rounds", "ticks"), [(1, "1"), (2, "1 2"), (3, "1 2 3"), (5, "1 2 3 4 5"), (100, "20 40 60 80 100")]
)
def test_rounds_have_whole_ticks(rounds: int, ticks: str, lab: Any, stored: Callable[..., None]) -> None:
    """In the report's charts of papers' figures and of runs, and in pictures."""
    left, right = charts.ends(charts.pd.Series(range(1, rounds + 1)))
    curves = charts.styled({"a": "A"}, {"a": 0})
    spec = chart_specs.lines(curves, "round", "value", chart_specs.Look(few=True, rounds=True))
    assert labels(spec, rounds, left=left, right=right, low=0, high=rounds) == ticks.split()
    assert labels(run_details.specs()["curve"], rounds) == ticks.split()
    stored(lab.cell("heterogeneous", "HBFL"), [0.01 * round for round in range(1, rounds + 1)])
    (study,) = join.studies(lab.plan)
    figure = study.spec["figures"]["figure4"]
    axes = plots.draw(study, figure, figures.content(study, figure)).axes[0]
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert shown
    assert all(tick == round(tick) for tick in shown)


def test_what_is_no_round_keeps_its_ticks() -> None:
    of = {"accuracy": "global"}
    assert figure_axes.is_over_rounds(of)
    assert figure_axes.is_over_rounds({**of, "shows": {"diagnostic": "eta", "label": "eta"}})
    assert not figure_axes.is_over_rounds({**of, "x": "lr"})
    assert not figure_axes.is_over_rounds({**of, "shows": {"reliability": "global", "label": "confidence"}})
