"""Losses and optimisers of the methods against torch's own and against numbers worked out by hand."""

import math

import ivon
import pytest
import torch
import torch.nn.functional as F

from bayesfed import methods
from bayesfed.methods.hbfl import HBFL
from bayesfed.methods.node import Batch
from bayesfed.methods.steps import IVON, SGD, Adam, cross_entropy, grad, kl, leaves, loss_gradient
from bayesfed.models import build


class FakeNode(dict):
    """Named tensors, as a step sees them, in a run without a schedule."""

    def rate(self, lr: float) -> float:
        return lr

    def weights(self, values: torch.Tensor, normalisation: torch.Tensor | float) -> torch.Tensor:
        return values

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, dtype=like.dtype)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, 0.9, 5e-4), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=5e-4)),
        (SGD(0.1, 0.0, 0.0), lambda p: torch.optim.SGD(p, 0.1)),
        (Adam(0.01, 5e-4), lambda p: torch.optim.Adam(p, 0.01, weight_decay=5e-4)),
        (Adam(0.01, 0.0), lambda p: torch.optim.Adam(p, 0.01)),
        (Adam(0.01, 0.1, decoupled=True), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
    ],
)
def test_optimisers_are_torchs(ours: SGD | Adam, theirs) -> None:
    torch.manual_seed(0)
    start = torch.randn(30, dtype=torch.float64)
    node = FakeNode({"theta": start.clone()} | ours.start("theta", start))
    reference = start.clone().requires_grad_()
    optimiser = theirs([reference])
    for _ in range(20):
        g = torch.randn(30, dtype=torch.float64)
        ours.step(node, theta=g)
        reference.grad = g.clone()
        optimiser.step()
    torch.testing.assert_close(node["theta"], reference.detach(), rtol=1e-10, atol=1e-12)


def test_one_step_moves_several_vectors() -> None:
    """As one of torch's optimisers with a group for each weight decay does."""
    torch.manual_seed(0)
    starts = {"mu": torch.randn(30, dtype=torch.float64), "rho": torch.randn(20, dtype=torch.float64)}
    both = [
        kind(*values, undecayed)
        for kind, values in ((Adam, (0.01, 5e-4)), (SGD, (0.1, 0.9, 5e-4)))
        for undecayed in ((), ("rho",))
    ]
    for ours in both:
        node, references = FakeNode(), {}
        for name, start in starts.items():
            node |= {name: start.clone()} | ours.start(name, start)
            references[name] = start.clone().requires_grad_()
        decays = dict.fromkeys(ours.undecayed, 0.0)
        groups = [{"params": [p], "weight_decay": decays.get(name, 5e-4)} for name, p in references.items()]
        optimiser = torch.optim.Adam(groups, 0.01) if isinstance(ours, Adam) else torch.optim.SGD(groups, 0.1, 0.9)
        for _ in range(20):
            gradients = {name: torch.randn_like(start) for name, start in starts.items()}
            ours.step(node, **gradients)
            for name, p in references.items():
                p.grad = gradients[name].clone()
            optimiser.step()
        for name, p in references.items():
            torch.testing.assert_close(node[name], p.detach(), rtol=0, atol=1e-12)


def test_kl_is_torchs_batch_mean_and_spares_the_teacher() -> None:
    teacher = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    student = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    ours = Batch(teacher, torch.zeros(8)).mean(kl(teacher, student, temperature=2.0))
    theirs = F.kl_div((student / 2).log_softmax(-1), (teacher.detach() / 2).softmax(-1), reduction="batchmean")
    torch.testing.assert_close(ours, theirs)
    to_teacher, to_student = torch.autograd.grad(ours, (teacher, student), allow_unused=True)
    assert to_teacher is None
    assert to_student.abs().sum() > 0


@pytest.mark.parametrize("filled_up", [False, True])
@pytest.mark.parametrize(
    ("ce", "kl_weight", "temperature"),
    [(1.0, 0.0, 1.0), (0.5, 0.5, 1.0), (0.9, 0.3, 1.0), (0.2, 7.2, 3.0), (0.0, 1.0, 2.0)],
)
def test_loss_gradient_is_autograds(ce: float, kl_weight: float, temperature: float, filled_up: bool) -> None:
    torch.manual_seed(0)
    teacher, student = torch.randn(2, 6, 5, dtype=torch.float64).mul(3)
    weight = torch.tensor([0.25, 0.25, 0.25, 0.25, 0, 0], dtype=torch.float64) if filled_up else None
    batch = Batch(torch.zeros(6), torch.tensor([0, 4, 4, 2, 1, 3]), weight)
    (z,) = leaves(student)
    loss = batch.mean(ce * cross_entropy(z, batch.y) + kl_weight * kl(teacher, z, temperature))
    if kl_weight:
        ours = loss_gradient(batch, z, ce=ce, kl=kl_weight, teacher=teacher, temperature=temperature)
    else:
        ours = loss_gradient(batch, z)
    torch.testing.assert_close(ours, *grad(loss, z), rtol=0, atol=1e-12)


