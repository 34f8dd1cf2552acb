"""The commands that make results smaller: what they can do without is deleted, and records are packed."""

from __future__ import annotations

import argparse

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands, path
from bayesfed.core.errors import InputError


def add(commands: Commands) -> None:
    """Add the commands `clean` and `pack`."""
    add_clean(commands)
    add_pack(commands)


def add_clean(commands: Commands) -> None:
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
        cleaning.delete(paths)
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


def add_pack(commands: Commands) -> None:
    """Add `bayesfed pack`."""
    text = (
        "Pack the metrics of finished runs, for records that come into git. "
        "Nothing is lost, their seals stay, and every command reads packed records as it reads others."
    )
    shown = """
        bayesfed pack results/comparison/runs
        bayesfed pack results/demo/runs/digits/*/hbfl
        bayesfed pack runs/one
    """
    sub = arguments.command(commands, "pack", pack, text, shown)
    sub.add_argument("folders", type=path, nargs="+", metavar="FOLDER", help="run folder, or a folder of run folders")


def pack(args: argparse.Namespace) -> None:
    """Run `bayesfed pack`."""
    from bayesfed.plan import cleaning
    from bayesfed.runs import packing, run_folder

    for folder in args.folders:
        records = [summary.parent for summary in sorted(folder.rglob(run_folder.SUMMARY))]
        if not records:
            raise InputError(f"{folder}: there is no finished run in it; give a run folder, or a folder of them")
        plain = cleaning.in_words(cleaning.size(sorted(folder.rglob(run_folder.METRICS))))
        earlier = cleaning.size(sorted(folder.rglob(packing.PACKED)))
        packed = sum(map(run_folder.pack_record, records))
        now = cleaning.in_words(cleaning.size(sorted(folder.rglob(packing.PACKED))) - earlier)
        print(f"{folder}: {packed} of {len(records)} records packed; their metrics had {plain}, and have {now}")
