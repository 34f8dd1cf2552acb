"""`bayesfed clean`: what it deletes, what it leaves, and that it asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import plans

from bayesfed import cli
from bayesfed.core import files
from bayesfed.plan import cleaning, plan

LEFT = {
    "runs/d/fedavg/seed~0-1/summary.json",
    "checkpoints/d/fedavg/seed~1-2.safetensors",
    "checkpoints/d/fedavg/seed~1-2.clients/a.safetensors",
    "logs/train/d/fedavg/seed~1-2.log",
    "logs/tables.done",
    "runs/d/fedavg/seed~1-2/run.log",
}
GONE = {
    "checkpoints/d/fedavg/seed~0-1.safetensors",
    "checkpoints/d/fedavg/seed~0-1.clients/a.safetensors",
    "runs/d/fedavg/seed~0-1/checkpoint.safetensors",
    "logs/train/d/fedavg/seed~0-1.log",
}
PLAN = {"plan/config.yaml", "plan/plan.json", "plan/runs/1.yaml"}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of a finished run and an open one, with a plan that nothing is known of."""
    monkeypatch.chdir(tmp_path)
    home = Path("results/one")
    for name in LEFT | GONE | PLAN:
        files.write_text(home / name, "{}" if name.endswith("yaml") else "x" * 1000)
    monkeypatch.setattr(plan, "current", lambda config, folder: None)
    return home


def there(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}


def test_checkpoints_that_dvc_shares_stay(results: Path) -> None:
    """Their absence would be pushed to everybody."""
    files.write_text(results / "checkpoints.dvc", "outs: []")
    assert cleaning.found(results).keys() == {"logs of finished runs", "files of an old plan"}


@pytest.mark.parametrize(("answer", "left"), [("y", LEFT), ("", LEFT | GONE | PLAN), (None, LEFT | GONE | PLAN)])
def test_it_asks(
    answer: str | None,
    left: set[str],
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def reply(question: str) -> str:
        assert question == "Delete 7 files, 5 kB? [y/N] "
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", reply)
    assert cli.main(["clean"]) == 0
    assert there(results) == left
    assert (results / "checkpoints/d/fedavg/seed~0-1.clients").exists() == (left != LEFT)
    told = capsys.readouterr().out
    assert (
        "results/one: 2 checkpoints of finished runs, 2 kB\nresults/one: 1 client states of finished runs, 1 kB\nresults/one: 1 logs of finished runs, 1 kB\n"
        in told
    )
    assert "results/one: 3 files of an old plan" in told


def test_a_current_plan_stays(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "current", lambda config, folder: {"runs": []})
    assert cli.main(["clean", "one", "--yes"]) == 0
    assert there(results) == LEFT | PLAN
    assert cli.main(["clean", "one", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("4 files deleted\nNothing to delete\n")


def test_the_plan_of_a_run_that_is_being_trained_stays(results: Path) -> None:
    """Whoever trains a plan reads each run file when its turn comes."""
    files.write_text(results / "runs/d/fedavg/seed~1-2/.lock", "")
    with files.locked(results / "runs/d/fedavg/seed~1-2/.lock", ""):
        assert "files of an old plan" not in cleaning.found(results)
    assert "files of an old plan" in cleaning.found(results)


def test_the_log_of_a_job_stays_while_one_of_its_runs_is_open(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be the only one that says why that run failed."""
    monkeypatch.setattr(plan, "current", lambda config, folder: {"runs": []})
    runs = [{"key": str(seed), "folder": f"d/fedavg/seed~{seed}-{seed + 1}"} for seed in (0, 1)]
    plans.write(results, runs, [[run["folder"] for run in runs]])
    assert cli.main(["clean", "one", "--yes"]) == 0
    assert there(results) == LEFT | PLAN | {"logs/train/d/fedavg/seed~0-1.log"}
    files.write_text(results / "runs/d/fedavg/seed~1-2/summary.json", "{}")
    assert cli.main(["clean", "one", "--yes"]) == 0
    assert not {name for name in there(results) if name.startswith("logs/train")}


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean", "on"]) == 2
    assert capsys.readouterr().err == "bayesfed: on: results has no folder of that name; did you mean 'one'?\n"


def test_bytes_in_words() -> None:
    assert [cleaning.in_words(count) for count in (400, 2500, 1_200_000, 3 * 10**9)] == [
        "0 kB",
        "2 kB",
        "1.2 MB",
        "3.0 GB",
    ]
