"""Diagonal Gaussians: product, mean, entropy, divergence, and the softplus that keeps sigma positive.

A Gaussian is a mean and a standard deviation of shape (P,); K of them are stacked as (K, P). Aggregation is done
in float64 whatever the inputs, since precisions of different clients span many orders of magnitude.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def weighted_mean(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_k w_k values_k / sum_k w_k. weights (K,) or (K, P), not negative, values (K, P); gives (P,), float64."""
    weights = weights.double()
    # Summed one by one: the order of additions does not depend on the shape of the weights, and a thousand clients
    # are not copied to float64 all at once.
    return sum(w * v.double() for w, v in zip(weights, values, strict=True)) / sum(weights)


def product(means: Tensor, sigmas: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Gaussian proportional to prod_k N(mu_k, diag sigma_k^2)^(q_k): HBFL's server step.

    Lambda = sum_k q_k sigma_k^-2 and mu = Lambda^-1 sum_k q_k sigma_k^-2 mu_k, elementwise. means and sigmas
    (K, P), powers q (K,) positive; gives mean and sigma of shape (P,) in float64. Precisions are taken relative
    to the largest of each entry, so nothing overflows and equal sigmas give exactly `weighted_mean(q, means)`.
    """
    log_precision = -2 * sigmas.double().log()
    largest = log_precision.amax(0)
    relative = powers.double()[:, None] * (log_precision - largest).exp()
    return weighted_mean(relative, means), (-0.5 * (largest + relative.sum(0).log())).exp()


def softplus(rho: Tensor) -> Tensor:
    """Return sigma = log(1 + exp(rho))."""
    return F.softplus(rho)


def inverse_softplus(sigma: Tensor) -> Tensor:
    """Return rho = log(exp(sigma) - 1), whose softplus is sigma > 0."""
    return sigma + torch.log(-torch.expm1(-sigma))


def sample(mu: Tensor, sigma: Tensor, eps: Tensor) -> Tensor:
    """Return mu + sigma eps: a sample of N(mu, diag sigma^2) from a standard normal one, in one pass."""
    return torch.addcmul(mu, sigma, eps)


def kl(mu: Tensor, sigma: Tensor, mu_w: Tensor, sigma_w: Tensor) -> Tensor:
    """Return KL(N(mu, diag sigma^2) || N(mu_w, diag sigma_w^2)) over the last dimension:

    1/2 sum [log(sigma_w^2/sigma^2) + (sigma^2 + (mu - mu_w)^2)/sigma_w^2 - 1].
    """
    squares = (sigma.square() + (mu - mu_w).square()) / sigma_w.square()
    return ((sigma_w / sigma).log() + 0.5 * (squares - 1)).sum(-1)


def kl_gradient(mu: Tensor, sigma: Tensor, mu_w: Tensor, sigma_w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of `kl` in mu and sigma: (mu - mu_w)/sigma_w^2 and sigma/sigma_w^2 - 1/sigma. All (P,).

    Written so that equal Gaussians give exactly 0: Adam would make steps of mere rounding.
    """
    precision = sigma_w.square().reciprocal()
    return (mu - mu_w) * precision, (sigma - sigma_w) * (sigma + sigma_w) * precision / sigma


def kl_prior_gradient(mu: Tensor, sigma: Tensor, mu_w: Tensor, sigma_w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of `kl` in the second Gaussian's mean and standard deviation, all (P,):

    (mu_w - mu)/sigma_w^2 and (1 - (sigma^2 + (mu - mu_w)^2)/sigma_w^2)/sigma_w.

    Exactly 0 for equal ones, too.
    """
    away, precision = mu_w - mu, sigma_w.square().reciprocal()
    g_sigma = ((sigma_w - sigma) * (sigma_w + sigma) - away.square()) * precision / sigma_w
    return away * precision, g_sigma


def through_softplus(g_sigma: Tensor, rho: Tensor) -> Tensor:
    """Return the gradient in rho from that in sigma = softplus(rho)."""
    return torch.ops.aten.softplus_backward.default(g_sigma, rho, 1, 20)  # 1 and 20 as in F.softplus


def rho_gradient(g: Tensor, eps: Tensor, rho: Tensor, sigma: Tensor, entropy_weight: Tensor) -> Tensor:
    """Return d/drho of L(mu + sigma eps) - w sum_i log sigma_i, sigma = softplus(rho), from g = L'(mu + sigma eps):

        (g eps - w / sigma) sigmoid(rho).

    All (P,), the entropy's weight w ().
    """
    return through_softplus(torch.addcdiv(g * eps, entropy_weight, sigma, value=-1), rho)


def log_precision_spread(sigmas: Tensor) -> Tensor:
    """Return the largest difference of log sigma^-2 between two clients over all entries; sigmas (K, P), gives ()."""
    log_precision = -2 * sigmas.double().log()
    return (log_precision.amax(0) - log_precision.amin(0)).amax()
