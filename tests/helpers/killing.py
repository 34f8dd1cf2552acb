"""Kills a run at random moments, goes on with it as often, and compares what it leaves with a run that nobody killed.

A process of its own, in which no thread of torch has ever run: its children are forks of it, so that each begins at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from bayesfed import cli
from bayesfed.data.sources import SOURCES
from bayesfed.engine import training
from helpers.playing import few_of

TWO = 0.2  # how often two processes train one folder


def start(run_file: Path, data: Path, out: Path) -> int:
    """Train in a child, with a checkpoint after every round; its number."""
    if child := os.fork():
        return child
    training.CHECKPOINT_SECONDS, training.CHECKPOINT_SHARE = 0, 1e9
    log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 70
    try:
        code = cli.main(["train", str(run_file), "--data", str(data), "--out", str(out)])
    finally:
        os._exit(code)


def wait(children: dict[int, float]) -> int:
    """Wait for children, and kill each at its moment (time.monotonic); how many were killed before they were done."""
    killed = 0
    while children:
        time.sleep(0.002)
        for child, moment in list(children.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                del children[child]
                assert os.waitstatus_to_exitcode(status) == 0, f"ended with {os.waitstatus_to_exitcode(status)}"
            elif time.monotonic() > moment:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                del children[child]
                killed += 1
    return killed


def left(out: Path) -> dict[str, Any]:
    """What a run leaves that must not depend on how often it was killed: numbers, and every parameter to the bit."""
    summary = json.loads((out / "summary.json").read_text())
    found = {
        key: value
        for key, value in summary.items()
        if key not in ("train_seconds", "seconds", "cpu_seconds", "files", "digest")
    }
    found |= {name: (out / name).read_text() for name in ("metrics.csv", "run.yaml")}
    with safe_open(out / "checkpoint.safetensors", "np") as file:
        names = sorted(file.keys())
        found |= {name: hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() for name in names}
    return found


def main(run_file: Path, data: Path, folder: Path, kills: int, seed: int) -> None:
    """Print how often the run was killed and how often it was ended by then."""
    SOURCES["few"] = few_of(SOURCES["digits"])
    torch.set_num_threads(1)
    chance, whole = random.Random(seed), folder / "whole"
    begun = time.monotonic()
    wait({start(run_file, data, whole): float("inf")})
    seconds, expected = time.monotonic() - begun, left(whole)
    done = killed = 0
    while killed < kills:
        out, again = folder / str(done), True
        while again:
            count = 2 if chance.random() < TWO else 1
            moments = [time.monotonic() + chance.uniform(0, 1.1 * seconds) for _ in range(count)]
            now = wait({start(run_file, data, out): moment for moment in moments})
            killed, again = killed + now, now > 0
        found = left(out)
        wrong = [key for key in expected.keys() | found.keys() if found.get(key) != expected.get(key)]
        assert not wrong, f"after kills {', '.join(wrong)} are not what they would have been"
        shutil.rmtree(out)
        done += 1
    print(json.dumps({"kills": killed, "runs": done}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:]))
