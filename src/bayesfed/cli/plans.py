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


def add(commands: Commands) -> None:
    """Add the commands `plan`, `status`, `tables`, `published`, `figures` and `report`."""
    add_plan(commands)
    add_status(commands)
    add_results(commands, "tables", tables, "Build the papers' tables from finished runs.")
    text = "Set the tables beside the published numbers, and check the papers' claims; what DVC shows lies beside DIR."
    add_results(commands, "published", published, text)
    add_results(commands, "figures", figures, "Draw the papers' figures from finished runs.")
    add_report(commands)


def add_plan(commands: Commands) -> None:
    """Add `bayesfed plan`."""
    sub = arguments.command(commands, "plan", plan, "Expand a config into its runs and cells.")
    sub.add_argument("config", type=path, metavar="CONFIG.yaml", help="a config, as those in config/")
    sub.add_argument("--out", type=path, required=True, metavar="DIR", help="where plan.json and the run files go")


def plan(args: argparse.Namespace) -> None:
    """bayesfed plan"""
    from bayesfed.plan import plan

    plan.write(args.config, args.out)


def add_status(commands: Commands) -> None:
    """Add `bayesfed status`."""
    text = "Say which runs of a plan are finished, running, failed, stopped with a checkpoint, and open."
    sub = arguments.command(commands, "status", status, text)
    sub.add_argument("plan", type=path, metavar="PLAN", help=arguments.PLAN)


def status(args: argparse.Namespace) -> None:
    """bayesfed status"""
    from bayesfed.runs import planned
    from bayesfed.runs import status as of_plan

    for line in of_plan.lines(planned.read(args.plan)):
        print(line)


def add_results(commands: Commands, name: str, run: Callable[[argparse.Namespace], None], text: str) -> None:
    """Add a command that makes files of a plan's finished runs."""
    sub = arguments.command(commands, name, run, text)
    sub.add_argument("plan", type=path, metavar="PLAN.json", help=arguments.PLAN_FILE)
    sub.add_argument("--out", type=path, required=True, metavar="DIR", help="where its files go")


def tell_of_runs(plan: Path) -> None:
    """Say where a plan's runs are looked for, if none stands there and so all that was written is empty."""
    folder, planned = plan.parent.parent / "runs", json.loads(plan.read_text(encoding="utf-8"))["runs"]
    if not any((folder / run["folder"] / "summary.json").exists() for run in planned):
        print(f"bayesfed: none of this plan's {len(planned)} runs stands in {folder}: all is empty", file=sys.stderr)


def collect_seldom() -> None:
    """Let Python look for cyclic garbage seldom: results are many small objects without any."""
    gc.set_threshold(200_000)


def tables(args: argparse.Namespace) -> None:
    """bayesfed tables"""
    from bayesfed.results import derived, tables

    collect_seldom()
    tables.write(derived.load(args.plan), args.out)
    tell_of_runs(args.plan)


def published(args: argparse.Namespace) -> None:
    """bayesfed published"""
    from bayesfed.results import claims_table, derived, dvc, published_page, summary_page, tables

    collect_seldom()
    found = derived.load(args.plan)
    tables.write_comparison(found, args.out)
    claims_table.write(found, args.out)
    summary_page.write(found, args.out)
    published_page.write(found, args.out)
    dvc.write(found, args.out)
    tell_of_runs(args.plan)


def figures(args: argparse.Namespace) -> None:
    """bayesfed figures"""
    from bayesfed.results import plots, study

    collect_seldom()
    plots.write(study.studies(args.plan), args.out)
    tell_of_runs(args.plan)


def add_report(commands: Commands) -> None:
    """Add `bayesfed report`."""
    text = "Write the report of a plan's finished runs: one offline page, and an RO-Crate beside it."
    sub = arguments.command(commands, "report", report, text)
    sub.add_argument("plan", type=path, metavar="PLAN.json", help=arguments.PLAN_FILE)
    sub.add_argument("--out", type=path, required=True, metavar="PAGE.html", help="the page")


def report(args: argparse.Namespace) -> None:
    """bayesfed report"""
    from bayesfed.report import build

    collect_seldom()
    build.write(args.plan, args.out)
    tell_of_runs(args.plan)
