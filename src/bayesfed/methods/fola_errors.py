"""FOLA's study of its two errors (Figure 12): how far models are from the posterior N(mu*, Omega*^-1) that the full Laplace
approximation ends with, against their accuracy.

    D(theta) = 1/2 (theta - mu*)^T Omega* (theta - mu*)        mu*, Omega*: the server's after the last round but one

The text has "its corresponding full Hessian matrix" for Omega*. `precision: optimum` takes that: sum_n pi_n H_n, with the
mean Hessian H_n over client n's images at mu*. The server's own, `online`, is a mean over all models on the way.

- AE, the aggregation error, is D of what the server had after round `aggregated`: FOLA's model, and that of a FedAvg which
  runs beside it on the same mini-batches. Logged when Omega* is there, as `AE FOLA` and so on.
- LF, local forgetting, is sum_n pi_n D(theta_n) of clients that train on from mu* in the last round, for `epochs` epochs,
  with the prior (FOLA) and without (FedAvg), after each of them: `LF FOLA 1` and so on.

How far the round of forgetting goes, and that both kinds of clients begin it at mu*, is our assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.options import option
from bayesfed.methods.fola_full import FOLAFull, Hessian, curvatures
from bayesfed.methods.method import Ground, Update, average, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import ce_gradient, clip

KINDS = ("FOLA", "FedAvg")


class FOLAErrors(FOLAFull):
    """The server holds, beside mu and Omega, FedAvg's model and from round `aggregated` on FOLA's of that round.

    What travels for the study alone is not counted: the bytes are FOLA's.
    """

    name = "fola_errors"
    label = "FOLA's errors"
    revision = 1
    free = ("average", "plain", "after", "hessian")
    logs: ClassVar = {
        **FOLAFull.logs,
        "AE": "aggregation error: half the squared distance of an aggregated model from the optimum, by its precisions",
        "LF": "local forgetting: the same of the clients' models after so many epochs, averaged by their shares",
    }

    @dataclass(frozen=True)
    class Options(FOLAFull.Options):
        """FOLA's, with its whole Hessian or the eigenvalues. precision: Omega*, as above. aggregated: a round. epochs:
        of the last round."""

        precision: Literal["online", "optimum"] = "online"
        aggregated: int = option(3, low=1)
        epochs: int = option(10, low=1)

    def __init__(self, options: FOLAErrors.Options) -> None:
        super().__init__(options)
        self.at_optimum = options.precision == "optimum"

    def unfit(self, ground: Ground) -> str:
        if ground.rounds <= self.options.aggregated:
            return (
                f"rounds: {ground.rounds}; the last is for forgetting, and AE is that of round {self.options.aggregated} "
                f"(method.aggregated): set {self.options.aggregated + 1} or more"
            )
        return super().unfit(ground)

    def init_server(self, server: Node) -> State:
        return super().init_server(server) | {"average": server.initial()}

    def forgets(self, c: Node) -> bool:
        """Return whether this is the last round."""
        return c.last

    def beside(self, c: Node) -> bool:
        """Return whether clients train a model without a prior, too, in this round."""
        return c.round <= self.options.aggregated or self.forgets(c)

    def compares(self, server: Node) -> bool:
        """Return whether Omega* is there for the first time after this round."""
        return server.last if self.at_optimum else server.round == server.rounds - 1

    def message(self, server: Node, client: int) -> State:
        beside = {"average": server["average"]} if server.round <= self.options.aggregated else {}
        return super().message(server, client) | beside

    def start(self, c: Node, message: State) -> State:
        state = super().start(c, message)
        if self.beside(c):
            state["plain"] = message["mu" if self.forgets(c) else "average"].clone()
        if self.forgets(c):
            state["after"] = c.n.new_zeros(self.options.epochs, len(KINDS), len(state["theta"]))
        return state

    def both(self, c: Learner, batch: Batch) -> None:
        """Do FOLA's step of theta, and FedAvg's of its own model."""
        self.step(c, batch)
        self.sgd.step(c, plain=clip(ce_gradient(c, "plain", batch), self.options.clip))

    def phases(self, c: Node) -> Sequence[Phase]:
        phases = super().phases(c)
        if self.forgets(c):
            last = replace(phases[0], step=self.both, epochs=self.options.epochs, batches=0, epoch_end=self.note)
            return [last, *phases[1:]]
        return [replace(phases[0], step=self.both), *phases[1:]] if self.beside(c) else phases

    def note(self, c: Node) -> None:
        """Keep both models as they are after this epoch of the last round."""
        c["after"].copy_(torch.cat([c["after"][1:], torch.stack([c["theta"], c["plain"]])[None]]))

    def finish(self, c: Node) -> State:
        sent = super().finish(c) | {name: c[name] for name in ("plain", "after") if name in c.state}
        return sent | ({"hessian": self.hessian(c)} if self.forgets(c) and self.at_optimum else {})

    @torch.no_grad()
    def hessian(self, c: Node) -> Tensor:
        """Return H_n (P, P), at the server's model."""
        x, _ = c.images()
        return Hessian(x, curvatures(c, c["mu"], x)).whole()

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        optimum, precision = server["mu"], server["omega"]  # as the last round began
        found = super().aggregate(server, updates)
        pi = shares(updates)
        if server.round <= self.options.aggregated:
            server["average"] = average(updates, "plain")
        if server.round == self.options.aggregated:
            server["early"] = server["mu"].clone()
        if not self.forgets(server):
            optimum, precision = server["mu"], server["omega"]
        elif self.at_optimum:
            server["optimum"], precision = optimum, weighted_mean(pi, stacked(updates, "hessian"))
        if self.compares(server):
            models = self.aggregated(server)
            found |= {f"AE {name}": distance(theta, optimum, precision) for name, theta in models.items()}
        return found | (self.forgetting(updates, optimum, precision) if self.forgets(server) else {})

    def forgetting(self, updates: Sequence[Update], optimum: Tensor, precision: Tensor) -> dict[str, Tensor]:
        """Return LF of both kinds of clients after each epoch."""
        found = {}
        for epoch in range(self.options.epochs):
            for at, kind in enumerate(KINDS):
                each = [distance(update["after"][epoch, at], optimum, precision) for update in updates]
                found[f"LF {kind} {epoch + 1}"] = weighted_mean(shares(updates), torch.stack(each))
        return found

    def aggregated(self, server: Node) -> dict[str, Tensor]:
        """Return the server's models whose AE is taken, by name."""
        return {
            "optimal": server.state.get("optimum", server["mu"]),
            "FOLA": server["early"],
            "FedAvg": server["average"],
        }

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        after = c.state.get("after", ())
        return [
            *super().client_predictors(c),
            *(
                softmax_of(f"{kind} {epoch}", c.model, theta)
                for epoch, both in enumerate(after, 1)
                for kind, theta in zip(KINDS, both, strict=True)
            ),
        ]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        models = self.aggregated(server) if self.compares(server) else {}
        return [
            *super().server_predictors(server),
            *(softmax_of(name, server.model, theta) for name, theta in models.items()),
        ]


def distance(theta: Tensor, mu: Tensor, omega: Tensor) -> Tensor:
    """Return D(theta) (), in float64, for theta and mu (P,) and a precision (P, P) or its diagonal (P,)."""
    away = (theta - mu).double()
    return 0.5 * away @ (omega.double() @ away if omega.dim() == 2 else omega.double() * away)


METHOD = FOLAErrors
