"""Products of diagonal Gaussians against dense solves, and their entropy against torch's."""

import math
from itertools import pairwise
from typing import get_args

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from bayesfed.bayes import gaussian
from bayesfed.bayes.gaussian import (
    Rule,
    barycentre,
    kl,
    kl_gradient,
    log_precision_spread,
    product,
    renyi,
    renyi_gradient,
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


def test_a_sigma_that_left_float32_is_no_number_or_no_weight() -> None:
    """Shrunk to 0: nothing is known of the product, and the run ends there by name. Grown to infinity: no weight."""
    means, powers = torch.tensor([[1.0], [3.0]]), torch.ones(2)
    for sigma, expected in ((0.0, (math.nan, math.nan)), (math.nan, (math.nan, math.nan)), (math.inf, (3.0, 1.0))):
        found = [value.item() for value in product(means, torch.tensor([[sigma], [1.0]]), powers)]
        assert found == pytest.approx(expected, nan_ok=True)
    extreme = product(means, torch.tensor([[1.2e-38], [3e38]]), powers)
    assert [value.item() for value in extreme] == pytest.approx([1.0, 1.2e-38], rel=1e-6)


def test_softplus_and_its_inverse() -> None:
    rho = torch.linspace(-30, 30, 200, dtype=torch.float64)
    torch.testing.assert_close(gaussian.inverse_softplus(softplus(rho)), rho, rtol=1e-10, atol=1e-10)


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


def test_kl_and_its_gradients_are_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    mu, mu_w = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    rho, rho_w = torch.randn(2, 40, generator=generator, dtype=torch.float64) - 1
    at = [t.requires_grad_() for t in (mu, rho, mu_w, rho_w)]
    normals = [torch.distributions.Normal(at[i], gaussian.softplus(at[i + 1])) for i in (0, 2)]
    expected = torch.distributions.kl_divergence(*normals).sum()
    wanted = torch.autograd.grad(expected, at)
    mu, rho, mu_w, rho_w = (t.detach() for t in at)
    sigma, sigma_w = gaussian.softplus(rho), gaussian.softplus(rho_w)
    torch.testing.assert_close(gaussian.kl(mu, sigma, mu_w, sigma_w), expected.detach(), rtol=1e-12, atol=0)
    g_mu, g_sigma = gaussian.kl_gradient(mu, sigma, mu_w, sigma_w)
    w_mu, w_sigma = gaussian.kl_prior_gradient(mu, sigma, mu_w, sigma_w)
    found = (g_mu, gaussian.through_softplus(g_sigma, rho), w_mu, gaussian.through_softplus(w_sigma, rho_w))
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_equal_gaussians_have_no_gradient() -> None:
    mu, rho = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    sigma = gaussian.softplus(rho)
    for gradients in (gaussian.kl_gradient, gaussian.kl_prior_gradient):
        assert not any(g.any() for g in gradients(mu, sigma, mu.clone(), sigma.clone()))


def test_kl_is_the_mean_log_ratio_of_draws() -> None:
    """Four standard errors of 200 000 draws."""
    mu, sigma = torch.tensor([0.3, -1.0]).double(), torch.tensor([0.5, 1.2]).double()
    mu_w, sigma_w = torch.tensor([0.0, -0.5]).double(), torch.tensor([0.7, 1.0]).double()
    draws = mu + sigma * torch.randn(200_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q, w = torch.distributions.Normal(mu, sigma), torch.distributions.Normal(mu_w, sigma_w)
    ratio = (q.log_prob(draws) - w.log_prob(draws)).sum(-1)
    error = float(ratio.mean() - gaussian.kl(mu, sigma, mu_w, sigma_w))
    assert abs(error) < 4 * float(ratio.std()) / 200_000**0.5


TWO = [  # of N(1/2, 1/4) and N(-1/2, 1/2) with weights of 1/2 each, and of 3/4 and 1/4: mean and variance
    ("eaa", (0, 0.375), (0.25, 0.3125)),
    ("gaa", (0, 0.1875), (0.25, 0.171875)),
    ("gaa-normalised", (0, 0.375), (0.25, 0.275)),
    ("aalv", (0, 0.353553), (0.25, 0.297302)),
    ("wb", (0, 0.364277), (0.25, 0.304458)),
    ("fkl", (0, 0.625), (0.25, 0.5)),
    ("fedag", (0, 0.25), (0.25, 0.1875)),
    ("rkl", (1 / 6, 1 / 3), (0.357143, 0.285714)),
    ("cf", (1 / 6, 1 / 6), (0.357143, 0.214286)),
    ("dwc", (1 / 5, 1 / 5), (1 / 5, 1 / 5)),
]


def test_there_is_a_number_for_every_rule() -> None:
    assert sorted(rule for rule, *_ in TWO) == sorted(get_args(Rule))


@pytest.mark.parametrize(("rule", "even", "uneven"), TWO)
def test_barycentres_of_two_by_hand(rule: Rule, even: tuple[float, float], uneven: tuple[float, float]) -> None:
    means = torch.tensor([[0.5], [-0.5]])
    sigmas = torch.tensor([[0.25], [0.5]]).sqrt()
    for weights, expected in ((torch.tensor([3.0, 3.0]), even), (torch.tensor([0.75, 0.25]), uneven)):
        mean, sigma = barycentre(rule, means, sigmas, weights, torch.ones(2))
        assert mean.dtype == sigma.dtype == torch.float64
        assert (mean.item(), sigma.item() ** 2) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9))
