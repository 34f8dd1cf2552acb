"""FedAvgM, the FedAvg ensemble and temperature scaling against closed forms."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from scipy import optimize

from bayesfed.engine.evaluation import SERVER
from bayesfed.methods.fedavg_temperature import temperature

Make = Callable[..., dict[str, Any]]


def test_fedavgm_moves_with_momentum(mapping: Make, data_dir: Path) -> None:
    """Its round 1 is FedAvg's; theta_2 = theta_1 - (b v_1 + d_2) with v_1 = theta_0 - theta_1."""
    of, plain = federation(mapping("fedavgm"), data_dir), federation(mapping("fedavg"), data_dir)
    first = play(of, 1)
    one = play(plain, 1)
    torch.testing.assert_close(first.server["theta"], one.server["theta"], rtol=1e-12, atol=1e-12)
    theta_0, theta_1 = of.node(SERVER, 0).initial(), one.server["theta"]
    d = theta_1 - play(plain, 1, one).server["theta"]
    expected = theta_1 - (0.9 * (theta_0 - theta_1) + d)
    torch.testing.assert_close(play(of, 1, first).server["theta"], expected, rtol=1e-9, atol=1e-10)


def test_fedavgm_without_momentum_is_fedavg(mapping: Make, data_dir: Path) -> None:
    plain = play(federation(mapping("fedavg"), data_dir), 2).server["theta"]
    found = play(federation(mapping({"name": "fedavgm", "server_momentum": 0.0}), data_dir), 2).server["theta"]
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)


def test_the_ensemble_is_the_mixture_of_the_clients_models(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg_ensemble", rounds=1), data_dir)
    progress = play(of, 1)
    node = of.node(SERVER, 1)
    node.state = progress.server
    x, y = (of.splits[0][1].plain(torch.arange(30)), of.splits[0][1].labels[:30])
    n = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    mean, mixture = (p.log_probabilities(x) for p in of.method.server_predictors(node))
    each = [node.model(theta, x).softmax(-1) for theta in progress.server["members"]]
    expected = sum(weight * p for weight, p in zip(n / n.sum(), each, strict=True))
    torch.testing.assert_close(mixture.exp(), expected, rtol=1e-10, atol=1e-12)
    nll = [-p.log().gather(-1, y[:, None]).mean() for p in each]
    assert -mixture.gather(-1, y[:, None]).mean() <= sum(w * one for w, one in zip(n / n.sum(), nll, strict=True))
    assert not torch.equal(mean, mixture)


def test_the_ensemble_of_one_client_is_fedavg(mapping: Make, data_dir: Path) -> None:
    """Its mean model, its mixture and the model of FedAvg predict the same."""
    one = {"partition": {"alpha": 1.0, "clients": 1}, "models": {"global": "softmax"}}
    predicted = []
    for name in ("fedavg", "fedavg_ensemble"):
        of = federation(mapping(name, **one), data_dir)
        node = of.node(SERVER, 2)
        node.state = play(of, 2).server
        x = of.splits[0][1].plain(torch.arange(30))
        predicted += [predictor.log_probabilities(x) for predictor in of.method.server_predictors(node)]
    plain, mean, mixture = predicted
    torch.testing.assert_close(mean, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mixture, plain, rtol=1e-12, atol=1e-12)


def test_temperature_of_two_classes_has_a_closed_form() -> None:
    """A logit gap of 4, three of four right: T = 4/ln 3."""
    z = torch.tensor([[4.0, 0.0]] * 4)
    assert float(temperature(z, torch.tensor([0, 0, 0, 1]))) == pytest.approx(4 / math.log(3), rel=1e-9)
    assert float(temperature(z, torch.tensor([0, 0, 0, 0]))) == pytest.approx(1e-3)  # all right: as sharp as may be


def test_temperature_minimises_the_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    z = 5 * torch.randn(200, 10, generator=generator, dtype=torch.float64)
    y = torch.where(
        torch.rand(200, generator=generator) < 0.5, z.argmax(-1), torch.randint(10, (200,), generator=generator)
    )
    loss = lambda T: float(torch.nn.functional.cross_entropy(z / T, y))  # noqa: E731
    best = optimize.minimize_scalar(loss, bounds=(0.1, 50), method="bounded", options={"xatol": 1e-9})
    assert float(temperature(z, y)) == pytest.approx(best.x, rel=1e-5)


def test_scaled_logits_predict_what_fedavg_does(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fedavg_temperature", "calibration_images": 50}), data_dir)
    progress = play(of, 1)
    node = of.node(SERVER, 1)
    node.state = progress.server
    (scaled,) = of.method.server_predictors(node)
    x, y = node.images()
    assert len(y) == 50
    z = node.model(progress.server["theta"], x)
    assert torch.equal(scaled.log_probabilities(x).argmax(-1), z.argmax(-1))
    assert float(progress.server["T"]) == pytest.approx(float(temperature(z, y)), rel=1e-9)
