"""The pipeline runs whole, and trains no finished run again."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.clone import Clone, copy

NOTHING = "Nothing to be done"
RESULT_RULES = {"tables", "published", "figures", "report", "workflow_report"}
TOGETHER = "short_runs: {together: 3}\n"  # of the test config


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
    with (results / "figures/figures.csv").open(newline="") as file:
        listed = {row["figure"]: int(row["panels"]) for row in csv.DictReader(file)}
    assert list(listed) == list(paper["figures"])
    figures = {f"{figure}.{kind}" for figure, panels in listed.items() if panels for kind in ("svg", "png")}
    assert figures == {path.name for path in (results / "figures" / "hbfl").iterdir()}
    pictures = [run["partition"].replace(".npz", ".svg") for run in plan["runs"] if run["partition"]]
    assert all((results / picture).exists() for picture in pictures)
    for rule in (
        "fetch",
        "partition",
        "overview",
        "train",
        "tables",
        "published",
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
        for item in plan["papers"]["hbfl"]["tables"].values():
            assert item["title"] in text
        for name, item in plan["papers"]["hbfl"]["figures"].items():
            drawn = (finished.folder / f"results/test/figures/hbfl/{name}.svg").exists()
            assert (item["title"] in text) == (drawn or report == "test.html")
    table = (finished.folder / "results" / "test" / "tables" / "hbfl" / "table1.csv").read_text()
    assert "digits for CIFAR10, rounds 1 (paper 100), local epochs 1 (paper 5), batch size 64 (paper 128), " in table
    assert "images prepare resize 18 (paper dataset)" in table


def test_report_has_the_numbers_of_the_tables(finished: Clone) -> None:
    """Each cell of the page is that of the comparison, and leads to runs that the page tells of; the crate's files stand."""
    page = (finished.folder / "reports" / "test.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert len(data["runs"]) == len(finished.summaries())
    for table in finished.plan()["papers"]["hbfl"]["tables"]:
        with (finished.folder / f"results/test/tables/hbfl/{table}.compare.csv").open(newline="") as file:
            means = [row["mean"] for row in csv.DictReader(file)]
        shown = page.partition(f'data-table="hbfl/{table}"')[2].partition("</table>")[0]
        assert re.findall(r'<td class="cell [^"]+" data-sort="([^"]*)"', shown) == means
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


def test_a_moved_folder_does_nothing(moved: Clone) -> None:
    """Nor with a comment more in a method, or a home that cannot be written to."""
    with (moved.folder / "src/bayesfed/methods/hbfl.py").open("a") as file:
        file.write("\n# A comment.\n")
    moved.environment["HOME"] = "/proc/none"
    assert NOTHING in moved.snakemake("-n")


def test_another_record_makes_results_anew(moved: Clone) -> None:
    """That of the first run of a job or of another one; a missing one trains its run."""
    for record in sorted(moved.summaries())[:2]:
        text, time = record.read_text(), record.stat().st_mtime_ns
        record.write_text(f"{text}\n")
        assert {rule for rule, _ in moved.wanted()} == RESULT_RULES
        record.write_text(text)
        os.utime(record, ns=(time, time))
    record.unlink()
    assert {rule for rule, _ in moved.wanted()} == {"train", *RESULT_RULES}


@pytest.mark.parametrize("question", ["-n", "--summary"])
def test_a_question_leaves_the_folder_alone(moved: Clone, question: str) -> None:
    """Also while a record is away: when it is back, nothing is made again."""

    def found() -> dict[Path, int]:
        folder = moved.folder / "results"
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

    before = found()
    away = next(iter(moved.summaries()))
    away.rename(moved.folder / "kept")
    moved.snakemake(question)
    assert found() == {path: time for path, time in before.items() if path != away}
    (moved.folder / "kept").rename(away)
    assert NOTHING in moved.snakemake("-n")


def test_a_missing_record_trains_its_run_alone(fresh: Clone) -> None:
    """In a clone, whose times are in any order: the first of a job and the last one, whose name the job has."""
    job = [f"results/test/runs/{run}/summary.json" for run in fresh.plan()["jobs"][0]]
    for run in (job[0], job[-1]):
        (fresh.folder / run).rename(fresh.folder / "kept")
        assert trained(fresh) == {run}
        (fresh.folder / "kept").rename(fresh.folder / run)


def trained(clone: Clone, *options: str) -> set[str]:
    """The summaries of the runs that a dry run would train, by their run files."""
    told = clone.snakemake("-np", *options)
    keys = {key for command in re.findall(r"bayesfed train (.+?) --data", told) for key in command.split()}
    runs = {run["runfile"]: f"results/test/runs/{run['folder']}/summary.json" for run in clone.plan()["runs"]}
    return {runs[key] for key in keys}


@pytest.mark.parametrize("without", ["records and data", "nothing"])
def test_hyperparameter_trains_its_method_alone(fresh: Clone, finished: Clone, without: str) -> None:
    """Tables follow; other methods' runs do not, whatever a clone lacks."""
    if without == "nothing":
        copy(finished.folder / ".snakemake", fresh.folder / ".snakemake")
    else:
        shutil.rmtree(fresh.folder / "data")
    fresh.configure("experiments:", "methods: {FedProx: {mu: 0.5}}\nexperiments:")
    assert [Path(run).parts[-3] for run in trained(fresh)] == ["fedprox"]
    assert {rule for rule, _ in fresh.wanted()} >= RESULT_RULES


def test_a_run_alone_has_all_cores_and_its_partition_where_the_config_says(finished: Clone, fresh: Clone) -> None:
    """The trainer is told of both; runs of which many are open have one thread each. Nothing is written beside the data."""

    def threads(folder: Path) -> int:
        return json.loads((folder / "provenance.json").read_text())["threads"]

    assert {threads(path.parent) for path in finished.summaries()} == {1}
    fresh.configure("experiments:", "methods: {FedProx: {mu: 0.5}}\npartitions: ./my shares/\nexperiments:")
    shutil.rmtree(fresh.folder / "data/partitions")
    (summary,) = (output for rule, output in fresh.wanted() if rule == "train")
    run = next(run for run in fresh.plan()["runs"] if summary == f"results/test/runs/{run['folder']}/summary.json")
    name = run["partition"].removeprefix("partitions/")
    picture = fresh.folder / f"results/test/partitions/{name.removesuffix('.npz')}.svg"
    picture.unlink()
    fresh.snakemake(summary, str(picture.relative_to(fresh.folder)))
    assert threads((fresh.folder / summary).parent) == 2
    assert picture.exists()
    assert (fresh.folder / "my shares" / name).exists()
    assert not (fresh.folder / "data/partitions").exists()


def test_short_runs_are_trained_several_to_a_job(finished: Clone, fresh: Clone) -> None:
    """As the plan has it, whatever is open; a job is known by its last open run, and each run can be asked for."""
    jobs = [[f"results/test/runs/{run}/summary.json" for run in job] for job in fresh.plan()["jobs"]]
    assert [len(job) for job in jobs] == [3, 2]
    logs = finished.folder / "results" / "test" / "logs" / "train"
    assert {path.relative_to(logs).with_suffix("").as_posix() for path in logs.rglob("*.log")} == {
        str(Path(job[-1]).relative_to("results/test/runs").parent) for job in jobs
    }
    for path in (*jobs[0], jobs[1][0]):
        (fresh.folder / path).unlink()
    assert {output for rule, output in fresh.wanted() if rule == "train"} == {jobs[0][2], jobs[1][0]}
    assert trained(fresh) == {*jobs[0], jobs[1][0]}
    assert trained(fresh, jobs[0][0]) == {jobs[0][0]}
    fresh.configure(TOGETHER, "short_runs: {below: 0}\n")
    assert {output for rule, output in fresh.wanted() if rule == "train"} == {*jobs[0], jobs[1][0]}


@pytest.mark.parametrize("left", [[2], [0, 1]])
def test_a_node_takes_a_job_of_which_some_is_finished(fresh: Clone, left: list[int]) -> None:
    """By the name that it was given, which may be a finished run's by then; it trains what is left."""
    job = fresh.plan()["jobs"][0]
    folders = [fresh.folder / "results" / "test" / "runs" / run for run in job]
    before = [(folder / "provenance.json").stat().st_mtime_ns for folder in folders]
    for number in left:
        (folders[number] / "summary.json").unlink()
    fresh.snakemake("--mode", "remote", "--target-jobs", f"train:run={job[-1]}", "--allowed-rules", "train")
    assert all((folder / "summary.json").exists() for folder in folders)
    after = [(folder / "provenance.json").stat().st_mtime_ns for folder in folders]
    assert [number for number in range(3) if after[number] != before[number]] == left


def test_a_node_makes_results_of_all_runs(fresh: Clone) -> None:
    """It waits for each of them, not for those alone by which jobs are known."""
    away = fresh.folder / "results" / "test" / "runs" / fresh.plan()["jobs"][0][0] / "summary.json"
    node = ("--mode", "remote", "--target-jobs", "tables:", "--allowed-rules", "tables")
    away.rename(fresh.folder / "kept")
    assert away.relative_to(fresh.folder).as_posix() in fresh.snakemake(*node, "--latency-wait", "1", code=1)
    (fresh.folder / "kept").rename(away)
    fresh.snakemake(*node)


def test_a_run_that_fails_leaves_the_others_of_its_job_alone(fresh: Clone) -> None:
    """Also the one that the job is known by, which Snakemake would delete; the next call trains what is left."""
    results = fresh.folder / "results" / "test"
    job = fresh.plan()["jobs"][0]
    summaries = [results / "runs" / run / "summary.json" for run in job]
    for path in summaries:
        path.unlink()
    checkpoint = results / "checkpoints" / f"{job[0]}.safetensors"
    checkpoint.rename(fresh.folder / "kept")
    checkpoint.mkdir()  # where none can be
    assert f"1 of 3 runs failed: results/test/plan/runs/{Path(job[0]).name[-12:]}.yaml" in fresh.snakemake(
        "runs", code=1
    )
    assert [path.exists() for path in summaries] == [False, True, True]
    checkpoint.rmdir()
    (fresh.folder / "kept").rename(checkpoint)
    assert trained(fresh) == {summaries[0].relative_to(fresh.folder).as_posix()}


@pytest.mark.parametrize(
    ("path", "rules"),
    [
        ("config/papers/hbfl.published.csv", RESULT_RULES),
        ("src/bayesfed/results/tables.py", RESULT_RULES),
        ("src/bayesfed/report/templates/page.css", {"report"}),
        ("workflow/report/table.rst", {"report", "workflow_report"}),
    ],
)
def test_what_results_are_made_from_makes_them_anew(moved: Clone, path: str, rules: set[str]) -> None:
    with (moved.folder / path).open("a") as file:
        file.write("\n")
    assert {rule for rule, _ in moved.wanted()} == rules


def test_results_of_what_stands(fresh: Clone) -> None:
    """`runs=finished`: no training, no data, no checkpoints; what is missing is empty; the rest follows when it comes."""
    results = fresh.folder / "results" / "test"
    lost = next(path.parent for path in fresh.summaries() if path.parts[-3] == "hbfl")
    kept = fresh.folder / "kept"
    shutil.rmtree(fresh.folder / "data")
    shutil.rmtree(results / "checkpoints")
    assert {rule for rule, _ in fresh.wanted()} == RESULT_RULES
    lost.rename(kept)
    assert "train" in {rule for rule, _ in fresh.wanted()}
    assert {rule for rule, _ in fresh.wanted("--config", "runs=finished")} == RESULT_RULES
    fresh.snakemake("--config", "runs=finished")
    assert not (fresh.folder / "data").exists()
    assert NOTHING in fresh.snakemake("-n", "--config", "runs=finished")
    stands = next(iter(fresh.summaries()))
    record = stands.read_text()
    stands.write_text(f"{record}\n")  # another record of the same run
    assert {rule for rule, _ in fresh.wanted("--config", "runs=finished")} == RESULT_RULES
    stands.write_text(record)
    with (results / "tables" / "hbfl" / "table1.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["FML"])
    assert (row["HBFL"], row["seeds"]) == ("", "1 (FML); 0 of 1 (HBFL)")
    assert "1 of 2 runs finished" in (results / "figures" / "hbfl" / "figure4.svg").read_text()
    assert fresh.plan()["title"] in (fresh.folder / "reports" / "test.html").read_text()
    lost.parent.mkdir(exist_ok=True)
    kept.rename(lost)
    assert {rule for rule, _ in fresh.wanted("--config", "runs=finished")} == RESULT_RULES


def test_without_a_finished_run_nothing_stands(fresh: Clone) -> None:
    shutil.rmtree(fresh.folder / "results" / "test" / "runs")
    output = fresh.snakemake("--config", "runs=finished", code=1)
    assert "results/test/runs holds no finished run of this config; train first, without runs=finished" in output


def test_a_failing_rule_shows_its_reason(fresh: Clone) -> None:
    """On the screen, not in a log file alone."""
    results = fresh.folder / "results" / "test"
    lost = next(path.parent for path in fresh.summaries() if path.parts[-3] == "fedavg")
    run = lost.relative_to(results / "runs")
    shutil.rmtree(lost)
    (results / "checkpoints" / f"{run}.safetensors").unlink()
    data = fresh.folder / "data" / run.parts[0] / "train.npz"
    data.write_bytes(data.read_bytes()[:-100])
    name = next(one["partition"] for one in fresh.plan()["runs"] if one["folder"] == run.as_posix())
    quiet = fresh.snakemake("runs", "--quiet", "all", code=1)
    (fresh.folder / "data" / name).unlink()
    for output in (quiet, fresh.snakemake(f"data/{name}", code=1)):  # no torch is loaded for it
        reason = f"data/{run.parts[0]}/train.npz is truncated or changed .* run `bayesfed fetch {run.parts[0]}`"
        assert len(re.findall(reason, output)) == 1


def test_a_report_that_fails_leaves_the_earlier_one(moved: Clone) -> None:
    """Page and crate are still there, as they were, and the next call makes them anew."""
    made = [moved.folder / "reports" / name for name in ("test.html", "test-crate/ro-crate-metadata.json")]
    before = [path.read_bytes() for path in made]
    moved.edit("src/bayesfed/report/templates/page.html", "{{ notice }}", "{{ nobody_knows }}")
    output = moved.snakemake(code=1)
    assert "nobody_knows" in output
    assert [path.read_bytes() for path in made] == before
    assert "report" in {rule for rule, _ in moved.wanted()}


def test_results_that_fail_leave_the_earlier_ones(fresh: Clone) -> None:
    """A record that was edited is refused, and costs no table and no figure, which may stand in git."""
    results = fresh.folder / "results" / "test"
    made = [path for kind in ("tables", "figures") for path in (results / kind).rglob("*.*")]
    made += [results / "metrics.json", results / "curves.csv"]
    before = {path: path.read_bytes() for path in made}
    record = min(fresh.summaries()).with_name("metrics.csv")
    record.write_text(record.read_text().replace("0.", "1.", 1))
    output = fresh.snakemake("--keep-going", code=1)
    assert "metrics.csv: not as the run wrote it" in output
    assert {path: path.read_bytes() for path in made if path.exists()} == before
    assert {rule for rule, _ in fresh.wanted()} == RESULT_RULES


def test_valuable_runs_come_first(fresh: Clone) -> None:
    """Snakemake is told what the plan says, and gets data and partitions ready before any training."""
    fresh.configure(f"seeds: [0]\n{TOGETHER}", "seeds: [1, 2]\nshort_runs: {below: 0}\n")
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
    assert without.count("--device cpu") == with_gpus.count("--device auto") == 2  # jobs


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
            "config/test.yaml: the key 'seeds' occurs twice in the block that begins in line",
        ),
        ("name: test", "name: tset", "config/test.yaml: expected name: test, as the file's, found tset"),
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
