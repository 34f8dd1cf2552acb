"""The pipeline runs whole, and remembers by names what is done."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.clone import Clone, copy

NOTHING = "Nothing to be done"


def test_runs_whole(finished: Clone) -> None:
    """Every run of the plan is trained, every table, figure and the report made, and every rule logged."""
    plan, results = finished.plan(), finished.folder / "results" / "test"
    done = {path.parent.relative_to(results / "runs").as_posix() for path in finished.summaries()}
    assert done == {run["folder"] for run in plan["runs"]}
    for run in done:
        assert (results / "checkpoints" / f"{run}.safetensors").exists()
    paper = plan["papers"]["hbfl"]
    tables = [f"{table}{end}.csv" for table in paper["tables"] for end in ("", ".compare")]
    assert {*tables, "clients.csv", "claims.csv"} <= {path.name for path in (results / "tables" / "hbfl").iterdir()}
    figures = {f"{figure}.{kind}" for figure in paper["figures"] for kind in ("svg", "png")}
    assert figures == {path.name for path in (results / "figures" / "hbfl").iterdir()}
    pictures = [run["partition"].replace(".npz", ".svg") for run in plan["runs"] if run["partition"]]
    assert all((results / picture).exists() for picture in pictures)
    for rule in (
        "fetch",
        "partition",
        "overview",
        "train",
        "tables",
        "compare",
        "figures",
        "report",
        "workflow-report",
    ):
        assert list((results / "logs").glob(f"{rule}*")), rule
        assert list((results / "benchmarks").glob(f"{rule}*")), rule


def test_report_says_what_it_is(finished: Clone) -> None:
    """Both reports hold the notice and every title, whole in one file each, and lead to each other; and the tables tell what
    they are made of."""
    plan = finished.plan()
    for report, other in (("test.html", "test-workflow.html"), ("test-workflow.html", "test.html")):
        text = html.unescape((finished.folder / "reports" / report).read_text())
        assert plan["notice"] in text
        assert f'href="{other}"' in text.replace('\\"', '"')
        for item in [*plan["papers"]["hbfl"]["tables"].values(), *plan["papers"]["hbfl"]["figures"].values()]:
            assert item["title"] in text
    table = (finished.folder / "results" / "test" / "tables" / "hbfl" / "table1.csv").read_text()
    assert "digits for CIFAR10, rounds 1 (paper 100), local epochs 1 (paper 5), batch size 64 (paper 128)" in table


def test_report_has_the_numbers_of_the_tables(finished: Clone) -> None:
    """Each cell of the page is that of the comparison, and leads to runs that the page tells of; the crate's files stand."""
    page = (finished.folder / "reports" / "test.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert len(data["runs"]) == len(finished.summaries())
    for table in finished.plan()["papers"]["hbfl"]["tables"]:
        with (finished.folder / f"results/test/tables/hbfl/{table}.compare.csv").open(newline="") as file:
            means = [row["mean"] for row in csv.DictReader(file)]
        shown = page.partition(f'data-table="hbfl/{table}"')[2].partition("</table>")[0]
        assert re.findall(r'<td class="cell \w+" data-sort="([^"]*)"', shown) == means
        assert re.findall(r'<span class="mean">([^<]*)<', shown) == [mean for mean in means if mean]
        for link in re.findall(r'href="#runs=([^"]*)"', shown):
            assert set(link.split(",")) <= set(data["runs"])
    crate = finished.folder / "reports/test-crate/ro-crate-metadata.json"
    files = [unquote(one["@id"]) for one in json.loads(crate.read_text())["@graph"] if one["@type"] == "File"]
    assert {
        "test.html",
        "test-workflow.html",
        "results/tables/hbfl/table1.csv",
        "results/figures/hbfl/figure4.svg",
    } <= set(files)
    assert all((crate.parent / name).is_file() for name in files)


def test_again_does_nothing(finished: Clone) -> None:
    assert NOTHING in finished.snakemake("-n")


def test_another_record_makes_results_anew(fresh: Clone) -> None:
    """Also where runs are trained, whose records are not in the names of what is made from them."""
    assert NOTHING in fresh.snakemake("-n")
    stands = next(iter(fresh.summaries()))
    stands.write_text(f"{stands.read_text()}\n")
    rules = {"tables", "compare", "figures", "report", "workflow_report"}
    assert {rule for rule, _ in fresh.wanted()} == rules
    stands.unlink()
    assert {rule for rule, _ in fresh.wanted()} > rules


@pytest.mark.parametrize("question", ["-n", "--summary", "--dag"])
def test_a_question_leaves_the_folder_alone(fresh: Clone, question: str) -> None:
    """Also while a record is away: when it is back, nothing is made again."""

    def found() -> dict[Path, int]:
        folder = fresh.folder / "results"
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

    before = found()
    away = next(iter(fresh.summaries()))
    away.rename(fresh.folder / "kept")
    fresh.snakemake(question)
    assert found() == {path: time for path, time in before.items() if path != away}
    (fresh.folder / "kept").rename(away)
    assert NOTHING in fresh.snakemake("-n")


def test_a_home_that_cannot_be_written_to(fresh: Clone) -> None:
    fresh.environment["HOME"] = "/proc/none"
    assert NOTHING in fresh.snakemake("-n")


def test_fresh_clone_with_results_does_nothing(fresh: Clone) -> None:
    assert not (fresh.folder / ".snakemake").exists()
    assert NOTHING in fresh.snakemake("-n")


@pytest.mark.parametrize("without", ["records and data", "nothing"])
def test_hyperparameter_trains_its_method_alone(fresh: Clone, finished: Clone, without: str) -> None:
    """Tables follow; other methods' runs do not, whatever a clone lacks."""
    if without == "nothing":
        copy(finished.folder / ".snakemake", fresh.folder / ".snakemake")
    else:
        shutil.rmtree(fresh.folder / "data")
    fresh.configure("experiments:", "methods: {FedProx: {mu: 0.5}}\nexperiments:")
    wanted = fresh.wanted()
    assert [Path(output).parts[-3] for rule, output in wanted if rule == "train"] == ["fedprox"]
    assert {"tables", "compare", "figures", "report", "workflow_report"} <= {rule for rule, _ in wanted}


def test_runs_share_the_cores(finished: Clone, fresh: Clone) -> None:
    """One thread each where many are open; the last one has all, and the trainer is told so."""

    def threads(folder: Path) -> int:
        return json.loads((folder / "provenance.json").read_text())["threads"]

    assert {threads(path.parent) for path in finished.summaries()} == {1}
    fresh.configure("experiments:", "methods: {FedProx: {mu: 0.5}}\nexperiments:")
    (summary,) = (output for rule, output in fresh.wanted() if rule == "train")
    fresh.snakemake(summary)
    assert threads((fresh.folder / summary).parent) == 2


def test_short_runs_are_trained_several_to_a_job(finished: Clone, fresh: Clone) -> None:
    """As many batches as cores; each run is still a job of its own by its name, and where the config says so."""
    assert list((finished.folder / "results" / "test" / "logs" / "train_batch").iterdir())
    summaries = [path.relative_to(fresh.folder).as_posix() for path in fresh.summaries()]
    for path in summaries[:4]:
        (fresh.folder / path).unlink()
    batches = sorted(output for rule, output in fresh.wanted() if rule == "train_batch")  # Snakemake's order is its own
    assert len(batches) == 2
    assert "train" not in {rule for rule, _ in fresh.wanted()}
    (fresh.folder / batches[0]).parent.mkdir(exist_ok=True)
    (fresh.folder / batches[0]).touch()  # left over from when these runs were last trained
    again = {output for rule, output in fresh.wanted() if rule == "train_batch"}
    assert len(again) == 2
    assert again.isdisjoint(batches)
    assert fresh.wanted(summaries[0]) == [("train", summaries[0])]
    fresh.configure("experiments:", "short_runs: {below: 0}\nexperiments:")
    assert {output for rule, output in fresh.wanted() if rule == "train"} == set(summaries[:4])


def test_comment_in_a_method_triggers_nothing(fresh: Clone) -> None:
    with (fresh.folder / "src" / "bayesfed" / "methods" / "hbfl.py").open("a") as file:
        file.write("\n# A comment.\n")
    assert NOTHING in fresh.snakemake("-n")


def test_published_number_makes_tables_anew(fresh: Clone) -> None:
    """Also without records: what tables are made from stands in the name of the file that marks them."""
    fresh.edit("config/papers/hbfl.published.csv", "80.71", "80.72")
    assert {rule for rule, _ in fresh.wanted()} == {"tables", "compare", "figures", "report", "workflow_report"}


def test_results_of_what_stands(fresh: Clone) -> None:
    """`runs=standing`: no training, no data, no checkpoints; what is missing is empty; the rest follows when it comes."""
    results = fresh.folder / "results" / "test"
    lost = next(path.parent for path in fresh.summaries() if path.parts[-3] == "hbfl")
    kept = fresh.folder / "kept"
    lost.rename(kept)
    shutil.rmtree(fresh.folder / "data")
    shutil.rmtree(results / "checkpoints")
    assert "train" in {rule for rule, _ in fresh.wanted()}
    rules = {rule for rule, _ in fresh.wanted("--config", "runs=standing")}
    assert rules == {"tables", "compare", "figures", "report", "workflow_report"}
    fresh.snakemake("--config", "runs=standing")
    assert NOTHING in fresh.snakemake("-n", "--config", "runs=standing")
    stands = next(iter(fresh.summaries()))
    record = stands.read_text()
    stands.write_text(f"{record}\n")  # another record of the same run
    assert {rule for rule, _ in fresh.wanted("--config", "runs=standing")} == rules
    stands.write_text(record)
    with (results / "tables" / "hbfl" / "table1.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["FML"])
    assert (row["HBFL"], row["seeds"]) == ("", "1 (FML); 0 of 1 (HBFL)")
    assert "1 of 2 runs finished" in (results / "figures" / "hbfl" / "figure4.svg").read_text()
    assert fresh.plan()["title"] in (fresh.folder / "reports" / "test.html").read_text()
    lost.parent.mkdir(exist_ok=True)
    kept.rename(lost)
    assert {"tables", "compare", "figures", "report", "workflow_report"} <= {
        rule for rule, _ in fresh.wanted("--config", "runs=standing")
    }


def test_without_a_finished_run_nothing_stands(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    output = clone.snakemake("--config", "runs=standing", code=1)
    assert "results/test/runs holds no finished run of this config; train first, without runs=standing" in output


def test_a_failing_rule_shows_its_reason(fresh: Clone) -> None:
    """On the screen, not in a log file alone."""
    results = fresh.folder / "results" / "test"
    lost = next(path.parent for path in fresh.summaries() if path.parts[-3] == "fedavg")
    run = lost.relative_to(results / "runs")
    shutil.rmtree(lost)
    (results / "checkpoints" / f"{run}.safetensors").unlink()
    data = fresh.folder / "data" / run.parts[0] / "train.npz"
    data.write_bytes(data.read_bytes()[:-100])
    for quiet in ((), ("--quiet", "rules"), ("--quiet", "all")):
        output = fresh.snakemake("runs", *quiet, code=1)
        reason = f"data/{run.parts[0]}/train.npz is truncated or changed .* run `bayesfed fetch {run.parts[0]}`"
        assert len(re.findall(reason, output)) == 1


def test_a_report_that_fails_leaves_the_earlier_one(fresh: Clone) -> None:
    """Page and crate are still there, as they were, and the next call makes them anew."""
    made = [fresh.folder / "reports" / name for name in ("test.html", "test-crate/ro-crate-metadata.json")]
    before = [path.read_bytes() for path in made]
    fresh.edit("src/bayesfed/report/templates/page.html", "{{ notice }}", "{{ nobody_knows }}")
    output = fresh.snakemake(code=1)
    assert "nobody_knows" in output
    assert [path.read_bytes() for path in made] == before
    assert "report" in {rule for rule, _ in fresh.wanted()}


def test_results_that_fail_leave_the_earlier_ones(fresh: Clone) -> None:
    """A record that was edited is refused, and costs no table and no figure, which may stand in git."""
    results = fresh.folder / "results" / "test"
    made = [path for kind in ("tables", "figures") for path in (results / kind).rglob("*.*")]
    made += [results / "metrics.json", results / "curves.csv"]
    before = {path: path.read_bytes() for path in made}
    shutil.rmtree(results / "made")  # as in a clone
    record = min(fresh.summaries()).with_name("metrics.csv")
    record.write_text(record.read_text().replace("0.", "1.", 1))
    output = fresh.snakemake("--keep-going", code=1)
    assert "metrics.csv: not as the run wrote it" in output
    assert {path: path.read_bytes() for path in made if path.exists()} == before


def test_valuable_runs_come_first(fresh: Clone) -> None:
    """Snakemake is told what the plan says, and gets data and partitions ready before any training."""
    fresh.configure("seeds: [0]", "seeds: [1, 2]\nshort_runs: {below: 0}")
    shutil.rmtree(fresh.folder / "data")
    told = {}
    for job in fresh.snakemake("-n").split("rule ")[1:]:
        found = re.search(r"^(\w+):\n.*?    output: ([^,\s]+).*?    priority: (\d+)", job, re.S)
        if found:
            told[found[2].removeprefix("results/test/runs/").removesuffix("/summary.json")] = int(found[3])
    runs = {run["folder"]: run["priority"] for run in fresh.plan()["runs"]}
    assert {folder: told[folder] for folder in runs} == runs
    first = [priority for output, priority in told.items() if output.startswith("data/")]
    assert first
    assert min(first) > max(runs.values())


def test_device_follows_the_gpus_and_is_no_reason_to_train_again(finished: Clone, fresh: Clone) -> None:
    assert NOTHING in finished.snakemake("-n", "--resources", "gpu=0")
    fresh.configure("seeds: [0]", "seeds: [1]")
    without, with_gpus = (fresh.snakemake("-np", "--resources", f"gpu={count}") for count in (0, 4))
    assert without.count("--device cpu") == with_gpus.count("--device auto") == 2  # batches, one a core


def test_wrong_config_is_refused_in_one_line(fresh: Clone) -> None:
    """As the planning says it, without a traceback of Snakemake's."""
    fresh.edit("config/test.yaml", "cifar10: digits,", "cifar10: digit,")
    output = fresh.snakemake("-n", code=1)
    assert "dataset: no dataset is named 'digit'; did you mean 'digits'?" in output
    assert len(output.splitlines()) <= 4


def test_a_config_elsewhere_cannot_take_anothers_results(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    elsewhere = tmp_path / "mine.yaml"
    elsewhere.write_text((tmp_path / "config/test.yaml").read_text())
    output = clone.snakemake("-n", config=str(elsewhere), code=1)
    assert "mine.yaml: name: test is that of config/test.yaml, whose results would be replaced" in output


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "seeds: [0]",
            "seeds: [0]\nseeds: [1]",
            "config/test.yaml: the key 'seeds' stands twice in what begins in line",
        ),
        ("name: test", "name: tset", "config/test.yaml: expected name: test, as the file's, found tset"),
        (
            "title: A test of the workflow",
            "title: 2026-02-20",
            "config.title: expected text, found 2026-02-20; put it in",
        ),
        ("name: test", "dataset: digits\nmethod: {}\nname: test", "config: this is a run file"),
    ],
)
def test_a_mistake_that_snakemake_does_not_see_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    clone = Clone(tmp_path)
    clone.edit("config/test.yaml", old, new)
    output = clone.snakemake("-n", code=1)
    assert words in output
    assert len(output.splitlines()) <= 4
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("profile", "words"),
    [("=slrum", "there is no profile profiles/slrum; there are"), (" slurm", "no Slurm answers here")],
)
def test_a_wrong_profile_and_a_scheduler_that_does_not_answer(fresh: Clone, profile: str, words: str) -> None:
    given = f"--workflow-profile{profile[0]}profiles/{profile[1:]}".split()
    output = fresh.snakemake("tables", "--forcerun", "tables", *given, code=1)
    assert words in output
