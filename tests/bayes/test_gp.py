"""Gaussian processes with Polya-Gamma variables, against closed forms, dense solves, and a sampler that has none of them."""

import math

import pytest
import torch
from helpers import slices
from torch import Tensor

from bayesfed.bayes import gp
from bayesfed.bayes.gp import Kernel, Landmarks, WeightPosterior

KERNEL = Kernel(8.0, 1.0)


def noise(seed: int = 0) -> gp.Noise:
    generator = torch.Generator().manual_seed(seed)
    return lambda like: torch.randn(like.shape, generator=generator, dtype=like.dtype)


def points(n: int, seed: int, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def signs(n: int, seed: int, *leading: int) -> Tensor:
    draws = torch.rand(*leading, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(draws < 0.5, -1.0, 1.0).double()


@pytest.mark.parametrize("c", [0.0, 0.5, -2.0, 6.0, 15.0])
def test_polya_gamma_draws_have_their_moments_and_laplace_transform(c: float) -> None:
    draws = gp.polya_gamma(torch.full((400_000,), c, dtype=torch.float64), noise())
    assert draws.min() > 0
    if c:
        mean = math.tanh(c / 2) / (2 * c)
        variance = (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2)
    else:
        mean, variance = 1 / 4, 1 / 24
    assert float(draws.mean()) == pytest.approx(mean, abs=5 * (variance / len(draws)) ** 0.5)
    assert float(draws.var()) == pytest.approx(variance, rel=0.02)
    for t in (0.5, 2.0, 8.0):  # E exp(-t omega) = cosh(c/2) / cosh(sqrt((c^2/2 + t)/2))
        transform = (-t * draws).exp()
        expected = math.cosh(c / 2) / math.cosh(math.sqrt((c * c / 2 + t) / 2))
        assert float(transform.mean()) == pytest.approx(expected, abs=5 * float(transform.std()) / len(draws) ** 0.5)


def dense(K: Tensor, K_star: Tensor, y: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f at new points, by inverses; points with sign 0 are taken out."""
    on = y != 0
    K, K_star, y, omega = K[on][:, on], K_star[:, on], y[on], omega[on]
    given = torch.linalg.inv(K + torch.diag(1 / omega))
    return K_star @ given @ (y / omega / 2), 8.0 - (K_star @ given @ K_star.T).diagonal()


@pytest.mark.parametrize("block", [100, 5])
def test_both_predictives_are_the_dense_solve(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chains of three classifiers, one of which has not seen all points; twelve features at once, or in blocks."""
    monkeypatch.setattr(gp, "BLOCK", block)
    z, new = points(12, 0, 2.0), points(5, 1, 2.0)
    K, K_star, y = KERNEL(z, z), KERNEL(new, z), signs(12, 2, 3)
    y[1, 4:8] = 0
    omega = gp.polya_gamma(torch.zeros(2, 3, 12, dtype=torch.float64), noise()) * y.square()
    F = gp.root(K)
    torch.testing.assert_close(F @ F.T, K, rtol=0, atol=1e-5)
    features = torch.linalg.solve_triangular(F, K_star.T, upper=False).T
    for mean, variance in (
        gp.predictive(K, K_star, 8.0, y, omega),
        WeightPosterior.given(F, y, omega).at(features, 8.0),
    ):
        for m in range(2):
            for v in range(3):
                expected = dense(K, K_star, y[v], omega[m, v])
                torch.testing.assert_close(mean[m, v], expected[0], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(variance[m, v], expected[1], rtol=1e-4, atol=1e-4)


def test_draws_given_omega_have_the_dense_mean_and_covariance() -> None:
    z, y = points(6, 0, 2.0), signs(6, 1)
    K, omega = KERNEL(z, z), torch.rand(6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 2
    covariance = torch.linalg.inv(torch.linalg.inv(K) + torch.diag(omega))
    F = gp.root(K)
    f = WeightPosterior.given(F, y, omega[None]).draw(noise(), 200_000) @ F.T
    torch.testing.assert_close(f.mean(0), covariance @ y / 2, rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cov(f.T), covariance, rtol=0, atol=0.08)


def test_the_predictive_has_a_gradient_where_the_kernel_matrix_is_singular() -> None:
    """Every point twice, three classifiers, of which one has not seen all; against differences in float64."""
    z = torch.cat([points(5, 0), points(5, 0)])
    new, y = points(3, 1), signs(10, 2, 3)
    y[1, 4:8] = 0
    omega = gp.polya_gamma(torch.zeros(4, 3, 10, dtype=torch.float64), noise()) * y.square()

    def value(z: Tensor) -> Tensor:
        mean, variance = gp.predictive(KERNEL(z, z), KERNEL(new, z), 8.0, y, omega)
        return gp.expected_sigmoid(mean, variance).log().sum()

    leaf = z.clone().requires_grad_()
    (g,) = torch.autograd.grad(value(leaf), leaf)
    for way in points(10, 4), points(10, 5):
        difference = (value(z + 1e-5 * way) - value(z - 1e-5 * way)) / 2e-5
        assert float((g * way).sum()) == pytest.approx(float(difference), rel=1e-4)


def test_expected_sigmoid_is_the_integral() -> None:
    mean = torch.linspace(-9, 9, 19, dtype=torch.float64)[:, None].expand(19, 5)
    variance = torch.tensor([1e-6, 1e-2, 1.0, 4.0, 8.0], dtype=torch.float64).expand(19, 5)
    z = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    values = (mean[..., None] + variance.sqrt()[..., None] * z).sigmoid() * density
    expected = torch.trapezoid(values, z)
    torch.testing.assert_close(gp.expected_sigmoid(mean, variance), expected, rtol=0, atol=3e-6)


def test_landmarks_are_the_kernel_within_the_tolerance() -> None:
    """Points in clusters, of which few are enough; all of them without a tolerance."""
    z = torch.cat([points(40, k, 0.05) + 2 * points(1, 10 + k) for k in range(4)])
    few = Landmarks.among(z, KERNEL, 1e-2, 160)
    assert len(few.z) < 40
    features = few.features(z)
    left = KERNEL(z, z) - features @ features.T
    assert 0 < float(left.diagonal().max()) <= 0.08
    assert torch.equal(Landmarks.among(z, KERNEL, 1e-2, 5).z, few.z[:5])
    assert float(torch.linalg.eigvalsh(left).min()) > -1e-9
    spread = points(20, 1, 3.0)
    features = Landmarks.among(spread, KERNEL, 0.0, 50).features(spread)
    torch.testing.assert_close(features @ features.T, KERNEL(spread, spread), rtol=0, atol=1e-9)


def test_gibbs_samples_give_the_probabilities_of_a_long_run_without_them() -> None:
    """By both predictives, from many chains of forty steps; those of the usual five are near already."""
    z = points(9, 0, 1.2)
    y = torch.where(z[:, 0] + 0.3 * z[:, 1] > 0, 1.0, -1.0).double()
    new = torch.cat([z[:4] + 0.3, points(2, 5, 1.2)])
    y[3] = -y[3]
    expected = torch.from_numpy(slices.probabilities(z.numpy(), y.numpy(), new.numpy()))
    K, K_star = KERNEL(z, z), KERNEL(new, z)
    F = gp.root(K)
    features = torch.linalg.solve_triangular(F, K_star.T, upper=False).T
    for steps, bound in ((40, 0.01), (5, 0.03)):
        omega = gp.gibbs(F, y, 4000, steps, noise(steps))
        for mean, variance in (
            gp.predictive(K, K_star, 8.0, y, omega),
            WeightPosterior.given(F, y, omega).at(features, 8.0),
        ):
            found = gp.expected_sigmoid(mean, variance).mean(0)
            torch.testing.assert_close(found, expected, rtol=0, atol=bound)
    assert expected.min() < 0.3
    assert expected.max() > 0.7
