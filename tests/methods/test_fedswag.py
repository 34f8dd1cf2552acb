"""FedAvg+SWAG's covariance of low rank against the moments of the clients' iterates, written out in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from torch import Tensor

from bayesfed.engine.federation import SERVER
from bayesfed.methods import fedswag
from bayesfed.methods.node import Node
from bayesfed.methods.predictors import Predictor

Make = Callable[..., dict[str, Any]]


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("stragglers", [0.0, 1.0])
def test_the_low_rank_part_is_the_mixtures(stragglers: float, mapping: Make, data_dir: Path) -> None:
    """Deviations from running means of the last three of five epochs, or of as many as a straggler does."""
    changes = {"local_epochs": 5, "rounds": 1, "stragglers": stragglers, "models": {"global": "softmax"}}
    of = federation(mapping({"name": "fedswag", "rank": 3, "lr": 0.1}, **changes), data_dir)
    iterates: dict[int, list[Tensor]] = {k: [] for k in range(4)}
    collect = of.method.collect  # type: ignore[attr-defined]

    def noting(c: Node) -> None:
        iterates[c.client].append(c["theta"].clone())
        collect(c)

    of.method.collect = noting  # type: ignore[attr-defined]
    server = play(of, 1).server
    n = [len(of.shards[k].train) for k in range(4)]
    q = [count / sum(n) for count in n]
    means = [sum(path) / len(path) for path in iterates.values()]
    mean = sum(q[k] * means[k] for k in range(4))
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for k, path in iterates.items():
        deviations = [path[i] - sum(path[: i + 1]) / (i + 1) for i in range(len(path))][-3:]
        for deviation in deviations:
            covariance += q[k] / max(len(deviations) - 1, 1) * torch.outer(deviation, deviation)
        covariance += q[k] * torch.outer(means[k] - mean, means[k] - mean)
    assert (len({len(path) for path in iterates.values()}) > 1) == (stragglers > 0)
    assert covariance.diagonal().max() > 1e-6
    torch.testing.assert_close(server["C"].T @ server["C"], covariance, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("rank", [0, 2])
def test_networks_are_drawn_of_both_halves(
    rank: int, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping({"name": "fedswag", "rank": rank, "lr": 0.1}, local_epochs=3, rounds=1), data_dir)
    state = play(of, 1).server
    assert ("C" in state) == (rank > 0)
    draws: list[Callable[[], Tensor]] = []

    def catching(name: str, model: Any, draw: Callable[[], Tensor], *rest: Any) -> Predictor:
        draws.append(draw)
        return Predictor(name, lambda x: x)

    monkeypatch.setattr(fedswag, "softmax_average", catching)
    server, noise = of.node(SERVER, 1), of.node(SERVER, 1).noise
    server.state = dict(state)
    of.method.server_predictors(server)
    theta, sigma = state["theta"], state["sigma"]
    for _ in range(2):
        expected = theta + sigma * noise(theta)
        if rank:
            C = state["C"]
            assert C.shape == (4 * (rank + 1), len(theta))
            z = noise(C.new_empty(len(C)))
            low = sum(z[row] * C[row] for row in range(len(C)))
            expected = theta + (expected - theta + low) / 2**0.5
        torch.testing.assert_close(draws[0](), expected, rtol=0, atol=1e-12)


def test_the_diagonal_is_the_same_with_and_without(mapping: Make, data_dir: Path) -> None:
    """The option changes how networks are drawn, and nothing else."""
    plain, low = (
        play(federation(mapping({"name": "fedswag", "rank": rank}, local_epochs=3), data_dir), 2).server
        for rank in (0, 2)
    )
    for name in ("theta", "sigma"):
        assert torch.equal(plain[name], low[name])
