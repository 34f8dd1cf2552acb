"""Any module is a network: the same function, gradient and statistics as the module itself, in any thread."""

import copy
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.networks import MODULES, Residual
from torch import Tensor, nn
from torch.testing import assert_close

from bayesfed.core.errors import InputError
from bayesfed.models.drawing import Drawing
from bayesfed.models.module import ModuleNetwork

SHAPE = (10, 3, 32)
OF = (10, (3, 32, 32))


def network(name: str) -> ModuleNetwork:
    return ModuleNetwork(name, MODULES[name], *OF)


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
    of = ModuleNetwork("called", lambda *_: Called(named), *OF)
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

    assert [key for key, part in scaled(ModuleNetwork("frozen", build, *OF)).items() if part.any()] == ["1.bias"]


def scaled(of: ModuleNetwork) -> dict[str, np.ndarray]:
    """The parts of the mask by parameter."""
    return dict(zip(of.named_shapes, np.split(of.scaling, np.cumsum(of.sizes)[:-1]), strict=True))


def test_frozen_parameters_and_still_buffers_are_constants() -> None:
    def build(classes: int, channels: int, size: int) -> nn.Module:
        module = Residual(classes, channels, size)
        module.first.requires_grad_(False)
        return module

    of = ModuleNetwork("frozen", build, *OF)
    assert of.parameters == network("residual").parameters - 3 * 6 * 9
    theta, statistics, x = start(of)
    with torch.no_grad():
        found = of.logits(theta, x, statistics, generator())
        ordinary = of.module(theta, statistics)(x.float())
    torch.testing.assert_close(found.float(), ordinary, rtol=1e-5, atol=1e-5)


def test_resnet_18() -> None:
    from torchvision.models import resnet18  # which takes a second

    of = ModuleNetwork("resnet18", lambda classes, channels, size: resnet18(num_classes=classes), *OF)
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

    of = ModuleNetwork("w", lambda *_: Watching(nn.Flatten(), nn.Linear(784, 10)), 10, (1, 28, 28))
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
        of = ModuleNetwork(
            "w", lambda *_, n=channels: Watching(nn.Flatten(), nn.Linear(784 * n, 10)), 10, (channels, 28, 28)
        )
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
        ModuleNetwork("bad", lambda *_: Noisy(NOISES[noise]), *OF)


@pytest.mark.parametrize("noise", NOISES)
def test_refuses_what_draws_elsewhere_in_training(noise: str) -> None:
    """From the node's generator it may."""

    def build(*_: int) -> nn.Module:
        return Noisy(NOISES[noise], training=True)

    if noise in ("dropout", "torch"):
        assert ModuleNetwork("good", build, *OF).random
    else:
        what = "gives other logits" if noise == "own" else "draws random numbers from a generator"
        with pytest.raises(InputError, match=f"^model 'bad'.*: in training it {what}"):
            ModuleNetwork("bad", build, *OF)


@pytest.mark.parametrize("noise", ["python", "numpy", "own"])
def test_refuses_weights_that_no_seed_of_torch_sets(noise: str) -> None:
    def build(*_: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
        module[1].bias.data = NOISES[noise](module[1].bias.data)
        return module

    hint = "initialise by torch.nn.init, or torch.randn and its like"
    with pytest.raises(InputError, match=f"^model 'bad'.*: built again .* seed of torch, '1.bias' has other .*{hint}$"):
        ModuleNetwork("bad", build, *OF)


@pytest.mark.parametrize(
    ("layer", "drawn"),
    [(lambda: nn.AlphaDropout(), "alpha_dropout"), (lambda: nn.RReLU(), "rrelu"), (lambda: Gumbel(), "gumbel_softmax")],
)
def test_what_draws_from_no_generator_of_a_node_is_named(layer: Callable[[], nn.Module], drawn: str) -> None:
    with pytest.raises(
        InputError,
        match=rf"in training it draws .* that is not its node's \(by \w*{drawn}\w*, which takes no other\); draw in",
    ):
        ModuleNetwork("bad", lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), layer()), *OF)


class Gumbel(nn.Module):
    """Gumbel noise in training."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gumbel_softmax(x).log() if self.training else x


class Attention(nn.Module):
    """Attention with dropout among the columns of an image, by a layer of an encoder, or by the attention layer alone, with
    its weights or fused."""

    def __init__(self, kind: str, dropout: float = 0.5) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(96, 8), nn.Linear(8, 10)
        encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.inner = encoder if kind == "encoder" else nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.permute(0, 2, 1, 3).flatten(2))
        x = self.inner(x) if self.kind == "encoder" else self.inner(x, x, x, need_weights=self.kind == "weights")[0]
        return self.last(x.mean(1))


@pytest.mark.parametrize("kind", ["encoder", "weights", "fused"])
def test_attention_draws_from_the_generator_alone(kind: str) -> None:
    """Without dropout it is the module's own, gradient included; with it, another seed drops otherwise."""
    of = ModuleNetwork("attention", lambda *_: Attention(kind), *OF)
    assert (of.random, of.batchwise) == (True, False)
    theta, statistics, x = start(of)
    theta.requires_grad_()
    torch.manual_seed(0)
    first = of.logits(theta, x, statistics, generator(1))
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(0).get_state())
    assert torch.equal(of.logits(theta, x, statistics, generator(1)), first)
    assert not torch.equal(of.logits(theta, x, statistics, generator(2)), first)
    still = ModuleNetwork("still", lambda *_: Attention(kind, dropout=1e-9), *OF)
    module = own(still, theta.detach()).train()
    ours, theirs = still.logits(theta, x, statistics, generator(1)), module(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    (g,) = torch.autograd.grad(ours.square().sum(), theta)
    expected = torch.autograd.grad(theirs.square().sum(), list(module.parameters()))
    torch.testing.assert_close(g, torch.cat([part.flatten() for part in expected]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "given",
    [
        {}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.rand(5, 7, generator=generator(1)) < 0.7},
        {"attn_mask": torch.randn(3, 1, 5, 7, generator=generator(1), dtype=torch.float64)}, {"enable_gqa": True},
    ],
    ids=str,
)  # fmt: skip
def test_attention_with_dropout_is_torchs_own(given: dict[str, object]) -> None:
    """To the last digits where next to nothing is dropped; where half is, in the mean."""
    q, k, v = (torch.randn(3, 4, n, 6, generator=generator(n), dtype=torch.float64) for n in (5, 7, 8))
    k, v = (k[:, :2], v[:, :2, :7]) if "enable_gqa" in given else (k, v[:, :, :7])
    expected = F.scaled_dot_product_attention(q, k, v, **given)  # type: ignore[arg-type]
    with Drawing(generator()):
        torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, **given), expected)
        many = [F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **given) for _ in range(2000)]
    assert float((torch.stack(many).mean(0) - expected).abs().max()) < 0.2
    assert not torch.equal(many[0], many[1])


