"""pFedBayes and the baselines of its comparison against closed forms and loops written out here, in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from playing import federation, play
from torch import Tensor

from bayesfed.engine.executors.base import Mixer
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.errors import InputError
from bayesfed.methods.base import Phase, Update
from bayesfed.models.network import Network

Make = Callable[..., dict[str, Any]]
BATCHES = {"local_epochs": 0, "local_batches": 3, "batch_size": 16, "batch_order": "fixed"}


def batches(of: Federation, client: int, round: int, many: int) -> list[tuple[Tensor, Tensor]]:
    """The mini-batches of a client's round, as every executor has them."""
    phase = Phase(of.method.step, batches=many)
    mixer, found = Mixer(of, of.node(client, round), [phase]), []
    for chunk in mixer.phase(of.shards[client], phase):
        found += list(zip(chunk.x.split(mixer.size), chunk.y.split(mixer.size), strict=True))
    return found


def logits(of: Federation, theta: Tensor, x: Tensor) -> Tensor:
    network = of.networks[0][0]
    assert isinstance(network, Network)
    return network(theta, x)


def gradient(of: Federation, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean cross-entropy."""
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(logits(of, theta, x), y), theta)[0]


@pytest.mark.parametrize("form", ["paper", "code"])
def test_pfedbayes_round_is_the_loop_written_out(form: str, mapping: Make, data_dir: Path) -> None:
    """Two rounds, of which the second shows what a client keeps; torch's Adam and torch's KL by autograd."""
    method = {
        "name": "pfedbayes",
        "zeta": 7.0,
        "lr": 0.01,
        "lr_w": 0.02,
        "loss": form,
        "beta": 0.75,
        "noise_scale": 0.5,
    }
    method |= {"personal_steps": 5, "weights": "images"} if form == "code" else {"samples": 2}
    # A network all of whose parameters have a gradient: of a zero, torch's KL makes rounding, and Adam steps of that.
    of = federation(mapping(method, models={"global": "softmax"}, **BATCHES), data_dir)
    v = [of.node(SERVER, 0).initial()]
    v.append(torch.full_like(v[0], -2.5))
    size = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    q = {k: [t.clone().requires_grad_() for t in v] for k in range(4)}
    w = {k: [t.clone().requires_grad_() for t in v] for k in range(4)}
    adam = {k: torch.optim.Adam(q[k], lr=0.01) for k in range(4)}
    adam_w = {k: torch.optim.Adam(w[k], lr=0.02) for k in range(4)}
    steps, K = (5, 1) if form == "code" else (1, 2)

    def normal(pair: list[Tensor]) -> torch.distributions.Normal:
        return torch.distributions.Normal(pair[0], F.softplus(pair[1]))

    for round in (1, 2):
        for k in range(4):
            for parameter, sent in zip(w[k], v, strict=True):
                parameter.data.copy_(sent)
            node = of.node(k, round)
            for x, y in batches(of, k, round, 3):
                for _ in range(steps):
                    adam[k].zero_grad()
                    data = torch.zeros((), dtype=torch.float64)
                    for _ in range(K):
                        g = 0.5 * node.noise(v[0])
                        theta = q[k][0] + F.softplus(q[k][1]) * g
                        data = data + F.cross_entropy(logits(of, theta, x), y, reduction="sum") / K
                    divergence = torch.distributions.kl_divergence(normal(q[k]), normal(w[k])).sum()
                    if form == "paper":
                        omega = size[k] / len(y) * data + 7.0 * divergence
                    else:
                        omega = data + 7.0 / 3 * divergence
                    omega.backward()
                    adam[k].step()
                adam_w[k].zero_grad()
                torch.distributions.kl_divergence(normal(q[k]), normal(w[k])).sum().backward()
                adam_w[k].step()
        share = size / size.sum() if form == "code" else torch.full((4,), 0.25, dtype=torch.float64)
        v = [0.25 * v[i] + 0.75 * sum(share[k] * w[k][i].detach() for k in range(4)) for i in (0, 1)]
    found = play(of, 2)
    for k in range(4):
        for i, name in enumerate(("mu", "rho")):
            torch.testing.assert_close(found.clients[k][name], q[k][i].detach(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.server["mu_w"], v[0], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.server["rho_w"], v[1], rtol=1e-7, atol=1e-9)


def test_pfedbayes_averages_some_of_the_clients(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "pfedbayes", "averaged": 2}), data_dir)
    size = of.networks[0][0].parameters
    share = torch.tensor(0.25, dtype=torch.float64)
    values = [torch.full((size,), 10.0**k, dtype=torch.float64) for k in range(4)]
    updates = [Update(k, 10, share, {"mu_w": values[k], "rho_w": -values[k], "kl": share}) for k in range(4)]
    pairs = {(10.0**i + 10.0**j) / 2: (i, j) for i in range(4) for j in range(i)}
    chosen = set()
    for round in range(1, 12):
        server = of.node(SERVER, round)
        server.state = {"mu_w": values[0].clone(), "rho_w": values[0].clone()}
        of.method.aggregate(server, updates)
        chosen.add(pairs[float(server["mu_w"][0])])
        assert torch.equal(server["rho_w"], -server["mu_w"])
    assert len(chosen) > 2


def test_the_codes_weight_needs_a_number_of_mini_batches(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "pfedbayes", "loss": "code"}), data_dir)
    with pytest.raises(InputError, match=r"method\.loss: the code's KL weight is zeta / local_batches"):
        play(of, 1)
