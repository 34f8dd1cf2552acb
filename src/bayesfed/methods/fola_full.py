"""FOLA with the whole Hessian of a softmax regression, or its eigenvalues, in place of squared gradients (section IV-E).

For p = softmax(W x + b) and x' = (x, 1), the mean Hessian of the cross-entropy over a mini-batch has the blocks

    H_ij = mean over images of p_i (delta_ij - p_j) x' x'^T      for classes i, j

It is gathered as FOLA gathers g^2 (online, or offline): Omega_n += |b|/n_n H, which is 1/n_n sum_i A_i (x) x'_i x'_i^T over
the client's images i, A_i being the sum of diag(p) - p p^T over the steps that saw i. So steps note A_i alone, and the
products are taken at the end of the round, all at once. `full` keeps Omega_n as it is, a matrix over all
parameters; then the prior's gradient and the server's average are products and a solve:

    lambda/r Omega_S (theta - mu_S),      mu_S = (Omega_S + epsilon I)^-1 sum_n pi_n Omega_n theta_n

`eigenvalues` ("e-full") takes the eigenvalues of a round's Hessian, ascending, for the diagonal of Omega_n. That is our
interpretation: the paper does not say which parameter gets which eigenvalue, but reports that the clients' precisions
are nearly the same then, as two sorted spectra are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.fola import FOLA
from bayesfed.methods.method import Ground
from bayesfed.methods.node import Batch, Learner, Node, Phase, State

IMAGES, TILE = 2048, 96  # how many images and pixels go into a product: large for the processor, small for its memory


class FOLAFull(FOLA):
    """FOLA's server and clients; Omega is (P, P) for `full`, in the order of the rows (W_c, b_c) of the classes c."""

    name = "fola_full"
    label = "FOLA, full Hessian"
    revision = 1
    unaugmented = True

    @dataclass(frozen=True)
    class Options(FOLA.Options):
        """FOLA's. epsilon is larger: it must be above the rounding of the Hessian, whose null space is large."""

        curvature: Literal["full", "eigenvalues"] = "full"
        epsilon: float = option(1e-3, above=0)

    def __init__(self, options: FOLAFull.Options) -> None:
        super().__init__(options)
        self.full = options.curvature == "full"

    def unfit(self, ground: Ground) -> str:
        if list(ground.sizes) != [ground.pixels * ground.classes, ground.classes]:
            return "models.global: fola_full has the Hessian of a softmax regression alone; take 'softmax'"
        if self.options.squares == "images":
            return "method.squares: images, but fola_full has the Hessian, and squares no gradient; leave it out"
        return super().unfit(ground)

    def no_precision(self, mu: Tensor) -> Tensor:
        return mu.new_zeros(len(mu), len(mu)) if self.full else torch.zeros_like(mu)

    def start(self, c: Node, message: State) -> State:
        state = super().start(c, message)
        state["curvature"] = c.n.new_zeros(int(c.n), c.classes**2)
        return state

    def gather(self, c: Learner, batch: Batch, squares: Tensor) -> None:
        """Add diag(p) - p p^T to A_i for the images i of the mini-batch."""
        assert batch.index is not None
        curvature, place = curvatures(c, c["theta"], batch.x), batch.index
        if batch.weight is not None:
            real = batch.weight > 0
            curvature, place = curvature * real[:, None], place * real
        c["curvature"].index_add_(0, place, curvature)
        c["passes"].add_(batch.size / c.n)

    def phases(self, c: Node) -> Sequence[Phase]:
        *others, last = super().phases(c)
        return [*others, replace(last, indexed=True, end=self.take_hessian if self.full else self.take_eigenvalues)]

    def take_hessian(self, c: Node) -> None:
        """Add the round's Hessian to Omega_n."""
        c["omega"].add_(Hessian(c.images()[0], c["curvature"]).whole())

    def take_eigenvalues(self, c: Node) -> None:
        """Add to Omega_n the eigenvalues of the round's Hessian, of which rounding leaves some just below 0."""
        c["omega"].add_(Hessian(c.images()[0], c["curvature"]).eigenvalues().clamp(min=0))

    def pull(self, c: Learner) -> Tensor:
        return c["stiffness"] @ (c["theta"] - c["mu"]) if self.full else super().pull(c)

    def average(self, pi: Tensor, thetas: Tensor, omegas: Tensor) -> tuple[Tensor, Tensor]:
        if not self.full or self.options.aggregation == "fedavg":
            return super().average(pi, thetas, omegas)
        omega, ridge = weighted_mean(pi, omegas), self.options.epsilon
        pulls = [one.double() @ theta.double() for one, theta in zip(omegas, thetas, strict=True)]
        right = weighted_mean(pi, torch.stack(pulls))
        if self.options.epsilon_rule == "fedavg":
            right += ridge * weighted_mean(pi, thetas)
        left = omega.clone()
        left.diagonal().add_(ridge)
        factor, fault = torch.linalg.cholesky_ex(left)
        # Where rounding outweighs epsilon there is no mode, and the run has diverged.
        mu = torch.cholesky_solve(right[:, None], factor)[:, 0]
        return torch.where(fault == 0, mu, torch.nan), omega

    def diagnostics(self, omega: Tensor) -> dict[str, Tensor]:
        return super().diagnostics(omega.diagonal() if self.full else omega)


