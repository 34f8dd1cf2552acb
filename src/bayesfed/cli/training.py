"""Commands that train."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands, path
from bayesfed.core.errors import InputError

if TYPE_CHECKING:
    from bayesfed.engine.plan_training import Training
    from bayesfed.engine.training import Place
    from bayesfed.runs.spec import Run


def add(commands: Commands) -> None:
    """Add the commands `train`, `verify` and `count-bytes`."""
    add_train(commands)
    add_verify(commands)
    add_count_bytes(commands)


def add_train(commands: Commands) -> None:
    """Add `bayesfed train`."""
    text = (
        "Train the runs of run files, or the open runs of a plan, the most valuable first. "
        "Repeated, it resumes from checkpoints and leaves finished runs alone."
    )
    shown = """
        bayesfed train examples/run.yaml --out runs/one
        bayesfed train a.yaml b.yaml --runs runs --device cpu
        bayesfed train --plan demo --jobs 2 --until 30
    """
    sub = arguments.command(commands, "train", train, text, shown)
    sub.add_argument("runfiles", type=path, nargs="*", metavar="RUN.yaml", help=arguments.RUN_FILE)
    where = sub.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--out", type=path, metavar="DIR", help="run folder of a single run; give this, --runs or --plan"
    )
    where.add_argument(
        "--runs", type=path, metavar="DIR", help="folder that gets one run folder a run, named after its content"
    )
    where.add_argument("--plan", type=path, metavar="PLAN", help=f"plan in place of run files: {arguments.PLAN}")
    sub.add_argument("--jobs", type=int, metavar="N", help="number of runs at a time, with --plan; default: 1")
    text = "minutes until runs stop with a checkpoint, with --plan; default: until all are finished"
    sub.add_argument("--until", type=float, metavar="MINUTES", help=text)
    where = sub.add_mutually_exclusive_group()
    where.add_argument(
        "--checkpoint", type=path, metavar="FILE", help="checkpoint of the run, with --out; default: in the run folder"
    )
    where.add_argument(
        "--checkpoints",
        type=path,
        metavar="DIR",
        help="folder of checkpoints, with --runs; default: in the run folders",
    )
    arguments.data(sub)
    arguments.partitions(sub)
    arguments.weights(sub)
    arguments.device(sub, "a GPU if there is one")
    sub.add_argument(
        "--precision",
        choices=["auto", "fp32", "tf32", "bf16"],
        default="auto",
        help="precision of networks; default: auto, by the device",
    )
    text = "way of running steps, for debugging; default: auto, by device and method"
    sub.add_argument("--executor", choices=["auto", "eager", "threads", "graphs", "stacked"], default="auto", help=text)
    text = "number of jobs that may share a GPU; default: 1"
    sub.add_argument("--gpu-slots", type=int, default=1, metavar="N", help=text)


def train(args: argparse.Namespace) -> None:
    """Run `bayesfed train`."""
    check_train(args)
    if args.plan:
        train_plan(args)
    else:
        train_files(args)


OF_PLACE = {"checkpoint": "out", "checkpoints": "runs", "jobs": "plan", "until": "plan"}  # what goes with what


def check_train(args: argparse.Namespace) -> None:
    """Raise InputError for arguments of `train` that cannot be, or not together."""
    if args.gpu_slots < 1:
        raise InputError(f"--gpu-slots {args.gpu_slots}: it is too small; give 1 or more")
    if args.jobs is not None and args.jobs < 1:
        raise InputError(f"--jobs {args.jobs}: it is too small; give 1 or more")
    if args.until is not None and not args.until > 0:
        raise InputError(f"--until {args.until:g}: expected minutes; give a number > 0")
    if args.out and len(args.runfiles) > 1:
        raise InputError(f"--out {args.out}: it takes one run, not {len(args.runfiles)}; give --runs DIR")
    if bool(args.runfiles) == bool(args.plan):
        raise InputError("RUN.yaml: give run files with --out or --runs, or --plan PLAN without run files")
    for option, place in OF_PLACE.items():
        if getattr(args, option) is not None and not getattr(args, place):
            raise InputError(f"--{option}: it needs --{place}; add that, or leave it out")


def how(args: argparse.Namespace) -> dict[str, Any]:
    """Return where runs find what they need and how they are computed, as keywords of `training.Place`."""
    keys = ("data", "device", "precision", "gpu_slots", "executor", "weights", "partitions")
    return {key: getattr(args, key) for key in keys} | {"exits": True}


def train_files(args: argparse.Namespace) -> None:
    """Train the runs of run files."""
    from bayesfed.engine import checkpoint
    from bayesfed.engine.session import Process, train_all
    from bayesfed.engine.signals import Stopped
    from bayesfed.engine.training import Place, refuse_own_file, train
    from bayesfed.runs import run_file as runfile

    def own_place(run: Run) -> Place:
        out = args.runs / run.folder
        stored = args.checkpoints / f"{run.folder}.safetensors" if args.checkpoints else out / checkpoint.FILE
        return Place(out, stored, **how(args))

    try:
        if args.out:
            with Process() as process:
                run = runfile.load(args.runfiles[0], args.data)
                refuse_own_file(args.runfiles[0], run, args.out)
                train(run, Place(args.out, args.checkpoint or args.out / checkpoint.FILE, **how(args)), process)
            return
        failed = train_all(args.runfiles, args.data, own_place)
    except Stopped as stopped:
        sys.exit(f"bayesfed: {stopped}")
    end(failed.values(), f"{len(failed)} of {len(args.runfiles)} runs failed: {', '.join(map(str, failed))}")


def train_plan(args: argparse.Namespace) -> None:
    """Train the open runs of a plan."""
    from bayesfed.engine.plan_training import Training
    from bayesfed.runs import planned

    until = math.inf if args.until is None else time.monotonic() + 60 * args.until
    training = Training(planned.read(args.plan), args.jobs or 1, how(args), until)
    for line in skipped(training, args.data):
        print(line, file=sys.stderr)
    training.train()
    told = training.told()
    if training.heard:
        sys.exit(f"bayesfed: stopped by a signal: {told}")
    if not training.jobs:
        sys.exit(f"bayesfed: no worker process is left, see above: {told}")
    end([outcome.code for outcome in training.failed.values()], told)
    if training.missing and not training.finished and not training.stopped:
        raise InputError(f"nothing was trained, datasets are missing, see above: {told}")
    print(told, file=sys.stderr)


def skipped(training: Training, data: Path) -> Iterator[str]:
    """Tell of each dataset that is not in the data folder how many runs lack it, and the command that fetches it."""
    from bayesfed.core import files
    from bayesfed.data.catalogue import how_to_fetch

    for name, count in training.missing.items():
        run = next(run for run in training.open if name in run.datasets)
        own = files.read_yaml(run.run_file).get("plugins")
        yield f"{name} is not in {data}: {count} runs are skipped; {how_to_fetch(name, data, own)}"


def end(codes: Collection[int], text: str) -> None:
    """End with `text` where runs have failed, by their exit codes: 2 where the input of each was refused."""
    if codes and set(codes) == {2}:
        raise InputError(text)
    if codes:
        sys.exit(f"bayesfed: {text}")


def add_verify(commands: Commands) -> None:
    """Add `bayesfed verify`."""
    text = (
        "Train the first rounds of finished runs again and compare them with their records. "
        "With two rounds or more, each run is also stopped midway and resumed by another process."
    )
    shown = """
        bayesfed verify runs/one
        bayesfed verify runs/one --rounds 1 --device cpu
        bayesfed verify results/demo/runs/digits/*/hbfl/seed~0-*
    """
    sub = arguments.command(commands, "verify", verify, text, shown)
    sub.add_argument("folders", type=path, nargs="+", metavar="RUN_FOLDER", help="folder of a finished run")
    sub.add_argument("--rounds", type=int, default=2, metavar="N", help="number of rounds to train; default: 2")
    arguments.data(sub)
    arguments.partitions(sub)
    arguments.weights(sub)
    arguments.device(sub, "the record's")


def verify(args: argparse.Namespace) -> None:
    """Run `bayesfed verify`."""
    from bayesfed.engine.verify import verify_all

    if args.rounds < 1:
        raise InputError(f"--rounds {args.rounds}: it is too small; give 1 or more")
    wrong, unchecked = verify_all(args.folders, args.rounds, args.data, args.device, args.weights, args.partitions)
    of, names = f"of {len(args.folders)} runs", ", ".join(map(str, unchecked))
    if wrong:
        text = f"{len(wrong)} {of} are not as recorded: {', '.join(map(str, wrong))}"
        sys.exit(f"bayesfed: {text}" + (f"; {len(unchecked)} could not be checked: {names}" if unchecked else ""))
    if unchecked:
        raise InputError(f"{len(unchecked)} {of} could not be checked: {names}")


def add_count_bytes(commands: Commands) -> None:
    """Add `bayesfed count-bytes`."""
    text = (
        "Compute the bytes that finished runs have sent, for records from before they were counted. "
        "It trains nothing, and keeps them in bytes.json beside each record, marked as computed later."
    )
    shown = """
        bayesfed count-bytes runs/one
        bayesfed count-bytes runs/one runs/two --data data
        bayesfed count-bytes results/demo/runs/digits/*/hbfl/seed~0-*
    """
    sub = arguments.command(commands, "count-bytes", count_bytes, text, shown)
    sub.add_argument("folders", type=path, nargs="+", metavar="RUN_FOLDER", help="folder of a finished run")
    arguments.data(sub)
    arguments.partitions(sub)


def count_bytes(args: argparse.Namespace) -> None:
    """Run `bayesfed count-bytes`."""
    from bayesfed.engine import bytes_later

    failed = []
    for folder in args.folders:
        try:
            print(f"{folder}: {bytes_later.count(folder, args.data, args.partitions)}", flush=True)
        except InputError as error:
            print(f"{folder}: {error}", file=sys.stderr)
            failed.append(folder)
    if failed:
        raise InputError(f"{len(failed)} of {len(args.folders)} could not be counted: {', '.join(map(str, failed))}")
