"""One call: parts in processes of their own under one deadline, every row written when it is known."""

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bayesfed.engine import device as devices
from bayesfed.engine import gpu_lease
from bayesfed.engine.provenance import code_hash

BAD = "FAILED"  # how what is told of a part that has failed begins
MARGIN = 5  # seconds before a part's end at which it is to stop by itself, with a row of what it has


@dataclass(frozen=True)
class Scale:
    """The size of a call."""

    few: tuple[int, int]  # training and test images of a comparison
    many: tuple[int, int]  # of whole rounds
    epochs: int  # local ones of whole rounds
    rounds: int  # of HBFL and FedAvg
    other_rounds: int  # of other cells
    short_rounds: int  # where a few rounds say enough
    precisions: tuple[str, ...]
    timed: tuple[str, ...]  # methods whose rounds are profiled and run
    others: tuple[str, ...]  # methods, beside HBFL and FedAvg, that are looked at one by one
    compared: int  # rounds of a run that is compared with another way of computing it
    resumed_rounds: int
    lanes: tuple[int, ...]
    jobs: tuple[int, ...]  # at once on one GPU
    compiles: bool  # whether torch's compiler is tried: on a CPU it takes half a minute a step


# The dearest last: where the time ends before all have been looked at, they wait.
OTHERS = (
    "fml", "fedprox", "abavg", "independent", "fola", "fedcurv", "fednova", "scaffold", "fedppd", "fedswag", "fedpa",
    "pfedbayes", "pfedme", "perfedavg", "heurfedamp", "fedbe", "fedppd_distill", "pfedgp", "fola_full", "fola_errors", "bnfed",
    "fedavgm", "fedavg_ensemble", "fedavg_temperature", "fedavg_dropout", "fedavg_deep_ensemble",
    "gaussian", "feddyn", "fedlap", "fedlap_cov", "bayesadmm", "fedgvi", "pfedvem", "fedivon", "fedep",
)  # fmt: skip
TIMED = ("hbfl", "fedavg", "fml", "fedprox", "abavg")
FULL = Scale(
    (2000, 500), (50_000, 10_000), 5, 100, 30, 6, ("fp32", "bf16", "tf32"), TIMED, OTHERS, 2, 20, (1, 2, 4, 6, 10), (1, 2, 4),
    compiles=True,
)  # fmt: skip
SMALL = Scale((40, 10), (100, 20), 1, 2, 1, 2, ("fp32",), ("fedavg",), ("fola_full",), 1, 2, (2,), (2,), compiles=False)


class Failed(Exception):
    """Something that a check needs has failed."""


class OutOfTime(Exception):
    """The part's time is over."""


