"""FedAvg ensemble (Linsner et al. 2021): FedAvg, whose server predicts with the models of the last round's clients.

    theta <- sum_k q_k theta_k        p(y | x) = sum_k q_k softmax(f(x; theta_k))

The mean model stays `global`, and clients start from it; the mixture is `global_sampled`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Ground, Update, stacked
from bayesfed.methods.node import GLOBAL, SAMPLED, Node
from bayesfed.methods.predictors import Predictor


class FedAvgEnsemble(FedAvg):
    """FedAvg; the server also keeps the clients' models, members (K, P), and their logarithmic weights, log_q (K,)."""

    name = "fedavg_ensemble"
    label = "FedAvg ensemble"
    revision = 1

    def unfit(self, ground: Ground) -> str:
        """Refuse networks with BatchNorm: a member would need the statistics of its client, and the engine averages them."""
        return "models.global: an ensemble of clients needs a network without BatchNorm" if ground.batchwise else ""

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        super().aggregate(server, updates)
        server["members"] = stacked(updates, "theta")
        server["log_q"] = self.weights(server, updates).log().to(server["theta"].dtype)
        return {}

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        members, log_q = server["members"], server["log_q"]

        def mixture(x: Tensor) -> Tensor:
            each = torch.stack([F.log_softmax(server.model(theta, x), -1) for theta in members])
            return (each + log_q[:, None, None]).logsumexp(0)

        ensemble = Predictor(GLOBAL + SAMPLED, mixture, ("test",), passes=len(members))
        return [*super().server_predictors(server), ensemble]


METHOD = FedAvgEnsemble
