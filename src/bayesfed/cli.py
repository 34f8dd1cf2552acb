"""The command `bayesfed`: each step of the pipeline by hand. Exit codes: 0 done, 2 refused input, 1 anything else."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import bayesfed
from bayesfed.core import plugins
from bayesfed.core.errors import InputError, in_a_line
from bayesfed.core.plugins import DATA, WEIGHTS


def path(text: str) -> Path:
    """A path of the command line; an empty one, of a variable that is not set, would be the folder where one stands."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found an empty text")
    return Path(text)


def parser() -> argparse.ArgumentParser:
    """The command line; every sub-command sets `run`, a function of the parsed arguments."""
    main = argparse.ArgumentParser(
        prog="bayesfed",
        description="Federated learning papers, checked.",
        epilog="A run file is shown in docs/reference/run-file.md; a config is one of config/*.yaml.",
    )
    main.add_argument("--version", action="version", version=f"%(prog)s {bayesfed.__version__}")
    commands = main.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    run_file = "a run file, as docs/reference/run-file.md shows one"
    data = f"folder with fetched datasets; default: {DATA}"
    shares = "folder with partitions; default: `partitions` in the one with datasets"
    weights = f"folder with pretrained weights; default: {WEIGHTS}"
    sub = command("fetch", fetch, "Fetch a dataset, verify it, and store it in canonical order.")
    sub.add_argument("names", nargs="+", metavar="NAME", help="a dataset, such as mnist, or one of your own")
    sub.add_argument("--data", type=path, default=DATA, metavar="DIR", help=data)
    sub.add_argument("--mirror", type=path, metavar="DIR", help="folder with the publishers' files")
    sub.add_argument(
        "--parts", type=path, metavar="DIR", help="folder with datasets of your own (docs/guides/your-method.md)"
    )

    sub = command("partition", partition, "Make, or verify, the cached partition of a run.")
    sub.add_argument("runfile", type=path, metavar="RUN.yaml", help=run_file)
    sub.add_argument("--data", type=path, default=DATA, metavar="DIR", help=data)
    sub.add_argument("--partitions", type=path, metavar="DIR", help=shares)
    sub.add_argument("--overview", type=path, metavar="DIR", help="write a picture and statistics there too")

    text = "Train a run, or several one after another; run again it resumes, and a finished run is left alone."
    sub = command("train", train, text)
    sub.add_argument("runfiles", type=path, nargs="+", metavar="RUN.yaml", help=run_file)
    where = sub.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=path, metavar="DIR", help="the run folder of a single run")
    where.add_argument("--runs", type=path, metavar="DIR", help="where each run has a folder, named after what it is")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--checkpoint", type=path, metavar="FILE", help="of --out; default: in the run folder")
    where.add_argument("--checkpoints", type=path, metavar="DIR", help="of --runs; default: in the run folders")
    sub.add_argument("--data", type=path, default=DATA, metavar="DIR", help=data)
    sub.add_argument("--partitions", type=path, metavar="DIR", help=shares)
    sub.add_argument("--weights", type=path, default=WEIGHTS, metavar="DIR", help=weights)
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

    text = (
        "Train the first rounds of finished runs again, and say whether they are as recorded and what has changed since. From "
        "two rounds on each is also stopped midway and resumed by another process, which must give the same."
    )
    sub = command("verify", verify, text)
    sub.add_argument("folders", type=path, nargs="+", metavar="RUN_FOLDER", help="the folder of a finished run")
    sub.add_argument("--rounds", type=int, default=2, metavar="N", help="how many are trained; default: 2")
    sub.add_argument("--data", type=path, default=DATA, metavar="DIR", help=data)
    sub.add_argument("--partitions", type=path, metavar="DIR", help=shares)
    sub.add_argument("--weights", type=path, default=WEIGHTS, metavar="DIR", help=weights)
    sub.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: the record's")

    sub = command("list", names, "List methods, datasets, models or partition schemes that a run file can name.")
    sub.add_argument("kind", choices=["methods", "datasets", "models", "partitions"], help="what to list")
    sub.add_argument("--parts", type=path, metavar="DIR", help="folder with parts of your own, which are listed, too")

    sub = command("plan", plan, "Expand a config into its runs and cells.")
    sub.add_argument("config", type=path, metavar="CONFIG.yaml", help="a config, as those in config/")
    sub.add_argument("--out", type=path, required=True, metavar="DIR", help="where plan.json and the run files go")

    plan_file = "what `bayesfed plan` wrote: results/<config>/plan/plan.json"
    for name, run, text in (
        ("tables", tables, "Build the papers' tables from finished runs."),
        (
            "compare",
            compare,
            "Set the tables beside the printed numbers, and check the papers' claims; what DVC shows lies beside DIR.",
        ),
        ("figures", figures, "Draw the papers' figures from finished runs."),
    ):
        sub = command(name, run, text)
        sub.add_argument("plan", type=path, metavar="PLAN.json", help=plan_file)
        sub.add_argument("--out", type=path, required=True, metavar="DIR", help="where its files go")

    sub = command(
        "report", report, "Write the report of a plan's finished runs: one offline page, and an RO-Crate beside it."
    )
    sub.add_argument("plan", type=path, metavar="PLAN.json", help=plan_file)
    sub.add_argument("--out", type=path, required=True, metavar="PAGE.html", help="the page")
    return main


