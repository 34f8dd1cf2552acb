"""Any module is a network: the same function, gradient and statistics as the module itself, in any thread."""

import copy
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import MODULES, Residual
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import resnet18

from bayesfed.errors import InputError
from bayesfed.models.module import Drawing, ModuleNetwork

SHAPE = (10, 3, 32)


def network(name: str) -> ModuleNetwork:
    return ModuleNetwork(name, MODULES[name], *SHAPE)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def start(of: ModuleNetwork, dtype: torch.dtype = torch.float64) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Parameters, statistics and eight images."""
    theta = torch.from_numpy(of.initial(np.random.default_rng(0))).to(dtype)
    statistics = {
        name: value.to(dtype) if value.is_floating_point() else value.clone() for name, value in of.statistics.items()
    }
    return theta, statistics, torch.randn(8, *of.shape, generator=generator(3)).to(dtype)


def own(of: ModuleNetwork, theta: Tensor) -> nn.Module:
    """The module with the same parameters, in the network's precision."""
    module = of.module(theta, of.statistics).to(theta.dtype)
    torch.nn.utils.vector_to_parameters(theta, module.parameters())  # `module` rounds to fp32
    return module


def test_gradients_and_statistics_are_the_modules_own() -> None:
    of = network("residual")
    theta, statistics, x = start(of)
    module, y = own(of, theta).train(), torch.arange(8)
    assert (of.parameters, of.batchwise, of.random) == (sum(p.numel() for p in module.parameters()), True, True)
    assert set(statistics) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    theta.requires_grad_()
    for _ in range(2):
        ours = of.logits(theta, x, statistics, generator())
        with Drawing(generator()):
            theirs = module(x)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        (g,) = torch.autograd.grad(F.cross_entropy(ours, y), theta)
        expected = torch.autograd.grad(F.cross_entropy(theirs, y), list(module.parameters()))
        torch.testing.assert_close(g, torch.cat([part.flatten() for part in expected]), rtol=0, atol=1e-12)
    for name, value in module.named_buffers():
        if name in statistics:
            torch.testing.assert_close(statistics[name], value, rtol=0, atol=1e-12)
    with torch.no_grad():
        before = copy.deepcopy(statistics)
        torch.testing.assert_close(of.logits(theta, x, statistics, generator()), module.eval()(x), rtol=0, atol=1e-12)
        assert all(torch.equal(before[name], value) for name, value in statistics.items())


def test_dropout_draws_from_the_generator_alone() -> None:
    of = network("residual")
    theta, statistics, x = start(of)
    theta.requires_grad_()
    torch.manual_seed(0)
    first = of.logits(theta, x, dict(statistics), generator(1))
    torch.manual_seed(1)
    assert torch.equal(of.logits(theta, x, dict(statistics), generator(1)), first)
    assert not torch.equal(of.logits(theta, x, dict(statistics), generator(2)), first)


@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_dropout_keeps_the_mean_and_drops_together(whole: int) -> None:
    x = torch.ones(200, 5, 4, 4, 4)[..., : 4 if whole == 3 else 1].squeeze(-1)
    drop = [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d][whole]
    x = x[:, :, :, 0] if whole == 1 else x
    with Drawing(generator()):
        dropped = drop(x, 0.4)
        assert drop(x, 0.4, training=False) is x
        assert not drop(x, 1.0).any()
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert abs(float(dropped.mean()) - 1) < 0.1
    if whole:
        each = dropped.flatten(dropped.dim() - whole)
        assert torch.equal(each, each[..., :1].expand_as(each))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_do_not_meet_in_the_module(dtype: torch.dtype) -> None:
    """Many threads at once, each with parameters of its own, compute what they compute alone, to the bit."""
    of = network("residual")
    theta, statistics, x = start(of, torch.float32)

    def gradient(k: int) -> Tensor:
        mine, own = (theta * (1 + k / 8)).requires_grad_(), copy.deepcopy(statistics)
        for _ in range(5):
            g = torch.autograd.grad(of.logits(mine, x.to(dtype), own, generator(k)).square().sum(), mine)[0]
        return g

    alone = [gradient(k) for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(gradient, range(8)), alone, strict=True):
            assert torch.equal(found, expected)


