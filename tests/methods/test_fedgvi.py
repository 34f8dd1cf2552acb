"""FedGVI: PVI's exact sequences, its own steps against their closed form, the robust loss against autograd."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from helpers.quadratics import SCALARS, Quadratics, hold_fixed_point, hold_one_client, make

from bayesfed.bayes.gaussian import renyi
from bayesfed.methods.node import Batch, Learner, Node

Make = Callable[..., dict[str, Any]]
PVI = {"alpha": 1.0, "delta": 0.0}


def quadratics(A: Any = SCALARS[0], b: Any = SCALARS[1], **options: Any) -> Quadratics:
    """Clients that find PVI's minimum: the cavity's natural parameters and the diagonal likelihood's."""
    found = Quadratics(make("fedgvi", **(PVI | options)), A, b, n=[4, 2] if len(b) == 2 else [3] * len(b))

    def solve(c: Node) -> None:
        A = found.A[c.client]
        A = A if A.dim() == 2 else torch.diag(A)
        cavity = 1 / c["cavity.variance"]
        c["m"].copy_(torch.linalg.solve(A + torch.diag(cavity), found.b[c.client] + cavity * c["cavity.m"]))
        c["s"].copy_(-(A.diagonal() + cavity).log())

    found.solve = solve
    # The gradient of the quadratic loss, in the place of the cross-entropy's.
    found.method.gradient = lambda c, theta, batch: found.gradient(int(batch.y), theta)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("damping", "sequence"),
    [(None, [(3, 1 / 6), (4, 3 / 16), (9 / 2, 7 / 36), (19 / 4, 15 / 76)]), (1.0, [(5, 1 / 5), (5, 1 / 5)])],
)
def test_pvi_of_two_scalars(damping: float | None, sequence: list[tuple[float, float]]) -> None:
    """Damped by one over the clients, unless it is given."""
    found = quadratics(damping=damping)
    for expected in sequence:
        found.play()
        assert (found.server["S"].item(), found.server["m"].item()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("half", [False, True])
def test_the_fixed_point_is_the_mean_field_optimum(half: bool) -> None:
    found = hold_fixed_point(quadratics, half)
    sites = sum(kept["site.S"] for kept in found.kept.values())
    torch.testing.assert_close(found.server["S"], 1 + sites, rtol=1e-9, atol=0)


def test_its_own_steps_find_pvis_minimum() -> None:
    """Of the second round, over 400 copies, within 3 %."""
    A, b = ([[value[0]] * 400 for value in side] for side in ([[3.0], [1.0]], [[2.0], [-1.0]]))
    exact, trained = quadratics(A, b, lr=0.005, first=0.3), quadratics(A, b, lr=0.005, first=0.3)
    exact.play()
    trained.play()
    trained.steps, trained.solve = 3000, trained.train
    exact.play()
    trained.play()
    for name in ("S", "m"):
        assert trained.server[name].mean().item() == pytest.approx(exact.server[name].mean().item(), rel=0.03)


def test_its_own_steps_find_the_minimum_of_renyis_divergence() -> None:
    """Of one client with E[L] = a/2 (m^2 + sigma^2) - b m, where no other (m, sigma^2) near it does better."""
    found = quadratics([[3.0] * 400], [[2.0] * 400], alpha=2.5, lr=0.005, first=0.3)
    found.steps, found.solve = 4000, found.train
    (c,) = found.play().values()
    m, variance = c["m"].mean(), c["s"].exp().mean()
    one = torch.ones(1, dtype=torch.float64)

    def objective(m: torch.Tensor, variance: torch.Tensor) -> float:
        divergence = renyi(m * one, variance * one, 0 * one, one, 2.5)
        return (3 / 2 * (m.square() + variance) - 2 * m + divergence).item()

    least = objective(m, variance)
    for factor in (0.9, 1.1):
        assert objective(m * factor, variance) > least
        assert objective(m, variance * factor) > least


def test_one_client_undamped_goes_back_to_the_prior_as_cavity() -> None:
    found = quadratics([[3.0]], [[2.0]])
    found.play()
    (c,) = found.play().values()
    assert (c["cavity.variance"].item(), c["cavity.m"].item()) == pytest.approx((1, 0), abs=1e-12)


def test_pvi_of_one_client_is_variational_inference_in_one_round() -> None:
    hold_one_client(lambda A, b: quadratics(A, b, prior=2.0))


@pytest.mark.parametrize("delta", [0.0, 0.4, 1.0])
def test_the_gradient_of_the_robust_loss_is_autograds(delta: float) -> None:
    """(1 - p_y^delta)/delta, and -log p_y for 0, as a batch mean."""

    class Linear(Learner):
        def model(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return x @ theta.view(3, 4).T

    torch.manual_seed(0)
    c = Linear(state={}, n=torch.ones(()), models={}, generator=torch.Generator())
    theta, x = torch.randn(12, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    batch = Batch(x, torch.tensor([0, 1, 2, 2, 1, 0]))
    ours = make("fedgvi", delta=delta).gradient(c, theta, batch)  # type: ignore[attr-defined]
    leaf = theta.clone().requires_grad_()
    p = c.model(leaf, x).softmax(-1).gather(1, batch.y[:, None])
    loss = ((1 - p**delta) / delta if delta else -p.log()).mean()
    torch.testing.assert_close(ours, *torch.autograd.grad(loss, leaf), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("budget", [{}, {"participation": 0.5}])
@pytest.mark.parametrize("options", [{}, {"damping": 1.0}])
def test_scales_of_normalisation_are_averaged(
    options: dict[str, Any], budget: dict[str, Any], mapping: Make, data_dir: Path
) -> None:
    """From the network's start, whoever takes part, and without a precision of their own."""
    of = federation(mapping({"name": "fedgvi"} | options, models={"global": "normalised"}, **budget), data_dir)
    scaling, progress = of.node(0, 1).scaling, play(of, 2)
    assert scaling is not None
    assert (progress.server["S"][scaling] == 1).all()
    assert (progress.server["S"][~scaling] != 1).all()
    assert ((progress.server["m"] - of.node(-1, 0).initial())[scaling].abs() < 0.1).all()
