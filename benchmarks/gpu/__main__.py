"""What needs a GPU, in three calls, each with a deadline of its own. `docs/guides/gpu.md` says what each proves.

    python -m benchmarks.gpu smoke --data DIR         does the GPU path do what it should?
    python -m benchmarks.gpu speed [--data DIR]       where does the time go?
    python -m benchmarks.gpu real --data DIR          the paper's runs by priority
    python -m benchmarks.gpu pack NAME... --data DIR --into FOLDER      datasets as parts of at most 50 MiB
    python -m benchmarks.gpu unpack PART --into DIR                     a part in its place

A call writes OUT/<call>.jsonl, a row as soon as it is known, OUT/<call>.log, and at its end OUT/<call>.tar.gz with both
and the records of finished runs, to be unpacked where results/ is. It needs torch, numpy, PyYAML and safetensors, and
no installation: PYTHONPATH=src. `--device cpu --small` tries a call without a GPU, in less than a minute.
"""

import argparse
import sys
import time
from pathlib import Path

from bayesfed.core.errors import InputError
from bayesfed.engine import device as devices
from bayesfed.engine import gpu_lease
from benchmarks.gpu import call, real, smoke, speed

MINUTES = {"smoke": 7.0, "speed": 9.0, "real": 9.0}
AROUND = 10  # seconds of a call for loading torch before its parts, and for the tar behind them


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
    sub.add_argument(
        "--plan", type=Path, default=Path("results/paper/plan/plan.json"), help="default: that of config/paper.yaml"
    )
    sub.add_argument("--jobs", type=int, default=1, help="trainings at once; default: 1")
    precisions = ["auto", *devices.PRECISIONS]
    sub.add_argument("--precision", choices=precisions, default="auto", help="of all trainings; default: the device's")
    sub = commands.add_parser("pack")
    sub.add_argument("names", nargs="+", metavar="NAME")
    sub.add_argument("--data", type=Path, default=Path("data"))
    sub.add_argument("--into", type=Path, required=True)
    sub.add_argument("--mib", type=int, default=50, help="of a part at most; default: 50")
    sub = commands.add_parser("unpack")
    sub.add_argument("part", type=Path)
    sub.add_argument("--into", type=Path, required=True)
    return main


def measure(args: argparse.Namespace) -> int:
    """One of the three calls; gives 1 where anything failed or was cut short."""
    if args.device == "cuda" and not gpu_lease.visible_devices():
        raise InputError("--device cuda: this machine has no usable GPU; --device cpu --small tries the call")
    until = time.monotonic() + 60 * args.minutes - AROUND
    scale = call.SMALL if args.small else call.FULL
    task = call.Task(args.command, args.out, args.device, scale, args.data, until)
    parts = {
        "smoke": lambda: smoke.parts(task),
        "speed": lambda: speed.parts(task),
        "real": lambda: real.parts(args.plan, args.jobs, args.precision),
    }[args.command]()
    for name in args.parts or []:
        if not any(part.name.startswith(name) for part in parts):
            raise InputError(
                f"--parts {name}: no part of {args.command} begins so; it has {', '.join(part.name for part in parts)}"
            )
    chosen = [part for part in parts if part.name.startswith(tuple(args.parts or [""]))]
    return min(1, call.run(task, chosen))


def main() -> int:
    """Run the command line; gives the exit code."""
    args = parser().parse_args()
    try:
        if args.command in ("pack", "unpack"):
            from benchmarks.gpu import parcel  # needs pillow, the calls do not

        if args.command == "pack":
            print(*parcel.pack(args.names, args.data, args.into, args.mib), sep="\n")
        elif args.command == "unpack":
            print(parcel.unpack(args.part, args.into))
        else:
            return measure(args)
    except InputError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
