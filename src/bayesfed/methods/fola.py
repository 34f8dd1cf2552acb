"""FOLA (Liu et al. 2023): Laplace's approximation of every client's posterior, evaluated online, and their product.

Client n in round r, from the server's N(mu_S, Omega_S^-1), each mini-batch b with g = grad CE, the batch mean:

    Omega_n += |b|/n_n g^2                                               (eq. 22; Omega_n = Omega_S at first)

`squares: images` squares the gradients g_i of single images, as eqs 19, 21 and 22 do: Omega_n += 1/n_n sum_i g_i^2, i in b.

    theta   <- theta - lr (g + lambda (Omega_S/r) (theta - mu_S))        (eqs 15, 16), in length clipped

Server, elementwise, pi_n = n_n / n:

    Omega_S <- sum_n pi_n Omega_n
    mu_S    <- (sum_n pi_n Omega_n theta_n) / (Omega_S + epsilon)        (eqs 11, 12)

This is the form of the public code, where Omega is E r times the paper's precision for E local epochs. There the prior's
gradient is missing, for its loss is taken of detached tensors; here it is there. The paper's form has means in place of sums
(eqs 22 to 25):

    F_n = mean of g^2 over all steps,  Sigma_n^-1 = F_n/r + (r-1)/r Sigma_S^-1,  prior lambda Sigma_S^-1

The mean weighs each step by the images of its mini-batch. Sums and means give the same mu_S, up to epsilon and the prior's
weight, if all clients train equally long; sums give a straggler less weight. Evaluated offline, Omega_n is that of one pass
in both forms, and so the prior is lambda Omega_S. The public script of that divides it by r; its lambda is 0 by default.

Eq. 12 has no epsilon, and eq. 25 has gamma I in every client's precision; both forms have `shrink` unless told otherwise.
The equations in full are `form: paper`, `squares: images` and `epsilon_rule: fedavg`, epsilon being gamma in the mean alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, shares, stacked
from bayesfed.methods.node import Batch, Learner, Node, Phase, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, Squares, ce_gradient, clip, gradient_and_squares, no_squares


class FOLA(Method):
    """The server holds mu and Omega; a client keeps nothing. Scales and shifts of normalisation, which have no distribution,
    are FedAvg's mean, and no prior pulls them."""

    name = "fola"
    label = "FOLA"
    revision = 1
    logs: ClassVar = {
        "omega_mean": "mean of the server's precisions over all parameters",
        "omega_below_epsilon": "share of the server's precisions that epsilon outweighs",
        "precision_cosine": "cosine of the two clients' precisions",
    }

    @dataclass(frozen=True)
    class Options:
        """The public code's values, and assumptions.

        prior: lambda. squares: of the gradients of mini-batches, as the code has it, or of single images, as the equations.
        form: code or paper, as above. evaluation: Omega_n gathered online, along the way, or offline, in one more pass at
        the end and without Omega_S. aggregation: by precision, or FedAvg's mean (Figure 9). epsilon: where Omega_S is far
        below it, `shrink` pulls mu_S towards 0 (the code), `fedavg` towards FedAvg's mean:
        (sum_n pi_n (Omega_n + epsilon) theta_n) / (Omega_S + epsilon).

        ridge: with two clients, at how many points of pi_1 in [0, 1] their average is tested in the first and the last round
        (Figure 10); the similarity of their precisions is logged then, too (Figure 11).
        """

        prior: float = option(1.0, low=0)
        squares: Squares = "batch"
        form: Literal["code", "paper"] = "code"
        evaluation: Literal["online", "offline"] = "online"
        aggregation: Literal["precision", "fedavg"] = "precision"
        epsilon: float = option(1e-5, above=0)
        epsilon_rule: Literal["shrink", "fedavg"] = "shrink"
        lr: float = option(0.01, above=0)
        clip: float | None = option(10.0, above=0)
        ridge: int = option(0, low=0)

    def __init__(self, options: FOLA.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, 0.0, 0.0)
        self.online, self.as_code = options.evaluation == "online", options.form == "code"

    def unfit(self, ground: Ground) -> str:
        if self.options.ridge and (ground.clients != 2 or ground.participation < 1):
            return (
                f"method.ridge: it is a line between the two clients of a round, and there are {ground.clients}, of which "
                f"{ground.participation:g} take part; set it to 0"
            )
        if self.options.ridge == 1:
            return "method.ridge: 1, but a line has two ends; set 2 or more points, or 0"
        return no_squares(self.options.squares, ground)

    def init_server(self, server: Node) -> State:
        mu = server.initial()
        return {"mu": mu, "omega": self.no_precision(mu)}

    def no_precision(self, mu: Tensor) -> Tensor:
        """Return Omega = 0 for a vector like mu (P,)."""
        return torch.zeros_like(mu)

    def message(self, server: Node, client: int) -> State:
        return {"mu": server["mu"], "omega": server["omega"]}

    def start(self, c: Node, message: State) -> State:
        mu, omega = message["mu"], message["omega"]
        prior = self.options.prior / (c.round if self.online and self.as_code else 1)
        return {
            "theta": mu.clone(),
            "mu": mu.clone(),
            "omega": omega.clone() if self.online and self.as_code else torch.zeros_like(omega),
            "omega_S": omega.clone(),
            "passes": torch.zeros_like(c.n),
            "stiffness": c.weights(prior * omega, 0),
        }

    def gather(self, c: Learner, batch: Batch, squares: Tensor) -> None:
        """Add |b|/n_n g^2 to Omega_n, or the mean of the g_i^2 in its place, and the passes over the data so far."""
        share = batch.size / c.n
        c["omega"].add_(share * squares)
        c["passes"].add_(share)

    def gathered(self, c: Learner, batch: Batch) -> Tensor:
        """Return the gradient of CE, once its squares are added to Omega_n."""
        g, squares = gradient_and_squares(c, "theta", batch, self.options.squares)
        self.gather(c, batch, squares)
        return g

    def pull(self, c: Learner) -> Tensor:
        """Return the prior's gradient: lambda (Omega_S/r) (theta - mu_S)."""
        return c["stiffness"] * (c["theta"] - c["mu"])

    def step(self, c: Learner, batch: Batch) -> None:
        g = self.gathered(c, batch) if self.online else ce_gradient(c, "theta", batch)
        g = g + self.pull(c)
        self.sgd.step(c, theta=clip(g, self.options.clip))

    def measure(self, c: Learner, batch: Batch) -> None:
        """Do a mini-batch of the offline pass."""
        self.gathered(c, batch)

    def phases(self, c: Node) -> Sequence[Phase]:
        return [c.local(self.step)] + [Phase(self.measure, epochs=1, counted=False)] * (not self.online)

    def finish(self, c: Node) -> State:
        omega = c["omega"]
        if self.online and not self.as_code:
            omega = omega / c["passes"] / c.round + (c.round - 1) / c.round * c["omega_S"]
        return {"theta": c["theta"], "omega": omega}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        pi = shares(updates)
        thetas = stacked(updates, "theta")
        omegas = stacked(updates, "omega")
        mu, omega = self.combined(server, pi, thetas, omegas)
        server["mu"], server["omega"] = mu.to(thetas.dtype), omega.to(omegas.dtype)
        diagnostics = self.diagnostics(omega)
        if self.options.ridge:
            if len(updates) != 2:
                raise InputError(
                    "method.ridge: it is a line between two clients, and one of them has no images; set partition.min_train to 1, or "
                    "ridge to 0"
                )
            diagnostics["precision_cosine"] = similarity(*omegas.double().flatten(1))
            if server.last or server.round == 1:
                line = torch.linspace(0, 1, self.options.ridge, dtype=pi.dtype, device=pi.device)
                points = [self.combined(server, torch.stack([one, 1 - one]), thetas, omegas)[0] for one in line]
                server["ridge"] = torch.stack(points).to(thetas.dtype)
        return diagnostics

    def combined(self, server: Node, pi: Tensor, thetas: Tensor, omegas: Tensor) -> tuple[Tensor, Tensor]:
        """Return `average`, with FedAvg's mean for scales and shifts of normalisation."""
        mu, omega = self.average(pi, thetas, omegas)
        if server.scaling is not None:
            mu = server.weights(mu, weighted_mean(pi, thetas))
        return mu, omega

    def average(self, pi: Tensor, thetas: Tensor, omegas: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu_S and Omega_S in float64, from weights (K,), and theta and Omega of each client."""
        epsilon, omega = self.options.epsilon, weighted_mean(pi, omegas)
        if self.options.aggregation == "fedavg":
            return weighted_mean(pi, thetas), omega
        if self.options.epsilon_rule == "fedavg":
            return weighted_mean(pi, (omegas.double() + epsilon) * thetas) / (omega + epsilon), omega
        return weighted_mean(pi, omegas.double() * thetas) / (omega + epsilon), omega

    def diagnostics(self, omega: Tensor) -> dict[str, Tensor]:
        """Return how large Omega_S is, and the share of it that epsilon outweighs."""
        return {"omega_mean": omega.mean(), "omega_below_epsilon": (omega < self.options.epsilon).double().mean()}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        line: Sequence[Tensor] | Tensor = server.state.get("ridge", ())
        line = line if len(line) and (server.last or server.round == 1) else ()
        ridge = [
            Predictor(
                f"ridge {place / (len(line) - 1):g}", softmax_of("", server.model, point).log_probabilities, ("test",)
            )
            for place, point in enumerate(line)
        ]
        return [softmax_of("global", server.model, server["mu"]), *ridge]


def similarity(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine of two precisions as vectors, each with its minimum taken off and divided by its maximum
    (Figure 11).
    """
    one, other = (each - each.min() for each in (one, other))
    one, other = (each.div_(each.max().clamp(min=1e-300)) for each in (one, other))
    return torch.nn.functional.cosine_similarity(one, other, dim=0)


METHOD = FOLA
