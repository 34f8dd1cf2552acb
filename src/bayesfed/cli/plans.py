"""Commands about a plan, and what is made of its finished runs."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands, path
from bayesfed.runs.planned import found, home


def add(commands: Commands) -> None:
    """Add the commands `plan`, `status`, `tables`, `published`, `figures` and `report`."""
    add_plan(commands)
    add_status(commands)
    add_results(commands, "tables", tables, "Build the papers' tables from finished runs.")
    text = "Compare the tables with the published numbers, and test the papers' claims. Files for DVC are written beside DIR."
    add_results(commands, "published", published, text)
    add_results(commands, "figures", figures, "Draw the papers' figures from finished runs.")
    add_report(commands)


def plan_file(text: str) -> Path:
    """Read the path of a plan.json, or the name of a config that has been planned."""
    return found(path(text))


def add_plan(commands: Commands) -> None:
    """Add `bayesfed plan`."""
    shown = """
        bayesfed plan config/demo.yaml --out plan
        bayesfed plan config/paper.yaml --out results/paper/plan
        bayesfed plan examples/own_plugins/config.yaml --out plan
    """
    sub = arguments.command(commands, "plan", plan, "Expand a sweep config into a plan and its run files.", shown)
    sub.add_argument("config", type=path, metavar="CONFIG.yaml", help="sweep config (docs/reference/configuration.md)")
    sub.add_argument("--out", type=path, required=True, metavar="DIR", help="folder for plan.json and the run files")


def plan(args: argparse.Namespace) -> None:
    """Run `bayesfed plan`."""
    from bayesfed.plan import plan

    made = plan.write(args.config, args.out)
    print(f"{args.out / plan.PLAN}: {len(made['runs'])} runs")


def add_status(commands: Commands) -> None:
    """Add `bayesfed status`."""
    text = "Count the runs of a plan that are finished, running, failed, stopped with a checkpoint, and open."
    shown = """
        bayesfed status demo
        bayesfed status paper
        bayesfed status results/demo/plan/plan.json
    """
    sub = arguments.command(commands, "status", status, text, shown)
    sub.add_argument("plan", type=path, metavar="PLAN", help=arguments.PLAN)


def status(args: argparse.Namespace) -> None:
    """Run `bayesfed status`."""
    from bayesfed.runs import planned
    from bayesfed.runs import status as of_plan

    for line in of_plan.lines(planned.read(args.plan)):
        print(line)


def add_results(commands: Commands, name: str, run: Callable[[argparse.Namespace], None], text: str) -> None:
    """Add a command that makes files of a plan's finished runs."""
    folder = "figures" if name == "figures" else "tables"
    shown = f"""
        bayesfed {name} demo --out results/demo/{folder}
        bayesfed {name} paper --out results/paper/{folder}
        bayesfed {name} plan/plan.json --out {folder}
    """
    sub = arguments.command(commands, name, run, text, shown)
    sub.add_argument("plan", type=plan_file, metavar="PLAN", help=arguments.PLAN)
    sub.add_argument("--out", type=path, required=True, metavar="DIR", help="folder for its files")


def tell(plan: Path, out: Path) -> None:
    """Name what was written; warn that it is empty if none of the plan's runs is finished."""
    print(out)
    folder, planned = home(plan) / "runs", json.loads(plan.read_text(encoding="utf-8"))["runs"]
    if not any((folder / run["folder"] / "summary.json").exists() for run in planned):
        print(
            f"bayesfed: {folder}: none of the plan's {len(planned)} runs is finished; what was written is empty",
            file=sys.stderr,
        )


def collect_seldom() -> None:
    """Let Python look for cyclic garbage seldom: results are many small objects without any."""
    gc.set_threshold(1_000_000)


def tables(args: argparse.Namespace) -> None:
    """Run `bayesfed tables`."""
    collect_seldom()
    from bayesfed.results import derived, grounds_files, paired, tables

    found = derived.load(args.plan)
    tables.write(found, args.out)
    plan = json.loads(args.plan.read_text(encoding="utf-8"))
    studies = [one.study for one in found]
    if sides := paired.of_plan(plan, studies):
        grounds_files.write(sides, args.out / paired.of_grounds(studies)[0].paper)
    tell(args.plan, args.out)


def published(args: argparse.Namespace) -> None:
    """Run `bayesfed published`."""
    collect_seldom()
    from bayesfed.results import claims_table, derived, dvc, published_page, summary_page, tables

    found = derived.load(args.plan)
    tables.write_comparison(found, args.out)
    claims_table.write(found, args.out)
    summary_page.write(found, args.out)
    published_page.write(found, args.out)
    dvc.write(found, args.out)
    tell(args.plan, args.out)


def figures(args: argparse.Namespace) -> None:
    """Run `bayesfed figures`."""
    collect_seldom()
    from bayesfed.results import plots, study

    plots.write(study.studies(args.plan), args.out)
    tell(args.plan, args.out)


def add_report(commands: Commands) -> None:
    """Add `bayesfed report`."""
    text = "Write the report of a plan's finished runs: one offline page, and an RO-Crate beside it."
    shown = """
        bayesfed report demo --out reports/demo.html
        bayesfed report paper --out reports/paper.html
        bayesfed report plan/plan.json --out page.html
    """
    sub = arguments.command(commands, "report", report, text, shown)
    sub.add_argument("plan", type=plan_file, metavar="PLAN", help=arguments.PLAN)
    sub.add_argument("--out", type=path, required=True, metavar="PAGE.html", help="file of the page")


def report(args: argparse.Namespace) -> None:
    """Run `bayesfed report`."""
    collect_seldom()
    from bayesfed.report import build

    build.write(args.plan, args.out)
    tell(args.plan, args.out)
