"""FOLA's study of its errors: what is measured, against plain FedAvg and against quadratic forms written out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play

from bayesfed.core.errors import InputError
from bayesfed.methods.fola_errors import distance
from bayesfed.methods.node import Node, State

Make = Callable[..., dict[str, Any]]
TWO = {"partition": {"scheme": "classes_apart", "clients": 2}, "rounds": 4, "clients_on_test": "round"}
METHOD = {"name": "fola_errors", "form": "paper", "aggregated": 2, "epochs": 3}


def test_distance_is_the_quadratic_form() -> None:
    generator = torch.Generator().manual_seed(0)
    theta, mu, diagonal = torch.randn((3, 5), generator=generator, dtype=torch.float64)
    factor = torch.randn((5, 5), generator=generator, dtype=torch.float64)
    omega = factor @ factor.T
    normal = torch.distributions.MultivariateNormal(mu, precision_matrix=omega)
    expected = normal.log_prob(mu) - normal.log_prob(theta)  # the paper's -ln p, without what does not depend on theta
    torch.testing.assert_close(distance(theta, mu, omega), expected)
    torch.testing.assert_close(distance(theta, mu, diagonal), distance(theta, mu, diagonal.diag()))


def test_fedavg_runs_beside_it(mapping: Make, data_dir: Path) -> None:
    """The same images in the same order, so the same model as FedAvg's own run."""
    beside = play(federation(mapping(METHOD, **TWO), data_dir), 3).server
    softmax = {"models": {"global": "softmax"}, "images": {"prepare": "none"}}
    plain = {"name": "fedavg", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "clip": 10.0}
    alone = play(federation(mapping(plain, **TWO, **softmax), data_dir), 2).server
    torch.testing.assert_close(beside["average"], alone["theta"], rtol=1e-10, atol=1e-12)
    full = {"name": "fola_full", "form": "paper"}
    early, late = (play(federation(mapping(full, **TWO), data_dir), rounds).server for rounds in (2, 3))
    torch.testing.assert_close(beside["early"], early["mu"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(beside["mu"], late["mu"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "size"),
    [
        (METHOD, 4 * (650 + 650**2)),
        (METHOD | {"precision": "optimum", "curvature": "eigenvalues"}, 4 * 2 * 650),
        ({"name": "fola_full", "ridge": 21, "curvature": "eigenvalues"}, 4 * 2 * 650),
        ({"name": "fola", "ridge": 21}, 4 * 2 * 650),
    ],
    ids=str,
)
def test_bytes_are_those_of_a_model_and_its_precisions(
    method: dict[str, Any], size: int, mapping: Make, data_dir: Path
) -> None:
    """Both ways, in every round, whatever a figure or the study of errors looks at beside them."""
    network = {"models": {"global": "softmax"}, "images": {"prepare": "none"}}
    progress = play(federation(mapping(method, **TWO, **network), data_dir, torch.float32), 4)
    sent = [row.value for row in progress.history if row.model == "communication"]
    assert sent == [2 * size] * 2 * 4


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("curvature", ["full", "eigenvalues"])
def test_errors_are_distances_to_the_last_model_but_one(curvature: str, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({**METHOD, "curvature": curvature}, **TWO), data_dir)
    before = play(of, 3)
    mu, omega = before.server["mu"], before.server["omega"]
    logged = {(row.round, row.metric): row.value for row in before.history if row.model == "server"}
    for name, theta in (("optimal", mu), ("FOLA", before.server["early"]), ("FedAvg", before.server["average"])):
        assert logged[3, f"AE {name}"] == pytest.approx(distance(theta, mu, omega).item(), rel=1e-9)
    tested = {row.model for row in before.history if row.round == 3 and row.client == "global"}
    assert {"optimal", "FOLA", "FedAvg"} <= tested

    sent: dict[int, State] = {}
    finish = of.method.finish

    def noting(c: Node) -> State:
        sent[c.client] = finish(c)
        return sent[c.client]

    of.method.finish = noting  # type: ignore[method-assign]
    after = play(of, 4)
    logged = {(row.round, row.metric): row.value for row in after.history if row.model == "server"}
    sizes = np.array([len(of.shards[k].train) for k in (0, 1)])
    for at, kind in enumerate(("FOLA", "FedAvg")):
        for epoch in (1, 2, 3):
            each = [distance(one["after"][epoch - 1, at], mu, omega).item() for one in (sent[0], sent[1])]
            assert logged[4, f"LF {kind} {epoch}"] == pytest.approx(np.average(each, weights=sizes), rel=1e-9)
            assert (4, "mean", f"{kind} {epoch}") in {(row.round, row.client, row.model) for row in after.history}
    torch.testing.assert_close(sent[1]["after"][2, 0], sent[1]["theta"])
    torch.testing.assert_close(sent[1]["after"][2, 1], sent[1]["plain"])


def test_the_last_round_measures_precisions_as_others_do(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping({**METHOD, "evaluation": "offline"}, **TWO), data_dir)
    before, after = (play(of, rounds).server for rounds in (3, 4))
    assert (after["omega"] != 0).sum() == (before["omega"] != 0).sum() > 0


def test_the_last_round_is_for_forgetting(mapping: Make, data_dir: Path) -> None:
    found = r"rounds: 2; the last is for forgetting, and AE is that of round 2 \(method.aggregated\): set 3 or more"
    with pytest.raises(InputError, match=found):
        federation(mapping(METHOD, **(TWO | {"rounds": 2})), data_dir)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func.hessian's own use of it
def test_errors_by_the_hessian_at_the_optimum(mapping: Make, data_dir: Path) -> None:
    """Against second derivatives over all images at the last model but one; training is as without."""
    of = federation(mapping({**METHOD, "precision": "optimum"}, **TWO), data_dir)
    before, after = (play(of, rounds) for rounds in (3, 4))
    usual = play(federation(mapping(METHOD, **TWO), data_dir), 4)
    assert torch.equal(after.server["mu"], usual.server["mu"])
    assert not [row for row in before.history if row.metric.startswith(("AE", "LF"))]
    mu, hessian, n = before.server["mu"], 0.0, 0
    for k in (0, 1):
        x, y = of.own_images(k)

        def loss(theta: torch.Tensor, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            logits = x.flatten(1) @ theta[:-10].view(10, -1).T + theta[-10:]
            return torch.nn.functional.cross_entropy(logits, y, reduction="sum")

        hessian, n = hessian + torch.func.hessian(loss)(mu), n + len(y)
    logged = {row.metric: row.value for row in after.history if (row.round, row.model) == (4, "server")}
    tested = {row.model for row in after.history if (row.round, row.client) == (4, "global")}
    for name, theta in (("optimal", mu), ("FOLA", after.server["early"]), ("FedAvg", after.server["average"])):
        away = theta - mu
        assert logged[f"AE {name}"] == pytest.approx(float(0.5 * away @ (hessian / n) @ away), rel=1e-8, abs=1e-12)
        assert name in tested
    lf = {row.metric: row.value for row in usual.history if row.metric.startswith("LF")}
    assert lf.keys() < logged.keys()
    assert all(logged[name] > 0 and logged[name] != pytest.approx(value, rel=0.01) for name, value in lf.items())
