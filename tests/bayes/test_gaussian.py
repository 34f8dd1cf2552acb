"""Products of diagonal Gaussians against dense solves, and their entropy against torch's."""

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from bayesfed.bayes.gaussian import (
    entropy,
    log_precision_spread,
    product,
    rho_gradient,
    sample,
    softplus,
    weighted_mean,
)


def gaussians(seed: int, clients: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(clients, size, generator=generator, dtype=torch.float64)
    sigmas = torch.randn(clients, size, generator=generator, dtype=torch.float64).mul(2).exp()
    q = torch.rand(clients, generator=generator, dtype=torch.float64) + 0.01
    return means, sigmas, q / q.sum()


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_product_is_the_dense_solution(seed: int, clients: int, size: int) -> None:
    means, sigmas, q = gaussians(seed, clients, size)
    precision = sum(q[k] * torch.diag(sigmas[k] ** -2) for k in range(clients))
    right = sum(q[k] * torch.diag(sigmas[k] ** -2) @ means[k] for k in range(clients))
    mean, sigma = product(means, sigmas, q)
    torch.testing.assert_close(mean, torch.linalg.solve(precision, right), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sigma, torch.linalg.inv(precision).diagonal().sqrt(), rtol=1e-9, atol=0)


@given(st.integers(0, 10**6), st.integers(1, 10), st.floats(1e-8, 10))
@settings(max_examples=50, deadline=None)
def test_equal_sigmas_give_exactly_the_weighted_mean(seed: int, clients: int, sigma: float) -> None:
    means, _, q = gaussians(seed, clients, 20)
    mean, _ = product(means.float(), torch.full_like(means, sigma), q)
    assert torch.equal(mean, weighted_mean(q, means.float()))


def test_product_survives_precisions_of_any_size() -> None:
    mean, sigma = product(
        torch.tensor([[1.0], [3.0]]), torch.tensor([[1e-200], [1.0]], dtype=torch.float64), torch.ones(2)
    )
    assert mean.item() == 1.0
    assert abs(sigma.item() / 1e-200 - 1) < 1e-12


def test_entropy_and_its_gradient() -> None:
    rho = torch.randn(7, dtype=torch.float64, requires_grad=True)
    sigma = softplus(rho)
    expected = torch.distributions.Normal(torch.zeros(7, dtype=torch.float64), sigma).entropy().sum()
    torch.testing.assert_close(entropy(sigma), expected)
    # d/drho log softplus(rho) = sigmoid(rho) / softplus(rho)
    (g,) = torch.autograd.grad(entropy(sigma), rho)
    torch.testing.assert_close(g, (torch.sigmoid(rho) / softplus(rho)).detach())


def test_a_draw_and_its_gradient_are_autograds() -> None:
    torch.manual_seed(0)
    mu, eps, h = torch.randn(3, 9, dtype=torch.float64)
    rho = torch.linspace(-6, 25, 9, dtype=torch.float64).requires_grad_()
    weight = torch.tensor(0.3, dtype=torch.float64)
    sigma = softplus(rho)
    theta = mu + sigma * eps
    (expected,) = torch.autograd.grad((h * theta.square()).sum() / 2 - weight * sigma.log().sum(), rho)
    torch.testing.assert_close(sample(mu, sigma, eps), theta, rtol=0, atol=1e-12)
    found = rho_gradient((h * theta).detach(), eps, rho.detach(), sigma.detach(), weight)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_spread_of_log_precisions() -> None:
    sigmas = torch.tensor([[1.0, 0.1], [1.0, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(log_precision_spread(sigmas), torch.tensor(4.0, dtype=torch.float64).log())
