"""Killed without warning, and started again plainly: Snakemake and DVC go on and train no finished run again."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from clone import BIN, Clone, copy

TWO_RUNS = """
name: killed
papers: [hbfl]
seeds: [0]
run: {rounds: 2, local_epochs: 1, batch_size: 64}
datasets: {mnist: digits}
experiments:
  heterogeneous: {skip: true}
  ablation: {skip: true}
  multitask: {skip: true}
  homogeneous: {cases: [{dataset: mnist, model: mlp}], axes: {alpha: [0.05], method: [FedAvg, FedProx]}}
  stragglers: {skip: true}
"""


def kill_when(process: subprocess.Popen[str], path: Path) -> None:
    """SIGKILL a process, and it alone, once a file of that pattern exists."""
    limit = time.monotonic() + 120
    with process:
        while not list(path.parent.rglob(path.name)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.kill()


def test_snakemake(finished: Clone, tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    copy(finished.folder / "data", tmp_path / "data")
    (tmp_path / "config" / "killed.yaml").write_text(TWO_RUNS)
    command = ("snakemake", "runs", "--cores", "1", "--configfile", "config/killed.yaml")
    kill_when(clone.start(*command), tmp_path / "results" / "killed" / "runs" / "summary.json")
    before = clone.summaries("killed")
    assert len(before) == 1
    clone.run(*command)
    after = clone.summaries("killed")
    assert len(after) == 2
    assert before.items() <= after.items()


def test_dvc(fresh: Clone) -> None:
    """`dvc repro` of finished results trains nothing; killed while it trains a lost run, it goes on."""
    subprocess.run(["git", "init", "--quiet"], cwd=fresh.folder, check=True)
    (fresh.folder / ".venv").symlink_to(BIN.parent)  # where dvc.yaml looks first
    fresh.edit("dvc.yaml", "demo: {first", "test: {first")
    before = fresh.summaries()
    fresh.run("dvc", "repro", "tables@test")
    assert fresh.summaries() == before

    lost = next(path.parent for path in before if path.parts[-3] == "fedavg")
    results = fresh.folder / "results" / "test"
    run = lost.relative_to(results / "runs")
    shutil.rmtree(lost)
    (results / "checkpoints" / f"{run}.safetensors").unlink()
    log = results / "logs" / "train" / f"{run}.log"
    log.unlink(missing_ok=True)  # runs of a batch have one together
    kill_when(fresh.start("dvc", "repro", "tables@test"), log)
    fresh.run("dvc", "repro", "tables@test")
    after = fresh.summaries()
    assert after.keys() == before.keys()
    assert {path for path in before if before[path] != after[path]} == {lost / "summary.json"}
