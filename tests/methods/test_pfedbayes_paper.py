"""pFedBayes and the baselines of its comparison against closed forms and loops written out here, in float64."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.playing import batches, federation, play
from torch import Tensor

import bayesfed
from bayesfed.core.errors import InputError
from bayesfed.engine.batches import Mixer
from bayesfed.engine.executors import EXECUTORS
from bayesfed.engine.federation import SERVER, Federation, Shard
from bayesfed.methods import pfedme
from bayesfed.methods.method import Update
from bayesfed.methods.node import Batch, Learner, Node, Phase
from bayesfed.methods.predictors import Predictor
from bayesfed.models.network import Network

Make = Callable[..., dict[str, Any]]
BATCHES = {"local_epochs": 0, "local_batches": 3, "batch_size": 16, "batch_order": "fixed"}


def logits(of: Federation, theta: Tensor, x: Tensor) -> Tensor:
    network = of.networks[0]["global"]
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


@pytest.mark.usefixtures("modules")
def test_the_first_mu_may_be_spread_wider(mapping: Make, data_dir: Path) -> None:
    """Of each layer to the deviation asked for, server and clients alike; what the network starts as a constant, its scales
    and shifts, stays that."""
    of = federation(
        mapping({"name": "pfedbayes", "mu_spread": 0.3}, models={"global": "normalised"}, **BATCHES), data_dir
    )
    server = of.node(SERVER, 0)
    first = of.method.init_server(server)["mu_w"]
    drawn = 0
    for part, plain in zip(server.split(first), server.split(server.initial()), strict=True):
        if plain.unique().numel() > 1:
            drawn += 1
            assert part.std(correction=0).item() == pytest.approx(0.3)
            torch.testing.assert_close(part / part[0], plain / plain[0])
        else:
            assert torch.equal(part, plain)
    assert drawn == len(server.split(first)) - 2
    assert all(torch.equal(of.method.init_client(of.node(k, 0))["mu"], first) for k in range(4))


@pytest.mark.usefixtures("modules")
def test_a_bayesian_network_stands_beside_deterministic_normalisation(mapping: Make, data_dir: Path) -> None:
    """Two rounds by torch's modules, whose scales and shifts have neither noise nor KL, begin as the server's and are
    averaged as it averages; their running statistics, by the clients' images."""
    method = {"name": "pfedbayes", "zeta": 7.0, "lr": 0.01, "lr_w": 0.02, "noise_scale": 0.5}
    of = federation(mapping(method, models={"global": "normalised"}, **BATCHES), data_dir)
    network = of.networks[0]["global"]
    scales = torch.from_numpy(network.scaling)
    assert [int(part.sum()) for part in scales.split(network.sizes)] == [0, 3, 3, 0, 0]
    v = [of.node(SERVER, 0).initial()]
    v.append(torch.full_like(v[0], -2.5))
    n = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    running = network.module(v[0], network.statistics).double().state_dict()
    names = [name for name in running if "running" in name]
    q = {k: [t.clone().requires_grad_() for t in v] for k in range(4)}
    w = {k: [t.clone().requires_grad_() for t in v] for k in range(4)}
    adam = {k: torch.optim.Adam(q[k], lr=0.01) for k in range(4)}
    adam_w = {k: torch.optim.Adam(w[k], lr=0.02) for k in range(4)}

    def normal(pair: list[Tensor]) -> torch.distributions.Normal:
        return torch.distributions.Normal(pair[0][~scales], F.softplus(pair[1][~scales]))

    for round in (1, 2):
        after = []
        for k in range(4):
            for parameter, sent in zip(w[k], v, strict=True):
                parameter.data.copy_(sent)
            q[k][0].data[scales] = v[0][scales]
            module = network.module(v[0], network.statistics).double().train()
            module.load_state_dict({name: running[name] for name in names}, strict=False)
            node = of.node(k, round)
            for x, y in batches(of, k, round, 3):
                adam[k].zero_grad()
                g = torch.where(scales, 0, 0.5 * node.noise(v[0]))
                theta = q[k][0] + F.softplus(q[k][1]) * g
                shapes = zip(network.sizes, module.named_parameters(), strict=True)
                offset, parameters = 0, {}
                for size, (name, parameter) in shapes:
                    parameters[name] = theta[offset : offset + size].view(parameter.shape)
                    offset += size
                data = F.cross_entropy(torch.func.functional_call(module, parameters, (x,)), y, reduction="sum")
                omega = n[k] / len(y) * data + 7.0 * torch.distributions.kl_divergence(normal(q[k]), normal(w[k])).sum()
                omega.backward()
                adam[k].step()
                adam_w[k].zero_grad()
                torch.distributions.kl_divergence(normal(q[k]), normal(w[k])).sum().backward()
                adam_w[k].step()
            after.append({name: value.clone() for name, value in module.state_dict().items()})
        v = [sum(torch.where(scales, q[k][i], w[k][i]).detach() for k in range(4)) / 4 for i in (0, 1)]
        running = {name: sum(n[k] / n.sum() * after[k][name] for k in range(4)) for name in names}
    found = play(of, 2)
    for k in range(4):
        for i, name in enumerate(("mu", "rho")):
            torch.testing.assert_close(found.clients[k][name], q[k][i].detach(), rtol=1e-7, atol=1e-9)
        for name in names:  # those that the client's own network was left with
            torch.testing.assert_close(found.clients[k][f"model:{name}"], after[k][name], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.server["mu_w"], v[0], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.server["rho_w"], v[1], rtol=1e-7, atol=1e-9)
    for name in names:
        torch.testing.assert_close(found.server[f"model:{name}"], running[name], rtol=1e-9, atol=1e-12)
    assert bool((found.server["mu_w"][scales] != of.node(SERVER, 0).initial()[scales]).all())


