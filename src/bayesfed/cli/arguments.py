"""Arguments that several commands share, and the form of every help."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesfed.core.plugins import DATA, WEIGHTS

Commands = Any  # what argparse's add_subparsers gives, a private class
RUN_FILE = "run file (docs/reference/run-file.md, examples/run.yaml)"
PLAN = "plan.json, or the name of a config whose plan is results/<config>/plan/plan.json"
EXIT_CODES = "exit codes: 0 done, 2 refused input, 1 anything else"


class Help(argparse.HelpFormatter):
    """Help whose examples keep their lines; argparse would run them together."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def examples(text: str) -> str:
    """Return the end of a help: the commands in `text`, one a line, and the exit codes."""
    return f"examples:\n{textwrap.indent(textwrap.dedent(text).strip(), '  ')}\n\n{EXIT_CODES}"


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], text: str, shown: str
) -> argparse.ArgumentParser:
    """Return a sub-command; `run` gets its parsed arguments, `text` says what it does, `shown` are its examples."""
    sub: argparse.ArgumentParser = commands.add_parser(
        name, help=text.partition(". ")[0].rstrip("."), description=text, epilog=examples(shown), formatter_class=Help
    )
    sub.set_defaults(run=run)
    return sub


def path(text: str) -> Path:
    """Return a path of the command line; refuse the empty one of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found an empty text")
    return Path(text)


def name(text: str) -> str:
    """Return a name of the command line; refuse the empty one of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected a name, found an empty text")
    return text


def data(sub: argparse.ArgumentParser) -> None:
    """Add `--data`."""
    sub.add_argument("--data", type=path, default=DATA, metavar="DIR", help=f"folder of datasets; default: {DATA}")


def partitions(sub: argparse.ArgumentParser) -> None:
    """Add `--partitions`."""
    text = "folder of partitions; default: `partitions` in the folder of datasets"
    sub.add_argument("--partitions", type=path, metavar="DIR", help=text)


def weights(sub: argparse.ArgumentParser) -> None:
    """Add `--weights`."""
    text = f"folder of pretrained weights; default: {WEIGHTS}"
    sub.add_argument("--weights", type=path, default=WEIGHTS, metavar="DIR", help=text)


def device(sub: argparse.ArgumentParser, default: str) -> None:
    """Add `--device`; `default` says what `auto` takes."""
    text = f"device to train on; default: auto, {default}"
    sub.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help=text)


def plugins(sub: argparse.ArgumentParser) -> None:
    """Add `--plugins`."""
    text = "folder of plugins of your own (docs/guides/your-method.md); default: installed plugins only"
    sub.add_argument("--plugins", type=path, metavar="DIR", help=text)
