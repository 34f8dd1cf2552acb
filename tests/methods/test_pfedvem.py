"""pFedVEM: a round against torch's own optimiser, the M-step and the server by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play
from helpers.quadratics import make
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.engine.federation import SERVER
from bayesfed.methods.method import Ground, Update
from bayesfed.methods.node import Batch, Node, Phase

Make = Callable[..., dict[str, Any]]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def begun(of: Any, mu: Tensor, sigma: Tensor, mu_g: Tensor) -> Node:
    """A client with that head, as its round begins."""
    c = of.node(0, 2, 1)
    c.state = of.method.init_client(of.node(0, 0))
    for name, value in (("mu", mu), ("s", torch.log(torch.expm1(sigma)))):
        c[name].zero_()[: len(value)] = value
    c["begun"].fill_(1)
    c.state |= of.method.start(c, {"base": of.method.parts(c)[0], "mu": mu_g})
    return c


def test_rho_maximises_the_expected_prior(mapping: Make, data_dir: Path) -> None:
    """sigma^2 = (1/4, 1/4), mu_k = (1/2, -1), mu_g = (0, 1): (1/2 + 1/4 + 4)/2."""
    of = federation(mapping("pfedvem"), data_dir)
    c, d = of.node(0, 1, 1), 2
    of.method.parts = lambda node: (node.initial()[:-d], node.initial()[-d:])  # type: ignore[attr-defined]
    c = begun(of, vector(0.5, -1), vector(0.5, 0.5), vector(0, 1))
    rho2 = c["rho2"].item()
    assert rho2 == pytest.approx(2.375, abs=1e-12)

    def expected(rho2: float) -> float:
        """E_q log N(w; mu_g, rho^2), but for a constant."""
        return -0.5 * (4.75 / rho2 + 2 * torch.tensor(rho2).double().log().item())

    assert expected(rho2) > max(expected(rho2 * 1.01), expected(rho2 * 0.99))


def test_heads_begin_as_the_servers_with_the_first_sigma(mapping: Make, data_dir: Path) -> None:
    """Whose entries are standard normal; rho is that sigma in the first round."""
    of = federation(mapping("pfedvem", models={"global": "lenet5"}), data_dir)
    server = of.method.init_server(of.node(SERVER, 0))
    assert server["mu"].numel() == 84 * 10 + 10
    assert server["mu"].std().item() == pytest.approx(1, abs=0.1)
    c = of.node(0, 1, 1)
    c.state = of.method.init_client(of.node(0, 0))
    c.state |= of.method.start(c, server)
    assert torch.equal(c["mu"], server["mu"])
    assert c["rho2"].sqrt().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.usefixtures("unwatched", "modules")
@pytest.mark.parametrize("model", ["lenet5", "smooth"])
def test_the_head_takes_steps_on_all_images(model: str, mapping: Make, data_dir: Path) -> None:
    """Two of torch's SGD on the whole objective, with the draws that the method has, against those of mini-batches: of a
    chain, whose base computes once for all draws, and of a module.
    """
    asked = mapping({"name": "pfedvem", "head_epochs": 2, "draws": 3}, batch_size=16, models={"global": model})
    of = federation(asked, data_dir)
    phases, moves, first = of.method.phases, [], {}

    def heads_alone(c: Node) -> list[Phase]:
        if c.client == 0:
            first.update({name: tensor.clone() for name, tensor in c.state.items()})
        return phases(c)[:1]

    move = of.method.move  # type: ignore[attr-defined]

    def noting(c: Node) -> None:
        if c.client == 0 and not moves:
            moves.append(c["eps"].clone())
        move(c)

    of.method.phases, of.method.move = heads_alone, noting  # type: ignore[method-assign,attr-defined]
    client = play(of, 1).clients[0]
    mu, s = (first[name].clone().requires_grad_() for name in ("mu", "s"))
    optimiser = torch.optim.SGD([mu, s], lr=1e-3, momentum=0.9)
    images, labels = of.own_images(0)
    prior = torch.distributions.Normal(first["mu_g"], first["rho2"].sqrt())
    for draws in moves[0]:
        optimiser.zero_grad()
        q = torch.distributions.Normal(mu, F.softplus(s))
        loss = torch.distributions.kl_divergence(q, prior).sum()
        for eps in draws:
            theta = torch.cat([first["base"], mu + F.softplus(s) * eps])
            logits = of.networks[0]["global"].logits(theta, images, {}, torch.Generator())
            loss = loss + F.cross_entropy(logits, labels, reduction="sum") / 3
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(client["mu"], mu.detach(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(client["s"], s.detach(), rtol=1e-9, atol=1e-10)
    assert (client["mu"] - first["mu"]).abs().max() > 1e-3


def test_the_base_step_leaves_the_head_alone(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("pfedvem", models={"global": "lenet5"}), data_dir)
    d = 850
    c = begun(of, torch.randn(d).double(), torch.ones(d).double(), torch.zeros(d).double())
    before = {name: tensor.clone() for name, tensor in c.state.items()}
    images, labels = of.own_images(0)
    of.method.step(c.learner(), Batch(images[:8], labels[:8]))
    moved = {name for name, tensor in c.state.items() if not torch.equal(tensor, before[name])}
    assert moved == {"base", "base.momentum"}


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("model", ["lenet5", "mlp", "smooth"])
def test_the_base_moves_by_the_mean_over_draws_of_the_head(model: str, mapping: Make, data_dir: Path) -> None:
    """Against autograd through a pass for each draw, of a chain with and without convolutions and of a module."""
    of = federation(mapping({"name": "pfedvem", "draws": 3}, models={"global": model}), data_dir)
    c = of.node(0, 2, 1)
    d = len(of.method.parts(c)[1])  # type: ignore[attr-defined]
    c = begun(of, torch.linspace(-1, 1, d).double(), torch.linspace(0.1, 1, d).double(), torch.zeros(d).double())
    images, labels = of.own_images(0)
    base = c["base"].clone().requires_grad_()
    c.generator.manual_seed(5)
    draws = [c["mu"] + F.softplus(c["s"]) * c.noise(c["mu"]) for _ in range(3)]
    loss = torch.zeros((), dtype=torch.float64)
    for head in draws:
        logits = of.networks[0]["global"].logits(torch.cat([base, head]), images[:8], {}, torch.Generator())
        loss = loss + F.cross_entropy(logits, labels[:8]) / 3
    loss.backward()
    c.generator.manual_seed(5)
    before, network = of.passes.multiply_adds, of.networks[0]["global"]
    of.method.step(c.learner(), Batch(images[:8], labels[:8]))
    passes = (of.passes.multiply_adds - before) / (8 * network.training_operations)
    assert passes == (3 if model == "smooth" else 1)
    torch.testing.assert_close(c["base"], base.detach() - 1e-3 * base.grad, rtol=1e-11, atol=1e-13)


def sent() -> list[Update]:
    """Of three clients, of which the second has a head that is sure."""
    values = [(0.2, 1.0, 1.0, 4.0), (0.3, 2.0, -2.0, 0.5), (0.5, 4.0, 3.0, 2.0)]
    return [
        Update(k, 10, vector(q)[0], {"base": vector(base), "mu": vector(mu), "rho2": vector(rho2)[0]})
        for k, (q, base, mu, rho2) in enumerate(values)
    ]


@pytest.mark.parametrize("beta", [0.0, 0.25])
def test_the_server_weighs_bases_by_images_and_heads_by_confidence(beta: float, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "pfedvem", "aggregated": 1.0, "beta": beta}), data_dir)
    server = of.node(SERVER, 1)
    server.state = {"base": vector(10.0), "mu": vector(10.0)}
    logged = of.method.aggregate(server, sent())
    base = 0.2 * 1 + 0.3 * 2 + 0.5 * 4
    mu = (1 / 4 - 2 / 0.5 + 3 / 2) / (1 / 4 + 1 / 0.5 + 1 / 2)
    assert server["base"].item() == pytest.approx((1 - beta) * base + beta * 10)
    assert server["mu"].item() == pytest.approx((1 - beta) * mu + beta * 10)
    assert logged["aggregated"].item() == 3


def test_heads_of_equal_rho_have_a_plain_mean(mapping: Make, data_dir: Path) -> None:
    """Whatever rho is, and however many images the clients have."""
    of = federation(mapping({"name": "pfedvem", "aggregated": 1.0}), data_dir)
    server, updates = of.node(SERVER, 1), sent()
    server.state = {"base": vector(10.0), "mu": vector(10.0)}
    for update in updates:
        update["rho2"].fill_(0.3)
    of.method.aggregate(server, updates)
    assert server["mu"].item() == pytest.approx((1 - 2 + 3) / 3, abs=1e-12)


def test_a_random_part_is_aggregated(mapping: Make, data_dir: Path) -> None:
    """Each of 20 clients with a probability of 0.3, two at least; over 200 rounds."""
    of = federation(mapping({"name": "pfedvem", "aggregated": 0.3}), data_dir)
    rare = federation(mapping({"name": "pfedvem", "aggregated": 1e-6}), data_dir)
    updates = [Update(k, 10, vector(0.05)[0]) for k in range(20)]
    server = of.node(SERVER, 1)
    chosen = [of.method.chosen(server, updates) for _ in range(200)]  # type: ignore[attr-defined]
    sizes = vector(*map(len, chosen))
    assert sizes.mean().item() == pytest.approx(6, abs=0.6)
    assert sizes.var().item() == pytest.approx(20 * 0.3 * 0.7, rel=0.35)
    assert {update.client for part in chosen for update in part} == set(range(20))
    assert len(rare.method.chosen(server, updates)) == 2  # type: ignore[attr-defined]
    assert len(rare.method.chosen(server, updates[:1])) == 1  # type: ignore[attr-defined]


def test_absent_clients_keep_their_heads(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("pfedvem", participation=0.5), data_dir)
    one = play(of, 1)
    two = play(of, 1, one)
    first, second = set(one.clients), set(of.participants(2))
    for k in first - second:
        assert torch.equal(one.clients[k]["mu"], two.clients[k]["mu"])


def test_a_network_needs_a_base(mapping: Make, data_dir: Path) -> None:
    for sizes, message in (
        ((40, 8, 80, 10), ""),
        ((8, 40, 8, 80), "models.global: pFedVEM's head is the last layer's weight and bias"),
    ):
        ground = Ground(sizes, 5, 10, 2, 1, 0, 1.0, 0, batchwise=False, random=False)
        assert make("pfedvem").unfit(ground).startswith(message)
    with pytest.raises(InputError, match=r"models\.global: pFedVEM has a base below the last layer"):
        federation(mapping("pfedvem", models={"global": "softmax"}), data_dir)
