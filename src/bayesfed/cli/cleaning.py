"""The command that deletes what results can do without."""

from __future__ import annotations

import argparse

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add `bayesfed clean`."""
    text = (
        "Delete checkpoints and logs of finished runs, and old plans. It says what that frees, and asks first. "
        "Results and reports stay; networks of a run without a checkpoint cannot be loaded or trained on."
    )
    shown = """
        bayesfed clean
        bayesfed clean demo
        bayesfed clean demo test --yes
    """
    sub = arguments.command(commands, "clean", clean, text, shown)
    sub.add_argument("names", nargs="*", metavar="CONFIG", help="name of a config, a folder of results/; default: all")
    sub.add_argument("--yes", action="store_true", help="deletion without a question; default: it asks")


def clean(args: argparse.Namespace) -> None:
    """Run `bayesfed clean`."""
    from bayesfed.plan import cleaning

    paths = []
    for folder in cleaning.folders(args.names):
        for kind, of_kind in cleaning.found(folder).items():
            print(f"{folder}: {len(of_kind)} {kind}, {cleaning.in_words(cleaning.size(of_kind))}")
            paths += of_kind
    if not paths:
        print("Nothing to delete")
    elif args.yes or agreed(f"Delete {len(paths)} files, {cleaning.in_words(cleaning.size(paths))}? [y/N] "):
        for path in paths:
            path.unlink()
        print(f"{len(paths)} files deleted")
    else:
        print("Nothing deleted")


def agreed(question: str) -> bool:
    """Ask on the terminal; an end of input is a no."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
