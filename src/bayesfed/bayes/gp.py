"""Gaussian processes for two classes, sampled with Polya-Gamma variables (Polson, Scott and Windle 2013).

For signs y_i of n points, p(y_i | f) = sigma(y_i f_i) and f ~ N(0, K), there are omega_i > 0 with which all is Gaussian:

    omega_i | f    ~ PG(1, f_i)
    f | omega, y   ~ N(Sigma y/2, Sigma),    Sigma = (K^-1 + Omega)^-1

A Gibbs sampler draws them in turn. With F F^T = K, f = F w and w ~ N(0, I), the second line is r weights' instead:

    w | omega, y   ~ N(A^-1 F^T y/2, A^-1),  A = I + F^T Omega F

A sign 0 says that the point has not been seen: its omega is 0, and everything is as if it were not there.
Leading dimensions are chains and classifiers; K and F are common to them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Noise = Callable[[Tensor], Tensor]  # standard normal draws in the shape of a tensor
TERMS = 8  # of the sum that a Polya-Gamma variable is; what is left has a variance of 4e-5 of the whole for c = 0
BLOCK = 60  # features at once, where a matrix is symmetric or triangular and half of it would be computed in vain
POINTS = 1000  # at once, where products with more of them leave the processor's cache
REACH, PLACES = 5.0, 21  # of the rule for E sigma(f): its error is below 3e-6 up to variances of 8


@dataclass(frozen=True)
class Kernel:
    """k(a, b) = outputscale exp(-|a - b|^2 / (2 lengthscale^2)); `unit`: of a/|a| and b/|b| in place of a and b."""

    outputscale: float
    lengthscale: float
    unit: bool = False

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """k of each of n points with each of m: (n, D) and (m, D), gives (n, m)."""
        if self.unit:
            a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        squares = a.square().sum(-1)[:, None] + b.square().sum(-1) - 2 * a @ b.mT
        return self.outputscale * (-0.5 / self.lengthscale**2 * squares.clamp(min=0)).exp()


def polya_gamma(c: Tensor, noise: Noise) -> Tensor:
    """Draw PG(1, c) for each entry: 1/(2 pi^2) sum_k e_k / ((k - 1/2)^2 + (c/(2 pi))^2), e_k ~ Exp(1).

    The terms behind the first ones are replaced by their mean, so that the mean is exact: tanh(c/2)/(2c).
    """
    place = (torch.arange(TERMS, dtype=c.dtype, device=c.device) + 0.5).square().view(-1, *[1] * c.dim())
    share = 0.5 / math.pi**2 / (place + (c / (2 * math.pi)).square())
    exponential = noise(share.new_empty(2, *share.shape)).square().sum(0) / 2
    half = (c.abs() / 2).clamp(min=1e-4)
    rest = (half.tanh() / half / 4 - share.sum(0)).clamp(min=0)
    return (share * exponential).sum(0) + rest


def triangular(factor: Tensor, right: Tensor, upper: bool) -> Tensor:
    """Return factor^-1 right of a triangular factor (..., n, n), for right (..., n, m)."""
    found: Tensor = torch.linalg.solve_triangular(factor, right, upper=upper)
    return found


def inverse(factor: Tensor) -> Tensor:
    """Return the inverse of lower triangular factors (..., n, n); for many right sides a product is faster than solving."""
    return triangular(factor, torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device), upper=False)


def root(K: Tensor) -> Tensor:
    """F with F F^T = K (n, n) up to a millionth of its diagonal, (n, n); computed in float64, since K is nearly
    singular."""
    K = K.double()
    factor: Tensor = torch.linalg.cholesky_ex(K + 1e-6 * torch.diag(K.diagonal()))[0]
    return factor


def precision(F: Tensor, omega: Tensor) -> Tensor:
    """Return A = I + F^T Omega F (chains, ..., r, r) of F (n, r) and omega (chains, ..., n): it is right up to the diagonal,
    which is all that a Cholesky factorisation reads.
    """
    r = F.shape[-1]
    if r <= BLOCK:
        A = (F.mT * omega[..., None, :]) @ F
    else:
        A = F.new_zeros(*omega.shape[:-1], r, r)
        for one, weights in zip(A.flatten(0, -3), omega.flatten(0, -2), strict=True):
            for points, weight in zip(F.split(POINTS), weights.split(POINTS), strict=True):
                weighted = points * weight[:, None]
                for block in blocks(r):
                    one[block, : block.stop].addmm_(weighted[:, block].mT, points[:, : block.stop])
    A.diagonal(dim1=-2, dim2=-1).add_(1)
    return A


def blocks(r: int) -> list[slice]:
    """Cut r features into blocks."""
    return [slice(start, min(start + BLOCK, r)) for start in range(0, r, BLOCK)]


@dataclass(frozen=True)
class WeightPosterior:
    """w | omega, y: the factor L of A = L L^T (..., r, r), and L^-1 F^T y/2 (..., r, 1)."""

    factor: Tensor
    pulled: Tensor

    @staticmethod
    def given(F: Tensor, y: Tensor, omega: Tensor) -> WeightPosterior:
        """F (n, r), y (..., n), omega (chains, ..., n)."""
        factor = torch.linalg.cholesky_ex(precision(F, omega))[0]
        pull = (y / 2 @ F)[..., None].expand(*factor.shape[:-1], 1)
        return WeightPosterior(factor, triangular(factor, pull, upper=False))

    def draw(self, noise: Noise, chains: int) -> Tensor:
        """Draw w (chains, ..., r); the posterior is of each chain, or of one for all."""
        z = self.pulled + noise(self.pulled.new_empty(chains, *self.pulled.shape[1:]))
        return triangular(self.factor.mT, z, upper=True)[..., 0]

    @functools.cached_property
    def whitened(self) -> tuple[Tensor, list[Tensor]]:
        """Of means and variances at points: E w (..., r), and the rows of all L^-1 up to their diagonals, by
        block.
        """
        whitening = inverse(self.factor)
        mean = (whitening.mT @ self.pulled)[..., 0]
        return mean, [whitening[..., block, : block.stop].flatten(0, -2) for block in blocks(whitening.shape[-1])]

    def at(self, features: Tensor, prior: float) -> tuple[Tensor, Tensor]:
        """Return mean and variance (chains, ..., m) of f at points with such features (m, r), whose prior variance is
        k(x, x).
        """
        weights, blocks_of_rows = self.whitened
        mean = weights @ features.mT
        variance = torch.zeros_like(mean)
        for rows in blocks_of_rows:
            v = rows @ features[:, : rows.shape[-1]].mT
            variance += v.square_().unflatten(0, (*mean.shape[:-1], -1)).sum(-2)
        unseen = (prior - features.square().sum(-1)).clamp(min=0)  # what the features have not of the prior's variance
        return mean, variance + unseen


def gibbs(F: Tensor, y: Tensor, chains: int, steps: int, noise: Noise) -> Tensor:
    """Return omega (chains, ..., n) after so many steps, from F (n, r) and signs y (..., n)."""
    seen = y.square()
    omega = (seen / 4)[None]  # the mean of PG(1, 0), with which all chains begin
    for _ in range(steps):
        f = WeightPosterior.given(F, y, omega).draw(noise, chains) @ F.mT
        omega = polya_gamma(f, noise) * seen
    return omega


class Predictive(torch.autograd.Function):
    """See `predictive`. With M = (K + Omega^-1)^-1 = S B^-1 S, w = M Omega^-1 y/2 and V = M k*, the gradients are, summed
    over chains and classifiers, from those in mean and variance, g and h:

        in K   -V g w^T + V diag(h) V^T        in k*^T   g w^T - 2 diag(h) V^T
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, K_star: Tensor, prior: float, y: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        s = omega.sqrt()
        B = s[..., :, None] * K * s[..., None, :]
        B.diagonal(dim1=-2, dim2=-1).add_(1)
        whitening = inverse(torch.linalg.cholesky_ex(B)[0])
        target = y / 2 / s.clamp(min=1e-6)
        w = (whitening.mT @ (whitening @ target[..., None]))[..., 0] * s
        scaled = whitening * s[..., None, :]
        V = scaled.mT @ scaled @ K_star.mT
        ctx.save_for_backward(w, V)
        return w @ K_star.mT, prior - (V.mT * K_star).sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor | None, ...]:
        w, V = ctx.saved_tensors
        pulled, scaled = (V @ g[..., None])[..., 0], (V * h[..., None, :]).flatten(0, -3)
        in_K = (scaled @ V.flatten(0, -3).mT).sum(0) - pulled.flatten(0, -2).mT @ w.flatten(0, -2)
        in_K_star = g.flatten(0, -2).mT @ w.flatten(0, -2) - 2 * scaled.sum(0).mT
        return in_K, in_K_star, None, None, None


