"""Squared gradients of single images, against autograd image by image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from playing import federation
from torch import Tensor

from bayesfed.engine.federation import Federation
from bayesfed.methods.base import Batch, Node
from bayesfed.methods.steps import ce_gradient, gradient_and_squares

Make = Callable[..., dict[str, Any]]
CHAINS = ["mlp", "fola_mlp", "softmax", "lenet5", "cnn2", "fola_cnn"]
MODULES = ["pfedbayes_vgg", "smooth"]
REAL = 5  # images of a mini-batch


def learner(model: str, mapping: Make, data_dir: Path, cast: torch.dtype = torch.float64) -> tuple[Federation, Node]:
    """A client of FOLA's with that network, at its initial parameters."""
    of = federation(mapping({"name": "fola", "squares": "images"}, models={"global": model}, images={}), data_dir, cast)
    c = of.node(0, 1)
    theta = c.initial()
    c.state = {"theta": theta}
    return of, c


def image_by_image(c: Node, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The means over images of their gradients and of the squares of these, a pass for each."""
    each = []
    for image, label in zip(x, y, strict=True):
        theta = c["theta"].clone().requires_grad_()
        loss = F.cross_entropy(c.model(theta, image[None]), label[None])
        each.append(torch.autograd.grad(loss, theta)[0].detach())
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
    _, c = learner(model, mapping, data_dir)
    x, y = c.images()
    expected, squares = image_by_image(c, x[:REAL], y[:REAL])
    g, found = gradient_and_squares(c, "theta", batch(c, filled), "images")
    torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found, squares, rtol=1e-10, atol=1e-14)
    plain, of_batch = gradient_and_squares(c, "theta", batch(c, filled), "batch")
    assert torch.equal(plain, ce_gradient(c, "theta", batch(c, filled)))
    assert torch.equal(of_batch, plain.square())
