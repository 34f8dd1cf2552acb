"""BayesADMM against exact sequences of two scalar clients, in closed form and by its own steps, and PVI as its case."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from helpers.quadratics import SCALARS, Quadratics, hold_fixed_point, hold_one_client, make

from bayesfed.methods.node import Node

Make = Callable[..., dict[str, Any]]


def quadratics(A: Any = SCALARS[0], b: Any = SCALARS[1], **options: Any) -> Quadratics:
    """Clients that find the minimum of their objective, over diagonal precisions:

    S_k = S + (diag A - tau V)/(tau rho),    (A - tau V + tau rho S) m_k = b - tau v + tau rho S m
    """
    method = make("bayesadmm", **{"prior": 1.0, "temperature": 1.0, "damping": 1.0} | options)
    found = Quadratics(method, A, b, n=[4, 2] if len(b) == 2 else [3] * len(b))
    tau, rho = method.options.temperature, method.rho  # type: ignore[attr-defined]

    def solve(c: Node) -> None:
        A = found.A[c.client]
        A = A if A.dim() == 2 else torch.diag(A)
        matrix = A - torch.diag(tau * c["V"] - tau * rho * c["S"])
        right = found.b[c.client] - tau * c["v"] + tau * rho * c["S"] * c["m_0"]
        c["m"].copy_(torch.linalg.solve(matrix, right))
        c["m.h"].copy_((A.diagonal() - tau * c["V"]) / c.n)

    found.solve = solve
    return found


def server(found: Quadratics) -> tuple[float, float]:
    return found.server["S"].item(), found.server["m"].item()


def test_one_round_is_exact_with_a_step_of_one_over_the_clients() -> None:
    found = quadratics(step=0.5)
    ended = found.play()
    assert [c["m"].item() for c in ended.values()] == pytest.approx([4 / 7, -2 / 3], abs=1e-12)
    assert [(c["S"] + c["lambda"] * c["m.h"]).item() for c in ended.values()] == pytest.approx([7, 3], abs=1e-12)
    assert server(found) == pytest.approx((5, 1 / 5), abs=1e-12)


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"step": 1 / 3}, 1),
        ({"step": 0.7, "alpha": 1.0}, 1),
        ({"step": 0.7}, 2 / (1 + 3 * 0.7)),
        ({"step": 0.7, "alpha": 0.25}, 0.75 / (3 * 0.7) + 0.25),
        ({"step": 1 / 3, "damping": 0.5}, 0.75),
        ({"step": 0.7, "alpha": 1.0, "damping": 0.5}, 0.5),
        ({"step": 1 / 6, "damping": 0.5}, 1),
    ],
    ids=str,
)
def test_one_round_has_a_share_of_the_likelihood(options: dict[str, float], share: float, tau: float) -> None:
    """S = S_0 + c sum H/tau and S m = c sum b/tau of three diagonal clients, c = (1 - alpha)/(K rho) + alpha gamma: exact
    where c is 1. That is undamped alpha = 1, or, alpha = 1/(1 + K rho), gamma = K rho.
    """
    generator = torch.Generator().manual_seed(0)
    H = torch.rand(3, 4, generator=generator, dtype=torch.float64) + 0.1
    b = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    found = quadratics(H, b, prior=0.8, temperature=tau, **options)
    found.play()
    S = 0.8 + share * H.sum(0) / tau
    torch.testing.assert_close(found.server["S"], S, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.server["m"], share * b.sum(0) / tau / S, rtol=1e-12, atol=1e-14)


def test_one_client_is_variational_inference_in_one_round() -> None:
    """Where rho = 1."""
    hold_one_client(lambda A, b: quadratics(A, b, step=1.0, prior=0.5))


@pytest.mark.parametrize(
    ("options", "sequence"),
    [
        ({"step": 1.0}, [(11 / 3, 2 / 11), (37 / 9, 7 / 37), (119 / 27, 23 / 119)]),
        ({"step": 0.5, "damping": 0.5}, [(4, 3 / 16), (5, 1 / 5), (21 / 4, 17 / 84)]),
        ({"step": 0.5, "temperature": 0.5}, [(9, 2 / 9)]),
    ],
    ids=str,
)
def test_sequences_of_two_scalars(options: dict[str, float], sequence: list[tuple[float, float]]) -> None:
    found = quadratics(**options)
    for expected in sequence:
        found.play()
        assert server(found) == pytest.approx(expected, abs=1e-12)
    for _ in range(200):
        found.play()
    end = (9, 2 / 9) if "temperature" in options else (5, 1 / 5)
    assert server(found) == pytest.approx(end, abs=1e-9)


@pytest.mark.parametrize(
    ("damping", "sequence"),
    [(0.5, [(3, 1 / 6), (4, 3 / 16), (9 / 2, 7 / 36), (19 / 4, 15 / 76)]), (1.0, [(5, 1 / 5), (5, 1 / 5)])],
)
def test_pvi_is_a_case(damping: float, sequence: list[tuple[float, float]]) -> None:
    """alpha = rho = tau = 1, whose damping is PVI's."""
    found = quadratics(step=1.0, alpha=1.0, damping=damping)
    for expected in sequence:
        found.play()
        assert server(found) == pytest.approx(expected, abs=1e-12)


