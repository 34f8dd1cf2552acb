"""FedBE's server step, of FedPPD+Distill too: its samples and pseudo-labels against loops written out in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play
from torch import Tensor

from bayesfed import methods
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import begin
from bayesfed.methods.fedbe import Distillation
from bayesfed.methods.method import Update
from bayesfed.methods.node import Node

Make = Callable[..., dict[str, Any]]
IMAGES = [10, 20, 30, 140]  # of the clients
EACH = [("fedbe", 0), ("fedppd_distill", 0), ("fedppd_distill", 1)]  # methods, and which of their server's steps


def server_step(of: Federation, which: int) -> Distillation:
    method: Any = of.method
    found = [method.distillation] if of.run.method == "fedbe" else method.distillations
    assert isinstance(found[which], Distillation)
    return found[which]


def sent(server: Node, before: Tensor, step: Distillation) -> list[Update]:
    """What four clients might send, of parameters and statistics."""
    generator = torch.Generator().manual_seed(1)
    n = torch.tensor(IMAGES, dtype=torch.float64)

    def near(value: Tensor) -> Tensor:
        moved = 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return value + moved if value.is_floating_point() else value

    def statistics() -> dict[str, Tensor]:
        return {name: near(server[name]) for name in server.statistics[step.network]}

    return [Update(k, IMAGES[k], n[k] / n.sum(), {step.name: near(before)}, statistics()) for k in range(4)]


def gathered(of: Federation, which: int) -> tuple[Distillation, Node, list[Update], Tensor]:
    """The server once it has its ensemble, and w_t."""
    step, server = server_step(of, which), of.node(SERVER, 1)
    server.state = dict(begin(of).server)
    before = server[step.name]
    updates = sent(server, before, step)
    server[step.name] = before + 1
    step.gather(server, before, updates)
    return step, server, updates, before


@pytest.mark.parametrize(("name", "which"), EACH)
@pytest.mark.parametrize("distribution", ["directions", "gaussian", "dirichlet"])
def test_samples_are_those_of_their_distribution(
    distribution: str, name: str, which: int, mapping: Make, data_dir: Path
) -> None:
    """Tensor by tensor, with the same standard normal draws."""
    method = {"name": name, "distribution": distribution, "samples": 3, "step": 0.7, "spread": 0.4}
    of = federation(mapping(method), data_dir)
    step, server, updates, before = gathered(of, which)
    found = server[f"{step.name}.ensemble"][1 + 4 :]
    noise = of.node(SERVER, 1).noise
    exponential = noise(before.new_empty(2, 3, 4)).square().sum(0) if distribution == "dirichlet" else torch.ones(3, 4)
    for i in range(3):
        at = 0
        for part in server.split(before, step.network):
            here = slice(at, at := at + len(part))
            start, ends = before[here].numpy(), [update[step.name][here].numpy() for update in updates]
            eps = noise(part).numpy() if distribution != "dirichlet" else 0.0
            if distribution == "directions":
                lengths = [np.sqrt(((end - start) ** 2).sum()) for end in ends]
                d = [(end - start) / length for end, length in zip(ends, lengths, strict=True)]
                m = sum(d) / 4
                v = np.maximum(sum((one - m) ** 2 for one in d) / 4, 1e-5)
                expected = start + 0.7 * sum(lengths) / 4 * (m + 0.4 * np.sqrt(v) * eps)
            elif distribution == "gaussian":
                mean = sum(images * end for images, end in zip(IMAGES, ends, strict=True)) / 200
                v = sum(images * (end - mean) ** 2 for images, end in zip(IMAGES, ends, strict=True)) / 200
                expected = start + 0.7 * (mean - start + 0.4 * np.sqrt(v) * eps)
            else:
                gamma = (exponential[i] / exponential[i].sum()).tolist()
                expected = start + 0.7 * (sum(one * end for one, end in zip(gamma, ends, strict=True)) - start)
            np.testing.assert_allclose(found[i, here].numpy(), expected, rtol=1e-10, atol=1e-12)
        assert at == len(before)


def test_dirichlet_weights_are_uniform_on_the_simplex(mapping: Make, data_dir: Path) -> None:
    """Of four: P(gamma_k <= x) = 1 - (1 - x)^3, and the covariance of two is -1/80."""
    of = federation(mapping({"name": "fedbe", "distribution": "dirichlet", "samples": 40_000}), data_dir)
    step, server = server_step(of, 0), of.node(SERVER, 1)
    gamma = step.weights(server, sent(server, server.initial(), step))
    torch.testing.assert_close(gamma.sum(1), gamma.new_ones(40_000))
    for x in (0.05, 0.25, 0.6):
        below = (gamma <= x).double().mean(0)
        torch.testing.assert_close(below, torch.full_like(below, 1 - (1 - x) ** 3), rtol=0, atol=0.012)
    covariance = torch.full((4, 4), -1 / 80, dtype=torch.float64).fill_diagonal_(3 / 80)
    torch.testing.assert_close(gamma.T.cov(), covariance, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("name", "which"), EACH)
def test_statistics_are_averaged_by_the_same_dirichlet_weights(
    name: str, which: int, mapping: Make, data_dir: Path
) -> None:
    networks = {"global": "normalised"} | dict.fromkeys(methods.get(name).networks, "normalised")
    of = federation(mapping({"name": name, "distribution": "dirichlet", "samples": 2}, models=networks), data_dir)
    step, server, updates, _ = gathered(of, which)
    thetas = torch.stack([update[step.name] for update in updates])
    for i in range(2):
        sample = server[f"{step.name}.ensemble"][1 + 4 + i]
        gamma = torch.linalg.lstsq(thetas.T, sample[:, None]).solution[:, 0]
        torch.testing.assert_close(gamma @ thetas, sample)
        compared = 0
        for key in (key for key in updates[0].statistics if server[key].is_floating_point()):
            low, high = torch.stack([server[key], *(update.statistics[key] for update in updates)]).aminmax(dim=0)
            expected = sum(gamma[k] * updates[k].statistics[key] for k in range(4)).clamp(low, high)
            torch.testing.assert_close(server[f"{step.name}.ensemble.{key}"][4 + i], expected)
            compared += len(expected)
        assert compared > 0


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(("sharpen", "floor"), [(0.5, 0.0), (1.0, 0.0), (0.5, 1e-8), (0.5, 0.03), (0.25, 1e-3)])
def test_pseudo_labels_are_the_mean_prediction_sharpened(
    sharpen: float, floor: float, mapping: Make, data_dir: Path
) -> None:
    """With a temperature of 1 it is the mean itself; a floor lifts the least of p^(1/T) before all are normalised."""
    method = {"name": "fedbe", "sharpen": sharpen, "floor": floor, "lr": 0.5}
    of = federation(mapping(method, local_epochs=4), data_dir)
    phases, caught = of.method.server_phases, []

    def first(server: Node) -> Any:
        caught.append(server["theta.ensemble"].clone())
        return phases(server)[:1]

    of.method.server_phases = first  # type: ignore[method-assign]
    targets = play(of, 1).server["theta.targets"].exp().numpy()
    shard, network = of.shards[SERVER], of.networks[0]["global"]
    x = shard.train_images.plain(shard.train)
    p = np.mean([network(theta, x).detach().softmax(-1).numpy() for theta in caught[0]], axis=0)
    expected = np.maximum(p ** (1 / sharpen), floor)
    assert floor < 1e-4 or (expected == floor).any()
    np.testing.assert_allclose(targets, expected / expected.sum(1, keepdims=True), rtol=1e-10, atol=0)
    if sharpen == 1:
        np.testing.assert_allclose(targets, p, rtol=1e-10, atol=0)
