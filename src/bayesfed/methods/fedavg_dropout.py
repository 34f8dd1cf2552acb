"""FedAvg with MC dropout (Gal & Ghahramani 2016): trained with dropout, and predicting with it.

With rate r, unit j of a fully connected layer's input is dropped in step and sample s by

    d_j ~ Bernoulli(1 - r)/(1 - r),        W_s = W diag(d)        theta_s = theta with every such W_s in the place of W

    theta_k <- SGD on CE(f(x; theta_s))        theta <- sum_k q_k theta_k        p(y | x) = 1/S sum_s softmax(f(x; theta_s))

That is dropout before each fully connected layer, with one mask for all images of a mini-batch, as a posterior of weights
has it. Usual dropout draws a mask for each image: the gradient has the same expectation, and a smaller variance. With
`masks: network` the masks are those of a network's own dropout layers: it trains as in FedAvg, and S passes with dropout
predict. The network without dropout is `global`, the average `global_sampled`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Ground
from bayesfed.methods.node import GLOBAL, SAMPLED, Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, mixture, softmax_average
from bayesfed.methods.steps import ce_gradient_at


class FedAvgDropout(FedAvg):
    """FedAvg; in a round a client has the input unit of every entry of theta, unit (P,), and each unit's rate, drop (U,).

    Unit 0 is never dropped: all that multiplies no input of a fully connected layer is its.
    """

    name = "fedavg_dropout"
    label = "FedAvg, MC dropout"
    revision = 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        """FedAvg's. masks: as above. rate: r, of `inputs`. samples: S, how many masks predict."""

        masks: Literal["inputs", "network"] = "inputs"
        rate: float = option(0.2, low=0, high=0.9)
        samples: int = option(30, low=1)

    options: Options

    def unfit(self, ground: Ground) -> str:
        if self.options.masks == "network" and not ground.random:
            return "method.masks: network, but the network has no dropout; take inputs, or another network"
        return super().unfit(ground)

    def start(self, c: Node, message: State) -> State:
        units = self.units(c, message["theta"]) if self.options.masks == "inputs" else {}
        return super().start(c, message) | units

    def units(self, node: Node, theta: Tensor) -> State:
        """Give each input unit of a fully connected layer a number, from 1.

        Raises InputError for a network without any.
        """
        count, parts = 1, []
        for shape in node.shapes[GLOBAL]:
            if len(shape) == 2:
                inputs = torch.arange(count, count + shape[1])
                parts.append(inputs.repeat(shape[0]))
                count += shape[1]
            else:
                parts.append(torch.zeros(math.prod(shape), dtype=torch.int64))
        if count == 1:
            raise InputError(f"models.global: '{self.name}' needs a network with a fully connected layer; take another")
        drop = theta.new_full((count,), self.options.rate)
        drop[0] = 0
        return {"unit": torch.cat(parts).to(theta.device), "drop": drop}

    def mask(self, c: Learner, units: State) -> Tensor:
        """Draw d (P,), by the units of theta's entries."""
        drop = units["drop"]
        kept = c.noise(drop) > torch.special.ndtri(drop)
        by_unit: Tensor = kept / (1 - drop)
        return by_unit.index_select(0, units["unit"])

    def gradient(self, c: Learner, batch: Batch) -> Tensor:
        """Return the gradient of CE(f(x; theta_s), y) with respect to theta, the batch mean."""
        if self.options.masks == "network":
            return super().gradient(c, batch)
        d = self.mask(c, c.state)
        return d * ce_gradient_at(c, d * c["theta"], batch)

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        theta, samples = server["theta"], self.options.samples
        if self.options.masks == "network":
            passes = mixture(server.dropped, [theta] * samples)
            sampled = Predictor(GLOBAL + SAMPLED, passes, ("test",), passes=samples)
        else:
            units = self.units(server, theta)
            sampled = softmax_average(
                GLOBAL, server.model, lambda: theta * self.mask(server, units), samples, ("test",)
            )
        return [*super().server_predictors(server), sampled]


METHOD = FedAvgDropout
