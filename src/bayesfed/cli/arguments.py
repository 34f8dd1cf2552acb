"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesfed.core.plugins import DATA, WEIGHTS

Commands = Any  # what argparse's add_subparsers gives, a private class
RUN_FILE = "a run file, as docs/reference/run-file.md shows one"
PLAN = "a plan.json, or the name of a config whose plan is in results/<config>/plan/"
PLAN_FILE = "what `bayesfed plan` wrote: results/<config>/plan/plan.json"


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """Return a sub-command; `run` gets its parsed arguments, `text` says what it does."""
    sub: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    sub.set_defaults(run=run)
    return sub


def path(text: str) -> Path:
    """Return a path of the command line; refuse the empty one of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found an empty text")
    return Path(text)


def data(sub: argparse.ArgumentParser) -> None:
    """Add `--data`."""
    sub.add_argument(
        "--data", type=path, default=DATA, metavar="DIR", help=f"folder with fetched datasets; default: {DATA}"
    )


def partitions(sub: argparse.ArgumentParser) -> None:
    """--partitions"""
    text = "folder with partitions; default: `partitions` in the one with datasets"
    sub.add_argument("--partitions", type=path, metavar="DIR", help=text)


def weights(sub: argparse.ArgumentParser) -> None:
    """--weights"""
    text = f"folder with pretrained weights; default: {WEIGHTS}"
    sub.add_argument("--weights", type=path, default=WEIGHTS, metavar="DIR", help=text)


def plugins(sub: argparse.ArgumentParser, text: str) -> None:
    """--plugins"""
    sub.add_argument("--plugins", type=path, metavar="DIR", help=text)
