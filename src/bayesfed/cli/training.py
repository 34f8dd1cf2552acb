"""Commands that train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
    text = "Train a run, or several one after another; run again it resumes, and a finished run is left alone."
    sub = arguments.command(commands, "train", train, text)
    sub.add_argument("runfiles", type=path, nargs="+", metavar="RUN.yaml", help=arguments.RUN_FILE)
    where = sub.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=path, metavar="DIR", help="the run folder of a single run")
    where.add_argument("--runs", type=path, metavar="DIR", help="where each run has a folder, named after what it is")
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
    from bayesfed.engine import checkpoint
    from bayesfed.engine.session import Process, train_all
    from bayesfed.engine.signals import Stopped
    from bayesfed.engine.training import Place, refuse_own_file, train
    from bayesfed.runs import run_file as runfile

    if args.gpu_slots < 1:
        raise InputError(f"--gpu-slots {args.gpu_slots}: expected 1 or more")
    if args.out and len(args.runfiles) > 1:
        raise InputError(f"--out {args.out}: this is for one run, not {len(args.runfiles)}; give --runs DIR")
    given = (
        "--checkpoints" if args.out and args.checkpoints else "--checkpoint" if args.runs and args.checkpoint else ""
    )
    if given:
        raise InputError(f"{given}: --checkpoint FILE goes with --out, --checkpoints DIR with --runs")

    def place(out: Path, stored: Path) -> Place:
        how = (args.device, args.precision, args.gpu_slots, args.executor)
        return Place(out, stored, args.data, *how, args.weights, args.partitions)

    def own_place(run: Run) -> Place:
        out = args.runs / run.folder
        return place(out, args.checkpoints / f"{run.folder}.safetensors" if args.checkpoints else out / checkpoint.FILE)

    try:
        if args.out:
            with Process() as process:
                run = runfile.load(args.runfiles[0], args.data)
                refuse_own_file(args.runfiles[0], run, args.out)
                train(run, place(args.out, args.checkpoint or args.out / checkpoint.FILE), process)
            return
        failed = train_all(args.runfiles, args.data, own_place)
    except Stopped as stopped:
        sys.exit(f"bayesfed: {stopped}")
    text = f"{len(failed)} of {len(args.runfiles)} runs failed: {', '.join(map(str, failed))}"
    if failed and set(failed.values()) == {2}:
        raise InputError(text)
    if failed:
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
