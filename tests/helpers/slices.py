"""Gaussian process classification of two classes by elliptical slice sampling, in NumPy: no Polya-Gamma variable
anywhere."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def slice_sampled(K: Array, y: Array, draws: int) -> Array:
    """Draws (draws, n) of f ~ N(0, K) given signs y (n,), after a thousand others (Murray, Adams and MacKay 2010)."""
    generator, factor = np.random.default_rng(0), np.linalg.cholesky(K + 1e-9 * np.eye(len(K)))

    def log_likelihood(f: Array) -> float:
        return float(-np.logaddexp(0, -y * f).sum())

    f, found = factor @ generator.standard_normal(len(y)), np.empty((draws, len(y)))
    for place in range(-1000, draws):
        other, level = factor @ generator.standard_normal(len(y)), log_likelihood(f) + np.log(generator.random())
        angle = generator.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while log_likelihood(proposed := f * np.cos(angle) + other * np.sin(angle)) < level:
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = generator.uniform(low, high)
        f = proposed
        if place >= 0:
            found[place] = f
    return found


def probabilities(z: Array, y: Array, new: Array, draws: int = 12_000) -> Array:
    """p(y = 1) at new points (m, D) from signs y (n,) at points z (n, D), with k(a, b) = 8 exp(-|a - b|^2 / 2)."""

    def kernel(a: Array, b: Array) -> Array:
        return np.asarray(8 * np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1)))

    f = slice_sampled(kernel(z, z), y, draws)
    solved = np.linalg.solve(kernel(z, z) + 1e-9 * np.eye(len(z)), kernel(z, new))
    deviation = np.sqrt(np.clip(8 - (kernel(z, new) * solved).sum(0), 0, None))
    at_new = f @ solved + deviation * np.random.default_rng(1).standard_normal((draws, len(new)))
    return np.asarray((1 / (1 + np.exp(-at_new))).mean(0))
