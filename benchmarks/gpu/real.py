"""`real`: the paper's runs, one or several at once on one GPU, in order of priority until the deadline."""

import contextlib
import functools
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError
from benchmarks.gpu.call import Failed, Part, Task, bring_home, rounds_done

GRACE = 15  # seconds that trainings have to write a checkpoint before they are killed
FAULT = 1  # the exit code of a training that the machine has ended; wrong input has another


def open_runs(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of a plan that are not finished: the highest priority first, then in the plan's order."""
    waiting = [one for one in plan["runs"] if not (folder(plan, one) / "summary.json").exists()]
    return sorted(waiting, key=lambda one: -one.get("priority", 0))


def folder(plan: dict[str, Any], run: dict[str, Any]) -> Path:
    """Return where the workflow looks for the run."""
    return Path("results", plan["config"], "runs", run["folder"])


def train(plan: dict[str, Any], jobs: int, precision: str, task: Task) -> None:
    """Train the open runs of a plan, `jobs` at once, until the time is over; every record is brought home at once.

    A run that ends beside others by a fault of the machine, as where a GPU takes no further process, is tried once more, and
    from then on no more are begun at once than have gone on.
    """
    data = task.data or Path("data")
    waiting, without = [], []
    for run in open_runs(plan):
        there = all((data / name / "dataset.json").exists() for name in run["datasets"])
        (waiting if there else without).append(run)
    task.row("plan", config=plan["config"], waiting=len(waiting), without_data=len(without), of=len(plan["runs"]))
    if not waiting:
        raise Failed(f"real: no run of {plan['config']} is open whose data are in {data}")
    running: dict[subprocess.Popen[bytes], tuple[dict[str, Any], float]] = {}
    done = failed = 0
    hopeless, slots, again = False, jobs, set[str]()
    last = task.until - GRACE
    with memory_log(task):
        try:
            while running or (waiting and not hopeless):
                while waiting and not hopeless and len(running) < jobs and time.monotonic() < last:
                    run = waiting.pop(0)
                    running[start(plan, run, data, slots, precision, task)] = run, time.monotonic()
                for trainer in [one for one in running if one.poll() is not None]:
                    run, began = running.pop(trainer)
                    note(plan, run, task, seconds=time.monotonic() - began, exit_code=trainer.returncode)
                    if trainer.returncode == FAULT and running and run["folder"] not in again:
                        again.add(run["folder"])
                        waiting.insert(0, run)
                        jobs = len(running)
                        continue
                    done, failed = done + (trainer.returncode == 0), failed + (trainer.returncode != 0)
                # None is begun until one is done, but for what has found no place at first.
                hopeless = failed >= jobs and not done and not any(run["folder"] in again for run in waiting)
                if time.monotonic() >= last:
                    break
                time.sleep(0.1)
        finally:
            stop(running)
    for run, began in running.values():
        reached = rounds_done(folder(plan, run) / "run.log")
        note(plan, run, task, seconds=time.monotonic() - began, unfinished=True, rounds_done=reached)
    if waiting:
        task.row("not begun", runs=len(waiting))
    keep_checkpoints(plan, [run for run, _ in running.values()], task)
    if hopeless:
        raise Failed("real: the first runs all fail")
    if failed:
        raise Failed(f"real: {failed} runs failed")


def keep_checkpoints(plan: dict[str, Any], runs: list[dict[str, Any]], task: Task) -> None:
    """Put the checkpoints of unfinished runs into `checkpoints.tar`, to be unpacked where results/ is."""
    found = [path for path in (checkpoint(plan, run) for run in runs) if path.exists()]
    if found:
        with tarfile.open(task.out / "checkpoints.tar", "w") as tar:
            for path in found:
                tar.add(path)


def checkpoint(plan: dict[str, Any], run: dict[str, Any]) -> Path:
    """Return where the workflow looks for the run's checkpoint."""
    return Path("results", plan["config"], "checkpoints", f"{run['folder']}.safetensors")


def start(
    plan: dict[str, Any], run: dict[str, Any], data: Path, jobs: int, precision: str, task: Task
) -> "subprocess.Popen[bytes]":
    """Start a training as the workflow would."""
    options = ["--out", str(folder(plan, run)), "--checkpoint", str(checkpoint(plan, run)), "--data", str(data)]
    options += ["--device", task.device, "--gpu-slots", str(jobs), "--precision", precision]
    return subprocess.Popen([sys.executable, "-m", "bayesfed", "train", run["runfile"], *options])


def note(plan: dict[str, Any], run: dict[str, Any], task: Task, **values: Any) -> None:
    """Write a row for a run, with its records where it is finished; the tar is written anew, in case this is the end."""
    where = folder(plan, run)
    with contextlib.suppress(FileNotFoundError):
        summary = json.loads((where / "summary.json").read_text())
        values |= {"records": str(where), "train_seconds": summary["train_seconds"], "accuracy": summary["global"]}
    task.row(run["folder"], priority=run.get("priority", 0), **values)
    bring_home(task)


def stop(trainers: "dict[subprocess.Popen[bytes], Any]") -> None:
    """Let trainings write their checkpoints and end; kill what does not."""
    end = time.monotonic() + GRACE
    for trainer in trainers:
        trainer.send_signal(signal.SIGTERM)
    for trainer in trainers:
        try:
            trainer.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            trainer.kill()
            trainer.wait()


@contextlib.contextmanager
def memory_log(task: Task) -> Iterator[None]:
    """Write the GPU's memory and use, once a second, in `memory.csv`; nothing where there is no nvidia-smi."""
    asked = "timestamp,index,memory.used,memory.total,utilization.gpu"
    try:
        with (task.out / "memory.csv").open("a") as log:
            watcher = subprocess.Popen(
                ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,nounits", "-l", "1"], stdout=log,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
    except OSError:
        yield
        return
    try:
        yield
    finally:
        watcher.terminate()
        watcher.wait()


def parts(plan: Path, jobs: int, precision: str) -> list[Part]:
    """Return the one part.

    Planning itself needs more than torch and its like, so it is done beforehand: raises InputError where `plan` is no
    file that `bayesfed plan` has written.
    """
    try:
        found = json.loads(plan.read_text())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not {"config", "runs"} <= found.keys():
        raise InputError(
            f"--plan {plan}: expected a plan.json; `bayesfed plan config/paper.yaml --out results/paper/plan` writes it on any "
            f"machine, and that whole folder has to come along"
        )
    return [Part("runs", functools.partial(train, found, jobs, precision), leases=False)]
