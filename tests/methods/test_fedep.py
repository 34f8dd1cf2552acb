"""FedEP: its cavities on linear-Gaussian sites, its covariances by hand, and what server and sites keep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from helpers.quadratics import SCALARS, Quadratics, make

from bayesfed.methods.node import Node

Make = Callable[..., dict[str, Any]]
# The prior's precision is 1 of all 6 images; no damping, no momentum.
EXACT = {"covariance": "laplace", "weight_decay": 1 / 6, "scale": 1.0, "clip": None, "damping": 1.0, "step": 1.0, "step_momentum": 0.0}  # fmt: skip


def quadratics(A: Any = SCALARS[0], b: Any = SCALARS[1], **options: Any) -> Quadratics:
    """Clients that find the minimum of their objective, and its curvature."""
    found = Quadratics(make("fedep", **(EXACT | options)), A, b, n=[4, 2] if len(b) == 2 else [3, 2, 1])

    def solve(c: Node) -> None:
        A, b = found.A[c.client], found.b[c.client]
        c["theta"].copy_((b + c["eta"]) / (A + c["precision"]))
        found.method.collect(c)  # type: ignore[attr-defined]
        found.method.average(c)  # type: ignore[attr-defined]
        c["fisher"].copy_(A)

    found.solve = solve
    return found


def server(found: Quadratics) -> tuple[float, float]:
    return found.server["natural"][1].item(), found.server["mu"].item()


@pytest.mark.parametrize("start", [0.0, 3.0])
def test_ep_is_exact_after_one_sweep(start: float) -> None:
    """Whatever the network's start: the first sites, which stand for the prior, are replaced."""
    found = quadratics()
    found.start = torch.tensor([start]).double()
    found.server = found.method.init_server(found.node(-1))
    for _ in range(3):
        found.play()
        assert server(found) == pytest.approx((5, 1 / 5), abs=1e-12)


@pytest.mark.parametrize("start", [0.0, 3.0])
def test_sep_is_exact_after_every_sweep(start: float) -> None:
    """Of three clients, whatever Lambda is: (1 - n_k/n) Lambda + A_k + w n_k - Lambda sums to sum A_k + w n - Lambda; and
    so does eta, without the prior's share.
    """
    found = quadratics([[3.0], [0.5], [0.5]], [[2.0], [-2.0], [1.0]], cavity="sep")
    found.start = torch.tensor([start]).double()
    found.server = found.method.init_server(found.node(-1))
    for _ in range(3):
        found.play()
        assert server(found) == pytest.approx((5, 1 / 5), abs=1e-12)


def test_adf_adds_prior_and_likelihood_in_every_sweep() -> None:
    """Each client adds A_k + w n_k and b_k to the server's own, 1 and 0: the prior counts twice after one sweep."""
    found = quadratics(cavity="adf")
    for t in (1, 2, 3):
        found.play()
        assert server(found) == pytest.approx((1 + 5 * t, t / (1 + 5 * t)), abs=1e-12)


def test_sites_and_server_step_with_momentum() -> None:
    """Of half a step and momentum 0.9, damped by one over the clients: the server is the sum of the sites."""
    found = quadratics(damping=None, step=0.5, step_momentum=0.9)
    for _ in range(3):
        found.play()
        sites = sum(kept["site.natural"] for kept in found.kept.values())
        torch.testing.assert_close(found.server["natural"], sites, rtol=1e-12, atol=1e-12)
    for _ in range(600):
        found.play()
    assert server(found) == pytest.approx((5, 1 / 5), abs=1e-9)


def test_the_first_precisions_are_those_of_all_images_and_of_the_clients() -> None:
    found = quadratics(scale=2.0)
    assert found.server["natural"][1].item() == pytest.approx(2 * 6 / 6)
    found.play()
    kept = found.method.init_client(found.node(0))
    assert kept["site.natural"][1].item() == pytest.approx(2 * 4 / 6)


def test_a_change_is_clipped_in_its_joint_length() -> None:
    free, clipped = quadratics(step_momentum=0.9), quadratics(clip=0.5)
    change = free.method.finish(free.play()[0])["change"]
    found = clipped.method.finish(clipped.play()[0])["change"]
    assert change.norm() > 1
    assert found.norm().item() == pytest.approx(0.5, rel=1e-5)


def test_covariances_by_hand() -> None:
    """Two iterates 1 and 3: mean 2, variance 2. Entries beyond two deviations of the mean are drawn in."""
    method = make("fedep", **(EXACT | {"covariance": "mcmc", "shrinkage": 0.5, "scale": 3.0}))
    found = Quadratics(method, [[3.0], [1.0]], [[2.0], [-1.0]])
    c = found.node(0)
    c.state = method.init_client(found.node(0))
    c.state |= method.start(c, found.server)
    for theta in (1.0, 3.0):
        c["theta"].fill_(theta)
        method.collect(c)  # type: ignore[attr-defined]
    method.average(c)  # type: ignore[attr-defined]
    assert c["mu"].item() == 2
    cavity = c["cavity"][1].item()
    expected = 3 * (1 / (0.5 + 0.5 * 2) - cavity) + cavity
    assert method.precision(c).item() == pytest.approx(expected)  # type: ignore[attr-defined]


def test_precisions_are_drawn_in_to_two_deviations() -> None:
    wide = [[1.0] * 19 + [1000.0], [1.0] * 20]
    found = Quadratics(make("fedep", **EXACT), wide, [[0.0] * 20] * 2)
    c = found.client(0)
    c["fisher"].copy_(found.A[0])
    precision = found.A[0] + c["cavity"][1] + 4 / 6
    expected = precision.clamp(max=precision.mean() + 2 * precision.std(correction=0))
    torch.testing.assert_close(found.method.precision(c), expected, rtol=1e-12, atol=0)  # type: ignore[attr-defined]
    assert expected[-1] < precision[-1]


def test_a_step_has_the_priors_gradient() -> None:
    """Plain SGD on l_k + (1/2 theta^2 Lambda - eta theta)/n_k ends where `quadratics` puts it."""
    found = Quadratics(make("fedep", **(EXACT | {"lr": 0.3, "momentum": 0.0})), *SCALARS, steps=300)
    c = found.play()[0]
    expected = (found.b[0] + c["eta"]) / (found.A[0] + c["precision"])
    torch.testing.assert_close(c["theta"], expected, rtol=1e-9, atol=0)


@pytest.mark.usefixtures("unwatched")
def test_laplace_measures_every_client(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "fedep", "covariance": "laplace"}, local_epochs=2), data_dir)
    finish, fishers = of.method.finish, []

    def noting(c: Node) -> dict[str, torch.Tensor]:
        fishers.append(float(c["fisher"].sum()))
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    play(of, 1)
    assert min(fishers) > 0


def test_a_node_knows_how_many_images_all_clients_have(mapping: Make, data_dir: Path) -> None:
    """Without the server's own: of these the first precision is made."""
    of = federation(mapping("fedep", server_images=20), data_dir)
    images = sum(len(of.shards[k].train) for k in range(4))
    assert len(of.shards[-1].train) == 20
    assert {of.node(k, 0).total.item() for k in range(-1, 4)} == {images}
    first = of.method.init_server(of.node(-1, 0))["natural"][1]
    torch.testing.assert_close(first, torch.full_like(first, 1e-4 * 500 * images), rtol=1e-12, atol=0)
