"""The pipeline through a real Slurm with faults, and the same runs on this machine: equal to the last bit."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.children import child
from helpers.clone import BIN, Clone
from helpers.slurm import GPUS, NODES, Slurm, wait_for

pytestmark = pytest.mark.cluster

RUNS = 13
CONFIG = """
name: sweep
papers: [hbfl]
seeds: [0, 1, 2]
run: {rounds: 60, local_epochs: 1, batch_size: 16}
datasets: {mnist: digits}
short_runs: {below: 0}
experiments:
  heterogeneous: {skip: true}
  ablation: {skip: true}
  multitask: {skip: true}
  stragglers: {skip: true}
  homogeneous:
    cases: [{dataset: mnist, models.global: mlp}]
    axes: {partition.alpha: [0.05, 100], method: [FedAvg, FedProx]}
  long:
    seeds: [0]
    cases: [{dataset: mnist, models.global: mlp, partition.alpha: 0.05, method: HBFL, rounds: 120}]
"""
# The long run is stopped at its first time limit, and has enough at its second one.
LIMITS = "train:runtime=2 * 10 ** (attempt - 1) if '/hbfl/' in wildcards.run else 20 * attempt"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def project(folder: Path, config: str) -> Clone:
    """A copy of the project with a config of the test's, `config/sweep.yaml`."""
    clone = Clone(folder)
    (folder / "config" / "sweep.yaml").write_text(config)
    return clone


@contextmanager
def submitted(clone: Clone, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Snakemake with the profile for Slurm; what it prints goes to the file `output`."""
    asked = [
        "--workflow-profile",
        "profiles/slurm",
        "--configfile",
        "config/sweep.yaml",
        "--slurm-status-command",
        "squeue",
    ]
    command = [str(BIN / "snakemake"), *options, *asked]
    with (
        (clone.folder / "output").open("w") as told,
        child(command, cwd=clone.folder, env=clone.environment, stdout=told, stderr=told) as process,
    ):
        yield process


def numbers(clone: Clone) -> dict[str, str]:
    """The metrics of every finished run, by its folder."""
    runs = clone.folder / "results" / "sweep" / "runs"
    return {
        str(path.relative_to(runs)): path.with_name("metrics.csv").read_text() for path in runs.rglob("summary.json")
    }


def in_rounds(clone: Clone) -> set[str]:
    """The keys of the runs that have played a round."""
    logs = (clone.folder / "results" / "sweep" / "runs").rglob("run.log")
    return {trained_by(log.parent.name) for log in logs if "round " in log.read_text()}


def trained_by(comment: str) -> str:
    """The key of the run that a job's comment names."""
    return comment.rpartition("-")[2]


def test_a_sweep_survives_its_faults(slurm: Slurm, tmp_path: Path) -> None:
    here = project(tmp_path / "local", CONFIG)
    here.run("snakemake", "runs", "--cores", "2", "--configfile", "config/sweep.yaml")
    expected = numbers(here)
    assert len(expected) == RUNS > NODES * GPUS

    there = project(tmp_path / "cluster", CONFIG)
    began = time.monotonic()
    often = ["--slurm-init-seconds-before-status-checks", "5"]
    with submitted(there, "results", "--set-resources", LIMITS, "--set-threads", "train=1", *often) as sweep:

        def amid(*nodes: str) -> list[int]:
            """The jobs on these nodes whose runs have played a round."""
            assert sweep.poll() is None, (there.folder / "output").read_text()
            runs = in_rounds(there)
            return [job for job, comment in slurm.training(*nodes).items() if trained_by(comment) in runs]

        cancelled = wait_for(lambda: amid("node1"), 900)[0]
        slurm.call("scancel", str(cancelled))
        wait_for(lambda: amid("node2"), 900)
        slurm.call("scontrol", "update", "nodename=node2", "state=down", "reason=test")
        wait_for(lambda: not slurm.training("node2"), 120)
        time.sleep(10)
        slurm.call("scontrol", "update", "nodename=node2", "state=resume")
        sweep.wait(timeout=3600)
        text = (there.folder / "output").read_text()
        assert sweep.returncode == 0, text
    assert numbers(there) == expected
    states = slurm.states()
    ended = Counter(states.values())
    print(json.dumps({"jobs": len(states), "gpus": NODES * GPUS, "seconds": round(time.monotonic() - began), **ended}))
    assert states[cancelled] == "CANCELLED"
    assert "TIMEOUT" in states.values()
    assert "NODE_FAIL" in states.values()

    shared = 0
    for held in slurm.gpus().values():
        for (_, end), (start, _) in itertools.pairwise(sorted(held)):
            shared += start < end
    assert len(slurm.gpus()) == NODES * GPUS
    assert not shared


MANY = """
name: sweep
papers: [hbfl]
seeds: [0]
run: {{rounds: 1, local_epochs: 1, batch_size: 16}}
datasets: {{mnist: digits}}
short_runs: {{below: 0}}
experiments:
  heterogeneous: {{skip: true}}
  ablation: {{skip: true}}
  multitask: {{skip: true}}
  homogeneous: {{skip: true}}
  stragglers: {{skip: true}}
  rates:
    cases: [{{dataset: mnist, models.global: mlp, partition.alpha: 100, method: FedAvg}}]
    axes: {{method.lr: {rates}}}
"""
JOBS = 500


def test_five_hundred_jobs_are_submitted(slurm: Slurm, tmp_path: Path) -> None:
    """How fast: while the partition is down, so that none begins."""
    rates = [number / 1000 for number in range(1, JOBS + 1)]
    clone = project(tmp_path, MANY.format(rates=rates))
    clone.run("snakemake", "datasets", "--cores", "2", "--configfile", "config/sweep.yaml")
    slurm.call("scontrol", "update", "partitionname=gpu", "state=down")
    with submitted(clone, "runs") as sweep:
        wait_for(slurm.waiting, 900)
        first = time.monotonic()
        wait_for(lambda: slurm.waiting() == JOBS, 900)
        last = time.monotonic()
        sweep.send_signal(signal.SIGINT)
        sweep.wait(timeout=300)
    wait_for(lambda: not slurm.waiting(), 60)  # stopped, Snakemake takes its jobs out of the queue
    print(json.dumps({"jobs": JOBS, "seconds": round(last - first, 1)}))
    slurm.call("scontrol", "update", "partitionname=gpu", "state=up")
