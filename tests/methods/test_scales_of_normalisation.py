"""Scales and shifts of normalisation: methods with precisions take plain means of them, and no prior pulls them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import federation, play
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Progress
from bayesfed.methods.node import Node, State

Make = Callable[..., dict[str, Any]]
# With the name of the client's model and of the server's.
FOLA, FEDLAP_COV, FEDEP = ("theta", "mu"), ("theta", "theta"), ("mu", "mu")
METHODS = [
    ({"name": "fola"}, FOLA),
    ({"name": "fola", "form": "paper", "epsilon_rule": "fedavg"}, FOLA),
    ({"name": "fola", "evaluation": "offline"}, FOLA),
    ({"name": "fedlap_cov"}, FEDLAP_COV),
    ({"name": "fedlap_cov", "weights": "images", "damping": 0.3}, FEDLAP_COV),
    ({"name": "fedep"}, FEDEP),
    ({"name": "fedep", "covariance": "laplace", "scale": 1.0, "cavity": "sep"}, FEDEP),
    ({"name": "fedep", "covariance": "mcmc", "cavity": "adf"}, FEDEP),
]
every_method = pytest.mark.parametrize(("method", "names"), METHODS, ids=str)


def normalised(method: dict[str, Any], mapping: Make, data_dir: Path, **more: Any) -> tuple[Federation, Tensor]:
    """A run of a network with BatchNorm, and where its scales and shifts are."""
    of = federation(mapping(method, models={"global": "normalised"}, rounds=3, local_epochs=2, **more), data_dir)
    scaling = of.node(SERVER, 0).scaling
    assert scaling is not None
    return of, scaling


@pytest.mark.usefixtures("modules", "unwatched")
@pytest.mark.parametrize("participation", [1.0, 0.5])
@every_method
def test_they_are_the_mean_of_the_clients(
    method: dict[str, Any], names: tuple[str, str], participation: float, mapping: Make, data_dir: Path
) -> None:
    """By q, or alike where the method's duals are; of those who take part, in every round."""
    of, scaling = normalised(method, mapping, data_dir, participation=participation)
    ended: dict[int, Tensor] = {}
    finish = of.method.finish

    def noting(c: Node) -> State:
        ended[c.client] = c[names[0]].clone()
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    progress: Progress | None = None
    for _ in range(2):
        ended.clear()
        progress = play(of, 1, progress)
        assert len(ended) == 4 * participation
        q = torch.tensor([float(len(of.shards[k].train)) for k in ended])
        if method["name"] == "fedlap_cov" and "weights" not in method:
            q = torch.ones_like(q)
        thetas = torch.stack(list(ended.values()))
        assert (thetas.std(0)[scaling] > 1e-6).all()
        expected, found = weighted_mean(q, thetas), progress.server[names[1]]
        torch.testing.assert_close(found[scaling], expected[scaling], rtol=1e-12, atol=1e-15)
        assert not torch.allclose(found[~scaling], expected[~scaling], rtol=1e-6, atol=0)


@pytest.mark.usefixtures("modules")
@every_method
def test_no_prior_pulls_them(method: dict[str, Any], names: tuple[str, str], mapping: Make, data_dir: Path) -> None:
    """As the second round begins, where others are pulled."""
    of, scaling = normalised(method, mapping, data_dir)
    progress = play(of, 1)
    server, c = of.node(SERVER, 2), of.node(1, 2, epochs=2)
    server.state = progress.server
    c.state = dict(progress.clients.get(1) or {})
    c.state |= of.method.start(c, of.method.message(server, 1))
    pulls = {"fola": ("stiffness",), "fedlap_cov": ("quadratic", "linear"), "fedep": ("precision", "eta")}
    for name in pulls[method["name"]]:
        assert not c[name][scaling].any()
        assert c[name][~scaling].any()
