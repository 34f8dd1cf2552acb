"""Killed without warning, and started again plainly: Snakemake and DVC go on and train no finished run again.

Once each, when one run is done or is being trained; `make test-kills` does it fifty times, from there at random moments.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from helpers.clone import BIN, Clone, copy

TWO_RUNS = """
name: killed
papers: [hbfl]
seeds: [0]
run: {rounds: 2, local_epochs: 1, batch_size: 64}
datasets: {mnist: digits}
experiments:
  heterogeneous: {skip: true}
  ablation: {skip: true}
  falling_rate: {skip: true}
  falling_once: {skip: true}
  by_adam: {skip: true}
  proximal: {skip: true}
  multitask: {skip: true}
  homogeneous: {cases: [{dataset: mnist, models.global: mlp}], axes: {partition.alpha: [0.05], method: [FedAvg, FedProx]}}
  stragglers: {skip: true}
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("kills", [50 if metafunc.config.getoption("--hypothesis-profile") == "long" else 1])


def kill_when(process: subprocess.Popen[str], path: Path, delay: float) -> None:
    """SIGKILL a process, and it alone, so many seconds after a file of that pattern exists."""
    limit = time.monotonic() + 120
    while not list(path.parent.rglob(path.name)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(delay)
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()  # nobody reads what is left of it


def metrics(clone: Clone, config: str) -> dict[Path, str]:
    """The numbers of every finished run."""
    return {path: path.with_name("metrics.csv").read_text() for path in clone.summaries(config)}


def test_snakemake(finished: Clone, tmp_path: Path, kills: int) -> None:
    clone = Clone(tmp_path)
    copy(finished.folder / "data", tmp_path / "data")
    (tmp_path / "config" / "killed.yaml").write_text(TWO_RUNS)
    config = "config/killed.yaml"
    clone.make_plan(config)
    chance, expected = random.Random(1), {}
    for number in range(kills):
        delay = chance.uniform(0, 2) if number else 0
        # What the killed one has started goes on meanwhile.
        with clone.start("snakemake", "runs", "--cores", "1", "--configfile", config) as process:
            kill_when(process, tmp_path / "results" / "killed" / "runs" / "summary.json", delay)
            before = clone.summaries("killed")
            assert len(before) == 1 or delay
            clone.snakemake("runs", config=config)
        after = clone.summaries("killed")
        assert len(after) == 2
        assert before.items() <= after.items()
        expected = expected or metrics(clone, "killed")
        assert metrics(clone, "killed") == expected
        for part in ("runs", "checkpoints"):
            shutil.rmtree(tmp_path / "results" / "killed" / part)


def test_dvc(fresh: Clone, tmp_path_factory: pytest.TempPathFactory, kills: int) -> None:
    """`dvc repro` of finished results trains nothing and makes the same bytes, nor does it train in another's clone after
    `dvc pull`; killed while it trains a lost run, it goes on."""
    results = fresh.folder / "results" / "test"
    shutil.rmtree(results / "plan")
    fresh.track()
    fresh.dvc("pull")  # nothing has been made, and nothing is asked for
    made = [path for kind in ("tables", "figures") for path in (results / kind).rglob("*.*")]
    made += [results / "metrics.json", results / "curves.csv"]
    before, contents = fresh.summaries(), [path.read_bytes() for path in made]
    fresh.dvc("repro", "tables@test")
    assert fresh.summaries() == before
    assert [path.read_bytes() for path in made] == contents
    assert "Nothing to be done" in fresh.snakemake("-n", "results")
    pulled_elsewhere(fresh, tmp_path_factory.mktemp("elsewhere") / "clone")

    lost = next(path.parent for path in before if path.parts[-3] == "fedavg")
    run = lost.relative_to(results / "runs")
    log = results / "logs" / "train" / f"{run}.log"
    chance, expected = random.Random(1), metrics(fresh, "test")
    for number in range(kills):
        shutil.rmtree(lost)
        (results / "checkpoints" / f"{run}.safetensors").unlink()
        log.unlink(missing_ok=True)  # runs of a job have one together
        with fresh.start("dvc", "repro", "train@test") as process:
            kill_when(process, log, chance.uniform(0, 8) if number else 0)
            fresh.dvc("repro", "train@test")
        after = fresh.summaries()
        assert after.keys() == before.keys()
        assert {path for path in before if before[path] != after[path]} == {lost / "summary.json"}
        assert metrics(fresh, "test") == expected


def pulled_elsewhere(trained: Clone, folder: Path) -> None:
    """Commit and push what was trained, as docs/guides/dvc.md says, and use it in a clone, with DVC alone and with
    Snakemake."""
    store = trained.folder / "store"
    trained.dvc("remote", "modify", "beside", "url", str(store))
    trained.git("add", ".")
    trained.git("commit", "--quiet", "--message", "Trained")
    trained.dvc("push")
    trained.git("clone", "--quiet", ".", str(folder))
    clone = Clone(folder)
    (folder / ".venv").symlink_to(BIN.parent)
    assert not (folder / "data" / "digits").exists()
    clone.dvc("pull")
    stored = Path("results", "test", "checkpoints")
    for kept in (stored, Path("data", "digits"), Path("data", "digits-parity")):
        assert files_of(folder / kept) == files_of(trained.folder / kept)
    before = clone.summaries()
    assert len(before) == len(trained.summaries())
    assert "hbfl.table1.CIFAR10, Non-IID.HBFL" in clone.dvc("metrics", "show")
    assert "index.html" in clone.dvc("plots", "show")

    clone.edit("config/test.yaml", "batch_size: 64", "batch_size: 32")
    assert "batch_size" in clone.dvc("params", "diff")
    clone.git("checkout", "--quiet", "config/test.yaml")
    lost = next(iter(before)).parent
    shutil.rmtree(lost)
    shutil.rmtree(folder / stored)
    clone.git("checkout", "--quiet", "results")  # the records are git's
    clone.dvc("checkout")  # the checkpoints are DVC's
    assert clone.summaries().keys() == before.keys()
    assert files_of(folder / stored) == files_of(trained.folder / stored)
    assert "Running stage" not in clone.dvc("repro", "tables@test")


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of a folder's files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
