"""The Gaussian barycentre: its inference against autograd and closed forms, its server, and what is sent down."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from helpers.quadratics import SCALARS, Quadratics, make
from torch import Tensor

from bayesfed.bayes.gaussian import barycentre
from bayesfed.core.errors import InputError
from bayesfed.engine.federation import SERVER
from bayesfed.methods.gaussian import Gaussian
from bayesfed.methods.method import Update

Make = Callable[..., dict[str, Any]]


class Client(dict):
    n = torch.tensor(50.0, dtype=torch.float64)


def test_gradients_of_bayes_by_backprop_are_autograds() -> None:
    """Of CE + KL/n, with the KL as torch has it; of a parameter without a distribution CE's alone."""
    torch.manual_seed(0)
    method = Gaussian(Gaussian.Options(inference="bbb", prior=0.5))
    mu, s = (torch.randn(9, dtype=torch.float64).requires_grad_() for _ in range(2))
    eps, h = torch.randn(2, 9, dtype=torch.float64)
    drawn = torch.arange(9) > 2
    sigma = (s / 2).exp() * drawn
    prior = torch.distributions.Normal(torch.zeros(9), torch.full((9,), 0.5, dtype=torch.float64).sqrt())
    q = torch.distributions.Normal(mu, (s / 2).exp())
    theta = mu + sigma * eps
    kl = torch.distributions.kl_divergence(q, prior)[drawn].sum()
    expected = torch.autograd.grad((h * theta.square()).sum() / 2 + kl / 50, (mu, s))
    c = Client(mu=mu.detach(), drawn=drawn)
    found = method.gradients(c, (h * theta).detach(), eps, sigma.detach())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_ivon_on_a_client_is_its_posterior() -> None:
    """Of a quadratic loss with the prior N(0, 1/(n w)): precision a + n w, mean b/(a + n w)."""
    method = make("gaussian", lr=0.01, beta2=0.999, weight_decay=0.5, rescale=False)
    quadratics = Quadratics(method, torch.full((1, 2000), 3.0), torch.full((1, 2000), 2.0), n=(4,), steps=8000)
    (c,) = quadratics.play().values()
    precision = 1 / method.sigma(c, c.state).square().mean()
    assert precision.item() == pytest.approx(3 + 4 * 0.5, rel=0.03)
    assert c["mu"].mean().item() == pytest.approx(2 / 5, rel=0.03)


@pytest.mark.parametrize("inference", ["ivon", "bbb"])
def test_a_client_goes_on_from_the_servers_gaussian(inference: str) -> None:
    quadratics = Quadratics(make("gaussian", inference=inference, rule="fkl", beta2=0.9), *SCALARS)
    quadratics.play()
    quadratics.solve = lambda c: None
    server = quadratics.server
    for c in quadratics.play().values():
        torch.testing.assert_close(quadratics.method.sigma(c, c.state), server["sigma"], rtol=1e-12, atol=0)
        torch.testing.assert_close(c["mu"], server["mu"], rtol=0, atol=0)


