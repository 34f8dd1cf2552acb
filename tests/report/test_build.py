"""The page: its numbers are those of the CSV files, what papers say is text, and everything it needs lies in it."""

import base64
import csv
import html.parser
import io
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import vl_convert

from bayesfed.core.errors import InputError
from bayesfed.report import build, chart_specs, charts, run_details
from bayesfed.results import claims_table, figure_panels, tables

HOSTILE = "<script>document.title = 'run'</script>{{ 7 * 7 }}"


class Page(html.parser.HTMLParser):
    """What a page holds: the cells of its tables, its links, its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[dict[str, str]]]] = {}
        self.links: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[str] = []
        self.told = ""
        self._table: list[list[dict[str, str]]] | None = None
        self._classes: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {key: value or "" for key, value in attrs}
        self.ids += [known["id"]] if "id" in known else []
        self.links += [known["href"]] if "href" in known else []
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")
        if tag == "table":
            self._table = self.tables.setdefault(known.get("data-table") or known.get("data-name", ""), [])
        if self._table is not None and tag == "tr":
            self._table.append([])
        if self._table and tag in ("td", "th"):
            self._table[-1].append({"all": ""})
        if tag in ("span", "a"):
            self._classes.append(known.get("class", ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False
        if tag == "table":
            self._table = None
        if tag in ("span", "a"):
            self._classes.pop()

    def handle_data(self, text: str) -> None:
        if self._in_script:
            self.scripts[-1] += text
            return
        self.told += text
        if self._table and self._table[-1]:
            cell = self._table[-1][-1]
            cell["all"] += text
            for name in self._classes[-1:]:
                cell[name] = cell.get(name, "") + text


def page(lab, tmp_path) -> Page:
    out, _ = build.write(lab.plan, tmp_path / "reports/test.html")
    return Page(out.read_text())


@pytest.fixture
def some_runs(lab, stored):
    """Table 1 in part: two seeds of one cell, one of another, one at a smaller budget, one that diverged."""
    for seed, server in ((0, [0.5, 0.61]), (1, [0.5, 0.63])):
        folder = lab.cell("heterogeneous", "HBFL", alpha="0.05", seed=seed)
        stored(folder, server, [[0.9, 0.95]] * 10, {"global": {"nll": 1.2, "brier": 0.5, "ece": 0.12, "mce": 0.3}})
    stored(lab.cell("heterogeneous", "FML", alpha="0.05", seed=0), [0.4, 0.51], [[0.8, 0.85]] * 10)
    lab.cell("heterogeneous", "FML", alpha="0.05", seed=1)
    small = {"rounds": 2, "changes": ["rounds 2 (paper 100)"]}
    stored(lab.cell("heterogeneous", "HBFL", "cifar100", seed=2, **small), [0.1, 0.2])
    stored(lab.cell("heterogeneous", "FML", "cifar100", seed=3), [0.1], diverged={"round": 1})
    return lab


def test_a_report_needs_no_torch() -> None:
    program = "import sys; from bayesfed.report import build, compare; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def numbers(row) -> list[str]:
    return [row[key] for key in ("published", "mean", "sd", "difference")]


def test_numbers_are_those_of_the_csv_files(some_runs, rows, tmp_path):
    shown = page(some_runs, tmp_path)
    tables.write_comparison(some_runs.found, tmp_path)
    for name in some_runs.spec["tables"]:
        of_page = [
            cell for row in shown.tables[f"hbfl/{name}"][1:] for cell in row if "print" in cell or "ours" in cell
        ]
        of_page = [[cell.get(key, "") for key in ("published", "mean", "sd", "difference")] for cell in of_page]
        of_file = [numbers(row) for row in rows(tmp_path / f"hbfl/{name}.compare.csv") if any(numbers(row))]
        assert of_page == of_file, name
    claims_table.write(some_runs.found, tmp_path)
    head, *of_page = shown.tables["hbfl-claims"]
    names = [cell["all"].strip() for cell in head]
    of_file = rows(tmp_path / "hbfl/claims.csv")
    assert [[cell["all"].strip() for cell in row] for row in of_page] == [
        [row[name] for name in names] for row in of_file
    ]


def test_first_screen_says_what_came_out(some_runs, tmp_path):
    told = " ".join(page(some_runs, tmp_path).told.split())
    assert (
        "Table 1, HBFL's global model is above FML's: supported 1/1, preliminary, nothing to compare in 1, which diverged. CIFAR10, alpha 0.05, "
        "CNN2: HBFL 10.00 points above FML, as claimed in 1 of 1 seed (2 planned); published: 11.43 points above."
    ) in told
    assert "5 of 6 planned runs are finished, so verdicts are preliminary." in told
    assert "CIFAR10, alpha 0.05, CNN2: HBFL 10.00 points above FML" in told


def test_cells_say_what_they_are(some_runs, tmp_path):
    text = (build.write(some_runs.plan, tmp_path / "test.html")[0]).read_text()
    cells = re.findall(
        r'<td class="cell (\w+)(?: best)?" data-sort="([^"]*)">', text[: text.index('data-table="hbfl/table2"')]
    )
    assert cells == [
        ("open", ""), ("open", ""), ("close", "51.00"), ("close", "62.00"),
        ("diverged", ""), ("apart", "20.00"), ("open", ""), ("open", ""),
    ]  # fmt: skip


def test_a_cell_without_a_value_says_how_many_seeds_have_none(lab, stored, tmp_path):
    for seed in (0, 1):
        stored(lab.cell("heterogeneous", "HBFL", alpha="0.05", seed=seed), None, [[0.5]] * 10)
    shown = page(lab, tmp_path).tables["hbfl/table1"]
    (cell,) = [cell for row in shown for cell in row if "no global model" in cell["all"]]
    assert cell["seeds"].strip() == "2 seeds"


def test_what_papers_say_is_text(some_runs, tmp_path):
    """A value in YAML with a script in it is shown, not run, wherever it stands."""
    spec = some_runs.spec
    spec["title"] = spec["reference"] = HOSTILE
    spec["tables"]["table1"]["title"] = spec["tables"]["table1"]["note"] = HOSTILE
    spec["figures"]["figure4"]["title"] = spec["claims"][0]["claim"] = HOSTILE
    spec["labels"]["cifar10"] = HOSTILE
    spec["labels"]["cnn2"] = HOSTILE
    some_runs.notice = HOSTILE
    shown = page(some_runs, tmp_path)
    assert shown.told.count(HOSTILE) >= 8
    assert len(shown.scripts) == 3
    data = json.loads(shown.scripts[0])
    assert not [script for script in shown.scripts[1:] if "7 * 7" in script]
    assert HOSTILE in json.dumps(data)
    assert "</" not in shown.scripts[0]


def test_whole_in_one_file(some_runs, tmp_path):
    """No address in it leads out of the folder, and every place on the page that a link names is there."""
    shown = page(some_runs, tmp_path)
    data = json.loads(shown.scripts[0])
    for link in shown.links:
        if link.startswith("#runs="):
            assert set(link.removeprefix("#runs=").split(",")) <= set(data["runs"])
        elif link.startswith("#"):
            assert link[1:] in shown.ids
        else:
            assert link.startswith("data:") or (tmp_path / "reports" / link).exists()
    assert len(shown.ids) == len(set(shown.ids))


def test_tables_download(some_runs, tmp_path):
    links = [link for link in page(some_runs, tmp_path).links if link.startswith("data:text")]
    texts = [base64.b64decode(link.partition("base64,")[2]).decode() for link in links]
    table = list(csv.DictReader(io.StringIO(texts[0])))
    assert [row["mean"] for row in table] == ["", "", "51.00", "62.00", "", "20.00", "", ""]
    assert texts[1].startswith("% Top-1 test accuracy (%) of the global model")
    assert "\\toprule" in texts[1]
    assert r"62.69 & 62.00 $\pm$ 1.41 & -0.69" in texts[1]


def test_a_run_is_told_whole(some_runs, tmp_path):
    shown = page(some_runs, tmp_path)
    data = json.loads(shown.scripts[0])
    run = next(one for one in data["runs"].values() if one["columns"]["method"] == "FML" and one["server"])
    assert run["server"] == {"best": 51, "last": 51, "last5": 45.5}
    assert run["curves"]["global"] == [[1, 40], [2, 51]]
    assert run["clients"][0][:4] == ["0", "MLP", "CIFAR10", "85.00"]
    assert run["diagnostics"] == {"log_precision_spread": [[1, 0.1], [2, 0.1]]}
    assert "bayesfed train" in run["command"]


def test_what_servers_log_is_told_in_the_words_of_their_methods(some_runs, tmp_path):
    assert "log_precision_spreadhow far <apart>" in page(some_runs, tmp_path).told
    own = {
        name: {"folder": f"runs/{name}", "diagnostics": {"AE one": [[1, 2]], "AE two": [[1, 2]], "b": [[1, 2]]}}
        for name in "xyz"
    }
    plan = {
        "runs": [{"folder": name, "method": name} for name in "xyz"],
        "logs": {"x": {"AE": "error"}, "y": {"AE": "other"}},
    }
    assert run_details.terms(own.values(), plan) == [("AE", "error"), ("AE", "other")]


def test_a_made_run_says_how_to_make_it_again(tmp_path):
    entry = {"datasets": ["digits"]}
    told = run_details.command(tmp_path / "seed~0-abc", entry, {"device": "cpu", "precision": "fp32", "threads": 1}, {})
    assert told.splitlines() == [
        "bayesfed fetch digits",
        f"bayesfed verify '{tmp_path}/seed~0-abc'",
        f"OMP_NUM_THREADS=1 bayesfed train '{tmp_path}/seed~0-abc/run.yaml' --out 'again/seed~0-abc' --device cpu "
        "--precision fp32",
    ]
    own, on = {"plugins": "my plugins", "weights": "my weights"}, {"device": "cuda", "precision": "bf16", "threads": 1}
    told = run_details.command(tmp_path / "seed~0-abc", entry, on, own)
    fetch, verify, train = told.splitlines()
    assert verify.endswith(" --weights 'my weights'")
    assert fetch == "bayesfed fetch digits --plugins 'my plugins'"
    assert train.startswith("bayesfed train ")
    assert train.endswith("--out 'again/seed~0-abc' --device cuda --precision bf16 --weights 'my weights'")


def test_figures_hold_the_curves_of_the_seeds_that_all_have(some_runs, tmp_path):
    data = json.loads(page(some_runs, tmp_path).scripts[0])
    chart = data["charts"]["hbfl-figure4"]
    (panel,) = [panel for panel in chart["panels"] if panel["title"] == "CIFAR10, Non-IID"]
    found = list(csv.DictReader(io.StringIO(panel["csv"])))
    assert [(row["curve"], row["seed"], row["x"], row["value"]) for row in found] == [
        ("HBFL", "0", "1", "50"), ("HBFL", "0", "2", "61"), ("FML", "0", "1", "40"), ("FML", "0", "2", "51"),
    ]  # fmt: skip
    assert all(row["run"] in data["runs"] for row in found)
    assert panel["y"][0] <= 40
    assert panel["y"][1] >= 61


OF_RUN = {
    "heat": "client,class,images\n0,0,5\n",
    "clients": "client,model,images,value\n0,cnn,5,80\n",
    **dict.fromkeys(("curve", "reliability", "logged"), "curve,x,value,colour,width\na,1,5,#000,1\na,2,6,#000,1\n"),
}


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        *((spec, OF_RUN[name]) for name, spec in run_details.specs().items()),
        (chart_specs.beside_published(), "cell,x,value,kind,verdict,run\none,60,61,close,,0\n"),
        *(
            (chart_specs.lines(charts.styled({"a": "A"}, {"a": 0}), "round", "accuracy (%)", chart_specs.Look(**{kind: True})),
             "curve,seed,x,value,run\na,0,1,50,0\na,1,1,51,1\n")
            for kind in ("few", "logarithmic", "diagonal", "scatter", "named")
        ),
    ],
)  # fmt: skip
def test_every_chart_can_be_drawn(spec: dict[str, Any], data: str) -> None:
    """By Vega, as the page does: a name that it does not know shows only then."""
    whole = {**spec, "width": 300, "data": {"values": data, "format": {"type": "csv"}}}
    assert vl_convert.vegalite_to_svg(json.dumps(whole)).startswith("<svg")


def test_long_curves_are_thinned_and_keep_their_last_point():
    curve = {round_: 0.001 * round_ for round_ in range(1, 801)}
    kept = run_details.thin(curve, 50)
    assert len(kept) == 50
    assert kept[-1] == (800, 80)
    frame = charts.pd.DataFrame({"x": list(curve), "value": list(curve.values())})
    kept_frame, every = charts.thinned(frame)
    assert (every, kept_frame["x"].iloc[-1], len(kept_frame)) == (4, 800, 201)
    two = charts.pd.concat([frame.assign(curve="a"), frame.assign(curve="b", x=frame["x"] * 1.5 + 0.1)])
    kept_frame, every = charts.thinned(two)
    assert (every, *(len(own) for _, own in kept_frame.groupby("curve"))) == (4, 201, 201)
    assert kept_frame.groupby("curve")["x"].max().tolist() == pytest.approx([800, 1200.1])


def test_partitions_are_drawn_from_their_tables(some_runs, tmp_path):
    plan = some_runs.plan
    content = json.loads(plan.read_text())
    name = "partitions/cifar10/dirichlet-alpha~0.05-seed~0"
    for run in content["runs"]:
        run |= {"partition": f"{name}.npz", "datasets": ["cifar10"]}
    plan.write_text(json.dumps(content))
    path = plan.parent.parent / f"{name}.csv"
    path.parent.mkdir(parents=True)
    path.write_text("client,split,images,class_0,class_1\n0,train,5,5,0\n0,test,2,2,0\n1,train,7,3,4\n1,test,2,1,1\n")
    out, _ = build.write(plan, tmp_path / "test.html")
    shown = Page(out.read_text())
    data = json.loads(shown.scripts[0])
    assert data["partitions"] == {f"{name}.npz": {"train": [[5, 0], [3, 4]]}}
    assert data["charts"]["hbfl-partitions-cifar10"]["panels"][0]["csv"] == "client,class,images\n0,0,5\n1,0,3\n1,1,4\n"
    assert "2 clients with 5 to 7 training images, of 1 to 2 classes each" in out.read_text()


def test_nothing_run_says_so(lab, tmp_path):
    lab.cell("heterogeneous", "HBFL")
    lab.cell("heterogeneous", "FML")
    told = " ".join(page(lab, tmp_path).told.split())
    assert "None of the 2 planned runs is finished yet, so nothing is said of HBFL's claims or numbers." in told
    assert "published 82.10" in told


def test_crate_names_what_stands(some_runs, tmp_path):
    tables.write(some_runs.found, some_runs.root / "tables")
    _, crate = build.write(some_runs.plan, tmp_path / "reports/test.html")
    assert crate == tmp_path / "reports/test-crate/ro-crate-metadata.json"
    graph = {entity["@id"]: entity for entity in json.loads(crate.read_text())["@graph"]}
    files = [name for name, entity in graph.items() if entity["@type"] == "File"]
    assert {"test.html", "results/tables/hbfl/table1.csv"} <= set(files)
    assert all((crate.parent / name).is_file() for name in files)
    actions = [entity for entity in graph.values() if entity["@type"] == "CreateAction"]
    assert len(actions) == 5
    assert all(graph[action["object"]["@id"]]["name"] == "run.yaml" for action in actions)
    build.write(some_runs.plan, tmp_path / "reports/test.html")  # a second time, over the first
    (crate.parent / "results").unlink()
    (crate.parent / "results").mkdir()
    with pytest.raises(InputError, match="test-crate/results: expected a link to"):
        build.write(some_runs.plan, tmp_path / "reports/test.html")


def test_a_folder_is_no_page(some_runs, tmp_path):
    with pytest.raises(InputError, match="this is a folder; expected the page to write"):
        build.write(some_runs.plan, tmp_path)
    with pytest.raises(InputError, match=r"page: expected a name that ends in \.html"):
        build.write(some_runs.plan, tmp_path / "page")


def test_a_changed_record_is_refused(some_runs, tmp_path):
    changed = next((some_runs.root / "runs").rglob("metrics.csv"))
    changed.write_text(changed.read_text() + "3,global,global,test_accuracy,0.9\n")
    with pytest.raises(InputError, match=r"metrics\.csv: not as the run wrote it"):
        build.write(some_runs.plan, tmp_path / "test.html")


def test_the_best_method_of_a_row_is_marked(lab, stored, tmp_path):
    for method, best in (("HBFL", 0.6), ("FML", 0.5)):
        stored(lab.cell("heterogeneous", method), [best], [[0.5]] * 10)
    text = build.write(lab.plan, tmp_path / "test.html")[0].read_text()
    marked = re.findall(
        r'<td class="cell \w+ best" data-sort="([^"]*)">', text[: text.index('data-table="hbfl/table2"')]
    )
    assert marked == ["60.00"]


def test_several_papers_have_an_overview(lab, stored, tmp_path):
    for method, best in (("HBFL", 0.6), ("FML", 0.5)):
        stored(lab.cell("heterogeneous", method), [best], [[0.5]] * 10)
    assert 'id="tab-overview"' not in build.write(lab.plan, tmp_path / "one.html")[0].read_text()
    plan = json.loads(lab.plan.read_text())
    plan["papers"]["other"] = plan["papers"]["hbfl"] | {"paper": "other"}
    plan["cells"] += [cell | {"paper": "other"} for cell in plan["cells"]]
    lab.plan.with_name("both.json").write_text(json.dumps(plan))
    text = build.write(lab.plan.with_name("both.json"), tmp_path / "both.html")[0].read_text()
    assert text.index('id="tab-overview"') < text.index('id="tab-hbfl"') < text.index('id="tab-other"')
    overview = text[text.index('id="overview"') : text.index('id="hbfl"')]
    assert overview.count("supported 1/1</span> Table 1, HBFL&#39;s global model is above FML&#39;s") == 2
    assert '<a href="#hbfl">HBFL</a></th><td>2 of 2</td>' in overview
    first, headline = "CIFAR10, alpha 100, CNN2", overview[: overview.index("runs finished")]
    assert headline.count(f"<td>{first}</td>") == headline.count("supported 1/1") == 2
    assert headline.count("<td>HBFL 10.00 points above FML</td><td>1.39 points above</td>") == 2


def test_a_tab_lists_what_it_shows(some_runs, tmp_path):
    """The tables and figures that have a run, each with a link."""
    text = build.write(some_runs.plan, tmp_path / "test.html")[0].read_text()
    contents = text[text.index('class="contents"') : text.index('aria-label="The answer"')]
    assert '<a href="#hbfl-table1"><span class="item">table1</span>' in contents
    assert '<a href="#figure-hbfl-figure4"><span class="item">figure4</span>' in contents
    assert "figure8" not in contents


def test_many_curves_have_their_names_at_their_ends(lab, stored, tmp_path):
    names = [f"method {number}" for number in range(figure_panels.MOST + 1)]
    lab.spec["methods"] = {name: {"name": "fedavg"} for name in names}
    lab.spec["figures"]["figure4"]["methods"] = names
    for number, name in enumerate(names):
        stored(lab.cell("heterogeneous", name), [0.1, 0.5 + number / 1000], [[0.5]])
    charts = json.loads(page(lab, tmp_path).scripts[0])["charts"]
    (panel,) = charts["hbfl-figure4"]["panels"]
    assert list(panel["heights"]) == names
    data = {"values": panel["csv"], "format": {"type": "csv", "parse": {"x": "number", "value": "number"}}}
    spec = charts["hbfl-figure4"]["spec"] | {"width": 500, "data": data}
    ends = {"left": 1, "right": 2, "low": 0, "high": 100, "heights": panel["heights"]}
    spec["params"] = [one | ({"value": ends[one["name"]]} if one["name"] in ends else {}) for one in spec["params"]]
    drawn = re.findall(r">(method \d)</text>", vl_convert.vegalite_to_svg(json.dumps(spec)))
    assert sorted(drawn) == names