def test_barycentres_are_ordered_by_variance(seed: int, clients: int, size: int) -> None:
    """Harmonic, geometric, square-root and arithmetic mean, and that plus the spread of means."""
    means, sigmas, q = gaussians(seed, clients, size)
    found = [barycentre(rule, means, sigmas, q, torch.ones(clients))[1] for rule in ("rkl", "aalv", "wb", "eaa", "fkl")]
    for smaller, larger in pairwise(found):
        assert (smaller <= larger * (1 + 1e-9)).all()


@pytest.mark.parametrize("rule", get_args(Rule))
def test_a_barycentre_of_equal_clients(rule: Rule) -> None:
    """The client itself, or with K times its precision; by `dwc` the prior's is taken off, by `fedag` nothing is left."""
    K, variance = 4, 0.3
    means, sigmas = torch.full((K, 2), 0.7).double(), torch.full((K, 2), variance).double().sqrt()
    mean, sigma = barycentre(rule, means, sigmas, torch.ones(K), torch.ones(K))
    P = K / variance - (K - 1)
    expected = {"gaa": variance / K, "cf": variance / K, "dwc": 1 / P, "fedag": 0.0}.get(rule, variance)
    torch.testing.assert_close(sigma.square(), torch.full((2,), expected).double(), rtol=1e-6, atol=1e-12)
    mu = K / variance * 0.7 / P if rule == "dwc" else 0.7
    torch.testing.assert_close(mean, torch.full((2,), mu).double(), rtol=1e-6, atol=0)


def test_the_product_over_a_prior_is_never_less_sure_than_it() -> None:
    """Clients that know less than the prior, by the noise of their training."""
    _, sigma = barycentre("dwc", torch.zeros(3, 1), torch.full((3, 1), 2.0), torch.ones(3), torch.ones(3))
    assert sigma.item() == 1


@pytest.mark.parametrize("alpha", [2.5, 0.5, 1 + 1e-6])
def test_renyis_divergence_and_its_gradient(alpha: float) -> None:
    """Against numerical integration, a number by hand, and the KL as its limit."""
    mu, s, mu_c, s_c = (
        torch.tensor([value], dtype=torch.float64) for value in (0.3, math.log(0.64), -0.2, math.log(1.21))
    )
    found = renyi(mu, s.exp(), mu_c, s_c.exp(), alpha)
    x = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
    q, c = (torch.distributions.Normal(m, (v / 2).exp()).log_prob(x) for m, v in ((mu, s), (mu_c, s_c)))
    integral = torch.trapezoid((alpha * q + (1 - alpha) * c).exp(), x).log() / (alpha * (alpha - 1))
    assert found.item() == pytest.approx(integral.item(), rel=1e-5)
    if alpha == 2.5:
        assert found.item() == pytest.approx(0.1166462, abs=1e-7)
    if alpha > 1 and alpha < 2:
        assert found.item() == pytest.approx(kl(mu, (s / 2).exp(), mu_c, (s_c / 2).exp()).item(), rel=1e-4)
    leaf, log_variance = mu.requires_grad_(), s.requires_grad_()
    expected = torch.autograd.grad(renyi(leaf, log_variance.exp(), mu_c, s_c.exp(), alpha), (leaf, log_variance))
    for ours, theirs in zip(renyi_gradient(mu, s.exp(), mu_c, s_c.exp(), alpha), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_renyis_gradient_at_1_is_that_of_kl() -> None:
    torch.manual_seed(0)
    mu, mu_c = torch.randn(2, 9, dtype=torch.float64)
    variance, variance_c = torch.rand(2, 9, dtype=torch.float64) + 0.1
    g_mu, g_sigma = kl_gradient(mu, variance.sqrt(), mu_c, variance_c.sqrt())
    found = renyi_gradient(mu, variance, mu_c, variance_c, 1.0)
    torch.testing.assert_close(found[0], g_mu, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1], g_sigma * variance.sqrt() / 2, rtol=1e-12, atol=1e-12)


def test_renyis_divergence_of_a_wide_gaussian_is_infinite_and_its_gradient_makes_it_narrower() -> None:
    wide, one = torch.tensor([2.0]), torch.tensor([1.0])
    assert renyi(one, wide, one, one, 2.5) == torch.inf
    assert renyi_gradient(one, wide, one, one, 2.5)[1] > 0