def updates(size: int) -> list[Update]:
    """Of three clients."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64) + 0.1

    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    one = torch.tensor(1.0, dtype=torch.float64)
    return [Update(k, 10, q[k], {"mu": draw(), "sigma": draw(), "prior": one}) for k in range(3)]


@pytest.mark.parametrize("rule", ["wb", "dwc", "cf"])
def test_the_last_layers_are_gaussian_and_the_others_averaged(rule: str, mapping: Make, data_dir: Path) -> None:
    """Of LeNet5 the weights of two layers, of equal clients."""
    method = {"name": "gaussian", "inference": "bbb", "layers": 2, "rule": rule, "weights": "equal"}
    of = federation(mapping(method, models={"global": "lenet5"}), data_dir)
    server = of.node(SERVER, 1)
    server.state = {"mu": server.initial()}
    sent = updates(len(server["mu"]))
    of.method.aggregate(server, sent)
    sizes = list(of.networks[0]["global"].sizes)
    gaussian = torch.cat([torch.full((size,), i in (6, 8)) for i, size in enumerate(sizes)])
    mus, sigmas = (torch.stack([update[name] for update in sent]) for name in ("mu", "sigma"))
    mu, sigma = barycentre(rule, mus, sigmas, torch.ones(3), torch.ones(3))
    torch.testing.assert_close(server["mu"], torch.where(gaussian, mu, mus.mean(0)), rtol=1e-12, atol=0)
    torch.testing.assert_close(server["sigma"], torch.where(gaussian, sigma, 0), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("layers", "weights"), [(1, [3]), (2, [0, 3])])
def test_the_last_layers_of_a_module_are_those_with_weights(
    layers: int, weights: list[int], mapping: Make, data_dir: Path
) -> None:
    """A convolution without bias, a normalisation, which counts as no layer, and a layer with bias."""
    method = {"name": "gaussian", "inference": "bbb", "layers": layers}
    node = federation(mapping(method, models={"global": "normalised"}), data_dir).node(0, 1)
    drawn = make("gaussian", inference="bbb", layers=layers).drawn(node)
    assert [i for i, part in enumerate(node.split(drawn)) if part.any()] == weights


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("inference", ["ivon", "bbb"])
def test_scales_of_normalisation_have_no_distribution(inference: str, mapping: Make, data_dir: Path) -> None:
    """They are trained and averaged, whatever the precisions are."""
    chosen = {"name": "gaussian", "inference": inference, "rule": "rkl", "lr": 0.05}
    of = federation(mapping(chosen, models={"global": "normalised"}), data_dir)
    scaling = of.node(0, 1).scaling
    assert scaling is not None
    progress = play(of, 2)
    assert (progress.server["sigma"][scaling] == 0).all()
    assert (progress.server["sigma"][~scaling] > 0).all()
    assert (progress.server["mu"] - of.node(SERVER, 0).initial())[scaling].abs().min() > 1e-6
    server, sent = of.node(SERVER, 1), updates(len(scaling))
    of.method.aggregate(server, sent)
    plain = sum(update.q * update["mu"] for update in sent)
    torch.testing.assert_close(server["mu"][scaling], plain[scaling], rtol=1e-12, atol=0)


@pytest.mark.usefixtures("unwatched")
def test_personal_barycentres_lie_between_own_and_received(mapping: Make, data_dir: Path) -> None:
    """Of weight 1 in the middle of both means by wb, at a weight of nothing and of all the received one and the own."""
    of = federation(mapping({"name": "gaussian", "personal": [0, 1, 1e12]}), data_dir)
    predicted: list[tuple[Tensor, ...]] = []
    finish = of.method.finish

    def noting(c):  # type: ignore[no-untyped-def]
        own, *personal = of.method.client_predictors(c)
        predicted.append((own.theta, c["received.mu"].clone(), *(one.theta for one in personal)))
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    assert {row.model for row in play(of, 1).history} >= {"local", "personal 0", "personal 1", "global"}
    for own, received, none, middle, everything in predicted:
        torch.testing.assert_close(none, received, rtol=0, atol=1e-12)
        torch.testing.assert_close(middle, (own + received) / 2, rtol=0, atol=1e-12)
        torch.testing.assert_close(everything, own, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ({"layers": 1}, "method.layers: IVON's q is of all parameters"),
        ({"inference": "bbb", "layers": 9}, "method.layers: 9, but the network has 5 layers"),
        ({"rule": "fedag"}, "method.sent: the rule fedag has no sigma"),
    ],
)
def test_what_cannot_be(method: dict[str, Any], told: str, mapping: Make, data_dir: Path) -> None:
    with pytest.raises(InputError, match=told):
        federation(mapping({"name": "gaussian"} | method, models={"global": "lenet5"}), data_dir)
