"""The command `bayesfed`: each step of the pipeline by hand. Exit codes: 0 done, 2 refused input, 1 anything else.

Each command has its arguments beside its handler: `data.py`, `training.py` and `plans.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import bayesfed
from bayesfed.cli import data, plans, training
from bayesfed.core.errors import in_a_line


def parser() -> argparse.ArgumentParser:
    """Return the command line; every sub-command sets `run`, a function of the parsed arguments."""
    main = argparse.ArgumentParser(
        prog="bayesfed",
        description="Federated learning papers, checked.",
        epilog="A run file is shown in docs/reference/run-file.md; a config is one of config/*.yaml.",
    )
    main.add_argument("--version", action="version", version=f"%(prog)s {bayesfed.__version__}")
    commands = main.add_subparsers(required=True, metavar="COMMAND")
    for group in (data, training, plans):
        group.add(commands)
    return main


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
