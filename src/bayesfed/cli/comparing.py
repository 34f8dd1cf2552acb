"""The command that compares methods on common grounds."""

from __future__ import annotations

import argparse
import sys

from bayesfed.cli import arguments
from bayesfed.cli.arguments import Commands, name, path


def add(commands: Commands) -> None:
    """Add `bayesfed compare`."""
    text = (
        "Train what is missing of some methods on a ground, and set it beside the stored runs of all others. "
        "It shows the tables, and writes them to results/compare/ and reports/compare.html."
    )
    shown = """
        bayesfed compare own_feddyn --plugins examples/own_plugins --ground mnist-harsh
        bayesfed compare fedprox:mu=0.01/0.1,lr=0.03/0.1 fedavg:lr=0.1 --seeds 2
        bayesfed compare fola --dataset digits --model mlp --alpha 0.5 --rounds 20
    """
    sub = arguments.command(commands, "compare", compare, text, shown)
    sub.add_argument(
        "methods",
        nargs="+",
        metavar="METHOD",
        help="method, or `name:key=value,...` for options of your choice; of `key=value/value` the best on validation images",
    )
    sub.add_argument(
        "--ground",
        nargs="+",
        default=[],
        metavar="NAME",
        help="ground of the comparison (docs/guides/compare.md); default: mnist-harsh",
    )
    sub.add_argument("--seeds", type=int, default=5, metavar="N", help="number of seeds, from 0; default: 5")
    arguments.plugins(sub)
    own = "of a ground of your own, on which all methods are trained"
    sub.add_argument("--dataset", type=name, metavar="NAME", help=f"dataset {own}; default: none")
    sub.add_argument(
        "--partition",
        type=name,
        metavar="NAME",
        help="its partition, `name` or `name:key=value,...`, as in `given` for clients that the data name; default: Dirichlet",
    )
    sub.add_argument(
        "--alpha", type=float, metavar="A", help="its Dirichlet alpha; default: 0.1, none with --partition"
    )
    sub.add_argument("--clients", type=int, metavar="N", help="its number of clients; default: 10")
    sub.add_argument(
        "--model",
        type=name,
        metavar="NAME",
        help="its network; default: that of the dataset's ground, where it has one",
    )
    sub.add_argument("--rounds", type=int, metavar="N", help="its number of rounds; default: 50")
    sub.add_argument(
        "--against",
        nargs="+",
        default=[],
        type=name,
        metavar="NAME",
        help="methods to train there beside FedAvg and yours; default: all that can run there",
    )
    sub.add_argument("--cores", default="all", metavar="N", help="number of cores; default: all")
    sub.add_argument("--gpus", type=int, metavar="N", help="number of runs on GPUs at once; default: by the cores")
    sub.add_argument("--profile", type=path, metavar="DIR", help="profile of Snakemake, as for Slurm; default: none")


def compare(args: argparse.Namespace) -> None:
    """Run `bayesfed compare`."""
    from bayesfed.report.compare import TrainingFailed, compare

    keys = (
        "ground",
        "seeds",
        "plugins",
        "dataset",
        "partition",
        "alpha",
        "clients",
        "model",
        "rounds",
        "against",
        "cores",
        "gpus",
        "profile",
    )
    try:
        found = compare(*args.methods, **{key: getattr(args, key) for key in keys})
    except TrainingFailed as error:
        sys.exit(f"bayesfed: {error}")
    except KeyboardInterrupt:
        sys.exit("bayesfed: interrupted; the same command goes on")
    print(found)
    print("\n" + "\n".join(map(str, found.files)))
