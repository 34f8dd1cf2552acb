"""FedIvon: one client is variational inference on all data, the server by hand, the personalised prior."""

import pytest
import torch
from helpers.quadratics import SCALARS, Quadratics, make
from torch import Tensor

from bayesfed.methods.method import Update
from bayesfed.methods.node import Node

PRECISE = {"lr": 0.01, "beta2": 0.999, "rescale": False, "weight_decay": 0.25}


def test_one_client_is_variational_inference() -> None:
    """n l = 3/2 theta^2 - 2 theta with the prior's precision 4 / 4, in two rounds: h -> a/n, m -> b/(a + 1)."""
    found = Quadratics(
        make("fedivon", **PRECISE), torch.full((1, 1000), 3.0), torch.full((1, 1000), 2.0), n=(4,), steps=4000
    )
    found.play()
    found.play()
    assert found.server["h"].mean().item() == pytest.approx(3 / 4, rel=0.03)
    assert found.server["m"].mean().item() == pytest.approx(2 / 4, rel=0.03)
    assert found.server["n"].item() == 4


def test_the_server_by_hand() -> None:
    """w = 1/4, 3/4, delta = 1/2: curvatures weigh the means."""
    found = Quadratics(make("fedivon", weight_decay=0.5), *SCALARS)
    server = found.node(-1)
    server.state = found.server

    def vector(value: float) -> Tensor:
        return torch.tensor([value], dtype=torch.float64)

    sent = [
        Update(k, n, vector(n / 8)[0], {"m": vector(m), "h": vector(h), "stiffness": vector(h + 0.5)})
        for k, (n, m, h) in enumerate([(2, 1.0, 3.5), (6, -1.0, 1.5)])
    ]
    found.method.aggregate(server, sent)
    assert server["h"].item() == pytest.approx(1 / 4 * 3.5 + 3 / 4 * 1.5)
    assert server["m"].item() == pytest.approx((1 / 4 * 4 - 3 / 4 * 2) / (1 / 4 * 4 + 3 / 4 * 2))
    assert server["n"].item() == 8


def test_a_client_goes_on_from_the_servers_curvature() -> None:
    ours, fresh = (Quadratics(make("fedivon", curvature=one, beta2=0.9), *SCALARS) for one in ("server", "fresh"))
    for found in (ours, fresh):
        found.play()
        found.solve = lambda c: None
    h = ours.server["h"]
    assert (h - 1).abs() > 1e-3
    assert all(torch.equal(c["m.h"], h) for c in ours.play().values())
    assert all(c["m.h"] == 1 for c in fresh.play().values())


def test_the_personal_prior_is_the_servers_posterior() -> None:
    """From the second round on: the client's mean is where a (theta - b/a) and n (h + delta) (theta - m) are in balance."""
    A, b = ([[value[0]] * 1000 for value in side] for side in ([[3.0], [1.0]], [[2.0], [1.0]]))
    found = Quadratics(make("fedivon", prior="server", **PRECISE), A, b, steps=4000)
    first = found.play()
    assert all(c["m_0"].abs().max() == 0 for c in first.values())
    m, precision = found.server["m"].clone(), found.server["n"] * (found.server["h"] + 0.25)
    second: dict[int, Node] = found.play()
    for k, c in second.items():
        torch.testing.assert_close(c.n * c["w"], precision, rtol=1e-12, atol=0)
        expected = (found.b[k] + precision * m) / (found.A[k] + precision)
        assert c["m"].mean().item() == pytest.approx(expected.mean().item(), rel=0.03)
