"""Our own contender: whole rounds of the engine on a CPU, in the precision that the command line names."""

import sys
from collections.abc import Callable
from pathlib import Path

from workloads import Workload, serve

from bayesfed.core import plugins
from bayesfed.data.catalogue import source
from bayesfed.data.schemes import divide
from bayesfed.data.store import Dataset
from bayesfed.engine import device as devices
from bayesfed.engine.executors import DEFAULT
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.runs import run_file

TESTED = 10  # images at least, where the peer tests nothing


def build(of: Workload) -> Callable[[], None]:
    """Return what does a round."""
    folder = str(Path(__file__).parent / "plugins")
    plugins.use(folder)
    named = source("cifar10" if of.channels == 3 else "mnist")
    train, test = of.pixels(of.clients * of.images_each, 2), of.pixels(of.test or TESTED, 1)
    run = run_file.resolve(
        {
            "dataset": named.name, "plugins": folder, "method": {"name": "fedavg", "lr": of.lr, "momentum": 0.0},
            "models": {"global": of.network}, "rounds": 10**6, "local_epochs": of.epochs, "batch_size": of.batch, "seed": 0,
            "partition": {"scheme": "iid", "clients": of.clients, "images_each": of.images_each, "server": 0},
            "participation": of.per_round / of.clients, "images": {"prepare": "none"},
        }
    )  # fmt: skip
    shares = divide(train[1], test[1], run.partition, 0)
    compute = devices.configure("cpu", sys.argv[2])
    trainer = Trainer(Federation(run, [Dataset(named, *train, *test)], shares, compute), DEFAULT["cpu"])
    progress = begin(trainer.federation)

    def play() -> None:
        nonlocal progress
        progress = trainer.play(progress)

    return play


serve(build)
