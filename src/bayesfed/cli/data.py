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
    text = "Fetch datasets, verify them, and store them in canonical order."
    shown = """
        bayesfed fetch digits
        bayesfed fetch mnist cifar10 --mirror /data/downloads
        bayesfed fetch shapes --plugins examples/own_plugins
    """
    sub = arguments.command(commands, "fetch", fetch, text, shown)
    sub.add_argument("names", nargs="+", metavar="NAME", help="dataset, as `bayesfed list datasets` names it")
    arguments.data(sub)
    text = "folder of the publishers' files; default: $BAYESFED_MIRROR, or else a download"
    sub.add_argument("--mirror", type=path, metavar="DIR", help=text)
    arguments.plugins(sub)


def fetch(args: argparse.Namespace) -> None:
    """Run `bayesfed fetch`."""
    from bayesfed.data.fetch import fetch

    plugins.use(args.plugins, args.data)
    for name in args.names:
        print(fetch(name, args.data, args.mirror))


def add_partition(commands: Commands) -> None:
    """Add `bayesfed partition`."""
    text = "Make the cached partition of a run, or verify the one that is there."
    shown = """
        bayesfed partition examples/run.yaml
        bayesfed partition examples/run.yaml --overview overview
        bayesfed partition run.yaml --data /data/bayesfed --partitions partitions
    """
    sub = arguments.command(commands, "partition", partition, text, shown)
    sub.add_argument("runfile", type=path, metavar="RUN.yaml", help=arguments.RUN_FILE)
    arguments.data(sub)
    arguments.partitions(sub)
    sub.add_argument(
        "--overview", type=path, metavar="DIR", help="folder for a picture and statistics of it; default: none"
    )


def partition(args: argparse.Namespace) -> None:
    """Run `bayesfed partition`."""
    from bayesfed.data import overview
    from bayesfed.data import partition as partitions
    from bayesfed.runs import dealt

    (dataset, *_), scheme, seed = dealt.load(args.runfile, args.data)
    cell = (dataset, scheme, seed, args.data)
    print(partitions.build(*cell, args.partitions))
    if args.overview:
        overview.write(*cell, args.overview, args.partitions)


def add_list(commands: Commands) -> None:
    """Add `bayesfed list`."""
    text = (
        "List the methods, datasets, models or partition schemes that a run file can name. "
        "Of models it may name several, as `models: {global: cnn2, local: [mlp, mlp, cnn1]}`."
    )
    shown = """
        bayesfed list methods
        bayesfed list models
        bayesfed list methods --plugins examples/own_plugins
    """
    sub = arguments.command(commands, "list", names, text, shown)
    sub.add_argument("kind", choices=["methods", "datasets", "models", "partitions"], help="kind of names")
    arguments.plugins(sub)


def names(args: argparse.Namespace) -> None:
    """Run `bayesfed list`."""
    from bayesfed.runs import names

    found = getattr(names, f"list_{args.kind}")(args.plugins)
    width = max(map(len, found))
    for name, line in found.items():
        print(f"{name:{width}}  {line}".rstrip())
