"""FOLA and the baselines of its comparison against loops written out here, dense solves and autograd, in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play
from torch import Tensor

from bayesfed import methods
from bayesfed.engine.batches import Mixer
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Progress
from bayesfed.methods.method import Update
from bayesfed.methods.node import Batch, Learner, Node
from bayesfed.methods.steps import clip
from bayesfed.models.network import Network

Make = Callable[..., dict[str, Any]]
OPTIONS = {"lr": 0.1, "clip": 0.5}


def batches(of: Federation, client: int, round: int, epochs: int) -> list[list[tuple[Tensor, Tensor]]]:
    """The mini-batches of each of a client's epochs, as every executor has them."""
    mixer, size = Mixer(of, of.node(client, round)), of.run.budget.batch_size
    found = []
    for _ in range(epochs):
        chunks = list(mixer.epoch(of.shards[client]))
        x, y = (torch.cat([getattr(chunk, name) for chunk in chunks]) for name in "xy")
        found.append(list(zip(x.split(size), y.split(size), strict=True)))
    return found


def gradient(of: Federation, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean cross-entropy."""
    theta = theta.detach().requires_grad_()
    network = of.networks[0]["global"]
    assert isinstance(network, Network)
    return torch.autograd.grad(F.cross_entropy(network(theta, x), y), theta)[0]


def squares(of: Federation, theta: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Of the batch's mean gradient, or the mean over its images of those of theirs."""
    if kind == "batch":
        return gradient(of, theta, x, y).square()
    each = [gradient(of, theta, x[i : i + 1], y[i : i + 1]).square() for i in range(len(y))]
    return torch.stack(each).mean(0)


def clipped(g: Tensor, norm: float = 0.5) -> Tensor:
    """What torch does to a parameter's gradient."""
    parameter = torch.zeros_like(g).requires_grad_()
    parameter.grad = g.clone()
    torch.nn.utils.clip_grad_norm_([parameter], norm)
    return parameter.grad


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_clipping_is_torchs(scale: float) -> None:
    g = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * scale / 7
    torch.testing.assert_close(clip(g, 0.5), clipped(g), rtol=0, atol=1e-12)
    assert clip(g, None) is g


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("evaluation", ["online", "offline"])
@pytest.mark.parametrize("kind", ["batch", "images"])
def test_folas_round_is_the_loop_written_out(
    form: str, evaluation: str, kind: str, mapping: Make, data_dir: Path
) -> None:
    """Two rounds of two epochs: the precision over gradients of batches or images, the prior's pull by autograd, the mean by
    a solve."""
    method = {"name": "fola", "prior": 3.0, "form": form, "evaluation": evaluation, "squares": kind, **OPTIONS}
    of = federation(mapping(method, local_epochs=2), data_dir)
    progress = play(of, 0)
    mu, omega = progress.server["mu"], progress.server["omega"]
    n = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    for r in (1, 2):
        thetas, omegas = [], []
        for k in range(4):
            theta, total = mu.clone(), torch.zeros_like(mu)
            passes = batches(of, k, r, 2 + (evaluation == "offline"))
            stiffness = omega / r if (form, evaluation) == ("code", "online") else omega  # r sums, or of one pass
            for x, y in [pair for one in passes[:2] for pair in one]:
                g = gradient(of, theta, x, y)
                if evaluation == "online":
                    total += len(y) / n[k] * squares(of, theta, x, y, kind)
                at = theta.clone().requires_grad_()
                prior = 3.0 * 0.5 * (at - mu) @ (stiffness * (at - mu))
                theta = theta - 0.1 * clipped(g + torch.autograd.grad(prior, at)[0])
            for x, y in passes[2] if evaluation == "offline" else []:
                total += len(y) / n[k] * squares(of, theta, x, y, kind)
            if evaluation == "offline":
                omegas.append(total)
            elif form == "code":
                omegas.append(omega + total)
            else:
                omegas.append(total / 2 / r + (r - 1) / r * omega)
            thetas.append(theta)
        pi = n / n.sum()
        omega = sum(p * o for p, o in zip(pi, omegas, strict=True))
        mu = sum(p * o * t for p, o, t in zip(pi, omegas, thetas, strict=True)) / (omega + 1e-5)
        progress = play(of, 1, progress)
        torch.testing.assert_close(progress.server["omega"], omega, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(progress.server["mu"], mu, rtol=1e-8, atol=1e-12)


def node(of: Federation, name: int = SERVER) -> Node:
    return of.node(name, 1)


def updates(of: Federation, **values: Tensor) -> list[Update]:
    """Updates with given values (K, P), of clients with 1, 2, 3... images."""
    count = len(next(iter(values.values())))
    total = count * (count + 1) / 2
    return [
        Update(
            k,
            k + 1,
            torch.tensor((k + 1) / total, dtype=torch.float64),
            {key: value[k] for key, value in values.items()},
        )
        for k in range(count)
    ]


@pytest.mark.parametrize("rule", ["shrink", "fedavg"])
def test_folas_mean_solves_the_weighted_least_squares(rule: str, mapping: Make, data_dir: Path) -> None:
    """mu_S minimises sum_n pi_n (theta_n - mu)^T Omega_n (theta_n - mu), and epsilon |mu|^2, or FedAvg's with epsilon."""
    of = federation(mapping({"name": "fola", "epsilon_rule": rule, "epsilon": 0.01}), data_dir)
    generator = torch.Generator().manual_seed(0)
    thetas = torch.randn(3, 12, dtype=torch.float64, generator=generator)
    omegas = torch.rand(3, 12, dtype=torch.float64, generator=generator)
    server = node(of)
    server.state = {"mu": torch.zeros(12, dtype=torch.float64), "omega": torch.zeros(12, dtype=torch.float64)}
    sent = updates(of, theta=thetas, omega=omegas)
    of.method.aggregate(server, sent)
    rows, right = [], []
    for update in sent:
        weight = update["omega"] + (0.01 if rule == "fedavg" else 0)
        rows.append((update.q * weight).sqrt().diag())
        right.append((update.q * weight).sqrt() * update["theta"])
    if rule == "shrink":
        rows.append(0.1 * torch.eye(12, dtype=torch.float64))
        right.append(torch.zeros(12, dtype=torch.float64))
    solved = torch.linalg.lstsq(torch.cat(rows), torch.cat(right)).solution
    torch.testing.assert_close(server["mu"], solved, rtol=0, atol=1e-12)


def test_folas_prior_pulls_by_its_gradient(mapping: Make, data_dir: Path) -> None:
    """A step with the prior differs from one without by -lr times the prior's gradient, by autograd and by differences."""
    options = {"lr": 0.1, "clip": None}
    stepped = []
    for prior in (0.0, 2.0):
        of = federation(mapping({"name": "fola", "prior": prior, **options}), data_dir)
        c = of.node(0, 3)
        torch.manual_seed(0)
        size = of.networks[0]["global"].parameters
        mu, omega = torch.randn(size).double() / 10, torch.rand(size).double()
        c.state = of.method.start(c, {"mu": mu, "omega": omega})
        c["theta"].add_(0.01 * torch.randn(size).double())
        theta = c["theta"].clone()
        x, y = batches(of, 0, 3, 1)[0][0]
        of.method.step(c.learner(), Batch(x, y))
        stepped.append(c["theta"])

    def prior_loss(at: Tensor) -> Tensor:
        return 2.0 * 0.5 / 3 * (omega * (at - mu).square()).sum()

    at = theta.clone().requires_grad_()
    (g,) = torch.autograd.grad(prior_loss(at), at)
    torch.testing.assert_close(stepped[0] - stepped[1], 0.1 * g, rtol=0, atol=1e-12)
    for i in (0, 7, 100):
        h = torch.zeros_like(theta)
        h[i] = 1e-5
        assert float((prior_loss(theta + h) - prior_loss(theta - h)) / 2e-5) == pytest.approx(float(g[i]), abs=1e-8)


def test_fola_with_equal_precisions_is_fedavg(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fola", "epsilon": 1e-30}), data_dir)
    thetas = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    server = node(of)
    server.state = {"mu": thetas[0], "omega": thetas[0]}
    of.method.aggregate(server, updates(of, theta=thetas, omega=torch.full_like(thetas, 0.3)))
    torch.testing.assert_close(server["mu"], (thetas * torch.tensor([1, 2, 3])[:, None] / 6).sum(0), rtol=0, atol=1e-12)


def test_fedcurvs_pull_is_the_gradient_of_the_sum_over_the_other_clients(mapping: Make, data_dir: Path) -> None:
    """Written out from what all clients were and measured after two rounds."""
    of = federation(mapping({"name": "fedcurv", "penalty": 0.7, "clip": None}), data_dir)
    progress = play(of, 2)
    fisher = {k: progress.clients[k]["own.u"] for k in range(4)}
    trained = {k: progress.clients[k]["own.v"] / fisher[k].clamp(min=1e-300) for k in range(4)}
    c = of.node(1, 3)
    c.state = {name: value.clone() for name, value in progress.clients[1].items()}
    c.state |= of.method.start(c, progress.server)
    theta = (c["theta"] + 0.01).detach().requires_grad_()
    others = sum(0.7 * (theta - trained[j]) @ (fisher[j] * (theta - trained[j])) for j in (0, 2, 3))
    (expected,) = torch.autograd.grad(others, theta)
    c["theta"].add_(0.01)
    x, y = batches(of, 1, 3, 1)[0][0]
    pull = of.method.gradient(c.learner(), Batch(x, y)) - gradient(of, c["theta"], x, y)
    torch.testing.assert_close(pull, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["batch", "images"])
def test_fedcurvs_fisher_is_the_mean_of_squares_at_the_trained_model(kind: str, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fedcurv", "lr": 0.1, "squares": kind}), data_dir)
    progress = play(of, 1)
    training, measuring = batches(of, 2, 1, 2)
    theta, n = play(of, 0).server["theta"], len(of.shards[2].train)
    for x, y in training:
        theta = theta - 0.1 * clipped(gradient(of, theta, x, y), 10.0)
    fisher = sum(len(y) / n * squares(of, theta, x, y, kind) for x, y in measuring)
    torch.testing.assert_close(progress.clients[2]["own.u"], fisher, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(progress.clients[2]["own.v"], fisher * theta, rtol=1e-9, atol=1e-14)


def test_the_repositorys_fedcurv_is_pulled_to_the_global_model(mapping: Make, data_dir: Path) -> None:
    """In round r by lambda / r."""
    of = federation(mapping({"name": "fedcurv", "penalty": 0.7, "form": "repository", "clip": None}), data_dir)
    progress = play(of, 1)
    n = [len(of.shards[k].train) for k in range(4)]
    omega = sum(n[k] / sum(n) * progress.clients[k]["own.u"] for k in range(4))
    c = of.node(0, 2)
    c.state = dict(progress.clients[0])
    c.state |= of.method.start(c, progress.server)
    c["theta"].add_(0.01)
    x, y = batches(of, 0, 2, 1)[0][0]
    pull = of.method.gradient(c.learner(), Batch(x, y)) - gradient(of, c["theta"], x, y)
    torch.testing.assert_close(pull, 0.7 / 2 * omega * 0.01, rtol=1e-9, atol=1e-12)


def test_fednova_with_equal_steps_is_fedavg(mapping: Make, data_dir: Path) -> None:
    options = {"momentum": 0.0, "weight_decay": 0.0, "lr": 0.1}
    # One mini-batch for every client, however many images it has.
    alike = [
        play(federation(mapping({"name": name, **options}, batch_size=250), data_dir), 2).server["theta"]
        for name in ("fednova", "fedavg")
    ]
    torch.testing.assert_close(*alike, rtol=0, atol=1e-12)
    other = [
        play(federation(mapping({"name": name, **options}, batch_size=16), data_dir), 2).server["theta"]
        for name in ("fednova", "fedavg")
    ]
    assert not torch.allclose(*other)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fednovas_length_is_that_of_the_weights_of_its_gradients(rho: float, mapping: Make, data_dir: Path) -> None:
    """a_i: with momentum, gradient j counts (1 - rho^(tau - j)) / (1 - rho) times in theta - theta_i."""
    of = federation(mapping({"name": "fednova", "momentum": rho}), data_dir)
    theta = torch.zeros(3, dtype=torch.float64)
    server = node(of)
    server.state = {"theta": theta}
    taus = [2, 5]
    lengths = [sum(sum(rho**i for i in range(tau - j)) for j in range(tau)) for tau in taus]
    thetas = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    of.method.aggregate(server, updates(of, theta=thetas, tau=torch.tensor(taus, dtype=torch.float64)))
    p = [1 / 3, 2 / 3]
    whole = sum(p[k] * lengths[k] for k in range(2))
    expected = whole * sum(p[k] * thetas[k] / lengths[k] for k in range(2))
    torch.testing.assert_close(server["theta"], expected, rtol=0, atol=1e-12)


def test_scaffolds_control_variates_sum_to_c(mapping: Make, data_dir: Path) -> None:
    progress: Progress | None = None
    of = federation(mapping({"name": "scaffold", "lr": 0.1}, participation=0.5), data_dir)
    for _ in range(3):
        progress = play(of, 1, progress)
        seen = [state["c_i"] for state in progress.clients.values()]
        torch.testing.assert_close(progress.server["c"], sum(seen) / 4, rtol=0, atol=1e-12)
    assert progress is not None
    assert progress.server["c"].norm() > 0


def test_scaffolds_round_is_the_loop_written_out(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "scaffold", "lr": 0.1}), data_dir)
    first = play(of, 1)
    theta, c = first.server["theta"], first.server["c"]
    n, y_k, c_k = [], [], []
    for k in range(4):
        c_i, y, (passed,) = first.clients[k]["c_i"], theta.clone(), batches(of, k, 2, 1)
        for x, labels in passed:
            y = y - 0.1 * (gradient(of, y, x, labels) - c_i + c)
        n.append(len(of.shards[k].train))
        y_k.append(y)
        c_k.append(c_i - c + (theta - y) / (len(passed) * 0.1))
    second = play(of, 1, first)
    expected = theta + sum(n[k] / sum(n) * (y_k[k] - theta) for k in range(4))
    torch.testing.assert_close(second.server["theta"], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(second.server["c"], sum(c_k) / 4, rtol=0, atol=1e-12)


def test_fedbes_samples_have_the_stated_mean_and_variance(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fedbe", "spread": 0.5, "step": 0.3, "samples": 100}), data_dir)
    server, size = node(of), of.networks[0]["global"].parameters
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(size, dtype=torch.float64, generator=generator)
    thetas = before + torch.randn(4, size, dtype=torch.float64, generator=generator) * 0.1
    server["theta"], quarter = thetas.mean(0), thetas.new_tensor(0.25)
    updates = [Update(k, 1, quarter, {"theta": theta}) for k, theta in enumerate(thetas)]
    of.method.distillation.gather(server, before, updates)  # type: ignore[attr-defined]
    draws = server["theta.ensemble"][1 + 4 :]
    means, spreads = [], []
    for i, start in enumerate(server.split(before)):
        deltas = [server.split(theta)[i] - start for theta in thetas]
        s = sum(float(delta.norm()) for delta in deltas) / 4
        d = torch.stack([delta / delta.norm() for delta in deltas])
        means.append(start + 0.3 * s * d.mean(0))
        spreads.append(0.3 * s * 0.5 * d.var(0, correction=0).clamp(min=1e-5).sqrt())
    mean, spread = torch.cat(means), torch.cat(spreads)
    z = (draws.mean(0) - mean) / spread * 100**0.5
    assert abs(float(z.mean())) < 0.02
    assert abs(float(z.std()) - 1) < 0.02
    assert float((draws.var(0) / spread**2).mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("swa_start", [2, 1000])
def test_fedbe_distils_towards_the_sharpened_ensemble_and_averages(
    swa_start: int, mapping: Make, data_dir: Path
) -> None:
    """The server's training written out, from the ensemble that it drew."""
    of = federation(mapping({"name": "fedbe", "swa_start": swa_start, "server_batch_size": 20}), data_dir)
    caught: dict[str, Tensor] = {}
    phases = of.method.server_phases

    def catching(server: Node) -> Any:
        caught.update({name: server[name].clone() for name in ("theta", "theta.ensemble")})
        return phases(server)

    of.method.server_phases = catching  # type: ignore[method-assign]
    after = play(of, 1).server
    assert set(after) == {"theta"}
    shard, network = of.shards[SERVER], of.networks[0]["global"]
    assert isinstance(network, Network)
    assert len(caught["theta.ensemble"]) == 1 + 4 + 2
    torch.testing.assert_close(caught["theta.ensemble"][0], caught["theta"], rtol=0, atol=0)

    def images(index: Tensor) -> Tensor:
        return shard.train_images.plain(shard.train[index])

    p = torch.stack([network(theta, images(torch.arange(50))).softmax(-1) for theta in caught["theta.ensemble"]]).mean(
        0
    )
    p = p.square() / p.square().sum(1, keepdim=True)
    mixer, theta, v = Mixer(of, of.node(SERVER, 1)), caught["theta"].clone(), torch.zeros_like(caught["theta"])
    mixer.size = 20
    list(mixer.epoch(shard))  # the pass that made the targets
    iterates = []
    for _ in range(4):
        index = torch.cat([chunk.index for chunk in mixer.epoch(shard)])
        for part in index.split(20):
            at = theta.detach().requires_grad_()
            log_q = network(at, images(part)).log_softmax(-1)
            loss = (p[part] * (p[part].log() - log_q)).mean()  # over batch and classes
            g = torch.autograd.grad(loss, at)[0] + 1e-5 * theta
            v = 0.9 * v + g
            theta = theta - 0.1 * v
            iterates.append(theta)
    averaged = [iterates[t - 1] for t in range(1, len(iterates) + 1) if t > swa_start and t % 2 == 0]
    expected = sum(averaged) / len(averaged) if averaged else theta
    torch.testing.assert_close(after["theta"], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["fola", "fedcurv", "fednova", "scaffold", "fedbe"])
def test_methods_of_the_paper_are_registered(name: str) -> None:
    assert methods.get(name).name == name


def test_a_step_of_a_measuring_pass_leaves_the_model_alone(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fola", "evaluation": "offline"}), data_dir)
    c = of.node(0, 1)
    c.state = of.method.start(c, play(of, 0).server)
    theta = c["theta"].clone()
    x, y = batches(of, 0, 1, 1)[0][0]
    learner: Learner = c.learner()
    of.method.phases(c)[1].step(learner, Batch(x, y))
    assert torch.equal(c["theta"], theta)
    assert c["omega"].sum() > 0
