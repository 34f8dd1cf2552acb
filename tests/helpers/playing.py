"""A few rounds of a small run in memory, for tests of methods and executors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesfed import methods
from bayesfed.data import partition, store
from bayesfed.data.source import Source
from bayesfed.engine import device as devices
from bayesfed.engine.batches import Mixer
from bayesfed.engine.device import Compute
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.runs import run_file

FEW = (250, 60)  # training and test images
ALL_STEPS = ("hbfl", "fml", "fedavg", "fola", "fedppd_distill", "pfedbayes", "toy_phases")  # have all kinds of steps
FULL_HESSIAN = ("fola_full", "fola_errors")  # methods for a softmax regression alone, on images as small as they are


def few_of(whole: Source) -> Source:
    """The first images of a split of digits, under a name of their own, which no library has."""
    name, (train, test) = whole.name.replace("digits", "few"), FEW
    return replace(
        whole, name=name, train=train, test=test, fingerprints={"train": "few", "test": whole.name}, format="idx"
    )


def convolutions(name: str) -> dict[str, Any]:
    """Changes of a run file: convolutional networks for a method, but for those whose networks have none."""
    if name in (*FULL_HESSIAN, "bnfed"):  # BNFed is for networks of one hidden layer.
        return {}
    method = methods.get(name)
    local = {"local": ["mlp", "cnn1", "lenet5", "lenet5"]} if method.local_models else {}
    return {"models": {"global": "lenet5"} | local | dict.fromkeys(method.networks, "cnn1")}


def federation(
    mapping: dict[str, Any], data_dir: Path, cast: torch.dtype = torch.float64, device: str = "cpu"
) -> Federation:
    """The federation of a run file; forward and backward passes in `cast`."""
    run = run_file.resolve(mapping)
    shares = None
    if not run.multi_task:
        partition.build(run.datasets[0], run.partition, run.budget.seed, data_dir)
        shares = partition.load(run.datasets[0], run.partition, run.budget.seed, data_dir)
    datasets = [store.load(name, data_dir, run.images) for name in run.datasets]
    states = torch.float64 if cast == torch.float64 else torch.float32
    devices.configure(device, "fp32")  # no TF32, and algorithms that repeat themselves
    foreign = [store.load_foreign(name, data_dir, run.images, datasets[0].source) for name in run.tasks.foreign]
    return Federation(run, datasets, shares, Compute(torch.device(device), states, cast), foreign)


def play(of: Federation, rounds: int, progress: Progress | None = None, executor: str = "eager") -> Progress:
    """So many more rounds."""
    trainer, progress = Trainer(of, executor), progress or begin(of)
    for _ in range(rounds):
        progress = trainer.play(progress)
    return progress


def batches(of: Federation, client: int, round: int, many: int) -> list[tuple[Tensor, Tensor]]:
    """So many mini-batches of a client's round, as every executor has them."""
    from bayesfed.methods.node import Phase  # not of the module: what a round may not change is looked for from there

    phase = Phase(of.method.step, batches=many)
    mixer, found = Mixer(of, of.node(client, round), [phase]), []
    for chunk in mixer.phase(of.shards[client], phase):
        found += list(zip(chunk.x.split(mixer.size), chunk.y.split(mixer.size), strict=True))
    return found


def tensors(progress: Progress) -> dict[str, Tensor]:
    """Every tensor by owner (server, or a client's number) and name, on the host."""
    return {name.removeprefix("client/"): tensor.cpu() for name, tensor in progress.tensors().items()}
