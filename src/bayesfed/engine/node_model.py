"""A network as a node's steps and predictors call it: in the run's precision, with its passes counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.methods.node import Learner
from bayesfed.models import AnyNetwork
from bayesfed.models.network import Network

if TYPE_CHECKING:
    from bayesfed.engine.federation import Federation


@dataclass(frozen=True)
class NodeModel:
    """A network of a client or the server; `prefix` begins the names of its statistics in the learner's state, `whose` names
    the node in errors."""

    federation: Federation
    network: AnyNetwork
    prefix: str
    whose: str

    def __call__(self, c: Learner, theta: Tensor, x: Tensor, *, dropout: bool = False) -> Tensor:
        """Return logits (B, classes) in the dtype of the states.

        Raises InputError for parameters of another shape than the network's own.
        """
        network, training = self.network, theta.requires_grad and torch.is_grad_enabled()
        self.count(c, theta, len(x) * (network.training_operations if training else network.operations))
        statistics = {name: c.state[self.prefix + name] for name in network.statistics}
        return network.logits(theta, x, statistics, c.generator, dropout).to(self.federation.compute.dtype)

    def last_inputs(self, c: Learner, theta: Tensor, x: Tensor) -> Tensor | None:
        """Return what the last layer is given (B, width), in the dtype of the states; None of a module, whose layers are
        not known. Raises as a call does.
        """
        if not isinstance(self.network, Network):
            return None
        self.count(c, theta, len(x) * self.network.operations)
        return self.network.last_inputs(theta, x).to(self.federation.compute.dtype)

    def count(self, c: Learner, theta: Tensor, multiply_adds: int) -> None:
        """Count a pass, and check that it may be done."""
        # An ensemble goes through many networks for one batch; what is recorded for a GPU must not end midway.
        if not torch.is_grad_enabled() and (theta.is_cpu or not torch.cuda.is_current_stream_capturing()):
            self.federation.check()
        if theta.shape != (shape := (self.network.parameters,)):
            same = [name for name, one in c.state.items() if one.data_ptr() == theta.data_ptr()]
            what = f"{self.whose}'s '{same[0]}' has the shape" if same else f"{self.whose} has parameters of the shape"
            raise InputError(
                f"method '{self.federation.method.name}': {what} {tuple(theta.shape)}; expected {shape}, as model "
                f"'{self.network.name}' has"
            )
        self.federation.passes.multiply_adds += multiply_adds
