"""FOLA's study of two clients: the whole Hessian, its eigenvalues, and the ridge between the clients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.engine.batches import Mixer
from bayesfed.engine.federation import Federation
from bayesfed.methods.fola_full import IMAGES, TILE, Hessian, second_moments
from bayesfed.methods.method import Update
from bayesfed.methods.node import Batch, Node, State

Make = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func.hessian's own use of it
TWO = {"partition": {"scheme": "classes_apart", "clients": 2}, "rounds": 1}
N, C, D = 7, 3, 4


def images() -> tuple[Tensor, Tensor]:
    """N images of D pixels, one of which is the same in all, and theta."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((N, 1, 2, 2), generator=generator, dtype=torch.float64)
    x[:, 0, 0, 1] = -0.4
    return x, torch.randn(C * D + C, generator=generator, dtype=torch.float64)


def logits(theta: Tensor, x: Tensor) -> Tensor:
    """Of a softmax regression."""
    x = x.flatten(1)
    classes = len(theta) // (x.shape[1] + 1)
    return F.linear(x, theta[:-classes].view(classes, -1), theta[-classes:])


def found(x: Tensor, theta: Tensor) -> Hessian:
    p = logits(theta, x).softmax(-1)
    return Hessian(x, (p.diag_embed() - p[:, :, None] * p[:, None]).flatten(1))


def test_the_hessian_is_the_second_derivative() -> None:
    x, theta = images()
    by_autograd = torch.func.hessian(loss)(theta, x, torch.arange(N) % C)
    torch.testing.assert_close(found(x, theta).whole(), by_autograd, rtol=1e-12, atol=1e-14)


def test_the_hessian_has_its_closed_form() -> None:
    """The mean of (diag p - p p^T) (x) x' x'^T, with each class's weights and bias side by side."""
    x, theta = images()
    rows = np.concatenate([x.flatten(1).numpy(), np.ones((N, 1))], 1)
    p = logits(theta, x).softmax(-1).numpy()
    closed = sum(np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row)) for q, row in zip(p, rows, strict=True))
    order = [c * (D + 1) + d for c in range(C) for d in range(D)] + [c * (D + 1) + D for c in range(C)]
    np.testing.assert_allclose(
        found(x, theta).whole().numpy(), closed[np.ix_(order, order)] / N, rtol=1e-12, atol=1e-14
    )


def test_eigenvalues_are_those_of_the_whole() -> None:
    x, theta = images()
    hessian = found(x, theta)
    assert hessian.core.shape == (C - 1, D, C - 1, D)  # the pixel that is the same in all is gone
    expected = torch.linalg.eigvalsh(hessian.whole())
    torch.testing.assert_close(hessian.eigenvalues(), expected, rtol=1e-10, atol=1e-13)


def test_second_moments_over_many_tiles() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn((IMAGES + 3, 2 * TILE + 5), generator=generator, dtype=torch.float64)
    weights = torch.randn((IMAGES + 3, 2), generator=generator, dtype=torch.float64)
    expected = torch.einsum("ij,ik,il->jkl", weights, x, x)
    torch.testing.assert_close(second_moments(x, weights), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fills_up", [False, True])
def test_steps_note_the_curvature_of_each_image(fills_up: bool, mapping: Make, data_dir: Path) -> None:
    """Of the images of a mini-batch, and of none that only fills it up, whatever its place says."""
    of = federation(mapping({"name": "fola_full"}, **TWO, models={"global": "softmax"}), data_dir)
    node = of.node(0, 1)
    mu = node.initial()
    node.state = of.method.start(node, {"mu": mu, "omega": torch.zeros(len(mu), len(mu), dtype=mu.dtype)})
    x, y = node.images()
    weight = torch.tensor([1 / 3] * 3 + [0.0], dtype=mu.dtype) if fills_up else None
    real = 3 if fills_up else 4
    place = torch.tensor([5, 0, 2, 10**6 if fills_up else 7])
    batch = Batch(x[:4], y[:4], weight, place)
    of.method.gather(node, batch, mu)  # type: ignore[attr-defined]
    p = node.model(mu, x[:4]).softmax(-1)
    expected = torch.zeros_like(node["curvature"])
    for at, one in zip(place[:real], p, strict=False):
        expected[at] = (torch.diag(one) - torch.outer(one, one)).flatten()
    torch.testing.assert_close(node["curvature"], expected)
    assert node["passes"].item() == pytest.approx(real / len(y))


def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits(theta, x), y)