@dataclass(frozen=True)
class Task:
    """All that a part does its work with."""

    call: str
    out: Path
    device: str
    scale: Scale
    data: Path | None
    until: float  # of time.monotonic(): when a part is to stop by itself
    part: str = ""
    wrong: list[tuple[str, bool]] = field(default_factory=list)  # checks that do not hold, and whether they are gates

    def row(self, case: str, **values: Any) -> None:
        """Write a row now."""
        row = {"part": self.part, "case": case} | values | {
            "torch": torch.__version__, "hardware": hardware(self.device), "code": code()[:12], "time": time.strftime("%H:%M:%S"),
        }  # fmt: skip
        with (self.out / f"{self.call}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({"part": self.part, "case": case} | values), flush=True)

    def check(self, case: str, holds: bool, gate: bool = True, **values: Any) -> None:
        """Write a row that says whether something holds. The part goes on where it does not, and fails at its end; where the
        part is a gate, the call ends there, unless only checks failed that are none (`gate`)."""
        self.row(case, holds=holds, **values)
        if not holds:
            self.wrong.append((case, gate))

    def in_time(self) -> None:
        """Raise OutOfTime at the end of the part's time; the engine asks before each mini-batch."""
        if time.monotonic() > self.until:
            raise OutOfTime


@dataclass(frozen=True)
class Part:
    """One part of a call; at most so many seconds of it."""

    name: str
    work: Callable[[Task], None]
    seconds: float = float("inf")
    leases: bool = True  # false where it starts trainings, which lease a GPU themselves
    gate: bool = False  # whether nothing behind it is worth its time where it fails


def run(task: Task, parts: list[Part]) -> int:
    """Run the parts until the deadline `task.until`, or until a gate fails; gives how many did not end well."""
    task.out.mkdir(parents=True, exist_ok=True)
    bad = 0
    with stop_signals():
        try:
            for part in parts:
                told = "not begun, the time is over"
                if time.monotonic() < task.until - 2 * MARGIN:
                    told = run_part(task, part)
                print(f"{task.call} {part.name}: {told}", flush=True)
                bad += told != "done"
                if part.gate and told.startswith(BAD):
                    print(f"{task.call} stops here; {task.out / task.call}.log has more", flush=True)
                    break
        except KeyboardInterrupt:
            print(f"{task.call}: stopped by a signal", flush=True)
            bad += 1
    return bad


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """SIGTERM ends a call as Ctrl-C does: its parts, which have sessions of their own, are stopped."""

    def stop(*signal: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_part(task: Task, part: Part) -> str:
    """Run a part in a process of its own; says how it ended.

    A fork: this process has loaded torch, which takes seconds, and has not asked for a GPU, which a fork would break.
    """
    now = time.monotonic()
    end = min(task.until, now + part.seconds) if task.device == "cuda" else task.until
    child = multiprocessing.get_context("fork").Process(
        target=within, args=(replace(task, part=part.name, until=end - MARGIN), part)
    )
    child.start()
    assert child.pid is not None
    try:
        child.join(end - now)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # it, where it still runs, and all that it has started
        child.kill()
        child.join()
    took = f"after {time.monotonic() - now:.0f} s"
    if child.exitcode in (1, 4):
        last = (task.out / f"{task.call}.log").read_text().splitlines()[-1]
        return f"{BAD if child.exitcode == 1 else 'done but for a part'} {took}: {last}"
    if child.exitcode in (0, 3):
        return "done" if child.exitcode == 0 else f"out of time {took}"
    # By our own signal where its time was over, else by one of its faults.
    return f"stopped {took}" if time.monotonic() >= end else f"{BAD} {took}: ended by signal {-(child.exitcode or 0)}"


def within(task: Task, part: Part) -> None:
    """Do the work of a part's process."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with (task.out / f"{task.call}.log").open("a") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    print(f"== {part.name}", flush=True)
    hardware(task.device)  # asked for now, since it may take seconds: rows at the end have none to lose
    code = 0
    try:
        with gpu_lease.lease(task.device) if part.leases else contextlib.nullcontext():
            part.work(task)
    except OutOfTime:
        code = 3
    except BaseException:
        traceback.print_exc()
        code = 1
    if task.wrong and code != 1:
        print(f"does not hold: {', '.join(case for case, _ in task.wrong)}")
        code = 1 if any(gate for _, gate in task.wrong) else 4
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def rounds_done(log: Path) -> int:
    """Return the last round in a run's log."""
    lines = log.read_text().splitlines() if log.exists() else []
    return max([int(line.split()[1].partition("/")[0]) for line in lines if line.startswith("round ")], default=0)


code = functools.cache(code_hash)  # of the package, as in a run's provenance


@functools.cache
def hardware(device: str) -> str:
    """Return the name of the processor or GPU, without starting CUDA: a call may have nothing there but its trainings."""
    if device == "cpu":
        return devices.hardware(device)
    return (gpu_lease.nvidia_smi("--query-gpu=name", "--format=csv,noheader").splitlines() or ["a GPU"])[0]


def used_mib() -> int | None:
    """MiB taken of the GPU by everyone, as nvidia-smi has it; None where nothing tells."""
    visible = gpu_lease.visible_devices()
    total, free = gpu_lease.memory(visible[0]) if visible else (0, 0)
    return (total - free) // 2**20 if total else None
