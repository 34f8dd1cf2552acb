"""Diagonal Gaussians: product, mean, entropy, divergence, and the softplus that keeps sigma positive.

A Gaussian is a mean and a standard deviation of shape (P,); K of them are stacked as (K, P). Aggregation is done
in float64 whatever the inputs, since precisions of different clients span many orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def weighted_mean(weights: Tensor, values: Tensor | Sequence[Tensor]) -> Tensor:
    """Return sum_k w_k values_k / sum_k w_k. weights (K,) or (K, P), not negative, values (K, P), or K of (P,); gives (P,),
    float64.
    """
    weights = weights.double()
    # Summed one by one: the order of additions does not depend on the shape of the weights, and a thousand clients
    # are not copied to float64 all at once.
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for w, v in zip(weights, values, strict=True):
        total += w * v.double()
    return total / sum(weights)


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


Rule = Literal["eaa", "gaa", "gaa-normalised", "aalv", "fkl", "rkl", "cf", "wb", "dwc", "fedag"]
# Standard deviations (P,) around the plain mean, from those of the clients, the weights (K, 1), which sum to 1, and the
# squares of what the clients' means are away from the plain one.
DEVIATIONS: dict[Rule, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "eaa": lambda sigmas, w, apart: (w * sigmas.square()).sum(0).sqrt(),
    "gaa": lambda sigmas, w, apart: (w * sigmas).square().sum(0).sqrt(),
    "gaa-normalised": lambda sigmas, w, apart: ((w * sigmas).square().sum(0) / w.square().sum()).sqrt(),
    "aalv": lambda sigmas, w, apart: (w * sigmas.log()).sum(0).exp(),
    "fkl": lambda sigmas, w, apart: (w * (sigmas.square() + apart)).sum(0).sqrt(),
    "wb": lambda sigmas, w, apart: (w * sigmas).sum(0),
    "fedag": lambda sigmas, w, apart: (w * apart).sum(0).sqrt(),
}


def barycentre(rule: Rule, means: Tensor, sigmas: Tensor, weights: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Return one Gaussian for those of K clients by a rule; all elementwise, w_k the weights over their sum:

        rule            mean            variance
        eaa             sum w mu        sum w sigma^2, arithmetic mean
        gaa             sum w mu        sum w^2 sigma^2, that of the weighted sum; gaa-normalised divides it by sum w^2
        aalv            sum w mu        exp(sum w log sigma^2), geometric mean
        fkl             sum w mu        sum w (sigma^2 + (mu_k - mu)^2), the mixture's moments: forward KL
        fedag           sum w mu        sum w (mu_k - mu)^2, that of point estimates
        wb              sum w mu        (sum w sigma)^2, Wasserstein-2 barycentre
        rkl             of `product`    1/sum w sigma^-2, reverse KL
        cf              of `product`    max w/sum w sigma^-2, conflation
        dwc             of `product`    1/P, P = sum sigma^-2 - (K - 1)/sigma_0^2: one prior; of powers 1

    means, sigmas (K, P), weights (K,), priors (K,): the clients' 1/sigma_0^2, of which dwc takes the mean; P is no less.
    Gives mean and standard deviation (P,) in float64.
    """
    w = (weights.double() / weights.double().sum())[:, None]
    if rule in DEVIATIONS:
        mean = weighted_mean(weights, means)
        return mean, DEVIATIONS[rule](sigmas.double(), w, (means.double() - mean).square())
    if rule == "dwc":
        precisions, prior = sigmas.double().square().reciprocal(), priors.double().mean()
        P = (precisions.sum(0) - (len(priors) - 1) * prior).clamp(min=prior)
        return (precisions * means.double()).sum(0) / P, P.rsqrt()
    mean, sigma = product(means, sigmas, w[:, 0])
    return mean, sigma * w.max().sqrt() if rule == "cf" else sigma


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


def renyi(mu: Tensor, variance: Tensor, mu_c: Tensor, variance_c: Tensor, alpha: float) -> Tensor:
    """Rényi's divergence of q = N(mu, variance) from c = N(mu_c, variance_c) over the last dimension:

        sum log(int q^alpha c^(1 - alpha))/(alpha (alpha - 1)),    s = alpha variance_c + (1 - alpha) variance,
        log int = (1 - alpha) log sigma + alpha log sigma_c - 1/2 log s + 1/2 alpha (alpha - 1) (mu - mu_c)^2/s

    Infinite where an s is not positive. alpha is not 1, where its limit is `kl`.
    """
    s = alpha * variance_c + (1 - alpha) * variance
    logs = ((1 - alpha) * variance.log() + alpha * variance_c.log() - s.log()) / 2
    found = (logs / (alpha * (alpha - 1)) + (mu - mu_c).square() / (2 * s)).sum(-1)
    return torch.where((s > 0).all(-1), found, torch.inf)


def renyi_gradient(
    mu: Tensor, variance: Tensor, mu_c: Tensor, variance_c: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the gradient of `renyi` in mu and log variance, all (P,); for alpha = 1 that of `kl`:

        (mu - mu_c)/s    and    variance/2 (1/(alpha s) + (alpha - 1) (mu - mu_c)^2/s^2) - 1/(2 alpha)

    Where the divergence is infinite, s is taken as a thousandth of variance_c, which leads out of there.
    """
    s, away = (alpha * variance_c + (1 - alpha) * variance).maximum(1e-3 * variance_c), mu - mu_c
    stretch = 1 / (alpha * s) + (alpha - 1) * (away / s).square()
    return away / s, variance / 2 * stretch - 1 / (2 * alpha)


def through_softplus(g_sigma: Tensor, rho: Tensor) -> Tensor:
    """Return the gradient in rho from that in sigma = softplus(rho)."""
    g_rho: Tensor = torch.ops.aten.softplus_backward.default(g_sigma, rho, 1, 20)  # 1 and 20 as in F.softplus
    return g_rho


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
