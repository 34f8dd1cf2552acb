"""FOLA's Figure 10a: the first 1000 parameters of a client's precision by the full Laplace approximation, after one round.

    python -m analyses.fola.precision_matrix [--data data] [--out docs/images/fola-figure10a.png]

Trains the first of two clients of five classes each for one epoch of MNIST, seed 0, as config/papers/fola.yaml has it, and
draws Sigma_1^-1 less its minimum and divided by its maximum, as in the paper. Says how much of it lies off the diagonal.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from bayesfed.data import partition, store
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import Job, run_plainly
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.runs import run_file

SHOWN = 1000
RUN = {
    "dataset": "mnist",
    "partition": {"scheme": "classes_apart", "clients": 2},
    "method": {"name": "fola_full", "form": "paper"},
    "models": {"global": "softmax"},
    "rounds": 10,
    "local_epochs": 1,
    "batch_size": 200,
    "seed": 0,
    "images": {"prepare": "none"},
}


def precision(data: Path) -> torch.Tensor:
    """Sigma_1^-1 (P, P) after the first round."""
    run = run_file.resolve(RUN, data)
    cell = (run.datasets[0], run.partition, run.budget.seed, data)
    partition.build(*cell)
    images = store.load(run.datasets[0], data, run.images)
    of = Federation(run, [images], partition.load(*cell), Compute(torch.device("cpu")))
    server, client = of.node(SERVER, 0), of.node(0, 1, run.budget.local_epochs)
    client.state = of.method.start(client, of.method.init_server(server))
    run_plainly(of, Job(client, of.method.phases(client)))
    return of.method.finish(client)["omega"]


def draw(matrix: torch.Tensor, path: Path) -> None:
    made = Figure(figsize=(5.2, 4.4), layout="constrained")
    axes = made.subplots()
    image = axes.imshow(matrix, cmap="viridis", interpolation="nearest")
    axes.set_title(f"$\\Sigma_1^{{-1}}$, the first {SHOWN} of 7850 parameters", fontsize=10)
    axes.set_xlabel("784 pixels of class 0, then of class 1")
    made.colorbar(image, shrink=0.85)
    made.savefig(path, dpi=160, metadata={"Software": None})


def main() -> None:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", type=Path, default=Path("data"))
    found.add_argument("--out", type=Path, default=Path("docs/images/fola-figure10a.png"))
    args = found.parse_args()
    omega = precision(args.data)[:SHOWN, :SHOWN].double()
    beside = 1 - omega.diagonal().square().sum() / omega.square().sum()
    low = omega - omega.min()
    draw(low / low.max(), args.out)
    print(f"{args.out}: {100 * beside:.1f} % of the squares of the entries are off the diagonal")


if __name__ == "__main__":
    main()
