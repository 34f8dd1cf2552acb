"""ABAVG (Xiao et al. 2021): FedAvg whose server weights the clients' models by their validated accuracy.

    theta <- sum_k w_k theta_k,   w_k = a_k / sum_j a_j

a_k is measured by the server on images of its own, class-balanced and taken out of the clients' shards, never on
the test set. The formula is published nowhere that we could read; the other interpretations are switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Update, shares
from bayesfed.methods.node import Node
from bayesfed.methods.predictors import softmax_of


class ABAVG(FedAvg):
    """FedAvg's round with other weights in the average."""

    name = "abavg"
    label = "ABAVG"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's, the size of the server's validation set, and what a client's weight is proportional to."""

        validation_images: int = option(2000, low=1)
        weight: Literal["accuracy", "images-times-accuracy", "scaled-accuracy"] = "accuracy"

    options: Options

    def server_images(self) -> int:
        return self.options.validation_images

    def weights(self, server: Node, updates: Sequence[Update]) -> Tensor:
        clients = [softmax_of("client", server.having(update.statistics).model, update["theta"]) for update in updates]
        a = torch.stack([server.accuracy(client) for client in clients])
        if self.options.weight == "images-times-accuracy":
            a = a * shares(updates)
        elif self.options.weight == "scaled-accuracy":
            a = a - a.min()
        # All zero (every accuracy 0, or all alike after scaling) says nothing about the clients: equal weights.
        return torch.where(a.sum() > 0, a, torch.ones_like(a))


METHOD = ABAVG