def predictive(K: Tensor, K_star: Tensor, prior: float, y: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (chains, ..., m) of f at m points given omega, K (n, n), K_star (m, n), y (..., n):

        k*^T S B^-1 S^-1 y/2,   k** - k*^T S B^-1 S k*,   S = Omega^1/2, B = I + S K S

    It can be differentiated in K and K_star, however near K is to a singular one.
    """
    return Predictive.apply(K, K_star, prior, y, omega)  # type: ignore[no-any-return, no-untyped-call]


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E sigma(f) for f ~ N(mean, variance), all of one shape.

    By the trapezoidal rule, which is better here than Gauss and Hermite's of as many places.
    """
    z = torch.linspace(-REACH, REACH, PLACES, dtype=mean.dtype, device=mean.device)
    weight = (-0.5 * z.square()).softmax(0)
    f = mean[..., None] + variance.clamp(min=1e-6).sqrt()[..., None] * z
    return f.sigmoid() @ weight


@dataclass(frozen=True)
class Landmarks:
    """Some of the points, z (r, D), by which all are seen: phi(x) = L^-1 k(z, x), L L^T = k(z, z), `factor` (r, r).

    phi(x) . phi(x') is k(x, x') up to the tolerance on the points that they were chosen from.
    """

    kernel: Kernel
    z: Tensor
    factor: Tensor

    @staticmethod
    def among(points: Tensor, kernel: Kernel, tolerance: float, most: int) -> Landmarks:
        """At most so many of points (n, D): the Cholesky factorisation of their kernel matrix with pivots, until no point
        has more than `tolerance` of the outputscale left."""
        left = torch.full_like(points[:, 0], kernel.outputscale)
        most, chosen = min(most, len(points)), list[int]()
        rows = points.new_zeros(most, len(points))  # the columns of the factor, one after another
        while len(chosen) < most and float(left.max()) > tolerance * kernel.outputscale:
            pivot, done = int(left.argmax()), len(chosen)
            column = kernel(points[pivot : pivot + 1], points)[0] - rows[:done, pivot] @ rows[:done]
            rows[done] = column / left[pivot].sqrt()
            left = (left - rows[done].square()).clamp(min=0)
            left[pivot] = 0
            chosen.append(pivot)
        return Landmarks(kernel, points[chosen], rows[: len(chosen), chosen].mT.tril())

    def features(self, x: Tensor) -> Tensor:
        """phi of each of m points (m, D): (m, r)."""
        return triangular(self.factor, self.kernel(self.z, x), upper=False).mT