def fetch(args: argparse.Namespace) -> None:
    """bayesfed fetch"""
    from bayesfed.data.fetch import fetch

    plugins.use(args.parts, args.data)
    for name in args.names:
        print(fetch(name, args.data, args.mirror))


def partition(args: argparse.Namespace) -> None:
    """bayesfed partition"""
    from bayesfed.data import overview
    from bayesfed.data import partition as partitions
    from bayesfed.runs import run_file as runfile

    run = runfile.load(args.runfile, args.data)
    cell = (run.datasets[0], run.partition, run.budget.seed, args.data)
    print(partitions.build(*cell, args.partitions))
    if args.overview:
        overview.write(*cell, args.overview, args.partitions)


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

    def own_place(run: runfile.Run) -> Place:
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


def names(args: argparse.Namespace) -> None:
    """bayesfed list"""
    from bayesfed import methods, models
    from bayesfed.data import catalogue
    from bayesfed.data.schemes import SCHEMES, WHOLE

    plugins.use(args.parts)
    if args.kind == "partitions":
        found = {name: scheme.draw for name, scheme in SCHEMES.items()} | {WHOLE: None}
    else:
        registry = {"methods": methods.registry, "datasets": catalogue.registry, "models": models.registry}[args.kind]
        found = {**registry.ours(), **{name: part.value() for name, part in registry.own().items()}}
    width = max(map(len, found))
    for name in sorted(found):
        print(f"{name:{width}}  {first_line(found[name])}".rstrip())


def first_line(one: object) -> str:
    """A dataset's title, or the first line of the docstring of a method's module or of a function; "" for none."""
    text = getattr(one, "title", None) or inspect.getdoc(inspect.getmodule(one) if isinstance(one, type) else one)
    return text.splitlines()[0] if text and one is not None else ""


def plan(args: argparse.Namespace) -> None:
    """bayesfed plan"""
    from bayesfed.plan import plan

    plan.write(args.config, args.out)


def tell_of_runs(plan: Path) -> None:
    """Say where a plan's runs are looked for, if none stands there and so all that was written is empty."""
    import json

    folder, planned = plan.parent.parent / "runs", json.loads(plan.read_text(encoding="utf-8"))["runs"]
    if not any((folder / run["folder"] / "summary.json").exists() for run in planned):
        print(f"bayesfed: none of this plan's {len(planned)} runs stands in {folder}: all is empty", file=sys.stderr)


def tables(args: argparse.Namespace) -> None:
    """bayesfed tables"""
    from bayesfed.results import tables

    tables.write(args.plan, args.out)
    tell_of_runs(args.plan)


def compare(args: argparse.Namespace) -> None:
    """bayesfed compare"""
    from bayesfed.results import claims, comparison, dvc, published_page, summary_page

    comparison.write(args.plan, args.out)
    claims.write(args.plan, args.out)
    summary_page.write(args.plan, args.out)
    published_page.write(args.plan, args.out)
    dvc.write(args.plan, args.out)
    tell_of_runs(args.plan)


def figures(args: argparse.Namespace) -> None:
    """bayesfed figures"""
    from bayesfed.results import plots

    plots.write(args.plan, args.out)
    tell_of_runs(args.plan)


def report(args: argparse.Namespace) -> None:
    """bayesfed report"""
    from bayesfed.report import build

    build.write(args.plan, args.out)
    tell_of_runs(args.plan)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except (Exception, SystemExit) as error:
        if not (known := in_a_line(error)):
            raise
        text, code = known
        print(f"bayesfed: {text}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("bayesfed: interrupted", file=sys.stderr)
        return 1
    return 0
