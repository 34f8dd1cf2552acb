"""The benchmarks' own arithmetic, and README's numbers, which must be theirs. No times are asserted."""

from pathlib import Path

import pytest
import torch

from bayesfed import methods
from bayesfed.engine.federation import Compute
from bayesfed.models import build
from benchmarks import gpu, kernels, readme


def test_readme_shows_the_stored_tables() -> None:
    """After a benchmark: `python -m benchmarks.readme`."""
    stored = readme.README.read_text()
    assert readme.BEGIN in stored
    assert readme.with_tables(stored) == stored


def test_operations_of_a_network_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    aten = torch.ops.aten
    with_relu = {aten._addmm_activation: flop_registry[aten.addmm].__wrapped__}

    for name in ("cnn2", "lenet5", "cnn1", "mlp"):
        network = build(name, 10, 3, 32)
        counter = FlopCounterMode(display=False, custom_mapping=with_relu)
        with counter:
            network(torch.zeros(network.parameters), torch.zeros(1, 3, 32, 32))
        assert gpu.operations(network) == counter.get_total_flops()


def test_kernels_are_operators_that_are_no_views() -> None:
    images = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = torch.zeros(5, 3, 3, 3, requires_grad=True), torch.zeros(5, requires_grad=True)
    with kernels.Counter() as forward:
        y = torch.conv2d(images, weight, bias)
    assert forward.kernels == 3  # the weights' copy, the convolution, the bias
    with kernels.Counter() as backward:
        torch.autograd.grad(y, (images, weight, bias), torch.zeros_like(y))
    assert backward.kernels == 1 + 4  # the zeros; the weights' copy and three gradients
    with kernels.Counter() as views:
        torch.zeros(4).view(2, 2).t()[0].detach()
    assert (views.kernels, views.random) == (1, 0)
    with kernels.Counter() as noise:
        torch.randn(3).add_(1)
    assert (noise.kernels, noise.random) == (2, 1)


def test_the_gpu_checks_hold_as_far_as_a_cpu_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script cannot be tried without a GPU; what it does there is tried here, with steps that are not recorded."""
    monkeypatch.setattr(methods, "names", lambda: ["fedavg"])
    monkeypatch.setattr(gpu, "SMALL", (200, 40))
    monkeypatch.setattr(gpu, "BOUNDS", {"fp64": 1e-9})
    monkeypatch.setattr(gpu, "compute", lambda precision: Compute(torch.device("cpu"), torch.float64, torch.float64))
    assert gpu.equivalence()["failed"] == []
    assert gpu.resume()["failed"] == []


def test_every_benchmark_is_one_of_make_bench_or_says_why_not() -> None:
    run = (Path(gpu.__file__).parent / "__main__.py").read_text()
    others = {"common", "__init__", "__main__", "gpu", "precision"}  # the last two take a GPU, or an hour
    for file in Path(gpu.__file__).parent.glob("*.py"):
        assert file.stem in others or f'"{file.stem}"' in run
