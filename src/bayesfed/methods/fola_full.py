"""FOLA with the whole Hessian of a softmax regression, or its eigenvalues, in place of squared gradients (section IV-E).

For p = softmax(W x + b) and x' = (x, 1), the mean Hessian of the cross-entropy over a mini-batch has the blocks

    H_ij = mean over images of p_i (delta_ij - p_j) x' x'^T      for classes i, j

It is gathered as FOLA gathers g^2 (online, or offline): Omega_n += |b|/n_n H. `full` keeps Omega_n as it is, a matrix over all
parameters; then the prior's gradient and the server's average are products and a solve:

    lambda/r Omega_S (theta - mu_S),      mu_S = (Omega_S + epsilon I)^-1 sum_n pi_n Omega_n theta_n

`eigenvalues` ("e-full") takes the eigenvalues of a round's Hessian, ascending, for the diagonal of Omega_n. That is our
reading: the paper does not say which parameter gets which eigenvalue, but reports that the clients' precisions are nearly
the same then, as two sorted spectra are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.errors import InputError
from bayesfed.methods.base import Batch, Learner, Node, Phase, State
from bayesfed.methods.fola import FOLA
from bayesfed.options import option


class FOLAFull(FOLA):
    """FOLA's server and clients; Omega is (P, P) for `full`, in the order of the rows (W_c, b_c) of the classes c."""

    name = "fola_full"
    label = "FOLA, full Hessian"
    revision = 1

    @dataclass(frozen=True)
    class Options(FOLA.Options):
        """FOLA's. epsilon is larger: it must be above the rounding of the Hessian, whose null space is large."""

        curvature: Literal["full", "eigenvalues"] = "full"
        epsilon: float = option(1e-3, above=0)

    def __init__(self, options: FOLAFull.Options) -> None:
        super().__init__(options)
        self.full = options.curvature == "full"

    def init_server(self, server: Node) -> State:
        sizes = [len(part) for part in server.split(server.initial())]
        if len(sizes) != 2 or sizes[1] != server.classes:
            raise InputError("models.global: fola_full has the Hessian of a softmax regression alone; take 'softmax'")
        return super().init_server(server)

    def no_precision(self, mu: Tensor) -> Tensor:
        return mu.new_zeros(len(mu), len(mu)) if self.full else torch.zeros_like(mu)

    def start(self, c: Node, message: State) -> State:
        state = super().start(c, message)
        if not self.full:
            state["hessian"] = c.n.new_zeros(len(state["theta"]), len(state["theta"]))
        return state

    def gather(self, c: Learner, batch: Batch, g: Tensor) -> None:
        share = batch.size / c.n
        add_hessian(c["omega" if self.full else "hessian"], c.model(c["theta"], batch.x).softmax(-1), batch, share)
        c["passes"].add_(share)

    def phases(self, c: Node) -> Sequence[Phase]:
        *others, last = super().phases(c)
        return [*others, replace(last, end=self.mirror if self.full else self.take_eigenvalues)]

    def mirror(self, c: Node) -> None:
        """Omega_n from its upper triangle."""
        c["omega"].triu_()
        c["omega"].add_(c["omega"].triu(1).T)

    def take_eigenvalues(self, c: Node) -> None:
        """Omega_n += the eigenvalues of the round's Hessian, of which rounding leaves some just below 0."""
        c["omega"].add_(torch.linalg.eigvalsh(c["hessian"].double(), UPLO="U").clamp(min=0).to(c["omega"].dtype))

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


def add_hessian(into: Tensor, p: Tensor, batch: Batch, share: Tensor) -> None:
    """into (P, P) += share times the mean Hessian of a mini-batch with class probabilities p (B, C), in the upper triangle
    (and somewhere below it). The parameters are the weights (C, D), a row a class, and behind them the biases (C,)."""
    images, classes = p.shape
    x = batch.x.flatten(1).to(p.dtype)
    x, features = torch.cat([x, x.new_ones(images, 1)], 1), x.shape[1]
    weight = batch.weight if batch.weight is not None else p.new_full((images,), 1 / images)
    cut = classes * features
    ww = into[:cut, :cut].view(classes, features, classes, features)
    wb, bb = into[:cut, cut:].view(classes, features, classes), into[cut:, cut:]
    for i in range(classes):
        at = -p[:, i : i + 1] * p[:, i:]
        at[:, 0] += p[:, i]
        at = at * (share * weight)[:, None]  # of the blocks (i, j) for j from i on
        block = x.T @ (at[:, :, None] * x[:, None]).flatten(1)
        block = block.view(features + 1, classes - i, features + 1)
        ww[i, :, i:] += block[:-1, :, :-1]
        wb[i, :, i:] += block[:-1, :, -1]
        wb[i + 1 :, :, i] += block[:-1, 1:, -1].T
        bb[i, i:] += block[-1, :, -1]


METHOD = FOLAFull