def test_gradient_through_logits_is_that_of_the_loss() -> None:
    torch.manual_seed(0)
    (weights,) = leaves(torch.randn(4, 5, dtype=torch.float64))
    batch = Batch(torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 4, 4, 2, 1, 3]))
    logits = batch.x @ weights
    (through,) = grad(logits, weights, at=loss_gradient(batch, logits))
    (plain,) = grad(batch.mean(cross_entropy(batch.x @ weights, batch.y)), weights)
    torch.testing.assert_close(through, plain, rtol=0, atol=1e-12)


def test_gradient_at_a_networks_logits_is_that_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes no detour by autograd's engine, which costs a small network as much as its products."""
    torch.manual_seed(0)
    network = build("mlp", 10, 1, 32)
    (theta,) = leaves(torch.randn(network.parameters, dtype=torch.float64).mul_(0.1))
    batch = Batch(torch.randn(6, 1, 32, 32, dtype=torch.float64), torch.tensor([0, 4, 4, 2, 1, 3]))
    (plain,) = grad(batch.mean(cross_entropy(network(theta, batch.x), batch.y)), theta)
    logits = network(theta, batch.x)
    monkeypatch.delattr(torch.autograd, "grad")
    (straight,) = grad(logits, theta, at=loss_gradient(batch, logits))
    torch.testing.assert_close(straight, plain, rtol=0, atol=1e-12)


def test_gradients_of_both_losses_of_fml_by_hand() -> None:
    fml = methods.get("fml")(methods.get("fml").Options(alpha=0.25, beta=0.5))
    meme = torch.tensor([[math.log(0.8), math.log(0.2)], [math.log(0.5), math.log(0.5)]], dtype=torch.float64)
    local = torch.tensor([[math.log(0.6), math.log(0.4)], [math.log(0.9), math.log(0.1)]], dtype=torch.float64)
    batch = Batch(torch.zeros(2), torch.tensor([0, 1]))
    at_meme, at_local = fml.gradients(batch, meme, local)
    # softmax less beta (alpha) of the label and the rest of the other model, over two images
    expected_meme = [[0.8 - 0.5 - 0.5 * 0.6, 0.2 - 0.5 * 0.4], [0.5 - 0.5 * 0.9, 0.5 - 0.5 - 0.5 * 0.1]]
    expected_local = [[0.6 - 0.25 - 0.75 * 0.8, 0.4 - 0.75 * 0.2], [0.9 - 0.75 * 0.5, 0.1 - 0.25 - 0.75 * 0.5]]
    torch.testing.assert_close(at_meme, torch.tensor(expected_meme, dtype=torch.float64) / 2, rtol=0, atol=1e-12)
    torch.testing.assert_close(at_local, torch.tensor(expected_local, dtype=torch.float64) / 2, rtol=0, atol=1e-12)


class Client(FakeNode):
    """A client of HBFL with 50 images."""

    n = torch.tensor(50.0, dtype=torch.float64)


@pytest.mark.parametrize("weight", ["T/n", "T", "1"])
def test_meme_gradient_of_hbfl_is_that_of_eq_4_1(weight: str) -> None:
    T, hbfl = 1e-4, HBFL(HBFL.Options(entropy_weight=weight))
    torch.manual_seed(0)
    c = Client(mu=torch.randn(9, dtype=torch.float64), rho=torch.linspace(-6, 2, 9, dtype=torch.float64))
    eps, h = torch.randn(2, 9, dtype=torch.float64)
    mu, rho = leaves(c["mu"], c["rho"])
    sigma = F.softplus(rho)
    theta = mu + sigma * eps
    ce = (h * theta.square()).sum() / 2  # stands for the cross-entropy
    entropy = sigma.log().sum()
    losses = {"T/n": ce - T / 50 * entropy, "T": ce - T * entropy, "1": 50 / T * ce - entropy}
    expected = grad(losses[weight], mu, rho)
    found = hbfl.gradient_meme(c, (h * theta).detach(), eps, sigma.detach())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_stationary_sigma_of_a_quadratic_loss() -> None:
    """With CE replaced by h/2 theta^2, E over eps gives h/2 (mu^2 + sigma^2): sigma^2 = T/(n h) is stationary."""
    h, n, T = 0.01, 50.0, 1e-4
    sigma = torch.tensor([math.sqrt(T / (n * h))], dtype=torch.float64)
    c, eps = Client(rho=sigma.expm1().log()), torch.ones(1, dtype=torch.float64)  # E eps^2 = 1
    _, g_rho = HBFL(HBFL.Options(temperature=T)).gradient_meme(c, h * sigma * eps, eps, sigma)
    assert abs(g_rho.item()) < 1e-12


