"""The papers' networks: sizes, the function they compute, and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bayesfed.core.errors import InputError
from bayesfed.engine.device import configure
from bayesfed.models import NETWORKS, build
from bayesfed.models import network as network_module
from bayesfed.models.network import Chain, Conv, Linear, Network, gradient, smallest_size, with_squares


@pytest.mark.parametrize(
    ("name", "parameters"), [("mlp", 656_810), ("lenet5", 62_006), ("cnn1", 52_202), ("cnn2", 122_570)]
)
def test_parameter_counts_of_the_papers(name: str, parameters: int) -> None:
    assert build(name, classes=10, channels=3, size=32).parameters == parameters


MODULES = (
    "fedppd",
    "pfedbayes_vgg",
    "resnet",
    "sigmoid",
    "zenke",
)  # how the names of torch modules begin, which take seconds to build
CHAINS = [name for name in NETWORKS if not name.startswith(MODULES)]


def layers_of(name: str, classes: int, channels: int, size: int) -> tuple[Conv | Linear, ...]:
    """The layers of a network of ours."""
    made = NETWORKS[name](classes, channels, size)
    assert isinstance(made, Chain | tuple)
    return made.layers if isinstance(made, Chain) else made


@pytest.mark.parametrize(
    ("name", "channels", "size", "parameters"),
    [("fola_cnn", 3, 32, 878_538), ("fola_mlp", 1, 28, 545_810), ("softmax", 1, 28, 7850)],
)
def test_parameter_counts_of_fola(name: str, channels: int, size: int, parameters: int) -> None:
    assert build(name, classes=10, channels=channels, size=size).parameters == parameters


def as_module(name: str, classes: int, channels: int, size: int) -> nn.Sequential:
    """The same network from torch's layers, with ReLU before pooling as the papers have it."""
    parts: list[nn.Module] = []
    layers = layers_of(name, classes, channels, size)
    width, flat = channels, False
    for depth, layer in enumerate(layers):
        if isinstance(layer, Conv):
            parts += [nn.Conv2d(width, layer.out, layer.kernel), nn.ReLU()]
            parts += [nn.MaxPool2d(layer.pool)] if layer.pool > 1 else []
        else:
            if not flat:
                parts.append(nn.Flatten())
                with torch.no_grad():
                    width = nn.Sequential(*parts)(torch.zeros(1, channels, size, size)).shape[1]
                flat = True
            parts += [nn.Linear(width, layer.out)] + ([nn.ReLU()] if depth < len(layers) - 1 else [])
        width = layer.out
    return nn.Sequential(*parts)


