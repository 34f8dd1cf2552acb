"""Samples of a client's posterior from the path of SGD: Langevin dynamics, SWAG's moments, and FedPA's means of iterates."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def langevin(theta: Tensor, g: Tensor, lr: Tensor | float, noise: Tensor | float, z: Tensor) -> None:
    """Do theta <- theta - lr/2 g + sqrt(lr) noise z, in place: a step of SGLD (Welling and Teh 2011) on the mean loss.

    theta, its gradient g and the standard normal draw z (P,). With g the gradient of -log p(theta | n images)/n and
    noise = 1/sqrt(n) this is SGLD with the step lr/n, and samples the posterior; a smaller noise samples it tempered by
    T = n noise^2: p^(1/T).
    """
    theta.sub_(lr / 2 * g).add_((lr**0.5) * noise * z)


def diagonal_gaussian(mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return SWAG's diagonal Gaussian (Maddox et al. 2019) from the means of iterates and of their squares (P,): mu
    and sigma.
    """
    return mean, (square - mean.square()).clamp(min=1e-30).sqrt()


def posterior_delta(start: Tensor, samples: Tensor, rho: float) -> Tensor:
    """Return FedPA's delta = Sigma^-1 (x_bar - start) in float64, from posterior samples (l, P) and start (P,).

    Sigma = rho_l I + (1 - rho_l) S with the samples' covariance S (divisor l - 1) and rho_l = 1/(1 + (l - 1) rho)
    (Al-Shedivat et al. 2021, appendix C). Their recursion over the samples and this solve of l equations, by Woodbury's
    identity, are the same number at the same cost, O(l^2 P). With one sample it is x_1 - start.
    """
    x = samples.double()
    v, count = x.mean(0) - start.double(), len(x)
    if count == 1 or rho == 0:
        return v
    rho_l = 1 / (1 + (count - 1) * rho)
    centred = x - x.mean(0)
    ridge = (count - 1) * rho_l / (1 - rho_l) * torch.eye(count, dtype=x.dtype, device=x.device)
    inside: Tensor = torch.linalg.solve(centred @ centred.T + ridge, centred @ v)
    return (v - centred.T @ inside) / rho_l