def curvatures(c: Learner, theta: Tensor, x: Tensor) -> Tensor:
    """Return A_i = diag(p) - p p^T (n, C C) of images x (n, ...) at theta."""
    p = c.model(theta, x).softmax(-1)
    return (p.diag_embed() - p[:, :, None] * p[:, None]).flatten(1)


class Hessian:
    """H = 1/n sum_i A_i (x) x'_i x'_i^T for images x (n, ...) and A (n, C C), in the order of the parameters: the weights
    (C, D), a row a class, and behind them the biases (C,).

    Pixels that are the same in all images are multiples of the 1 in x' = (x, 1). So x'_d = scale_d z_place(d), where z (F,)
    are the other pixels and the 1. And the rows of every A sum to 0, so that A = E (E^T A E) E^T, the columns of E (C, C -
    1) being any orthonormal ones that sum to 0. All products are taken of E^T A E and z: the `core` (C - 1, F, C - 1, F).
    """

    def __init__(self, x: Tensor, a: Tensor) -> None:
        x = x.flatten(1).to(a.dtype)
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        varies = (x != x[0]).any(0)
        z = torch.cat([x[:, varies], x[:, -1:]], 1)
        self.place = torch.where(varies, varies.cumsum(0) - 1, z.shape[1] - 1)
        self.scale = torch.where(varies, 1, x[0])
        self.classes = math.isqrt(a.shape[1])
        ones = torch.ones(self.classes, self.classes, dtype=torch.float64, device=a.device)
        self.basis = torch.linalg.eigh(ones)[1][:, :-1].to(a.dtype)
        contrasts = self.classes - 1
        reduced = (self.basis.T @ a.unflatten(1, (self.classes, -1)) @ self.basis).flatten(1)
        i, j = torch.triu_indices(contrasts, contrasts, device=a.device)
        blocks = second_moments(z, reduced[:, i * contrasts + j] / len(x))
        self.core = a.new_empty(contrasts, z.shape[1], contrasts, z.shape[1])
        self.core[i, :, j] = blocks
        self.core[j, :, i] = blocks

    def whole(self) -> Tensor:
        """Return H (P, P)."""
        features, classes = self.core.shape[1], torch.arange(self.classes, device=self.place.device)
        rows = classes[:, None] * features + self.place
        rows = torch.cat([rows[:, :-1].flatten(), rows[:, -1]])
        scale = torch.cat([self.scale[:-1].repeat(self.classes), self.scale[-1:].repeat(self.classes)])
        blocks = torch.einsum("ik,kflg,jl->ifjg", self.basis, self.core, self.basis)
        return blocks.flatten(0, 1).flatten(1)[rows][:, rows] * scale[:, None] * scale

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of H, (P,), ascending and in float64: those of the core for r_f z_f with r_f^2 = sum
        of scale_d^2 over place(d) = f, and zeros.
        """
        squares = torch.zeros(self.core.shape[1], dtype=torch.float64, device=self.scale.device)
        r = squares.index_add(0, self.place, self.scale.double().square()).sqrt()
        core = (self.core * r[:, None, None] * r).flatten(0, 1).flatten(1)
        found = torch.linalg.eigvalsh(core)
        return torch.cat([found, found.new_zeros(self.classes * len(self.place) - len(found))]).sort().values


def second_moments(x: Tensor, factors: Tensor) -> Tensor:
    """Return sum_i w_ij x_i x_i^T for every j: (J, F, F) from x (n, F) and factors (n, J), in tiles of its upper
    triangle.
    """
    found = x.new_zeros(factors.shape[1], x.shape[1], x.shape[1])
    for some, w in zip(x.split(IMAGES), factors.split(IMAGES), strict=True):
        for at in range(0, x.shape[1], TILE):
            tile = (w[:, :, None] * some[:, None, at : at + TILE]).flatten(1)
            found[:, at : at + TILE, at:] += (tile.T @ some[:, at:]).unflatten(0, (factors.shape[1], -1))
    return found.triu_().add_(found.triu(1).mT)


METHOD = FOLAFull