class Head(nn.Module):
    """A linear layer and what is done with its logits, in evaluation and in training."""

    def __init__(self, *then: Callable[[Tensor], Tensor], classes: int = 10) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(3072, classes), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then[self.training](self.linear(x.flatten(1)))


def as_it_is(x: Tensor) -> Tensor:
    return x


def probabilities(x: Tensor) -> Tensor:
    return x.softmax(-1)


def log_probabilities(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


def of_two(x: Tensor) -> Tensor:
    first = x[:, :1].sigmoid()
    return torch.cat([first, 1 - first], 1)


@pytest.mark.parametrize(
    ("then", "classes", "told"),
    [
        ((probabilities, probabilities), 10, "evaluation"),
        ((probabilities, as_it_is), 10, "evaluation"),
        ((as_it_is, probabilities), 10, "training"),
        ((log_probabilities, probabilities), 10, "training"),
        ((lambda x: x.softmax(-1).clamp(1e-4, 1), as_it_is), 10, "evaluation"),
        ((of_two, of_two), 2, "evaluation"),
        ((as_it_is, as_it_is), 10, ""),
        ((log_probabilities, log_probabilities), 10, ""),
        ((torch.sigmoid, torch.sigmoid), 10, ""),
        ((torch.relu, torch.relu), 2, ""),
        ((lambda x: 0 * x + 0.1 + x.relu() * 1e-3, lambda x: 0.1 + x * 0.01), 10, ""),
    ],
)
def test_probabilities_are_told_from_logits(
    then: tuple[Callable[[Tensor], Tensor], ...], classes: int, told: str
) -> None:
    of = ModuleNetwork("head", lambda *_: Head(*then, classes=classes), classes, (3, 32, 32))
    assert of.probabilities == told


def test_logits_that_happen_to_be_of_sum_one_are_none() -> None:
    """As of a last layer that begins at zero, with the classes' shares for a bias."""

    def build(classes: int, *_: int) -> nn.Module:
        module = nn.Linear(3072, classes)
        nn.init.zeros_(module.weight)
        nn.init.constant_(module.bias, 1 / classes)
        return nn.Sequential(nn.Flatten(), module)

    assert ModuleNetwork("shares", build, *OF).probabilities == ""


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ((lambda x: x[:, :, None].squeeze(), as_it_is), r"for a batch of 1 in evaluation, expected .*, found \(10,\) for 1 image$"),
        ((as_it_is, lambda x: x[:, :, None].squeeze()), r"for a batch of 1 in training, expected logits .*, found \(10,\)"),
        ((lambda x: x / x.mean(0).reshape(x.shape[1] if len(x) > 1 else 3), as_it_is), "for a batch of 1 in evaluation, RuntimeError: shape"),
        ((as_it_is, lambda x: x if len(x) != 2 else x[:1]), r"for a batch of 2 in training, expected .*, found \(1, 10\)"),
        ((lambda x: x.double(), as_it_is), "its logits are float64; keep to float32"),
        ((as_it_is, lambda x: x.double()), "for a batch of 1 in training, its logits are float64"),
    ],
)  # fmt: skip
def test_other_batches_are_tried(then: tuple[Callable[[Tensor], Tensor], ...], message: str) -> None:
    with pytest.raises(InputError, match=f"^model 'bad', built for images of 3x32x32: .*{message}"):
        ModuleNetwork("bad", lambda *_: Head(*then), *OF)


def test_the_batch_of_a_run_is_tried() -> None:
    of = ModuleNetwork("bad", lambda *_: Head(as_it_is, lambda x: x[: 1 if len(x) == 20 else len(x)]), *OF)
    of.try_batch(19)
    with pytest.raises(InputError, match="for a batch of 20 in training, expected logits"):
        of.try_batch(20)


def test_what_normalises_a_batch_is_not_trained_on_one_image() -> None:
    """Nothing of the engine does."""
    layers = (nn.Conv2d(3, 4, 32), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 10))
    assert ModuleNetwork("batch", lambda *_: nn.Sequential(*copy.deepcopy(layers)), *OF).batchwise


def test_parameters_in_double_precision_are_refused() -> None:
    with pytest.raises(InputError, match=r"its parameter 'linear\.weight' is float64; keep to float32: leave double"):
        ModuleNetwork("bad", lambda *_: Head(as_it_is, as_it_is).double(), *OF)


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
        ModuleNetwork("bad", build, *OF)  # type: ignore[arg-type]
