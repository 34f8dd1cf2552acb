"""Runs of a few rounds in one process, and how far two of them lie apart."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from bayesfed import methods
from bayesfed.data import store
from bayesfed.engine import device as devices
from bayesfed.engine.device import Compute
from bayesfed.engine.executors import Executor
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from benchmarks import common


def compute(device: str, precision: str) -> Compute:
    """Return device and precision of a run; fp64 too, for comparisons."""
    if precision == "fp64":
        devices.configure(device, "fp32")
        return Compute(torch.device(device), torch.float64, torch.float64)
    return devices.configure(device, precision)


def small(method: str, where: Compute, images: tuple[int, int], network: str | None = None) -> Federation:
    """Four mixed clients with uneven shards, stragglers, and batches that do not divide them; `network`: the one that
    travels."""
    # BNFed is for networks of one hidden layer, the full Hessian for few parameters and images as they are. pFedBayes' noise
    # makes of a deep network one whose training blows up rounding, ten million times a round.
    shallow = method in ("bnfed", "pfedbayes")
    networks: dict[str, Any] = {"global": "pfedbayes_mlp" if shallow else "cnn2"}
    side, prepared = 32, dict[str, Any]()
    if method in ("fola_full", "fola_errors"):
        networks, side = {"global": "softmax"}, 4
        prepared = {"images": {"prepare": {"resize": side}, "augment": "none"}}
    if methods.get(method).local_models:
        networks["local"] = ["mlp", "lenet5", "cnn1", "cnn2"]
    networks |= dict.fromkeys(methods.get(method).networks, "cnn1")
    networks |= {"global": network} if network else {}
    options = {"name": method} | common.few_steps(method, server=images[0] // 20)
    return common.federation(
        options, networks, common.random_images(*images, side=side), where, clients=4, alpha=0.3, stragglers=0.5,
        local_epochs=2, batch_size=min(100, images[0] // 4), rounds=2, **prepared,
    )  # fmt: skip


def paper_run(method: str, model: str, alpha: float, images: store.Dataset, where: Compute, epochs: int) -> Federation:
    """Ten clients of the paper on all images."""
    options: dict[str, Any] = {"name": method}
    if method == "abavg":
        options["validation_images"] = len(images.train_labels) // 25  # of the paper's 50 000 its default
    return common.federation(options, common.models(model, method), images, where, alpha=alpha, local_epochs=epochs)


CASES = (("hbfl", "mixed"), ("fedavg", "cnn2"))  # method and networks of the paper's rounds


def play(of: Federation, executor: str | Executor, rounds: int, check: Callable[[], None]) -> Progress:
    """Play a run of so many rounds."""
    of.check = check
    trainer, progress = Trainer(of, executor if isinstance(executor, str) else executor.name), begin(of)
    if not isinstance(executor, str):
        trainer.executor = executor
    for _ in range(rounds):
        progress = trainer.play(progress)
    return progress


def tensors(progress: Progress) -> dict[str, Tensor]:
    """Return all of a progress, on the host."""
    return {name: tensor.cpu() for name, tensor in progress.tensors().items()}


def same(found: Progress, expected: Progress) -> bool:
    """Return whether two runs are equal to the last bit, in tensors and metrics."""
    theirs, ours = tensors(found), tensors(expected)
    equal = all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())
    return theirs.keys() == ours.keys() and equal and found.history == expected.history


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest distance of two tensors relative to the norm of the expected one; nan where anything is nan."""
    apart = [
        (found[name].double() - tensor.double()).norm() / tensor.double().norm().clamp(min=1e-12)
        for name, tensor in expected.items()
    ]
    return float(torch.stack(apart).max())  # Python's max([0.1, nan]) would be 0.1


def profiler(device: str) -> torch.autograd.profiler.profile:
    """Record kernels, or on a CPU operators. torch.profiler is this too, but takes seconds to load torch's compiler."""
    on_gpu = device == "cuda"
    return torch.autograd.profiler.profile(use_kineto=True, use_cpu=not on_gpu, use_device=device if on_gpu else None)


def events(recorded: Iterable[Any], device: str) -> list[Any]:
    """Return what the device did itself, without the calls of CUDA's own functions on the host."""
    wanted = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    return [one for one in recorded if one.device_type == wanted]
