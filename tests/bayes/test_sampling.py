"""Samples of a posterior from the path of SGD, against what they must have: moments, dense solves, stored iterates."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesfed.bayes.sampling import diagonal_gaussian, langevin, posterior_delta

N, MEAN = 50, 1.5  # images y ~ N(theta, 1) with that mean; the posterior under a flat prior is N(MEAN, 1/N)


@pytest.mark.parametrize(("noise", "temperature"), [(N**-0.5, 1.0), (2 / N, 4 / N)], ids=["exact", "code"])
def test_langevin_samples_a_known_posterior(noise: float, temperature: float) -> None:
    """Many chains at once, with full-batch gradients: mean and variance within Monte Carlo error. The step of length
    lr raises the variance by 1/(1 - lr/4), since the loss has curvature 1."""
    torch.manual_seed(0)
    chains, lr = 40_000, 0.1
    theta = torch.zeros(chains, dtype=torch.float64)
    for _ in range(200):
        langevin(theta, theta - MEAN, lr, noise, torch.randn_like(theta))
    variance = temperature / N / (1 - lr / 4)
    assert abs(float(theta.mean()) - MEAN) < 4 * (variance / chains) ** 0.5
    assert float(theta.var()) == pytest.approx(variance, rel=4 * (2 / chains) ** 0.5)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("rho", [0.01, 0.1, 1.0, 10.0])
def test_posterior_delta_is_the_dense_solve(count: int, rho: float) -> None:
    generator = np.random.default_rng(count)
    start, samples = generator.normal(size=12), generator.normal(size=(count, 12))
    rho_l = 1 / (1 + (count - 1) * rho)
    sigma = rho_l * np.eye(12) + (1 - rho_l) * np.cov(samples.T)
    expected = np.linalg.solve(sigma, samples.mean(0) - start)
    found = posterior_delta(torch.from_numpy(start), torch.from_numpy(samples), rho)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_posterior_delta_of_one_sample_is_its_difference() -> None:
    start, sample = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(posterior_delta(start, sample[None], 0.1), sample - start, rtol=0, atol=0)
    several = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(posterior_delta(start, several, 0.0), several.mean(0) - start, rtol=0, atol=1e-15)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_the_diagonal_gaussian_has_the_moments_of_the_iterates(count: int, seed: int) -> None:
    iterates = np.random.default_rng(seed).normal(size=(count, 5))
    mean, square = (torch.from_numpy(values.mean(0)) for values in (iterates, iterates**2))
    mu, sigma = diagonal_gaussian(mean, square)
    np.testing.assert_allclose(mu.numpy(), iterates.mean(0), rtol=1e-12)
    np.testing.assert_allclose(sigma.numpy() ** 2, iterates.var(0).clip(1e-30), rtol=1e-7, atol=1e-12)