def test_alpha_is_that_of_the_prior() -> None:
    ours, theirs = quadratics(step=0.5), quadratics(step=0.5, alpha=0.5)
    for one in (ours, theirs):
        one.play()
        one.play()
    assert server(ours) == server(theirs)


def test_without_duals_the_server_takes_means() -> None:
    """Of the clients' exact posteriors, with the prior in each: precisions 4 and 2, weighted by images, 4 and 2."""
    found = quadratics(server="mean", step=7.0)
    found.play()
    S = (4 * 4 + 2 * 2) / 6
    assert server(found) == pytest.approx((S, (4 * 2 + 2 * -1) / 6 / S), abs=1e-12)
    (c, _) = found.play().values()
    assert c["m_0"].item() == 0
    assert c["S"].item() == 1
    found.solve = lambda c: None
    (c, _) = found.play().values()  # goes on from the server's Gaussian
    torch.testing.assert_close(c["S"] + c["lambda"] * c["m.h"], found.server["S"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "options", [{"step": 0.25, "damping": 0.5}, {"step": 1.0, "alpha": 1.0, "damping": 0.25}], ids=["admm", "pvi"]
)
def test_the_fixed_point_is_the_mean_field_optimum(options: dict[str, float], half: bool) -> None:
    found = hold_fixed_point(lambda A, b: quadratics(A, b, **options), half)
    torch.testing.assert_close(found.server["v"], sum(kept["v"] for kept in found.kept.values()), rtol=1e-9, atol=1e-9)


def test_its_own_steps_find_that_minimum() -> None:
    """Of the second round, with duals and a prior that are not 0, over 400 copies; within 3 %."""
    A, b = ([[value[0]] * 400 for value in side] for side in ([[3.0], [1.0]], [[2.0], [-1.0]]))
    options = {"step": 0.5, "damping": 0.5, "temperature": 0.5, "lr": 0.02, "beta2": 0.998}
    exact, trained = quadratics(A, b, **options), quadratics(A, b, **options)
    exact.play()
    trained.play()
    trained.steps, trained.solve = 5000, trained.train
    expected, found = exact.play(), trained.play()
    for k, c in found.items():
        curvature = expected[k]["lambda"] * expected[k]["m.h"]
        assert (c["lambda"] * c["m.h"]).mean().item() == pytest.approx(curvature.mean().item(), rel=0.03)
    for name in ("S", "m"):
        assert trained.server[name].mean().item() == pytest.approx(exact.server[name].mean().item(), rel=0.03)


def test_what_lasts_over_rounds() -> None:
    """Momentum and count last; h begins at h_start, then at 0; the mean at the network's start, then at the server's."""
    found = Quadratics(make("bayesadmm"), *SCALARS, steps=3)
    found.start = torch.tensor([5.0]).double()
    seen: list[dict[str, float]] = []

    def solve(c: Node) -> None:
        seen.append({name: c[name].item() for name in ("m", "m_0", "m.h", "m.b", "m.t")})
        found.train(c)

    found.solve = solve
    found.play([0])
    momentum, mean = found.kept[0]["m.b"].item(), found.server["m"].item()
    found.play([0])
    assert seen[0] == {"m": 5, "m_0": 0, "m.h": 0.1, "m.b": 0, "m.t": 0}
    assert seen[1] == {"m": mean, "m_0": mean, "m.h": 0, "m.b": momentum, "m.t": 3}


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("server", ["admm", "mean"])
def test_scales_of_normalisation_keep_the_priors_precision(server: str, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({"name": "bayesadmm", "server": server}, models={"global": "normalised"}), data_dir)
    scaling, S = of.node(0, 1).scaling, play(of, 2).server["S"]
    assert scaling is not None
    torch.testing.assert_close(S[scaling], torch.full_like(S[scaling], 0.5), rtol=1e-12, atol=0)
    assert (S[~scaling] - 0.5).abs().median() > 1e-3


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("options", [{}, {"step": 0.5, "damping": 1.0}])
def test_the_server_takes_the_mean_of_scales_of_normalisation(
    options: dict[str, float], mapping: Make, data_dir: Path
) -> None:
    method, budget = {"name": "bayesadmm", "lr": 1e-9} | options, {"participation": 0.5}
    of = federation(mapping(method, models={"global": "normalised"}, **budget), data_dir)
    scaling, progress = of.node(0, 1).scaling, play(of, 3)
    assert scaling is not None
    torch.testing.assert_close(progress.server["m"][scaling], of.node(-1, 0).initial()[scaling], rtol=1e-6, atol=1e-6)


def test_precisions_have_a_floor_that_is_logged() -> None:
    found = quadratics([[-3.0, 1.0], [-3.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], step=1.0, alpha=1.0)
    found.play()
    assert found.server["S"].tolist() == pytest.approx([1e-3, 3])
    assert found.logged["precision_floored"].item() == 0.5


@pytest.mark.parametrize(("step", "share"), [(0.5, 0.5), (0.7, 0.0)])
def test_duals_above_what_holds_them_are_logged(step: float, share: float) -> None:
    """In the end S = (5, 5) and V_0 = (3, 1): above rho S in the first parameter for rho = 0.5, and nowhere for 0.7."""
    found = quadratics([[3.0, 1.0], [1.0, 3.0]], [[0.0, 0.0], [0.0, 0.0]], step=step)
    for _ in range(60):
        found.play()
    assert found.logged["duals_above"].item() == share


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", 1, 1), ("feddyn", 1, 1), ("fedlap", 1, 1), ("fedlap_cov", 2, 2), ("bayesadmm", 2, 4), ("fedgvi", 2, 2),
        ("fedivon", 2, 2), ("fedep", 2, 2), ("pfedvem", 1, 1),
    ],
)  # fmt: skip
def test_what_travels_is_single_precision(name: str, down: int, up: int, mapping: Make, data_dir: Path) -> None:
    """So many numbers for each parameter in the second round, whatever is kept in double precision; and a few scalars."""
    of = federation(mapping(name), data_dir, torch.float32)
    rows = {row.metric: row.value for row in play(of, 2).history if row.round == 2 and "bytes" in row.metric}
    parameters = of.networks[0]["global"].parameters
    assert len(rows) >= 2
    for metric, value in rows.items():
        expected = 4 * 4 * parameters * (down if "down" in metric else up)
        assert expected <= value <= expected + 4 * 64, metric
