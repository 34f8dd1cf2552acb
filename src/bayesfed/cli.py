"""The command `bayesfed`: each step of the pipeline by hand. Exit codes: 0 done, 2 refused input, 1 anything else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bayesfed import parts
from bayesfed.errors import InputError
from bayesfed.parts import DATA


def parser() -> argparse.ArgumentParser:
    """The command line; every sub-command sets `run`, a function of the parsed arguments."""
    main = argparse.ArgumentParser(prog="bayesfed", description="Federated learning papers, checked.")
    commands = main.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("fetch", fetch, "Fetch a dataset, verify it, and store it in canonical order.")
    sub.add_argument("names", nargs="+", metavar="NAME")
    sub.add_argument("--data", type=Path, default=DATA, metavar="DIR")
    sub.add_argument("--mirror", type=Path, metavar="DIR", help="folder with the publishers' files")
    sub.add_argument("--parts", type=Path, metavar="DIR", help="folder with datasets of your own (docs/extending.md)")

    sub = command("partition", partition, "Make, or verify, the cached partition of a run.")
    sub.add_argument("runfile", type=Path, metavar="RUN.yaml")
    sub.add_argument("--data", type=Path, default=DATA, metavar="DIR")
    sub.add_argument("--overview", type=Path, metavar="DIR", help="write a picture and statistics there too")

    sub = command("train", train, "Train one run; run again it resumes, and a finished run is left alone.")
    sub.add_argument("runfile", type=Path, metavar="RUN.yaml")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run folder")
    sub.add_argument("--checkpoint", type=Path, metavar="FILE", help="default: in the run folder")
    sub.add_argument("--data", type=Path, default=DATA, metavar="DIR")
    sub.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    sub.add_argument("--precision", choices=["auto", "fp32", "tf32", "bf16"], default="auto")
    sub.add_argument("--executor", choices=["auto", "eager", "threads", "graphs"], default="auto", help="for debugging")
    sub.add_argument("--gpu-slots", type=int, default=1, metavar="N", help="jobs that may share a GPU; default: 1")

    sub = command("plan", plan, "Expand a config into its runs and cells.")
    sub.add_argument("config", type=Path, metavar="CONFIG.yaml")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR")

    for name, run, text in (
        ("tables", tables, "Build the papers' tables from finished runs."),
        ("compare", compare, "Set the tables beside the printed numbers, and check the papers' claims."),
        ("figures", figures, "Draw the papers' figures from finished runs."),
    ):
        sub = command(name, run, text)
        sub.add_argument("plan", type=Path, metavar="PLAN.json")
        sub.add_argument("--out", type=Path, required=True, metavar="DIR")
    return main


def fetch(args: argparse.Namespace) -> None:
    """bayesfed fetch"""
    from bayesfed.data.fetch import fetch

    parts.use(args.parts, args.data)
    for name in args.names:
        print(fetch(name, args.data, args.mirror))


def partition(args: argparse.Namespace) -> None:
    """bayesfed partition"""
    from bayesfed import runfile
    from bayesfed.data import overview
    from bayesfed.data import partition as partitions

    run = runfile.load(args.runfile, args.data)
    cell = (run.datasets[0], run.partition, run.budget.seed, args.data)
    print(partitions.build(*cell))
    if args.overview:
        overview.write(*cell, args.overview)


def train(args: argparse.Namespace) -> None:
    """bayesfed train"""
    from bayesfed import runfile
    from bayesfed.engine import checkpoint
    from bayesfed.engine.train import Place, Stopped, train

    if args.gpu_slots < 1:
        raise InputError(f"--gpu-slots {args.gpu_slots}: expected 1 or more")
    where = args.checkpoint or args.out / checkpoint.FILE
    place = Place(args.out, where, args.data, args.device, args.precision, args.gpu_slots, args.executor)
    try:
        train(runfile.load(args.runfile, args.data), place)
    except Stopped as stopped:
        sys.exit(f"bayesfed: {stopped}")


def plan(args: argparse.Namespace) -> None:
    """bayesfed plan"""
    from bayesfed import plan

    plan.write(args.config, args.out)


def tables(args: argparse.Namespace) -> None:
    """bayesfed tables"""
    from bayesfed.results import tables

    tables.write(args.plan, args.out)


def compare(args: argparse.Namespace) -> None:
    """bayesfed compare"""
    from bayesfed.results import claims, compare, glance

    compare.write(args.plan, args.out)
    claims.write(args.plan, args.out)
    glance.write(args.plan, args.out)


def figures(args: argparse.Namespace) -> None:
    """bayesfed figures"""
    from bayesfed.results import figures

    figures.write(args.plan, args.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except InputError as error:
        print(f"bayesfed: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bayesfed: interrupted", file=sys.stderr)
        return 1
    return 0
