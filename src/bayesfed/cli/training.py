"""Commands that train."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands, path
from bayesfed.core.errors import InputError

if TYPE_CHECKING:
    from bayesfed.engine.training import Place
    from bayesfed.runs.run_file import Run


def add(commands: Commands) -> None:
    """Add the commands `train` and `verify`."""
    add_train(commands)
    add_verify(commands)


def add_train(commands: Commands) -> None:
    """Add `bayesfed train`."""
    text = (
        "Train a run, several one after another, or the open runs of a plan, the most valuable first; run again it resumes, "
        "and a finished run is left alone."
    )
    sub = arguments.command(commands, "train", train, text)
    sub.add_argument("runfiles", type=path, nargs="*", metavar="RUN.yaml", help=arguments.RUN_FILE)
    where = sub.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=path, metavar="DIR", help="the run folder of a single run")
    where.add_argument("--runs", type=path, metavar="DIR", help="where each run has a folder, named after what it is")
    where.add_argument("--plan", type=path, metavar="PLAN", help=f"in place of run files: {arguments.PLAN}")
    sub.add_argument("--jobs", type=int, metavar="N", help="of --plan: runs that are trained at a time; default: 1")
    text = "of --plan: when runs stop, each after its round, with a checkpoint; default: when all are done"
    sub.add_argument("--until", type=float, metavar="MINUTES", help=text)
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--checkpoint", type=path, metavar="FILE", help="of --out; default: in the run folder")
    where.add_argument("--checkpoints", type=path, metavar="DIR", help="of --runs; default: in the run folders")
    arguments.data(sub)
    arguments.partitions(sub)
    arguments.weights(sub)
    sub.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU, where there is one"
    )
    sub.add_argument(
        "--precision",
        choices=["auto", "fp32", "tf32", "bf16"],
        default="auto",
        help="default: what the device is good at",
    )
    sub.add_argument("--executor", choices=["auto", "eager", "threads", "graphs"], default="auto", help="for debugging")
    sub.add_argument("--gpu-slots", type=int, default=1, metavar="N", help="jobs that may share a GPU; default: 1")


def train(args: argparse.Namespace) -> None:
    """bayesfed train"""
    check_train(args)
    if args.plan:
        train_plan(args)
    else:
        train_files(args)


OF_PLACE = {"checkpoint": "out", "checkpoints": "runs", "jobs": "plan", "until": "plan"}  # what goes with what


def check_train(args: argparse.Namespace) -> None:
    """Raise InputError for arguments of `train` that cannot be, or not together."""
    if args.gpu_slots < 1:
        raise InputError(f"--gpu-slots {args.gpu_slots}: expected 1 or more")
    if args.jobs is not None and args.jobs < 1:
        raise InputError(f"--jobs {args.jobs}: expected 1 or more")
    if args.until is not None and not args.until > 0:
        raise InputError(f"--until {args.until:g}: expected minutes, more than 0")
    if args.out and len(args.runfiles) > 1:
        raise InputError(f"--out {args.out}: this is for one run, not {len(args.runfiles)}; give --runs DIR")
    if bool(args.runfiles) == bool(args.plan):
        raise InputError("RUN.yaml: give run files, with --out or --runs, or --plan PLAN without any")
    for option, place in OF_PLACE.items():
        if getattr(args, option) is not None and not getattr(args, place):
            raise InputError(f"--{option}: this goes with --{place}; leave it out")


def how(args: argparse.Namespace) -> dict[str, Any]:
    """Where runs find what they need, and how they are computed, as keywords of `training.Place`."""
    keys = ("data", "device", "precision", "gpu_slots", "executor", "weights", "partitions")
    return {key: getattr(args, key) for key in keys}


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
    for name, count in training.missing.items():
        print(f"{name} is not in {args.data}: {count} runs are skipped; `bayesfed fetch {name}`", file=sys.stderr)
    training.train()
    told = training.told()
    if training.heard:
        sys.exit(f"bayesfed: stopped by a signal: {told}")
    if not training.jobs:
        sys.exit(f"bayesfed: no worker process is left, see above: {told}")
    end([outcome.code for outcome in training.failed.values()], told)
    print(told, file=sys.stderr)


def end(codes: Collection[int], text: str) -> None:
    """End with `text` where runs have failed, by their exit codes: 2 where the input of each was refused."""
    if codes and set(codes) == {2}:
        raise InputError(text)
    if codes:
        sys.exit(f"bayesfed: {text}")


def add_verify(commands: Commands) -> None:
    """Add `bayesfed verify`."""
    text = (
        "Train the first rounds of finished runs again, and say whether they are as recorded and what has changed since. From "
        "two rounds on each is also stopped midway and resumed by another process, which must give the same."
    )
    sub = arguments.command(commands, "verify", verify, text)
    sub.add_argument("folders", type=path, nargs="+", metavar="RUN_FOLDER", help="the folder of a finished run")
    sub.add_argument("--rounds", type=int, default=2, metavar="N", help="how many are trained; default: 2")
    arguments.data(sub)
    arguments.partitions(sub)
    arguments.weights(sub)
    sub.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: the record's")


def verify(args: argparse.Namespace) -> None:
    """bayesfed verify"""
    from bayesfed.engine.verify import verify_all

    if args.rounds < 1:
        raise InputError(f"--rounds {args.rounds}: expected 1 or more")
    wrong, unchecked = verify_all(args.folders, args.rounds, args.data, args.device, args.weights, args.partitions)
    of, names = f"of {len(args.folders)} runs", ", ".join(map(str, unchecked))
    if wrong:
        text = f"{len(wrong)} {of} are not as recorded: {', '.join(map(str, wrong))}"
        sys.exit(f"bayesfed: {text}" + (f"; {len(unchecked)} could not be checked: {names}" if unchecked else ""))
    if unchecked:
        raise InputError(f"{len(unchecked)} {of} could not be checked: {names}")
