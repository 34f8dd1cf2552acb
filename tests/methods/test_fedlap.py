"""FedDyn, FedLap and FedLap-Cov against exact sequences of two scalar clients, and the fixed points of larger ones."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play, tensors
from helpers.quadratics import SCALARS, Quadratics, make
from scipy import optimize
from torch import Tensor

from bayesfed.engine.federation import SERVER
from bayesfed.methods import fedlap_cov
from bayesfed.methods.node import Batch, Learner, Node
from bayesfed.methods.steps import gauss_newton

Make = Callable[..., dict[str, Any]]


def quadratics(name: str, A: Any = SCALARS[0], b: Any = SCALARS[1], **options: Any) -> Quadratics:
    """Clients that find the minimum of their objective."""
    steps, options = options.pop("steps", 300), {"optimizer": "sgd", "lr": 0.5} | options
    found = Quadratics(make(name, **options), A, b, n=[4, 2] if len(b) == 2 else [3] * len(b), steps=steps)

    def measure(c: Node) -> None:
        if "H" in c.state:
            H = found.A[c.client]
            c["H"].copy_(H.diagonal() if H.dim() == 2 else H)

    found.measure = measure
    return found


def exactly(found: Quadratics) -> Callable[[Node], None]:
    """Put a client where the method's own gradient, which is affine, is 0."""

    def solve(c: Node) -> None:
        n, at = c.n, torch.zeros_like(c["theta"])
        batch = Batch(torch.zeros(1), torch.tensor([c.client]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bayesfed.methods.fedavg.ce_gradient", found.gradients()["ce_gradient"])

            def gradient(theta: Tensor) -> Tensor:
                c["theta"].copy_(theta)
                return n * found.method.gradient(c, batch)  # type: ignore[attr-defined,no-any-return]

            linear = gradient(at)
            matrix = torch.stack([gradient(row) - linear for row in torch.eye(len(at), dtype=torch.float64)], 1)
        c["theta"].copy_(torch.linalg.solve(matrix, -linear))

    return solve


def oblique(clients: int) -> tuple[Tensor, Tensor]:
    """A and b of quadratics of six parameters that are not diagonal."""
    generator = torch.Generator().manual_seed(0)
    roots = torch.randn(clients, 6, 6, generator=generator, dtype=torch.float64) / 2
    b = torch.randn(clients, 6, generator=generator, dtype=torch.float64)
    return roots @ roots.mT + 0.5 * torch.eye(6), b


def test_feddyn_of_two_scalars() -> None:
    """theta = 0, 1/8, 3/16, 7/32, towards 1/4: without a prior; of single images, n_k = 1."""
    found = quadratics("feddyn", alpha=1.0, weight_decay=0.0, lr=0.1)
    found.n = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    for expected in (0, 1 / 8, 3 / 16, 7 / 32):
        found.play()
        assert found.server["theta"].item() == pytest.approx(expected, abs=1e-12)
    for _ in range(60):
        found.play()
    assert found.server["theta"].item() == pytest.approx(1 / 4, abs=1e-9)


def test_fedlap_of_two_scalars() -> None:
    found = quadratics("fedlap", damping=0.5)
    clients = [(1 / 2, -1 / 2), (7 / 16, -3 / 8)]
    for round, expected in enumerate((0, 1 / 32, 1 / 16, 91 / 1024)):
        ended = found.play()
        if round < 2:
            assert [c["theta"].item() for c in ended.values()] == pytest.approx(clients[round], abs=1e-12)
        assert found.server["theta"].item() == pytest.approx(expected, abs=1e-12)
    found.solve = exactly(found)
    for _ in range(200):
        found.play()
    assert found.server["theta"].item() == pytest.approx(1 / 5, abs=1e-9)


def test_damping_is_one_over_the_clients() -> None:
    ours, theirs = quadratics("fedlap"), quadratics("fedlap", damping=0.5)
    for one in (ours, theirs):
        one.play()
        one.play()
    assert torch.equal(ours.server["theta"], theirs.server["theta"])


@pytest.mark.parametrize("name", ["fedlap", "fedlap_cov"])
def test_damping_weighted_by_images(name: str) -> None:
    """Of 4 and 2 images: a client's dual grows by twice n_k/n of what it grows by at rho 1/2."""
    ours, theirs = quadratics(name, weights="images"), quadratics(name, damping=0.5)
    for client, (found, expected) in enumerate(zip(ours.play().values(), theirs.play().values(), strict=True)):
        assert torch.allclose(found["v"], expected["v"] * 2 * [4 / 6, 2 / 6][client], atol=1e-12)
        assert found["v"].abs() > 0.01


def test_the_first_round_is_fedprox() -> None:
    """With zero duals, from the server's 0: the gradient is that of FedProx with mu = delta/n_k."""
    method = make("fedlap", delta=3.0)
    prox = make("fedprox", mu=3.0 / 4)
    c = Quadratics(method, *SCALARS)
    node = c.node(0)
    node.state = {"theta": torch.tensor([0.7]).double(), "theta_0": torch.tensor([0.2]).double()}
    node.state |= {"theta_t": node["theta_0"], "v": torch.zeros(1).double()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesfed.methods.fedavg.ce_gradient", c.gradients()["ce_gradient"])
        batch = Batch(torch.zeros(1), torch.tensor([0]))
        torch.testing.assert_close(method.gradient(node, batch), prox.gradient(node, batch), rtol=1e-12, atol=0)


def test_training_begins_at_the_networks_start_and_then_at_the_servers() -> None:
    found = quadratics("fedlap", steps=0)
    found.start = torch.tensor([5.0]).double()
    first, second = found.play()[0], found.play()[0]
    assert first["theta"].item() == 5
    assert first["theta_0"].item() == 0
    assert second["theta"].item() == second["theta_0"].item() == found.method.rho(second) * 5 * 2  # type: ignore[attr-defined]


def test_the_public_codes_term_holds_a_client_that_is_pulled_less() -> None:
    """delta/2 ||theta - theta_0||: nothing moves while the gradient is shorter than delta/2."""
    held = quadratics("fedlap", proximal="norm", delta=4.2, lr=0.005, steps=3000)
    moved = quadratics("fedlap", proximal="norm", delta=3.0, lr=0.005, steps=3000)
    assert abs(held.play()[0]["theta"].item()) < 1e-2
    assert moved.play()[0]["theta"].item() == pytest.approx((2 - 1.5) / 3, abs=1e-2)


@pytest.mark.parametrize("received", ["prior", "flat"])
def test_fedlap_cov_of_two_scalars(received: str) -> None:
    found = quadratics("fedlap_cov", damping=0.5, received=received)
    clients = {"prior": (1 / 2, -1 / 2), "flat": (2 / 3, -1)}[received]
    for round, expected in enumerate(((3, 1 / 6), (4, 3 / 16), (9 / 2, 7 / 36))):
        ended = found.play()
        if not round:
            assert [c["theta"].item() for c in ended.values()] == pytest.approx(clients, abs=1e-12)
        assert (found.server["S"].item(), found.server["theta"].item()) == pytest.approx(expected, abs=1e-12)


def test_fedlap_cov_undamped_is_exact_after_a_round() -> None:
    found = quadratics("fedlap_cov", damping=1.0)
    found.play()
    assert (found.server["S"].item(), found.server["theta"].item()) == pytest.approx((5, 1 / 5), abs=1e-12)


@pytest.mark.parametrize("received", ["prior", "flat"])
def test_fedlap_cov_of_diagonal_quadratics_in_closed_form(received: str) -> None:
    """(delta + c_t sum H)^-1 c_t sum b with c_t = 1 - (1 - rho)^t, whatever the first S is."""
    generator = torch.Generator().manual_seed(0)
    H = torch.rand(4, 6, generator=generator, dtype=torch.float64) + 0.1
    b = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    found = quadratics("fedlap_cov", H, b, damping=0.3, delta=0.7, received=received)
    found.solve = exactly(found)
    for t in range(1, 6):
        found.play()
        share = 1 - 0.7**t
        expected = share * b.sum(0) / (0.7 + share * H.sum(0))
        torch.testing.assert_close(found.server["theta"], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.server["S"], 0.7 + share * H.sum(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("damping", "converges"), [(0.2, True), (0.4, True), (1.0, False)])
def test_fedlap_of_five_clients_in_closed_form(damping: float, converges: bool) -> None:
    """theta + 1^T M^t (0 - v) of the MAP theta, with v_k = (b_k - a_k theta)/delta and

    M = I - rho diag(delta/(a + delta)) - rho a/(a + delta) 1^T

    which shrinks for rho up to 2/5 and grows for rho = 1.
    """
    a, b, delta = torch.tensor([0.5, 2.0, 1.0, 0.8, 1.5]).double(), torch.tensor([2, -1, 0.5, 1, -0.4]).double(), 1.2
    theta = b.sum() / (a.sum() + delta)
    v, share = (b - a * theta) / delta, a / (a + delta)
    M = torch.eye(5) - damping * (torch.diag(1 - share) + share[:, None])
    assert (torch.linalg.eigvals(M).abs().max() < 1) == converges
    found = quadratics("fedlap", a[:, None], b[:, None], damping=damping, delta=delta)
    found.solve = exactly(found)
    for t in range(1, 21):
        found.play()
        expected = theta - (torch.linalg.matrix_power(M, t) @ v).sum()
        assert found.server["theta"].item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    away = abs(found.server["theta"] - theta).item()
    assert away < 0.05 if converges else away > 1e3


def test_fedlap_of_a_ridge_regression() -> None:
    """BayesADMM's example of Figure 3(b), of made-up images in the place of MNIST's: 1/2 ||XW - Y||^2 + 25/2 ||W||^2, five
    clients with two of ten classes each, rho = 1/5. The server's loss in five rounds against numpy, and its way down.
    """
    draws, delta, damping = np.random.default_rng(0), 25.0, 0.2
    y = draws.integers(0, 10, 500)
    X = np.clip(draws.random((10, 7))[y] + 0.3 * draws.standard_normal((500, 7)), 0, 1)
    Y, eye = np.eye(10)[y], np.eye(7)

    def loss(W: Any) -> float:
        return float(((X @ W - Y) ** 2).sum() / 2 + delta / 2 * (W**2).sum())

    ridge = np.vstack([X, np.sqrt(delta) * eye]), np.vstack([Y, np.zeros((7, 10))])
    best = loss(np.linalg.lstsq(*ridge, rcond=None)[0])
    G, B = (np.stack([X[y // 2 == k].T @ side[y // 2 == k] for k in range(5)]) for side in (X, Y))
    v, W, expected = np.zeros_like(B), np.zeros((7, 10)), []
    for _ in range(5):
        v = v + damping * np.linalg.solve(G + delta * eye, B - delta * v - G @ W)
        W = v.sum(0)
        expected.append(loss(W))
    found = quadratics("fedlap", np.kron(G, np.eye(10)), B.reshape(5, -1), damping=damping, delta=delta)
    found.solve = exactly(found)
    losses = []
    for _ in range(5):
        found.play()
        losses.append(loss(found.server["theta"].view(7, 10).numpy()))
    assert losses == pytest.approx(expected, rel=1e-12)
    assert losses == sorted(losses, reverse=True)
    assert best < losses[-1] < best + 0.6 * (losses[0] - best)


def test_fedlap_of_one_client_is_the_map() -> None:
    """After its first round, and still after others."""
    (A,), (b,) = oblique(1)
    found = quadratics("fedlap", A[None], b[None], delta=0.7)
    found.solve = exactly(found)
    for _ in range(3):
        found.play()
        expected = torch.linalg.solve(A + 0.7 * torch.eye(6, dtype=torch.float64), b)
        torch.testing.assert_close(found.server["theta"], expected, rtol=1e-10, atol=1e-12)


def test_fedlap_cov_of_one_client_is_laplaces_approximation() -> None:
    """In one round, by its own steps, of logistic regressions on one feature: the MAP, and the loss's curvature there."""
    x = torch.tensor([[1.0, -2.0], [0.5, 1.5], [-1.0, 0.8], [2.0, 0.3]]).double()
    y = torch.tensor([1.0, 0.0, 0.0, 1.0]).double()[:, None]
    found = quadratics("fedlap_cov", x[:1] * 0, x[:1] * 0, delta=0.7, lr=1.0, steps=200)

    def measure(c: Node) -> None:
        p = (x * c["theta"]).sigmoid()
        c["H"].copy_((x.square() * p * (1 - p)).sum(0))

    found.measure = measure
    found.gradient = lambda k, theta: (x * ((x * theta).sigmoid() - y)).sum(0) / found.n[k]  # type: ignore[method-assign]
    found.play()
    for place, (column, label) in enumerate(zip(x.T.numpy(), y.T.numpy().repeat(2, 0), strict=True)):
        loss = lambda w, x=column, y=label: (np.logaddexp(0, x * w) - y * x * w).sum() + 0.35 * w**2  # noqa: E731
        best = optimize.minimize_scalar(loss, bracket=(-1, 1), tol=1e-10).x
        curvature = (column**2 / (2 + 2 * np.cosh(column * best))).sum()
        assert found.server["theta"][place].item() == pytest.approx(best, abs=1e-6)
        assert found.server["S"][place].item() == pytest.approx(0.7 + curvature, abs=1e-6)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["fedlap", "fedlap_cov"])
def test_the_fixed_point_is_the_map(name: str, half: bool) -> None:
    """Of quadratics that are not diagonal, with diagonal precisions; also where half of the clients take part, by turns."""
    A, b = oblique(4)
    found = quadratics(name, A, b, delta=1.0)
    found.solve = exactly(found)
    for round in range(600 * (1 + half)):
        found.play([[0, 1], [2, 3], [0, 3], [1, 2]][round % 4] if half else None)
    expected = torch.linalg.solve(A.sum(0) + torch.eye(6), b.sum(0))
    torch.testing.assert_close(found.server["theta"], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.server["v"], sum(kept["v"] for kept in found.kept.values()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("half", [False, True])
def test_fedlap_cov_undamped_ends_at_the_map(half: bool) -> None:
    """Of quadratics that are not diagonal: the exact mean, and the mean-field precision, the exact one's diagonal."""
    A, b = oblique(4)
    found = quadratics("fedlap_cov", A, b, damping=1.0, delta=1.0)
    found.solve = exactly(found)
    for round in range(60 * (1 + half)):
        found.play([[0, 1], [2, 3], [0, 3], [1, 2]][round % 4] if half else None)
    exact = A.sum(0) + torch.eye(6)
    torch.testing.assert_close(found.server["theta"], torch.linalg.solve(exact, b.sum(0)), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.server["S"], exact.diagonal(), rtol=1e-12, atol=0)


class Linear(Learner):
    """A learner of one linear layer (classes x features)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(state={}, n=torch.ones(()), models={}, generator=torch.Generator().manual_seed(0))
        self.shape = classes, features

    def model(self, theta: Tensor, x: Tensor) -> Tensor:
        return x @ theta.view(self.shape).T


def test_the_gauss_newton_diagonal_of_a_linear_layer_is_exact_in_expectation() -> None:
    """sum_i x_ij^2 p_ic (1 - p_ic), the diagonal of J^T (diag(p) - p p^T) J, over all signs of two images."""
    torch.manual_seed(0)
    c, theta, x = Linear(4, 3), torch.randn(12, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    batch, found = Batch(x, torch.zeros(2, dtype=torch.long)), []
    for signs in itertools.product((-1.0, 1.0), repeat=6):
        c.noise = lambda like, signs=signs: torch.tensor(signs, dtype=like.dtype).view(2, 3)  # type: ignore[method-assign]
        found.append(gauss_newton(c, theta, batch))
    p = c.model(theta, x).softmax(-1)
    expected = torch.einsum("ij,ic->cj", x.square(), p * (1 - p)).flatten()
    torch.testing.assert_close(sum(found) / len(found), expected, rtol=1e-12, atol=0)


def test_fedlap_cov_measures_the_clients_own_images_once(mapping: Make, data_dir: Path) -> None:
    """After local training: more draws change H alone, and with it nothing of the first local training."""
    one = play(federation(mapping("fedlap_cov"), data_dir), 1)
    more = play(federation(mapping({"name": "fedlap_cov", "draws": 3}), data_dir), 1)
    sums = [tensors(each)["server/V"] for each in (one, more)]
    assert not torch.equal(*sums)
    assert all((each >= 0).all() for each in sums)
    assert (sums[0].sum() / sums[1].sum()).item() == pytest.approx(1, abs=0.3)


@pytest.mark.usefixtures("modules")
def test_fedlap_cov_draws_no_scales_of_normalisation(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("fedlap_cov", models={"global": "normalised"}), data_dir)
    server = of.node(SERVER, 1)
    server.state = play(of, 1).server
    drawn: list[Tensor] = []
    monkeypatch.setattr(fedlap_cov, "softmax_average", lambda name, model, draw, *more: drawn.append(draw()))
    of.method.server_predictors(server)
    away = (drawn[0] - server["theta"]).abs()
    assert server.scaling is not None
    assert not away[server.scaling].any()
    assert (away[~server.scaling] > 0).all()