@pytest.mark.parametrize(
    "on_gpu", [None, torch.channels_last, torch.contiguous_format], ids=["CPU", "channels last", "channels first"]
)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    ("classes", "channels", "size", "count"),
    [(100, 1, 32, 3), (7, 3, 40, 5)],
)
def test_computes_what_torch_modules_compute(
    name: str,
    classes: int,
    channels: int,
    size: int,
    count: int,
    on_gpu: torch.memory_format | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_module, "layout_for", lambda device, dtype: on_gpu)
    monkeypatch.setattr(network_module, "FEW", 4)  # 3 images are few, 5 are not
    torch.manual_seed(0)
    module = as_module(name, classes, channels, size).double()
    theta = torch.cat([p.detach().flatten() for p in module.parameters()]).requires_grad_()
    network = build(name, classes, channels, size)
    assert network.parameters == theta.numel()
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(count, channels, size, size, dtype=torch.float64)
        x = x.contiguous(memory_format=layout).requires_grad_()
        ours, theirs = network(theta, x), module(x)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        with torch.no_grad():
            assert torch.equal(network(theta, x), ours)
        g, g_x = torch.autograd.grad(ours.square().sum(), (theta, x))
        *expected, expected_x = torch.autograd.grad(theirs.square().sum(), (*module.parameters(), x))
        torch.testing.assert_close(g, torch.cat([part.flatten() for part in expected]), rtol=0, atol=1e-12)
        torch.testing.assert_close(g_x, expected_x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_of_a_gpu_in_plain_fp32_have_channels_first(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grey images too, whose strides may say either."""
    monkeypatch.setattr(network_module, "layout_for", lambda device, dtype: network_module.gpu_layout(dtype))
    monkeypatch.setattr(network_module.convolution, "OWN_WAYS", set())
    configure("cpu", "fp32")  # without TF32, which torch allows unless told not to
    network, seen = build("cnn2", 10, channels, 32), []
    forward = network_module.convolution.forward

    def noted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(x)
        return forward(x, *rest)

    monkeypatch.setattr(network_module.convolution, "forward", noted)
    x = torch.randn(2, 32, 32, channels).permute(0, 3, 1, 2)  # as the data pipeline gives them
    network(torch.randn(network.parameters), x)
    assert [one.stride() for one in seen] == [one.contiguous().flatten(1).view(one.shape).stride() for one in seen]
    seen.clear()
    network(torch.randn(network.parameters), x.bfloat16())
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in seen)


@pytest.mark.parametrize("name", CHAINS)
def test_gradient_without_autograds_engine_is_autograds(name: str) -> None:
    torch.manual_seed(0)
    network = build(name, 10, 3, 32)
    theta = torch.randn(network.parameters, dtype=torch.float64).mul_(0.1).requires_grad_()
    logits = network(theta, torch.randn(5, 3, 32, 32, dtype=torch.float64))
    at = torch.randn_like(logits)
    ours = gradient(logits, theta, at)
    (theirs,) = torch.autograd.grad(logits, theta, at)
    assert ours is not None
    assert not ours.requires_grad
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_gradient_of_anything_but_bare_logits_is_left_to_autograd() -> None:
    network = build("mlp", 10, 1, 32)
    theta, other = torch.ones(2, network.parameters).unbind()
    theta.requires_grad_()
    x = torch.ones(2, 1, 32, 32)
    logits = network(theta, x)
    at = torch.ones_like(logits)
    assert gradient(logits, theta, at) is not None
    assert gradient(logits, other.requires_grad_(), at) is None
    assert gradient(logits / 2, theta, at) is None
    assert gradient(network(theta * 2, x), theta, at) is None
    assert gradient(network(theta, x.requires_grad_()), theta, at) is None
    assert gradient(network(theta.detach(), x.detach()), theta, at) is None


def test_gradient_after_theta_has_moved_is_refused() -> None:
    network = build("mlp", 10, 1, 32)
    theta = torch.ones(network.parameters)
    leaf = theta.detach().requires_grad_()
    logits = network(leaf, torch.ones(2, 1, 32, 32))
    theta.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(logits, leaf, torch.ones_like(logits))


@pytest.mark.parametrize("name", CHAINS)
def test_second_derivatives_are_those_of_an_ordinary_module(name: str) -> None:
    """Products with both Hessians, of the parameters and of the images, and the mixed ones."""
    torch.manual_seed(0)
    network = build(name, 10, 3, 32)
    theta = torch.randn(network.parameters, dtype=torch.float64).mul_(0.1).requires_grad_()
    x = torch.randn(5, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    y = torch.arange(5)
    module = network.module(theta, {}).double()
    names = [name for name, _ in module.named_parameters()]
    parts = dict(zip(names, network.parts(theta), strict=True))
    directions = torch.randn_like(theta), torch.randn_like(x)

    def products(logits: Tensor) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(F.cross_entropy(logits, y), (theta, x), create_graph=True)
        return *gradients, *torch.autograd.grad(gradients, (theta, x), directions)

    ours = products(network(theta, x))
    theirs = products(torch.func.functional_call(module, parts, x))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_second_derivative_of_what_alone_is_wanted() -> None:
    network = build("lenet5", 10, 1, 32)
    theta, x = torch.ones(network.parameters).mul_(0.1), torch.ones(2, 1, 32, 32)
    for wanted in (theta, x):
        wanted.requires_grad_()
        (g,) = torch.autograd.grad(network(theta, x).square().sum(), wanted, create_graph=True)
        (twice,) = torch.autograd.grad(g.square().sum(), wanted)
        assert twice.abs().max() > 0
        wanted.requires_grad_(False)


def test_second_derivative_after_theta_has_moved_is_refused() -> None:
    network = build("mlp", 10, 1, 32)
    theta = torch.ones(network.parameters)
    leaf = theta.detach().requires_grad_()
    logits = network(leaf, torch.ones(2, 1, 32, 32))
    theta.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(logits.sum(), leaf, create_graph=True)


def test_one_layer_may_be_there_twice() -> None:
    """As `[Linear(8)] * 2` makes it: by its place it is another layer."""
    wide = Linear(8)
    network = Network("twice", Chain((wide, wide, Linear(3))), (8,))
    assert network.operations == 8 * 8 + 8 * 8 + 8 * 3
    assert network.training_operations == 3 * network.operations - 8 * 8
    theta = torch.linspace(-1, 1, network.parameters).requires_grad_()
    logits = network(theta, torch.ones(4, 8))
    g = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad(logits, theta, g, retain_graph=True)[0]
    at_inputs = g @ theta.detach()[-27:-3].view(3, 8)
    found = network_module.gradient_below(logits, theta, at_inputs)
    torch.testing.assert_close(found, expected[:-27])


@pytest.mark.parametrize("name", CHAINS)
def test_operations_are_those_that_torch_counts(name: str) -> None:
    """torch counts a multiplication and an addition as two, but does not know the product with ReLU in it."""
    aten, network = torch.ops.aten, build(name, 10, 3, 32)
    with_relu = {aten._addmm_activation: flop_registry[aten.addmm].__wrapped__}
    with FlopCounterMode(display=False, custom_mapping=with_relu) as counter:
        network(torch.zeros(network.parameters), torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * network.operations


def test_convolutions_come_first() -> None:
    assert build("lenet5", 10, 3, 32).convolution_parameters == 3 * 6 * 25 + 6 + 6 * 16 * 25 + 16
    assert build("mlp", 10, 3, 32).convolution_parameters == 0


@pytest.mark.parametrize("name", ["lenet5", "cnn1", "cnn2", "fola_cnn"])
def test_refuses_images_that_are_too_small(name: str) -> None:
    smallest = smallest_size(layers_of(name, 10, 1, 32))
    build(name, 10, 1, smallest)
    with pytest.raises(
        InputError, match=f"'{name}' does not fit images of {smallest - 1}x{smallest - 1}.*at least {smallest}x"
    ):
        build(name, 10, 1, smallest - 1)


def test_refuses_an_unknown_name() -> None:
    with pytest.raises(InputError, match=r"no model is named 'cnn3'; did you mean 'cnn[12]'"):
        build("cnn3", 10, 3, 32)


def test_initialisation_is_torchs_default() -> None:
    network = build("cnn2", 10, 3, 32)
    theta = network.initial(np.random.default_rng(0))
    for part, shape in zip(np.split(theta, np.cumsum(network.sizes)[:-1])[::2], network.shapes[::2], strict=True):
        bound = np.prod(shape[1:]) ** -0.5
        assert abs(part).max() <= bound
        assert abs(part.std() / (bound / 3**0.5) - 1) < 0.1


def test_xaviers_initialisation_is_torchs() -> None:
    network = build("fola_cnn", 10, 3, 32)
    assert isinstance(network, Network)
    theta = network.initial(np.random.default_rng(0))
    parts = np.split(theta, np.cumsum(network.sizes)[:-1])
    for weight, bias, shape in zip(parts[::2], parts[1::2], network.shapes[::2], strict=True):
        theirs = torch.nn.init.xavier_uniform_(torch.empty(shape))
        assert not bias.any()
        assert abs(weight).max() == pytest.approx(float(theirs.abs().max()), rel=0.05)
        assert weight.std() == pytest.approx(float(theirs.std()), rel=0.1)


@pytest.mark.parametrize("name", [*CHAINS, "pfedbayes_vgg_bn", "resnet18"])
def test_a_shift_of_all_logits_costs_no_precision_in_bf16(name: str) -> None:
    """The last layer's biases 200 lower move all logits of an image alike; their softmax, and with it the loss's gradient,
    stays what it was. Logits in bf16 would be off by halves."""
    network = build(name, 10, 3, 32)
    theta = torch.from_numpy(network.initial(np.random.default_rng(0)))
    low = theta.clone()
    low[-10:] -= 200
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(16, 3, 32, 32, generator=generator).bfloat16().contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        p, q = (network.logits(one, images, network.statistics, generator).softmax(-1) for one in (theta, low))
    assert p.dtype == q.dtype == torch.float32
    torch.testing.assert_close(q, p, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((Conv(4, 5, 2), Conv(6, 3), Linear(9), Linear(7)), (3, 20, 32)),
        ((Conv(4, 3, 2), Linear(7)), (1, 9, 14)),
        ((Linear(9), Linear(7)), (30,)),
        ((Linear(9), Linear(7)), (5, 6)),
        ((Linear(7),), (2, 3, 4, 5)),
    ],
)
def test_examples_of_any_shape(layers: tuple[Conv | Linear, ...], shape: tuple[int, ...]) -> None:
    """Logits, gradient and its squares are those of torch's own layers."""
    of = Network("any", Chain(layers), shape)
    theta = torch.from_numpy(of.initial(np.random.default_rng(0))).double().requires_grad_()
    x = torch.rand(6, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module = of.module(theta, {}).double()
    logits, expected = of(theta, x), module(x)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    expected.logsumexp(1).sum().backward()
    own = torch.cat([value.grad.flatten() for value in module.parameters() if value.grad is not None])
    g = torch.softmax(logits.detach(), 1)
    found = with_squares(logits, theta, g)
    assert found is not None
    torch.testing.assert_close(found[0], own, rtol=1e-5, atol=1e-6)
    single = []
    for k in range(len(x)):
        one = of(theta, x[k : k + 1])
        single.append(torch.autograd.grad(one.logsumexp(1).sum(), theta)[0].square())
    torch.testing.assert_close(found[1], torch.stack(single).sum(0), rtol=1e-6, atol=1e-9)
    assert of.operations == sum(
        math.prod(shape) for shape in of.shapes[::2] if len(shape) == 2
    ) + convolution_operations(layers, shape)


def convolution_operations(layers: tuple[Conv | Linear, ...], shape: tuple[int, ...]) -> int:
    """The multiply-adds of a chain's convolutions for an example."""
    total, width, sides = 0, shape[0], shape[1:]
    for layer in layers:
        if isinstance(layer, Conv):
            sides = tuple(side - layer.kernel + 1 for side in sides)
            total += width * layer.out * layer.kernel**2 * math.prod(sides)
            width, sides = layer.out, tuple(side // layer.pool for side in sides)
    return total