def test_initialisation_is_the_modules_own_and_leaves_torchs_generator_alone() -> None:
    of = network("grouped")
    torch.manual_seed(7)
    first = of.initial(np.random.default_rng(5))
    drawn = torch.rand(())
    torch.manual_seed(7)
    assert torch.equal(torch.rand(()), drawn)
    seed = int(np.random.default_rng(5).integers(2**63))
    torch.manual_seed(seed)
    module = MODULES["grouped"](*SHAPE)
    module(torch.zeros(1, 3, 32, 32))
    np.testing.assert_array_equal(first, torch.cat([p.detach().flatten() for p in module.parameters()]).numpy())
    assert (of.batchwise, of.statistics, of.random) == (False, {}, True)


class Scaled(nn.Linear):
    """A layer that is given more than its input."""

    def forward(self, x: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        return scale * super().forward(x)


class Called(nn.Module):
    """Calls its last layer in a way of its own."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.last = nn.Linear(3072, 10) if named else Scaled(3072, 10)
        self.named = named

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(input=x) if self.named else self.last(x, 2.0)


@pytest.mark.parametrize("named", [True, False])
def test_the_last_layer_may_be_called_in_any_way(named: bool) -> None:
    of = ModuleNetwork("called", lambda *_: Called(named), *SHAPE)
    theta, statistics, images = start(of, torch.float32)
    logits = of.logits(theta, images.bfloat16(), statistics, generator())
    assert logits.dtype == torch.float32
    assert_close(logits, own(of, theta)(images.bfloat16().float()).detach(), rtol=1e-5, atol=1e-5)


def test_scales_and_shifts_of_normalisation_are_known() -> None:
    """One part of a module, and those of a module that is a normalisation itself; none of a frozen one."""
    of = network("residual")
    assert [key for key, part in scaled(of).items() if part.all()] == ["norm.weight", "norm.bias"]
    assert sum(int(part.sum()) for part in scaled(of).values()) == 12
    assert [key for key, part in scaled(network("grouped")).items() if part.any()] == ["1.weight", "1.bias"]

    def build(classes: int, channels: int, size: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.LayerNorm(channels * size**2), nn.Linear(channels * size**2, classes))
        module[1].weight.requires_grad_(False)
        return module

    assert [key for key, part in scaled(ModuleNetwork("frozen", build, *SHAPE)).items() if part.any()] == ["1.bias"]


def scaled(of: ModuleNetwork) -> dict[str, np.ndarray]:
    """The parts of the mask by parameter."""
    return dict(zip(of.shapes, np.split(of.scaling, np.cumsum(of.sizes)[:-1]), strict=True))


def test_frozen_parameters_and_still_buffers_are_constants() -> None:
    def build(classes: int, channels: int, size: int) -> nn.Module:
        module = Residual(classes, channels, size)
        module.first.requires_grad_(False)
        return module

    of = ModuleNetwork("frozen", build, *SHAPE)
    assert of.parameters == network("residual").parameters - 3 * 6 * 9
    theta, statistics, x = start(of)
    with torch.no_grad():
        found = of.logits(theta, x, statistics, generator())
        ordinary = of.module(theta, statistics)(x.float())
    torch.testing.assert_close(found.float(), ordinary, rtol=1e-5, atol=1e-5)


def test_resnet_18() -> None:
    of = ModuleNetwork("resnet18", lambda classes, channels, size: resnet18(num_classes=classes), *SHAPE)
    assert (of.parameters, of.batchwise) == (11_181_642, True)
    theta, statistics, x = start(of, torch.float32)
    theta.requires_grad_()
    logits = of.logits(theta, x, statistics, generator())
    assert logits.shape == (8, 10)
    assert torch.autograd.grad(logits.sum(), theta)[0].isfinite().all()


def test_grey_images_stay_channels_last() -> None:
    """Also those that were computed with, whose strides no longer tell."""
    seen: list[tuple[int, ...]] = []

    class Watching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.stride())
            return super().forward(x)

    of = ModuleNetwork("w", lambda *_: Watching(nn.Flatten(), nn.Linear(784, 10)), 10, 1, 28)
    theta, statistics, x = start(of)
    x = x.contiguous(memory_format=torch.channels_last)
    expected = own(of, theta)(x + 1)
    for images in (x + 1, (x + 1).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)):
        torch.testing.assert_close(of.logits(theta, images, statistics, generator()), expected)
        assert seen[-1] == (784, 1, 28, 1)


def test_images_lie_channels_first_where_a_gpu_wants_them_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesfed.models.module.layout_for", lambda device, dtype: torch.contiguous_format)
    seen: list[Tensor] = []

    class Watching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return super().forward(x)

    for channels in (1, 3):
        of = ModuleNetwork("w", lambda *_, n=channels: Watching(nn.Flatten(), nn.Linear(784 * n, 10)), 10, channels, 28)
        theta, statistics, _ = start(of)
        x = torch.rand(8, 28, 28, channels, dtype=torch.float64).permute(0, 3, 1, 2)
        expected = own(of, theta)(x)
        seen.clear()
        torch.testing.assert_close(of.logits(theta, x, statistics, generator()), expected)
        assert seen[-1].stride() == (784 * channels, 784, 28, 1)


class Rebinding(nn.Module):
    """Replaces a buffer where it should change it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3072, 10)
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x.flatten(1))
        self.mean = x.detach().mean(0) if self.training else self.mean
        return x


