"""Commands about data, and about what a run file can name."""

from __future__ import annotations

import argparse

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands, path
from bayesfed.core import plugins


def add(commands: Commands) -> None:
    """Add the commands `fetch`, `partition` and `list`."""
    add_fetch(commands)
    add_partition(commands)
    add_list(commands)


def add_fetch(commands: Commands) -> None:
    """Add `bayesfed fetch`."""
    text = "Fetch a dataset, verify it, and store it in canonical order."
    sub = arguments.command(commands, "fetch", fetch, text)
    sub.add_argument("names", nargs="+", metavar="NAME", help="a dataset, such as mnist, or one of your own")
    arguments.data(sub)
    sub.add_argument("--mirror", type=path, metavar="DIR", help="folder with the publishers' files")
    arguments.parts(sub, "folder with datasets of your own (docs/guides/your-method.md)")


def fetch(args: argparse.Namespace) -> None:
    """bayesfed fetch"""
    from bayesfed.data.fetch import fetch

    plugins.use(args.parts, args.data)
    for name in args.names:
        print(fetch(name, args.data, args.mirror))


def add_partition(commands: Commands) -> None:
    """Add `bayesfed partition`."""
    sub = arguments.command(commands, "partition", partition, "Make, or verify, the cached partition of a run.")
    sub.add_argument("runfile", type=path, metavar="RUN.yaml", help=arguments.RUN_FILE)
    arguments.data(sub)
    arguments.partitions(sub)
    sub.add_argument("--overview", type=path, metavar="DIR", help="write a picture and statistics there too")


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


def add_list(commands: Commands) -> None:
    """Add `bayesfed list`."""
    text = "List methods, datasets, models or partition schemes that a run file can name."
    sub = arguments.command(commands, "list", names, text)
    sub.add_argument("kind", choices=["methods", "datasets", "models", "partitions"], help="what to list")
    arguments.parts(sub, "folder with parts of your own, which are listed, too")


def names(args: argparse.Namespace) -> None:
    """bayesfed list"""
    from bayesfed.runs import names

    found = getattr(names, f"list_{args.kind}")(args.parts)
    width = max(map(len, found))
    for name, line in found.items():
        print(f"{name:{width}}  {line}".rstrip())
