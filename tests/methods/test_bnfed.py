"""BNFed's matching against brute force, and its rounds against sums written out, in float64."""

import importlib.util
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play
from torch import Tensor

from bayesfed.bayes import matching
from bayesfed.core.errors import InputError
from bayesfed.engine.federation import SERVER
from bayesfed.methods.bnfed import Layers
from bayesfed.methods.method import Update

Make = Callable[..., dict[str, Any]]
HYPER = (0.5, 1.0, 2.0)  # sigma, sigma_0, gamma


def clients(noise: float, seed: int = 0) -> tuple[Tensor, list[list[int]]]:
    """Three clients with 4 neurons of 3 entries: the same four in another order, with noise; (3, 4, 3) and the orders."""
    generator = torch.Generator().manual_seed(seed)
    atoms = 3 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
    orders = [torch.randperm(4, generator=generator).tolist() for _ in range(3)]
    drawn = [atoms[order] + noise * torch.randn(4, 3, generator=generator, dtype=torch.float64) for order in orders]
    return torch.stack(drawn), orders


def log_fit(members: list[Tensor], sigma: float, sigma_0: float) -> float:
    """Twice the largest log density, but for constants, of neurons around one atom: at the atom that a solve finds."""
    s, s_0 = sigma**-2, sigma_0**-2
    theta = torch.stack(members).sum(0) * s / (s_0 + s * len(members))
    return -float(s * sum((v - theta).square().sum() for v in members) + s_0 * theta.square().sum())


@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_a_clients_neurons_go_where_brute_force_puts_them(noise: float) -> None:
    """The third client's four neurons, all 1680 and more ways, each worth what it changes in the best fit and the prior."""
    sigma, sigma_0, gamma = HYPER
    neurons, _ = clients(noise)
    at = [torch.tensor([0, 1, 2, 3]), torch.tensor([2, 0, 4, 1])]  # five atoms, of two members and of one
    members = [[neurons[j][int((at[j] == i).nonzero()[0])] for j in (0, 1) if (at[j] == i).any()] for i in range(5)]
    sums, counts = matching.gathered(neurons, [*at, None], 5)
    assert counts.tolist() == [len(one) for one in members] == [2, 2, 2, 1, 1]
    gains = matching.scores(neurons[2], sums, counts, 3, *HYPER)
    alone = [float(v.square().sum()) * sigma**-2 for v in neurons[2]]

    def gain(h: int, i: int) -> float:
        v = neurons[2][h]
        if i < 5:
            fit = log_fit([*members[i], v], sigma, sigma_0) - log_fit(members[i], sigma, sigma_0)
            return fit + alone[h] + 2 * math.log(len(members[i]) / (3 - len(members[i])))
        return log_fit([v], sigma, sigma_0) + alone[h] - 2 * math.log((i - 4) * 3 / gamma)

    table = [[gain(h, i) for i in range(9)] for h in range(4)]
    torch.testing.assert_close(gains, torch.tensor(table, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    best = max(itertools.permutations(range(9), 4), key=lambda way: sum(table[h][i] for h, i in enumerate(way)))
    assert matching.assigned(gains).tolist() == list(best)


def test_three_clients_are_matched_as_the_best_of_all_orders() -> None:
    neurons, orders = clients(0.1)
    atoms, places = matching.match(neurons, *HYPER, iterations=3)
    assert atoms.shape == (4, 3)

    def misfit(ways: tuple[tuple[int, ...], ...]) -> float:
        return sum(
            float((neurons[1 + j][way[h]] - neurons[0][h]).square().sum())
            for j, way in enumerate(ways)
            for h in range(4)
        )

    permutations = list(itertools.permutations(range(4)))
    best = min(itertools.product(permutations, permutations), key=misfit)
    for j, way in enumerate(best):
        assert [int(places[1 + j][way[h]]) for h in range(4)] == places[0].tolist()
    for j in range(3):
        assert [orders[j][h] for h in places[j].argsort()] == [orders[0][h] for h in places[0].argsort()]
    first = torch.stack([neurons[j][int((places[j] == 0).nonzero()[0])] for j in range(3)])
    torch.testing.assert_close(atoms[0], first.sum(0) * 4 / (1 + 3 * 4), rtol=1e-12, atol=0)


def test_neurons_apart_make_a_larger_network(mapping: Make, data_dir: Path) -> None:
    """Clients with nothing alike: every neuron an atom, whose network is what the server predicts with."""
    of = federation(mapping({"name": "bnfed", "sigma": 0.01}, partition={"alpha": 1.0, "clients": 2}), data_dir)
    layers = Layers.of(of.node(SERVER, 0))
    generator = torch.Generator().manual_seed(0)
    size = of.networks[0]["global"].parameters
    thetas = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2)]
    half = torch.tensor(0.5, dtype=torch.float64)
    server = of.node(SERVER, 1)
    server.state = of.method.init_server(server)
    of.method.aggregate(server, [Update(k, 10, half, {"theta": thetas[k]}) for k in range(2)])
    assert len(server["atoms"]) == 200
    assert server["places"].flatten().sort().values.tolist() == list(range(200))
    (predictor,) = of.method.server_predictors(server)
    x = of.shards[0].test_images.plain(of.shards[0].test)
    hidden = [of_theta(thetas[k], layers) for k in range(2)]
    shrunk = 0.01**-2 / (1 + 0.01**-2)
    logits = sum(shrunk * (F.relu(shrunk * (x.flatten(1) @ W.t() + b)) @ out.t()) for W, b, out, _ in hidden)
    logits = logits + (hidden[0][3] + hidden[1][3]) / 2
    torch.testing.assert_close(predictor.log_probabilities(x), logits.log_softmax(-1), rtol=1e-9, atol=1e-9)
    for k in range(2):  # each goes on from its own neurons, shrunk
        theta = of.method.message(server, k)["theta"]
        torch.testing.assert_close(theta[:-10], shrunk * thetas[k][:-10], rtol=1e-9, atol=1e-12)


def of_theta(theta: Tensor, layers: Layers) -> list[Tensor]:
    """Weights, biases, weights out and biases out."""
    sizes = [layers.hidden * layers.inputs, layers.hidden, layers.hidden * layers.classes, layers.classes]
    W, b, out, last = theta.split(sizes)
    return [W.view(layers.hidden, -1), b, out.view(layers.classes, -1), last]


def test_a_vector_is_its_neurons(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("bnfed"), data_dir)
    layers, theta = Layers.of(of.node(SERVER, 0)), of.node(SERVER, 0).initial()
    neurons, last = layers.neurons(theta)
    assert torch.equal(layers.theta(neurons, last), theta)
    x = of.shards[0].test_images.plain(of.shards[0].test)
    torch.testing.assert_close(
        layers.logits(neurons, last, x), of.networks[0]["global"](theta, x), rtol=1e-9, atol=1e-12
    )


def test_what_bnfed_refuses(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="BNFed matches the neurons of one hidden layer, fully connected; take 'pfedbayes_mlp'"
    ):
        play(federation(mapping("bnfed", models={"global": "lenet5"}), data_dir), 1)
    of = federation(mapping({"name": "bnfed", "select": "test"}), data_dir)
    of.method.leak = lambda: ""  # type: ignore[method-assign]
    with pytest.raises(InputError, match="method 'bnfed' looks at test images and does not say so"):
        play(of, 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="bnfed solves assignment problems by SciPy, which is not installed"):
        play(federation(mapping("bnfed"), data_dir), 1)
