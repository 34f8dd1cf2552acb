"""Checks and timings that need a GPU, in two calls, each with a deadline; `docs/guides/gpu.md` says what each proves.

    python -m benchmarks.gpu smoke --data DIR         does the GPU path do what it should?
    python -m benchmarks.gpu speed [--data DIR]       where does the time go?

A call writes OUT/<call>.jsonl, a row as soon as it is known, and OUT/<call>.log. It needs torch, numpy, PyYAML and
safetensors, and no installation: PYTHONPATH=src. `--device cpu --small` tries a call without a GPU, in less than a minute.
"""

import argparse
import sys
import time
from pathlib import Path

from bayesfed.core.errors import InputError
from bayesfed.engine import gpu_lease
from benchmarks.gpu import parts, smoke, speed

MINUTES = {"smoke": 7.0, "speed": 9.0}
AROUND = 10  # seconds of a call for loading torch before its parts, and for the end of the last one


def parser() -> argparse.ArgumentParser:
    """Run the command line."""
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, minutes in MINUTES.items():
        sub = commands.add_parser(name)
        sub.add_argument("--out", type=Path, default=Path("results/gpu"))
        sub.add_argument("--data", type=Path, help="a folder as `bayesfed fetch` makes it")
        sub.add_argument("--minutes", type=float, default=minutes, help=f"the whole call; default: {minutes:g}")
        sub.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
        sub.add_argument("--small", action="store_true", help="few images and rounds")
        sub.add_argument("--parts", nargs="+", metavar="NAME", help="only parts whose names begin so; default: all")
    return main


def measure(args: argparse.Namespace) -> int:
    """Run one of the two calls; return 1 if anything failed or was cut short."""
    if args.device == "cuda" and not gpu_lease.visible_devices():
        raise InputError("--device cuda: this machine has no usable GPU; --device cpu --small tries the call")
    until = time.monotonic() + 60 * args.minutes - AROUND
    scale = parts.SMALL if args.small else parts.FULL
    task = parts.Task(args.command, args.out, args.device, scale, args.data, until)
    every = {"smoke": smoke, "speed": speed}[args.command].parts(task)
    for name in args.parts or []:
        if not any(part.name.startswith(name) for part in every):
            raise InputError(
                f"--parts {name}: no part of {args.command} begins so; it has {', '.join(part.name for part in every)}"
            )
    chosen = [part for part in every if part.name.startswith(tuple(args.parts or [""]))]
    return min(1, parts.run(task, chosen))


def main() -> int:
    """Run the command line; gives the exit code."""
    args = parser().parse_args()
    try:
        return measure(args)
    except InputError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