def sent(of: Federation, rounds: int) -> list[dict[int, State]]:
    """What the clients send in each round."""
    found: list[dict[int, State]] = []
    finish = of.method.finish

    def noting(c: Node) -> State:
        if len(found) < c.round:
            found.append({})
        found[-1][c.client] = {name: tensor.clone() for name, tensor in finish(c).items()}
        return found[-1][c.client]

    of.method.finish = noting  # type: ignore[method-assign]
    play(of, rounds)
    return found


def by_hand(
    of: Federation, client: int, round: int, mu: Tensor, omega_s: Tensor, online: bool
) -> tuple[Tensor, Tensor]:
    """A client's theta and what its round gathers of the Hessian (online, or in one pass at the end)."""
    mixer, n = Mixer(of, of.node(client, round)), len(of.shards[client].train)
    theta, total = mu.clone(), torch.zeros(len(mu), len(mu), dtype=torch.float64)
    for training in (True,) if online else (True, False):
        for chunk in mixer.epoch(of.shards[client]):
            for x, y in zip(chunk.x.split(32), chunk.y.split(32), strict=True):
                if online or not training:
                    total += len(y) / n * torch.func.hessian(loss)(theta, x, y)
                if training:
                    g = torch.func.grad(loss)(theta, x, y)
                    g = g + omega_s @ (theta - mu) / (round if online else 1)
                    theta = theta - 0.01 * g * min(1.0, 10 / float(g.norm() + 1e-6))
    return theta, total


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("evaluation", ["online", "offline"])
def test_two_rounds_against_a_loop(evaluation: str, mapping: Make, data_dir: Path) -> None:
    """Training with the prior, the Hessian of every step, and the server's solve."""
    small = {"dataset": "few-parity", "partition": {"scheme": "classes_apart", "clients": 2}}
    of = federation(mapping({"name": "fola_full", "evaluation": evaluation}, **small), data_dir)
    mu = of.node(-1, 0).initial()
    omega_s = torch.zeros(len(mu), len(mu), dtype=torch.float64)
    n = [len(of.shards[k].train) for k in (0, 1)]
    for round, found in enumerate(sent(of, 2), 1):
        left, right = torch.zeros_like(omega_s), torch.zeros_like(mu)
        for client in (0, 1):
            theta, gathered = by_hand(of, client, round, mu, omega_s, evaluation == "online")
            omega = gathered + (omega_s if evaluation == "online" else 0)
            torch.testing.assert_close(found[client]["theta"], theta, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found[client]["omega"], omega, rtol=1e-8, atol=1e-10)
            left += n[client] / sum(n) * omega
            right += n[client] / sum(n) * omega @ theta
        omega_s = left
        mu = torch.linalg.solve(left + 1e-3 * torch.eye(len(mu), dtype=torch.float64), right)
    torch.testing.assert_close(play(of, 2).server["mu"], mu, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("unwatched")
def test_eigenvalues_stand_in_order_on_the_diagonal(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fola_full", "curvature": "eigenvalues"}, dataset="few-parity", **TWO), data_dir)
    mu = of.node(-1, 0).initial()
    _, gathered = by_hand(of, 0, 1, mu, torch.zeros(len(mu), len(mu), dtype=torch.float64), True)
    found = sent(of, 1)[0][0]["omega"].numpy()
    expected = np.linalg.eigvalsh(gathered.numpy())
    np.testing.assert_allclose(found, expected.clip(0), rtol=1e-8, atol=1e-12)
    assert (np.diff(found) >= 0).all()


def test_the_average_is_the_mode_of_the_product(mapping: Make, data_dir: Path) -> None:
    """The minimum of sum_n pi_n (theta - theta_n)^T Omega_n (theta - theta_n) + epsilon |theta - ...|^2, by least
    squares."""
    generator = torch.Generator().manual_seed(1)
    factors = torch.randn((2, 5, 650), generator=generator, dtype=torch.float64)
    thetas = torch.randn((2, 650), generator=generator, dtype=torch.float64)
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    omegas = factors.transpose(1, 2) @ factors
    for rule, centre in (("shrink", torch.zeros(650, dtype=torch.float64)), ("fedavg", pi @ thetas)):
        of = federation(mapping({"name": "fola_full", "epsilon_rule": rule, "epsilon": 0.1}, **TWO), data_dir)
        rows = torch.cat([*(pi.sqrt()[:, None, None] * factors), 0.1**0.5 * torch.eye(650, dtype=torch.float64)])
        sides = torch.cat([*(w.sqrt() * f @ t for w, f, t in zip(pi, factors, thetas, strict=True)), 0.1**0.5 * centre])
        mu, omega = of.method.average(pi, thetas, omegas)  # type: ignore[attr-defined]
        torch.testing.assert_close(mu, torch.linalg.lstsq(rows, sides).solution, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(omega, pi[0] * omegas[0] + pi[1] * omegas[1], rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("name", ["fola", "fola_full"])
def test_the_ridge_runs_from_one_client_to_the_other(name: str, mapping: Make, data_dir: Path) -> None:
    seen = {"models": {"global": "softmax"}, "images": {"prepare": "none"}}
    of = federation(mapping({"name": name, "ridge": 5, "epsilon_rule": "fedavg"}, **TWO, **seen), data_dir)
    thetas = [sent(of, 1)[0][k]["theta"] for k in (0, 1)]
    progress = play(of, 1)
    torch.testing.assert_close(progress.server["ridge"][0], thetas[1], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(progress.server["ridge"][4], thetas[0], rtol=1e-6, atol=1e-9)
    found = {
        row.model: row.value for row in progress.history if row.metric == "test_accuracy" and row.client == "global"
    }
    assert list(found) == ["global", "ridge 0", "ridge 0.25", "ridge 0.5", "ridge 0.75", "ridge 1"]
    similarity = [row.value for row in progress.history if row.metric == "precision_cosine"]
    assert len(similarity) == 1
    assert 0 < similarity[0] < 1
    later = play(federation(mapping({"name": name, "ridge": 5}, **(TWO | {"rounds": 3}), **seen), data_dir), 3).history
    assert {row.round for row in later if row.model.startswith("ridge")} == {1, 3}


def test_equal_precisions_are_alike_whatever_their_size(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fola", "ridge": 2}, **TWO, models={"global": "softmax"}), data_dir)
    server = of.node(-1, 2)
    theta, omega = torch.zeros(4, dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.float64)
    half = torch.tensor(0.5, dtype=torch.float64)
    updates = [Update(k, 1, half, {"theta": theta, "omega": (k + 1) * omega + k}) for k in (0, 1)]
    assert of.method.aggregate(server, updates)["precision_cosine"].item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({"name": "fola_full"}, {"images": {"augment": "crop_flip"}}, "images.augment: FOLA, full Hessian is for images as they are, found 'crop_flip'; set none"),
    ],
)  # fmt: skip
def test_refuses_what_it_is_not_for(method: dict[str, Any], changes: dict[str, Any], message: str, mapping: Make,
                                    data_dir: Path) -> None:  # fmt: skip
    with pytest.raises(InputError, match=message):
        play(federation(mapping(method, **changes), data_dir), 1)
