"""BNFed, PFNM (Yurochkin et al., ICML 2019): the server finds out which hidden neurons of the clients are the same one.

A network of one hidden layer is a set of H neurons v_jl = (weights in, bias, weights out). A beta-Bernoulli process says
that client j's are draws N(theta_i, sigma^2 I) around some of the server's atoms theta_i ~ N(0, sigma_0^2 I). With the
neurons of all clients but j in their places, S_i the sum of the m_i that are at atom i, j's go where the sum of

    |v/sigma^2 + S_i/sigma^2|^2 / (1/sigma_0^2 + (m_i + 1)/sigma^2) - |S_i/sigma^2|^2 / (1/sigma_0^2 + m_i/sigma^2)
        + 2 log(m_i / (J - m_i))                                                                 at atom i = 1..L
    |v/sigma^2|^2 / (1/sigma_0^2 + 1/sigma^2) - 2 log(k J / gamma)                               as k-th new atom

is largest: an assignment problem. Client by client, then again for so many iterations; at last

    theta_i = (S_i/sigma^2) / (1/sigma_0^2 + m_i/sigma^2)

is a network of L neurons, more or less than H. A client goes on from its own H atoms; biases of the outputs are averaged.

sigma, sigma_0 and gamma are fixed, as in the public code over rounds. `select: test` takes in each round those that are best
on the *test* images, to measure what that gains, and `select: validation` those that are best on images of the server's,
taken out of the clients' shards.

`form: code` is what IBM's public code computes over rounds, of which the paper says less. Client j's neurons have precisions
s_j, entry by entry: 1/sigma, and for weights out to class c n_jc / sum_j n_jc of that, its share of the images of the class.
The prior has precision p = 1/sigma_0 and means mu: 0.1 for biases, 0 for weights. With T_i the sum of the s_j at atom i, S_i
that of the s_j v_j, and m = min(m_i, 10), the gains are, summed over entries,

    (p mu + S_i + s v)^2 / (p + T_i + s) - (p mu + S_i)^2 / (p + T_i) + log(m / (J - m))                at atom i
    (p mu + s v)^2 / (p + s) - (p mu)^2 / p - 2 log(k J / gamma)                                        as k-th new atom

and theta_i = (p mu + S_i) / (p + T_i), for the biases of the outputs too. Iterations visit the clients in a random order. In
the first round the clients have networks of their own, N(0, 0.1^2) with biases of 0.1, and are matched in order before; in
later ones the iterations begin with the places of the round before. Not taken over: the code's limit of about 700 atoms, its
local training by Adam, and a prior mean that later rounds forget to multiply by p.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.bayes.matching import Places, Precise, match
from bayesfed.core.options import option
from bayesfed.methods.method import Ground, Method, Update, shares, stacked
from bayesfed.methods.node import GLOBAL, Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.methods.steps import SGD, ce_gradient

Matched = tuple[Tensor, Tensor, Tensor]  # atoms (L, F), biases of the outputs (classes,), places (J, H)
Matching = Callable[[float, float, float], Matched]  # of sigma, sigma_0, gamma
BIAS = 0.1  # the public code's: of networks at first, and the mean of the prior
GRID = tuple(itertools.product((0.1, 0.5, 1.0), (1.0, 10.0), (1.0, 10.0, 50.0)))  # sigma, sigma_0, gamma to select from


@dataclass(frozen=True)
class Layers:
    """The sizes of a network of one hidden layer: inputs, hidden neurons, classes."""

    inputs: int
    hidden: int
    classes: int

    @staticmethod
    def of(node: Node) -> Layers:
        """Return the sizes of the model that travels."""
        sizes = [len(part) for part in node.split(node.initial())]
        return Layers(sizes[0] // sizes[1], sizes[1], sizes[3])

    def neurons(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden neurons of a vector, (H, inputs + 1 + classes), and the biases of the outputs (classes,)."""
        hidden = self.hidden
        weights, biases, out, last = theta.split([hidden * self.inputs, hidden, hidden * self.classes, self.classes])
        return torch.cat([weights.view(hidden, -1), biases[:, None], out.view(-1, hidden).t()], dim=1), last

    def parts(self, neurons: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights in (N, inputs), biases (N,) and weights out (classes, N) of N neurons."""
        weights, biases, out = neurons.split([self.inputs, 1, self.classes], dim=1)
        return weights, biases.squeeze(1), out.t()

    def theta(self, neurons: Tensor, last: Tensor) -> Tensor:
        """Return the vector of a network of these neurons."""
        return torch.cat([*(part.flatten() for part in self.parts(neurons)), last])

    def logits(self, neurons: Tensor, last: Tensor, x: Tensor) -> Tensor:
        """Return the logits (B, classes) of a network of any number of neurons, for images (B, C, side, side)."""
        weights, biases, out = self.parts(neurons)
        return (x.flatten(1).to(weights.dtype) @ weights.t() + biases).relu() @ out.t() + last


class BNFed(Method):
    """The server holds the atoms, the biases of the outputs, and each client's places among the atoms."""

    name = "bnfed"
    label = "BNFed"
    revision = 1
    logs: ClassVar = {"atoms": "how many hidden neurons the global network has"}

    @dataclass(frozen=True)
    class Options:
        """sigma, sigma_0, gamma: as above, where they are not selected; by `form: code` sigma and sigma_0 are variances.
        iterations: of the matching, behind the first."""

        lr: float = option(0.5, above=0)
        sigma: float = option(1.0, above=0)
        sigma_0: float = option(1.0, above=0)
        gamma: float = option(1.0, above=0)
        iterations: int = option(3, low=0)
        select: Literal["fixed", "validation", "test"] = "fixed"
        validation_images: int = option(200, low=1)
        form: Literal["paper", "code"] = "paper"

    def __init__(self, options: BNFed.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, 0.0, 0.0)

    def leak(self) -> str:
        return "chooses its hyperparameters by test accuracy" if self.options.select == "test" else ""

    def unfit(self, ground: Ground) -> str:
        if importlib.util.find_spec("scipy") is None:
            return "method.name: bnfed solves assignment problems by SciPy, which is not installed here"
        sizes = ground.sizes
        if len(sizes) == 4 and sizes[0] == ground.pixels * sizes[1] and sizes[2] == sizes[1] * sizes[3]:
            return ""
        return "models.global: BNFed matches the neurons of one hidden layer, fully connected; take 'pfedbayes_mlp'"

    def server_images(self) -> int:
        return self.options.validation_images if self.options.select == "validation" else 0

    def init_server(self, server: Node) -> State:
        layers = Layers.of(server)
        atoms, last = layers.neurons(server.initial())
        if self.options.form == "code":  # each client's H atoms are its own network
            atoms = 0.1 * server.noise(atoms.repeat(server.clients, 1))
            atoms[:, layers.inputs] = BIAS
            apart = torch.arange(len(atoms), device=atoms.device).view(server.clients, -1)
            return {"atoms": atoms, "last": torch.full_like(last, BIAS), "places": apart}
        everywhere = torch.arange(layers.hidden, device=atoms.device).repeat(server.clients, 1)
        return {"atoms": atoms, "last": last, "places": everywhere}

    def message(self, server: Node, client: int) -> State:
        own = server["atoms"][server["places"][client]]
        return {"theta": Layers.of(server).theta(own, server["last"])}

    def start(self, c: Node, message: State) -> State:
        state = {"theta": message["theta"].clone()}
        if self.options.form == "code":
            state["images"] = c.images()[1].bincount(minlength=c.classes)
        return state

    def step(self, c: Learner, batch: Batch) -> None:
        self.sgd.step(c, theta=ce_gradient(c, "theta", batch))

    def finish(self, c: Node) -> State:
        return {name: c[name] for name in ("theta", "images") if name in c.state}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        layers, o, dtype = Layers.of(server), self.options, server["last"].dtype
        split = [layers.neurons(update["theta"]) for update in updates]
        neurons, lasts = torch.stack([one for one, _ in split]), torch.stack([one for _, one in split])
        matched = (self.by_code if o.form == "code" else self.by_paper)(server, updates, neurons, lasts)
        best, highest = (torch.empty(0),) * 3, -1.0
        for choice in [(o.sigma, o.sigma_0, o.gamma)] if o.select == "fixed" else GRID:
            found = matched(*choice)
            server["atoms"], server["last"] = found[0].to(dtype), found[1].to(dtype)
            reached = 0.0 if o.select == "fixed" else float(server.accuracy(self.predictor(server), o.select == "test"))
            if reached > highest:
                best, highest = found, reached
        atoms, last, places = best
        server["atoms"], server["last"] = atoms.to(dtype), last.to(dtype)
        # Who took no part starts as the first who did, since its own atoms are gone.
        server["places"] = places[:1].repeat(server.clients, 1)
        server["places"][[update.client for update in updates]] = places
        return {"atoms": torch.tensor(float(len(atoms)), device=last.device)}

    def by_paper(self, server: Node, updates: Sequence[Update], neurons: Tensor, lasts: Tensor) -> Matching:
        """Return the matching of the clients' neurons (J, H, F); biases of the outputs (J, classes) are averaged."""
        last = weighted_mean(shares(updates), lasts)

        def matching(sigma: float, sigma_0: float, gamma: float) -> Matched:
            atoms, places = match(neurons, sigma, sigma_0, gamma, self.options.iterations)
            return atoms, last, places

        return matching

    def by_code(self, server: Node, updates: Sequence[Update], neurons: Tensor, lasts: Tensor) -> Matching:
        """Return the matching of the public code, from the places that its clients had, if they had any."""
        inputs, v = Layers.of(server).inputs, neurons.double()
        images = stacked(updates, "images").double()
        share = images / images.sum(0).clamp(min=1)
        relative = torch.cat([share.new_ones(len(share), inputs + 1), share], 1)  # precisions times sigma
        mu = torch.zeros_like(v[0, 0])
        mu[inputs] = BIAS
        first = server.round == 1
        begun: Places = [None if first else server["places"][update.client] for update in updates]
        order = [*range(len(updates))] if first else []
        for _ in range(self.options.iterations):
            order += server.noise(images.new_empty(len(images))).argsort().tolist()

        def matching(sigma: float, sigma_0: float, gamma: float) -> Matched:
            atoms, places = Precise(v, relative / sigma, mu, 1 / sigma_0, gamma).match(begun, order)
            last = (BIAS / sigma_0 + (share * lasts / sigma).sum(0)) / (1 / sigma_0 + share.sum(0) / sigma)
            return atoms, last, places

        return matching

    def predictor(self, server: Node) -> Predictor:
        """Return the network of all atoms."""
        layers, atoms, last = Layers.of(server), server["atoms"], server["last"]
        return Predictor(GLOBAL, lambda x: layers.logits(atoms, last, x).log_softmax(-1))

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [self.predictor(server)]


METHOD = BNFed
