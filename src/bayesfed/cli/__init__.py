"""The command `bayesfed`: each step of the pipeline by hand. Exit codes: 0 done, 2 refused input, 1 anything else.

Each command has its arguments beside its handler: `data.py`, `training.py`, `plans.py`,
`comparing.py` and `cleaning.py`.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import bayesfed
from bayesfed.cli import cleaning, comparing, data, plans, training
from bayesfed.cli.arguments import Help, examples
from bayesfed.core.errors import in_a_line

EXAMPLES = """
    bayesfed list methods
    bayesfed fetch digits
    bayesfed train examples/run.yaml --out runs/one
"""


# What is no argument of a command, and what to write for it.
INSTEAD = {
    "bayesfed train --plugins": "`plugins` is a key of the run file",
    "bayesfed compare --method": "methods go without an option: `bayesfed compare fedavg`",
}


class Parser(argparse.ArgumentParser):
    """Arguments whose mistakes take one line, as those of files do."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown to a command in its own name: argparse would leave it to the whole command line."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            instead = INSTEAD.get(f"{self.prog} {left[0].partition('=')[0]}")
            self.error(f"unrecognized arguments: {' '.join(left)}{f' ({instead})' if instead else ''}")
        return found, left

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line; every sub-command sets `run`, a function of the parsed arguments."""
    main = Parser(
        prog="bayesfed",
        description="Train federated-learning methods, and reproduce papers on Bayesian federated learning.",
        epilog=examples(EXAMPLES),
        formatter_class=Help,
    )
    main.add_argument(
        "--version", action="version", version=f"%(prog)s {bayesfed.__version__}", help="version of bayesfed"
    )
    commands = main.add_subparsers(required=True, metavar="COMMAND")
    for group in (data, training, plans, comparing, cleaning):
        group.add(commands)
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    try:
        args = parser().parse_args(argv)  # which looks for plans, too
        args.run(args)
        if sys.stdout:  # None where it was closed
            sys.stdout.flush()
    except (Exception, SystemExit) as error:
        if isinstance(error, BrokenPipeError) and nobody_reads():
            return 1
        if not (known := in_a_line(error)):
            raise
        text, code = known
        print(f"bayesfed: {text}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("bayesfed: interrupted", file=sys.stderr)
        return 1
    return 0


def nobody_reads() -> bool:
    """Return True if standard output is a pipe that its reader has left, as `head` does; drop what is left to write."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if left := any(event & select.POLLERR for _, event in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return left
