"""Squared gradients of single images, against autograd image by image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play
from torch import Tensor, nn

from bayesfed import models
from bayesfed.core.errors import InputError
from bayesfed.methods.node import Batch, Node
from bayesfed.methods.steps import ce_gradient, gradient_and_squares
from bayesfed.models import convolution
from bayesfed.models import network as network_module

Make = Callable[..., dict[str, Any]]
CHAINS = ["mlp", "fola_mlp", "softmax", "lenet5", "cnn2", "fola_cnn"]
MODULES = ["pfedbayes_vgg", "smooth"]
REAL = 5  # images of a mini-batch
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # relative to the norm


def learner(model: str, mapping: Make, data_dir: Path, cast: torch.dtype = torch.float64) -> Node:
    """A client of FOLA's with that network, at its initial parameters."""
    of = federation(mapping({"name": "fola", "squares": "images"}, models={"global": model}, images={}), data_dir, cast)
    c = of.node(0, 1)
    c.state = {"theta": c.initial()}
    return c


def image_by_image(c: Node, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The means over images of their gradients and of the squares of these, a pass for each."""
    each = []
    for image, label in zip(x, y, strict=True):
        theta = c["theta"].clone().requires_grad_()
        loss = F.cross_entropy(c.model(theta, image[None]), label[None])
        each.append(torch.autograd.grad(loss, theta)[0])
    g = torch.stack(each)
    return g.mean(0), g.square().mean(0)


def batch(c: Node, filled: bool) -> Batch:
    """A mini-batch of REAL images; `filled`: up to more."""
    x, y = c.images()
    if not filled:
        return Batch(x[:REAL], y[:REAL])
    return Batch(x[: REAL + 3], y[: REAL + 3], torch.tensor([1 / REAL] * REAL + [0.0] * 3, dtype=c["theta"].dtype))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("filled", [False, True], ids=["whole", "filled up"])
@pytest.mark.parametrize("model", CHAINS + MODULES)
def test_squares_are_those_of_autograd_image_by_image(model: str, filled: bool, mapping: Make, data_dir: Path) -> None:
    c = learner(model, mapping, data_dir)
    x, y = c.images()
    expected, squares = image_by_image(c, x[:REAL], y[:REAL])
    g, found = gradient_and_squares(c, "theta", batch(c, filled), "images")
    torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found, squares, rtol=1e-10, atol=1e-14)
    plain, of_batch = gradient_and_squares(c, "theta", batch(c, filled), "batch")
    assert torch.equal(plain, ce_gradient(c, "theta", batch(c, filled)))
    assert torch.equal(of_batch, plain.square())


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("cast", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", ["mlp", "lenet5", "cnn2", "smooth"])
def test_lower_precisions_round(model: str, cast: torch.dtype, mapping: Make, data_dir: Path) -> None:
    """Convolutions in oneDNN's order of memory among them."""
    exact, c = learner(model, mapping, data_dir), learner(model, mapping, data_dir, cast)
    g, found = gradient_and_squares(c, "theta", batch(c, False), "images")
    _, squares = gradient_and_squares(exact, "theta", batch(exact, False), "images")
    plain = ce_gradient(c, "theta", batch(c, False))
    assert g.dtype == found.dtype == torch.float32
    assert (found - squares).norm() <= BOUNDS[cast] * squares.norm()
    assert (g - plain).norm() <= BOUNDS[cast] * plain.norm()


@pytest.mark.parametrize("count", [3, network_module.FEW + 1])
@pytest.mark.parametrize("model", ["lenet5", "cnn2"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
def test_a_gpus_orders_of_memory_change_nothing(
    layout: torch.memory_format, model: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "layout_for", lambda device, dtype: layout)
    monkeypatch.setattr(convolution, "OWN_WAYS", set())
    made, generator = models.build(model, 10, 3, 32), torch.Generator().manual_seed(0)
    assert isinstance(made, network_module.Network)
    theta = (0.1 * torch.randn(made.parameters, generator=generator, dtype=torch.float64)).requires_grad_()
    x = torch.randn((count, 32, 32, 3), generator=generator, dtype=torch.float64).permute(0, 3, 1, 2)
    at = torch.randn((count, 10), generator=generator, dtype=torch.float64)
    found = network_module.with_squares(made(theta, x), theta, at)
    assert found is not None
    each = [torch.autograd.grad(made(theta, x[i : i + 1]), theta, at[i : i + 1])[0] for i in range(count)]
    torch.testing.assert_close(found[0], sum(each), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[1], sum(g.square() for g in each), rtol=1e-10, atol=1e-12)


def test_one_image_a_batch_is_both(mapping: Make, data_dir: Path) -> None:
    """With batches of one image there is nothing to choose between."""
    ends = []
    for squares in ("batch", "images"):
        method = {"name": "fola", "squares": squares}
        ends.append(play(federation(mapping(method, batch_size=1), data_dir), 1).server)
    torch.testing.assert_close(ends[0]["omega"], ends[1]["omega"], rtol=1e-9, atol=1e-16)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", ["fola", "fedcurv"])
@pytest.mark.parametrize("model", ["residual", "normalised", "grouped"])
def test_networks_that_look_at_a_batch_or_draw_are_refused(
    name: str, model: str, mapping: Make, data_dir: Path
) -> None:
    run = mapping({"name": name, "squares": "images"}, models={"global": model})
    with pytest.raises(
        InputError, match=r"^method\.squares: images, but the network normalises over its mini-batch or"
    ):
        federation(run, data_dir)


def test_a_network_that_takes_no_single_images_is_refused(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Branching(nn.Module):
        def __init__(self, classes: int, channels: int, size: int) -> None:
            super().__init__()
            self.layer = nn.Linear(channels * size**2, classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1)) if x.sum().item() < 1e9 else self.layer(-x.flatten(1))

    monkeypatch.setitem(models.NETWORKS, "branching", Branching)
    of = federation(mapping({"name": "fola", "squares": "images"}, models={"global": "branching"}), data_dir)
    with pytest.raises(
        InputError, match=r"^method\.squares: images, but the network takes no images one by one \(.*\); take"
    ):
        play(of, 1)


def test_the_full_hessian_squares_no_gradient(mapping: Make, data_dir: Path) -> None:
    with pytest.raises(InputError, match=r"^method\.squares: images, but fola_full has the Hessian"):
        federation(mapping({"name": "fola_full", "squares": "images"}), data_dir)