@pytest.mark.usefixtures("unwatched", "modules")
@pytest.mark.parametrize("name", ["pfedbayes", "hbfl"])
def test_normalisation_is_not_drawn(name: str, mapping: Make, data_dir: Path) -> None:
    """HBFL's sigma there is what it was, so that the product of Gaussians is the mean by q."""
    run = mapping(name, models={"global": "normalised"} | ({"local": "mlp"} if name == "hbfl" else {}))
    of = federation(run, data_dir)
    scales = torch.from_numpy(of.networks[0]["global"].scaling)
    updates, thetas, seen = {}, [], of.networks[0]["global"].logits

    def noting(theta: Tensor, *others: Any) -> Tensor:
        thetas.append(theta.detach().clone())
        return seen(theta, *others)

    of.networks[0]["global"].logits = noting  # type: ignore[method-assign]
    finish = of.method.finish
    of.method.finish = lambda c: updates.setdefault(c.client, finish(c))  # type: ignore[method-assign]
    after = play(of, 1).server
    first = of.node(0, 1).initial()
    assert scales.any()
    assert torch.equal(thetas[0][scales], first[scales])
    assert not torch.equal(thetas[0][~scales], first[~scales])
    n = [len(of.shards[k].train) for k in range(4)]
    mu, q = ("mu_w", [1 / 4] * 4) if name == "pfedbayes" else ("mu", [count / sum(n) for count in n])
    expected = sum(q[k] * updates[k][mu] for k in range(4))
    torch.testing.assert_close(after[mu][scales], expected[scales], rtol=1e-12, atol=1e-14)
    assert bool((after[mu][scales] != first[scales]).all())
    if name == "hbfl":
        assert len({float(value) for k in range(4) for value in updates[k]["sigma"][scales]}) == 1
        assert (after[mu] - expected)[~scales].abs().max() > 1e-9


@pytest.mark.usefixtures("unwatched", "modules")
def test_per_fedavgs_model_is_tested_with_the_statistics_that_it_came_with(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("perfedavg", models={"global": "normalised"}), data_dir)
    sent, found = play(of, 0).server, []

    def noting(c: Node) -> Sequence[Predictor]:
        (predictor,) = made = predictors(c)
        x, _ = c.images()
        statistics = {name: sent[f"model:{name}"].clone() for name in of.networks[0]["global"].statistics}
        with torch.no_grad():
            expected = of.networks[0]["global"].logits(c["phi"], x, statistics, c.generator)
            found.append(
                (predictor.log_probabilities(x), expected.log_softmax(-1), c.model(c["phi"], x).log_softmax(-1))
            )
        return made

    predictors, of.method.client_predictors = of.method.client_predictors, noting  # type: ignore[method-assign]
    play(of, 1)
    assert len(found) == 4
    for tested, expected, after in found:
        torch.testing.assert_close(tested, expected)
        assert (tested - after).abs().max() > 1e-3


