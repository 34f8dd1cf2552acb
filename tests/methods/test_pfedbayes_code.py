"""The factor of the unofficial pFedBayes code that `loss: code` leaves out, and what it would change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.playing import federation, play
from torch import Tensor

from bayesfed.bayes.gaussian import kl_prior_gradient
from bayesfed.engine.rounds import begin
from bayesfed.methods import pfedbayes

Make = Callable[..., dict[str, Any]]
BATCHES = {"local_epochs": 0, "local_batches": 20, "batch_size": 16, "batch_order": "fixed"}


def test_the_weight_of_the_kl_of_w_is_lost_in_adam(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code has zeta/R before the KL of w's step, too. Adam scales gradients by their own size, so that it acts where
    these are near its epsilon alone: on few entries of rho_w."""
    method = {"name": "pfedbayes", "loss": "code", "noise_scale": 0.001, "personal_steps": 5, "weights": "images"}
    small = {"models": {"global": "pfedbayes_mlp"}, "images": {"prepare": "none"}}
    of = federation(mapping(method, **small, **BATCHES), data_dir)
    start, plain = begin(of).server, play(of, 2).server

    def weighted(*gaussians: Tensor) -> tuple[Tensor, Tensor]:
        g_mu, g_sigma = kl_prior_gradient(*gaussians)
        return 10 / 20 * g_mu, 10 / 20 * g_sigma

    monkeypatch.setattr(pfedbayes, "kl_prior_gradient", weighted)
    as_in_the_code = play(of, 2).server
    for name, share in (("mu_w", 1e-5), ("rho_w", 1e-2)):
        apart, moved = as_in_the_code[name] - plain[name], plain[name] - start[name]
        assert 0 < apart.norm() < share * moved.norm()