@pytest.mark.parametrize(("weight", "step"), [("T/n", 0.327), ("1", 1.0)])
def test_what_the_entropy_alone_makes_of_sigma(weight: str, step: float) -> None:
    """Where no data reach rho, Adam moves it by lr a step, but for its epsilon: for the 20 537 images of seed 0's largest
    client the default's gradient of rho, T/n, is below that."""
    hbfl = HBFL(HBFL.Options(entropy_weight=weight, noise="none"))
    mu = torch.zeros(3, dtype=torch.float64)
    c = Client(
        {"mu": mu, "rho": torch.full_like(mu, -5)} | hbfl.optimizer.start("mu", mu) | hbfl.optimizer.start("rho", mu)
    )
    c.n = torch.tensor(20537.0, dtype=torch.float64)
    for _ in range(10):
        zeros = torch.zeros_like(mu)
        _, g_rho = hbfl.gradient_meme(c, zeros, zeros, F.softplus(c["rho"]))
        hbfl.optimizer.step(c, mu=zeros, rho=g_rho)
    torch.testing.assert_close(c["rho"], torch.full_like(mu, -5 + 10 * 1e-3 * step), rtol=0, atol=2e-5)


@pytest.mark.parametrize("rescale", [False, True])
def test_plain_ivon_is_that_of_its_authors(rescale: bool) -> None:
    """Of the package ivon-opt, on the same draws; its `rescale_lr` is a larger lr."""
    torch.manual_seed(0)
    curvature, start = torch.rand(30, dtype=torch.float64) * 4, torch.randn(30, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    values = {"ess": 50.0, "weight_decay": 1e-2, "hess_init": 0.5, "beta2": 0.99, "rescale_lr": rescale}
    optimiser = ivon.IVON([theirs], lr=0.1, **values)
    ours = IVON(0.1 * (0.51 if rescale else 1), 0.9, 0.99)
    node = FakeNode({"m": start.clone()} | ours.start("m", start, 0.5))
    size, w = torch.tensor(50.0, dtype=torch.float64), torch.tensor(1e-2, dtype=torch.float64)
    for _ in range(40):
        with optimiser.sampled_params(train=True):
            d = theirs.detach() - node["m"]
            theirs.grad = curvature * theirs.detach() - 1
        optimiser.step()
        ours.step(node, "m", curvature * (node["m"] + d) - 1, d, size, w)
        torch.testing.assert_close(node["m"], theirs.detach(), rtol=0, atol=1e-6)
    assert (node["m"] - start).abs().max() > 0.1


def test_a_draw_of_ivon_has_its_deviation() -> None:
    """The authors' draw, too, from the same standard normal one."""
    start = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    optimiser = ivon.IVON([start], lr=0.1, ess=50.0, weight_decay=1e-2, hess_init=0.5)
    node = FakeNode({"m": torch.zeros(30, dtype=torch.float64)} | IVON(0.1).start("m", start.detach(), 0.5))
    torch.manual_seed(0)
    with optimiser.sampled_params():
        theirs = start.detach().clone()
    torch.manual_seed(0)
    ours = IVON(0.1).noise(node, "m", torch.tensor(50.0), torch.tensor(1e-2))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_step_of_ivon_by_hand() -> None:
    node = FakeNode({"m": torch.ones(1, dtype=torch.float64)})
    ours = IVON(0.1, 0.9, 0.5)
    node |= ours.start("m", node["m"], 0.5)
    size, w = torch.tensor(4.0, dtype=torch.float64), torch.tensor(0.25, dtype=torch.float64)
    d = 1 / (size * (node["m.h"] + w)).sqrt()
    ours.step(node, "m", 2 * (node["m"] + d) - 1, d, size, w)
    found = torch.cat([d, node["m.b"], node["m.h"], node["m"]])
    expected = torch.tensor([0.5773503, 0.2154701, 3.8570508, 0.9414495], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("duals", [False, True])
def test_ivon_finds_the_posterior_of_a_quadratic_loss(duals: bool) -> None:
    """l = a/2 theta^2 - b theta: h -> a - V, and m where the whole objective is stationary. Ten entries, within 3 %."""
    torch.manual_seed(0)
    a, b, w, size = 2.0, 1.0, torch.tensor(0.5, dtype=torch.float64), torch.tensor(100.0, dtype=torch.float64)
    m_0, v, V = (0.3, 0.2, 0.4) if duals else (0.0, 0.0, 0.0)
    given = {"m_0": torch.tensor(m_0), "duals": (torch.tensor(v), torch.tensor(V))} if duals else {}
    ours = IVON(0.002, 0.9, 0.998)
    node = FakeNode({"m": torch.zeros(10, dtype=torch.float64)})
    node |= ours.start("m", node["m"], 1.0)
    means, curvatures = [], []
    for step in range(5000):
        d = ours.noise(node, "m", size, w)
        ours.step(node, "m", a * (node["m"] + d) - b, d, size, w, **given)
        if step >= 2500:
            means.append(node["m"].mean().item())
            curvatures.append(node["m.h"].mean().item())
    assert sum(means) / len(means) == pytest.approx((b - v + 0.5 * m_0) / (a - V + 0.5), rel=0.03)
    assert sum(curvatures) / len(curvatures) == pytest.approx(a - V, rel=0.03)