def test_pfedbayes_averages_some_of_the_clients(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "pfedbayes", "averaged": 2}), data_dir)
    size = of.networks[0]["global"].parameters
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


def alone(state: dict[str, Tensor]) -> Learner:
    """A learner without a network."""
    return Learner(state=state, n=torch.tensor(1.0), models={}, generator=torch.Generator())


def test_pfedmes_inner_problem_has_its_closed_form_on_a_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """F(theta) = theta^T A theta/2 - b^T theta: the proximal point solves (A + (lambda + decay) I) theta = b + lambda w."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    A, b, w = root @ root.T, *torch.randn(2, 6, generator=generator, dtype=torch.float64)

    monkeypatch.setattr(pfedme, "ce_gradient", lambda c, name, batch: A @ c[name] - b)
    method = pfedme.PFedMe(pfedme.PFedMe.Options(penalty=4.0, weight_decay=0.5, inner_steps=3000, lr=0.1))
    c = alone({"theta": torch.zeros_like(w), "w": w.clone()})
    method.step(c, Batch(w, w))
    theta = torch.linalg.solve(A + 4.5 * torch.eye(6, dtype=torch.float64), b + 4 * w)
    torch.testing.assert_close(c["theta"], theta, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(c["w"], w - 0.1 * 4 * (w - theta), rtol=1e-10, atol=1e-12)


def test_pfedmes_round_is_the_loop_written_out(mapping: Make, data_dir: Path) -> None:
    method = {"name": "pfedme", "lr": 0.02, "personal_lr": 0.05, "penalty": 3.0, "inner_steps": 2, "beta": 0.5}
    of = federation(mapping(method, **BATCHES), data_dir)
    server = play(of, 0).server["w"]
    n = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    for round in (1, 2):
        thetas, ws = [], []
        for k in range(4):
            theta, w = server.clone(), server.clone()
            for x, y in batches(of, k, round, 3):
                for _ in range(2):
                    theta = theta - 0.05 * (gradient(of, theta, x, y) + 3 * (theta - w) + 1e-3 * theta)
                w = w - 0.02 * 3 * (w - theta)
            thetas.append(theta)
            ws.append(w)
        server = 0.5 * server + 0.5 * sum(n[k] / n.sum() * ws[k] for k in range(4))
    found = play(of, 2)
    torch.testing.assert_close(found.server["w"], server, rtol=1e-9, atol=1e-11)
    for k in range(4):
        torch.testing.assert_close(found.clients[k]["theta"], thetas[k], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("adapt", ["train", "test"])
def test_perfedavg_is_two_gradients_a_pair(adapt: str, mapping: Make, data_dir: Path) -> None:
    """In a fixed order the first mini-batch of a round adapts, of the training images or of the test images."""
    method = {"name": "perfedavg", "lr": 0.1, "beta": 0.05, "adapt": adapt}
    of = federation(mapping(method, **BATCHES), data_dir)
    server = play(of, 0).server["w"]
    n = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    for round in (1, 2):
        phis, ws = [], []
        for k in range(4):
            first, *rest = batches(of, k, round, 7)
            if adapt == "test":
                shard = of.shards[k]
                swapped = Shard(shard.test_images, shard.test, shard.test_images, shard.test)
                phase = Phase(of.method.step, batches=1)
                (chunk,) = Mixer(of, of.node(k, round), [phase] * 7).phase(swapped, phase)
                first = chunk.x, chunk.y
            w = server.clone()
            phis.append(w - 0.1 * gradient(of, w, *first))
            for (x, y), (x2, y2) in zip(rest[::2], rest[1::2], strict=True):
                ahead = w - 0.1 * gradient(of, w, x, y)
                w = w - 0.05 * gradient(of, ahead, x2, y2)
            ws.append(w)
        server = sum(n[k] / n.sum() * ws[k] for k in range(4))
    found = play(of, 2)
    torch.testing.assert_close(found.server["w"], server, rtol=1e-9, atol=1e-11)
    for k in range(4):
        torch.testing.assert_close(found.clients[k]["phi"], phis[k], rtol=1e-9, atol=1e-11)


def test_half_a_pair_leads_nowhere(mapping: Make, data_dir: Path) -> None:
    """An epoch of an odd number of mini-batches ends as if its last one had not been."""
    sent = []
    for size, left in ((16, 1), (20, 0)):  # 5 and 4 mini-batches of the first client's 73 images
        of = federation(mapping({"name": "perfedavg", "lr": 0.1}, batch_size=size), data_dir)
        assert -(-len(of.shards[0].train) // size) % 2 == left
        c = of.node(0, 1, 1)
        c.state = of.method.init_client(c) | of.method.start(c, play(of, 0).server)
        before = []
        for x, y in batches_of_an_epoch(of, size):
            before.append(c["w"].clone())
            of.method.step(c, Batch(x, y))
        sent.append(of.method.finish(c)["w"])
        assert torch.equal(sent[-1], c["w"]) is bool(left)
        assert torch.equal(sent[-1], c["theta"]) is not bool(left)


def batches_of_an_epoch(of: Federation, size: int) -> list[tuple[Tensor, Tensor]]:
    """Those of the first client."""
    (chunk,) = Mixer(of, of.node(0, 1)).epoch(of.shards[0])
    return list(zip(chunk.x.split(size), chunk.y.split(size), strict=True))


def test_only_who_admits_it_trains_on_test_images(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    for executor in EXECUTORS:
        of = federation(mapping("perfedavg"), data_dir)
        of.method.phases = lambda c, of=of: [Phase(of.method.adapt, batches=1, data="test")]  # type: ignore[method-assign]
        with pytest.raises(InputError, match="method 'perfedavg' trains on test images and does not say so"):
            play(of, 1, executor=executor)
    of = federation(mapping({"name": "perfedavg", "adapt": "test"}), data_dir)
    of.shards[2].test = of.shards[2].test[:0]
    with pytest.raises(InputError, match="trains on a client's own test images; client 2 has none"):
        play(of, 1)
    leaky = bayesfed.train(mapping({"name": "perfedavg", "adapt": "test"}), tmp_path / "leaky", data=data_dir)
    assert leaky.provenance["leak"] == "adapts on test images and their labels"
    assert "no accuracy on unseen images: this method adapts on test images" in (tmp_path / "leaky/run.log").read_text()
    honest = bayesfed.train(mapping("perfedavg"), tmp_path / "honest", data=data_dir)
    assert "leak" not in honest.provenance


def test_heurfedamps_weights_are_the_formula(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "heurfedamp", "alpha": 0.3, "scale": 4.0}), data_dir)
    server = of.node(SERVER, 1)
    W = torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    server.state = {"W": W}
    for i in range(4):
        scores = {
            j: math.exp(4 * float(W[i] @ W[j]) / math.sqrt(float(W[i] @ W[i]) * float(W[j] @ W[j])))
            for j in range(4)
            if j != i
        }
        expected = [0.3 if j == i else 0.7 * scores[j] / sum(scores.values()) for j in range(4)]
        xi = of.method.weights(W, i)
        assert xi.tolist() == pytest.approx(expected, rel=1e-12)
        assert float(xi.sum()) == pytest.approx(1, rel=1e-14)
        mixed = sum(expected[j] * W[j] for j in range(4))
        torch.testing.assert_close(of.method.message(server, i)["u"], mixed, rtol=1e-10, atol=1e-12)
    assert of.method.weights(W[:1], 0).tolist() == [1.0]


def test_heurfedamps_rounds_are_the_loop_written_out(mapping: Make, data_dir: Path) -> None:
    """Of two rounds half of the clients take part in each: the others' last models stay in the mixture."""
    method = {"name": "heurfedamp", "lr": 0.1, "penalty": 0.5}
    of = federation(mapping(method, participation=0.5, **BATCHES), data_dir)
    W = play(of, 0).server["W"].clone()
    assert torch.equal(W[0], W[3])
    for round in (1, 2):
        before = W.clone()
        for k in of.participants(round):
            w, u = before[k].clone(), of.method.weights(before, k) @ before
            for x, y in batches(of, k, round, 3):
                w = w - 0.1 * (gradient(of, w, x, y) + 0.5 * (w - u))
            W[k] = w
    assert len({*of.participants(1), *of.participants(2)}) > 2
    torch.testing.assert_close(play(of, 2).server["W"], W, rtol=1e-9, atol=1e-11)
