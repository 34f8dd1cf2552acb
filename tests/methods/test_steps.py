"""Losses and optimisers of the methods against torch's own and against numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from bayesfed import methods
from bayesfed.methods.base import Batch
from bayesfed.methods.hbfl import HBFL
from bayesfed.methods.steps import SGD, Adam, grad, kl, leaves


class FakeNode(dict):
    """Named tensors, as a step sees them."""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, 0.9, 5e-4), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=5e-4)),
        (SGD(0.1, 0.0, 0.0), lambda p: torch.optim.SGD(p, 0.1)),
        (Adam(0.01, 5e-4), lambda p: torch.optim.Adam(p, 0.01, weight_decay=5e-4)),
        (Adam(0.01, 0.0), lambda p: torch.optim.Adam(p, 0.01)),
    ],
)
def test_optimisers_are_torchs(ours: SGD | Adam, theirs) -> None:
    torch.manual_seed(0)
    start = torch.randn(30, dtype=torch.float64)
    node = FakeNode(theta=start.clone()) | ours.start("theta", start)
    reference = start.clone().requires_grad_()
    optimiser = theirs([reference])
    for _ in range(20):
        g = torch.randn(30, dtype=torch.float64)
        ours.step(node, "theta", g)
        reference.grad = g.clone()
        optimiser.step()
    torch.testing.assert_close(node["theta"], reference.detach(), rtol=1e-10, atol=1e-12)


def test_kl_is_torchs_batch_mean_and_spares_the_teacher() -> None:
    teacher = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    student = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    ours = Batch(teacher, torch.zeros(8)).mean(kl(teacher, student, temperature=2.0))
    theirs = F.kl_div((student / 2).log_softmax(-1), (teacher.detach() / 2).softmax(-1), reduction="batchmean")
    torch.testing.assert_close(ours, theirs)
    to_teacher, to_student = torch.autograd.grad(ours, (teacher, student), allow_unused=True)
    assert to_teacher is None
    assert to_student.abs().sum() > 0


def test_both_losses_of_fml_by_hand() -> None:
    fml = methods.get("fml")(methods.get("fml").Options(alpha=0.25, beta=0.5))
    meme = torch.tensor([[math.log(0.8), math.log(0.2)], [math.log(0.5), math.log(0.5)]], dtype=torch.float64)
    local = torch.tensor([[math.log(0.6), math.log(0.4)], [math.log(0.9), math.log(0.1)]], dtype=torch.float64)
    batch = Batch(torch.zeros(2), torch.tensor([0, 1]))
    loss_meme, loss_local = fml.losses(batch, meme, local)
    ce_meme = -(math.log(0.8) + math.log(0.5)) / 2
    ce_local = -(math.log(0.6) + math.log(0.1)) / 2
    kl_to_meme = (
        0.6 * math.log(0.6 / 0.8) + 0.4 * math.log(0.4 / 0.2) + 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    ) / 2
    kl_to_local = (
        0.8 * math.log(0.8 / 0.6) + 0.2 * math.log(0.2 / 0.4) + 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    ) / 2
    assert float(loss_meme) == pytest.approx(0.5 * ce_meme + 0.5 * kl_to_meme)
    assert float(loss_local) == pytest.approx(0.25 * ce_local + 0.75 * kl_to_local)


@pytest.mark.parametrize(("weight", "factor"), [("T/n", 1e-4 / 50), ("T", 1e-4), ("1", 1.0)])
def test_entropy_term_of_hbfl_has_its_closed_gradient(weight: str, factor: float) -> None:
    hbfl = HBFL(HBFL.Options(entropy_weight=weight))
    (rho,) = leaves(torch.linspace(-6, 2, 9, dtype=torch.float64))
    node = SimpleNamespace(n=torch.tensor(50.0, dtype=torch.float64))
    loss = hbfl.loss_meme(node, torch.zeros((), dtype=torch.float64), F.softplus(rho))
    (g,) = grad(loss, rho)
    torch.testing.assert_close(g, -factor * torch.sigmoid(rho.detach()) / F.softplus(rho.detach()))


def test_hbfl_reading_1_is_reading_t_over_n_times_a_factor() -> None:
    node = SimpleNamespace(n=torch.tensor(50.0, dtype=torch.float64))
    ce, sigma = torch.tensor(1.3, dtype=torch.float64), torch.rand(9, dtype=torch.float64)
    scaled, literal = (HBFL(HBFL.Options(entropy_weight=w)).loss_meme(node, ce, sigma) for w in ("T/n", "1"))
    torch.testing.assert_close(literal, scaled * 50 / 1e-4)


def test_stationary_sigma_of_a_quadratic_loss() -> None:
    """With CE replaced by h/2 theta^2, E over eps gives h/2 (mu^2 + sigma^2): sigma^2 = T/(n h) is stationary."""
    h, n, T = 0.01, 50.0, 1e-4
    hbfl = HBFL(HBFL.Options(temperature=T))
    sigma_star = math.sqrt(T / (n * h))
    (rho,) = leaves(torch.tensor([math.log(math.expm1(sigma_star))], dtype=torch.float64))
    sigma = F.softplus(rho)
    loss = hbfl.loss_meme(SimpleNamespace(n=torch.tensor(n)), h / 2 * sigma.square().sum(), sigma)
    (g,) = grad(loss, rho)
    assert abs(g.item()) < 1e-12