class Noisy(nn.Module):
    """Draws in every pass, or in those of training alone."""

    def __init__(self, noise: Callable[[Tensor], Tensor], training: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(3072, 10)
        self.noise, self.in_training_alone = noise, training

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x.flatten(1))
        return self.noise(x) if self.training or not self.in_training_alone else x


NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "torch": lambda x: x + torch.randn(1),
    "python": lambda x: x + random.random(),
    "numpy": lambda x: x + float(np.random.rand()),
    "rarely": lambda x: 2 * x if random.random() < 1e-9 else x,
    "own": lambda x: x + float(np.random.default_rng().random()),
}


@pytest.mark.parametrize("noise", NOISES)
def test_refuses_what_draws_in_evaluation(noise: str) -> None:
    hint = "draw in training only, by dropout of torch.nn, or torch.rand and its like"
    with pytest.raises(InputError, match=rf"^model 'bad'.*: in evaluation it [^\n]*; {hint}$"):
        ModuleNetwork("bad", lambda *_: Noisy(NOISES[noise]), *SHAPE)


@pytest.mark.parametrize("noise", NOISES)
def test_refuses_what_draws_elsewhere_in_training(noise: str) -> None:
    """From the node's generator it may."""

    def build(*_: int) -> nn.Module:
        return Noisy(NOISES[noise], training=True)

    if noise in ("dropout", "torch"):
        assert ModuleNetwork("good", build, *SHAPE).random
    else:
        what = "gives other logits" if noise == "own" else "draws random numbers from a generator"
        with pytest.raises(InputError, match=f"^model 'bad'.*: in training it {what}"):
            ModuleNetwork("bad", build, *SHAPE)


@pytest.mark.parametrize("noise", ["python", "numpy", "own"])
def test_refuses_weights_that_no_seed_of_torch_sets(noise: str) -> None:
    def build(*_: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
        module[1].bias.data = NOISES[noise](module[1].bias.data)
        return module

    hint = "initialise by torch.nn.init, or torch.randn and its like"
    with pytest.raises(InputError, match=f"^model 'bad'.*: built again .* seed of torch, '1.bias' has other .*{hint}$"):
        ModuleNetwork("bad", build, *SHAPE)


class Ungraded(nn.Sequential):
    """Runs without a gradient, whoever calls it."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3072, 10))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda *_: Rebinding(), "training replaces its buffer 'mean'; change it in place"),
        (
            lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), nn.AlphaDropout()),
            "in training it draws random numbers",
        ),
        (
            lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
            "built for images of 3x32x32: RuntimeError: mat1 and mat2",
        ),
        (lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(3072, 7)), r"shape \(images, 10\), found \(4, 7\)"),
        (lambda *_: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), r"expected logits|no parameters"),
        (lambda *_: Ungraded(), "in training its logits have no gradient; take torch.no_grad"),
    ],
)
def test_refuses_what_cannot_be_trained(build: object, message: str) -> None:
    with pytest.raises(InputError, match=f"model 'bad'.*{message}"):
        ModuleNetwork("bad", build, *SHAPE)  # type: ignore[arg-type]
