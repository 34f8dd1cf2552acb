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
on the *test* images, to say what that is worth, and `select: validation` those that are best on images of the server's,
taken out of the clients' shards.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesfed.bayes.gaussian import weighted_mean
from bayesfed.methods.base import (
    GLOBAL,
    Batch,
    Ground,
    Learner,
    Method,
    Node,
    Predictor,
    State,
    Update,
    shares,
    softmax_of,
)
from bayesfed.methods.steps import SGD, ce_gradient
from bayesfed.options import option

GRID = tuple(itertools.product((0.1, 0.5, 1.0), (1.0, 10.0), (1.0, 10.0, 50.0)))  # sigma, sigma_0, gamma to select from


@dataclass(frozen=True)
class Layers:
    """The sizes of a network of one hidden layer: inputs, hidden neurons, classes."""

    inputs: int
    hidden: int
    classes: int

    @staticmethod
    def of(node: Node) -> Layers:
        """Those of the model that travels."""
        sizes = [len(part) for part in node.split(node.initial())]
        return Layers(sizes[0] // sizes[1], sizes[1], sizes[3])

    def neurons(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden neurons of a vector, (H, inputs + 1 + classes), and the biases of the outputs (classes,)."""
        hidden = self.hidden
        weights, biases, out, last = theta.split([hidden * self.inputs, hidden, hidden * self.classes, self.classes])
        return torch.cat([weights.view(hidden, -1), biases[:, None], out.view(-1, hidden).t()], dim=1), last

    def parts(self, neurons: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights in (N, inputs), biases (N,) and weights out (classes, N) of N neurons."""
        weights, biases, out = neurons.split([self.inputs, 1, self.classes], dim=1)
        return weights, biases.squeeze(1), out.t()

    def theta(self, neurons: Tensor, last: Tensor) -> Tensor:
        """The vector of a network of these neurons."""
        return torch.cat([*(part.flatten() for part in self.parts(neurons)), last])

    def logits(self, neurons: Tensor, last: Tensor, x: Tensor) -> Tensor:
        """Those (B, classes) of a network of any number of neurons, for images (B, C, side, side)."""
        weights, biases, out = self.parts(neurons)
        return (x.flatten(1).to(weights.dtype) @ weights.t() + biases).relu() @ out.t() + last


def scores(v: Tensor, sums: Tensor, counts: Tensor, clients: int, sigma: float, sigma_0: float, gamma: float) -> Tensor:
    """What each neuron v (H, F) gains at each of L atoms, with sums (L, F) and counts (L,), and as one of H new ones:
    (H, L + H)."""
    s, s_0 = sigma**-2, sigma_0**-2
    together = v.square().sum(1)[:, None] + 2 * v @ sums.t() + sums.square().sum(1)  # |v + S_i|^2
    old = s**2 * (together / (s_0 + s * (counts + 1)) - sums.square().sum(1) / (s_0 + s * counts))
    old = old + 2 * (counts / (clients - counts)).log()
    new = s**2 * v.square().sum(1) / (s_0 + s)
    place = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    return torch.cat([old, new[:, None] - 2 * (place * clients / gamma).log()], dim=1)


def assigned(gains: Tensor) -> Tensor:
    """The columns (H,), all different, whose sum of gains (H, M) is the largest.

    Where a gain is not finite, as after a neuron that is not, the run ends with this round, whatever is matched: the first.
    """
    if not gains.isfinite().all():
        return torch.arange(len(gains), device=gains.device)
    from scipy.optimize import linear_sum_assignment

    return torch.from_numpy(linear_sum_assignment(gains.cpu().numpy(), maximize=True)[1]).to(gains.device)


def match(neurons: Tensor, sigma: float, sigma_0: float, gamma: float, iterations: int) -> tuple[Tensor, Tensor]:
    """The atoms (L, F) and where each client's neurons are among them (J, H), from all neurons (J, H, F)."""
    v, clients = neurons.double(), len(neurons)
    places: list[Tensor | None] = [None] * clients
    for j in [*range(clients)] * (1 + iterations):
        places[j] = None
        used, places = renumbered(places)
        sums, counts = gathered(v, places, used)
        where = assigned(scores(v[j], sums, counts, clients, sigma, sigma_0, gamma))
        # Which neuron is the first new atom, and which the second, gains nothing: they stay in order.
        new = where >= used
        where[new] = used + torch.arange(int(new.sum()), device=where.device)
        places[j] = where
    used, places = renumbered(places)
    sums, counts = gathered(v, places, used)
    atoms = sums * sigma**-2 / (sigma_0**-2 + counts * sigma**-2)[:, None]
    return atoms, torch.stack([where for where in places if where is not None])


def renumbered(places: Sequence[Tensor | None]) -> tuple[int, list[Tensor | None]]:
    """How many atoms are in use, and the clients' places counted among these alone."""
    known = [where for where in places if where is not None]
    if not known:
        return 0, list(places)
    used = torch.cat(known).unique()
    return len(used), [None if where is None else torch.searchsorted(used, where) for where in places]


def gathered(v: Tensor, places: Sequence[Tensor | None], atoms: int) -> tuple[Tensor, Tensor]:
    """The sum (L, F) and the number (L,) of the neurons v (J, H, F) that are at each atom."""
    sums, counts = v.new_zeros(atoms, v.shape[2]), v.new_zeros(atoms)
    for of_client, where in zip(v, places, strict=True):
        if where is not None:  # a client has at most one neuron at an atom
            sums[where] += of_client
            counts[where] += 1
    return sums, counts


class BNFed(Method):
    """The server holds the atoms, the biases of the outputs, and each client's places among the atoms."""

    name = "bnfed"
    label = "BNFed"
    revision = 1
    logs: ClassVar = {"atoms": "how many hidden neurons the global network has"}

    @dataclass(frozen=True)
    class Options:
        """sigma, sigma_0, gamma: as above, where they are not selected. iterations: of the matching, behind the first."""

        lr: float = option(0.5, above=0)
        sigma: float = option(1.0, above=0)
        sigma_0: float = option(1.0, above=0)
        gamma: float = option(1.0, above=0)
        iterations: int = option(3, low=0)
        select: Literal["fixed", "validation", "test"] = "fixed"
        validation_images: int = option(200, low=1)

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
        everywhere = torch.arange(layers.hidden, device=atoms.device).repeat(server.clients, 1)
        return {"atoms": atoms, "last": last, "places": everywhere}

    def message(self, server: Node, client: int) -> State:
        own = server["atoms"][server["places"][client]]
        return {"theta": Layers.of(server).theta(own, server["last"])}

    def start(self, c: Node, message: State) -> State:
        return {"theta": message["theta"].clone()}

    def step(self, c: Learner, batch: Batch) -> None:
        self.sgd.step(c, theta=ce_gradient(c, "theta", batch))

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        layers, o = Layers.of(server), self.options
        split = [layers.neurons(update["theta"]) for update in updates]
        neurons, dtype = torch.stack([one for one, _ in split]), server["last"].dtype
        last = weighted_mean(shares(updates), torch.stack([one for _, one in split]))
        server["last"] = last.to(dtype)
        best, highest = (torch.empty(0), torch.empty(0)), -1.0
        for sigma, sigma_0, gamma in [(o.sigma, o.sigma_0, o.gamma)] if o.select == "fixed" else GRID:
            atoms, places = match(neurons, sigma, sigma_0, gamma, o.iterations)
            server["atoms"] = atoms.to(dtype)
            reached = 0.0 if o.select == "fixed" else float(server.accuracy(self.predictor(server), o.select == "test"))
            if reached > highest:
                best, highest = (atoms, places), reached
        server["atoms"] = best[0].to(dtype)
        # Who took no part starts as the first who did, since its own atoms are gone.
        server["places"] = best[1][:1].repeat(server.clients, 1)
        server["places"][torch.tensor([update.client for update in updates], device=last.device)] = best[1]
        return {"atoms": torch.tensor(float(len(best[0])), device=last.device)}

    def predictor(self, server: Node) -> Predictor:
        """The network of all atoms."""
        layers, atoms, last = Layers.of(server), server["atoms"], server["last"]
        return Predictor(GLOBAL, lambda x: layers.logits(atoms, last, x).log_softmax(-1))

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        return [softmax_of("local", c.model, c["theta"])]

    def server_predictors(self, server: Node) -> Sequence[Predictor]:
        return [self.predictor(server)]


METHOD = BNFed
