"""pFedGP (Achituve et al., NeurIPS 2021): a common embedding of the images, and a Gaussian process of each client's own.

Images are seen as z = g(x; theta), and f ~ GP(0, k) with k(z, z') = outputscale exp(-|z - z'|^2 / (2 lengthscale^2)). With
`embedding: unit` k is of z/|z| and z'/|z'|. A client's labels are the leaves of a tree that halves them again and again, so
that those stay together whose mean z are near; each node v has a GP of its own, which says to which side an image belongs,
p(y_v | x) = sigma(y_v f_v(x)):

    p(label | x) = prod_v p(y_v(label) | x)      over the nodes on the way to the label

Training, on each mini-batch: one half of it, D, is what the GPs have seen; theta moves on the other half's

    L = -1/|D'| sum_{(x, y) in D'} sum_v log 1/M sum_m p(y_v | x, D, omega_vm),   omega_vm ~ p(omega | D)

with M Polya-Gamma samples from a few steps of a Gibbs sampler (`bayes.gp`), in which L is not differentiated. A client
predicts with the common theta and GPs of all its training images. Server: theta <- 1/K sum_k theta_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesfed.bayes.gp import Kernel, Landmarks, WeightPosterior, expected_sigmoid, gibbs, predictive, root
from bayesfed.core.options import option
from bayesfed.methods.method import Method, Update, average, shares
from bayesfed.methods.node import Batch, Learner, Node, State
from bayesfed.methods.predictors import Predictor
from bayesfed.methods.steps import SGD, clip, grad, leaves

TOLERANCE, LANDMARKS = 1e-2, 300  # of predictions: see `Landmarks.among`
UNSEEN = 1e-6  # what all labels together have of the probability whatever a client has seen
TOGETHER = 250  # images that are embedded at once


def halves(means: Tensor) -> Tensor:
    """Halve C points (C, D), two or more; return which are on one side: (C,) bool.

    The two that are farthest apart begin, then 2-means.
    """
    distances = torch.cdist(means, means)
    ends = divmod(int(distances.argmax()), len(means))
    centres, side = means[list(ends)], torch.zeros(len(means), dtype=torch.bool)
    side[ends[0]] = True  # where all are the same point
    for _ in range(len(means)):
        nearer = torch.cdist(means, centres)
        found = nearer[:, 0] < nearer[:, 1]
        if not found.any() or found.all() or torch.equal(found, side):
            break
        side = found
        centres = torch.stack([means[side].mean(0), means[~side].mean(0)])
    return side


def tree_of(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """Build the tree over the labels among y (n,), by their mean z (n, D): for each node, on which side each label is,
    1 or -1, or 0 where it is not below that node. (labels - 1, classes).
    """
    members = F.one_hot(y, classes).double()
    counts = members.sum(0)
    means, nodes = (members.mT @ z.double() / counts[:, None].clamp(min=1)).cpu(), []
    waiting = [counts.cpu().nonzero()[:, 0]]
    while waiting:
        labels = waiting.pop()
        if len(labels) > 1:
            side = halves(means[labels])
            node = torch.zeros(classes, dtype=torch.float64)
            node[labels] = 2 * side.double() - 1
            nodes.append(node)
            waiting += [labels[side], labels[~side]]
    return torch.stack(nodes).to(z) if nodes else z.new_zeros(0, classes)


class PFedGP(Method):
    """The server has theta. A client keeps nothing: its GPs are its images."""

    name = "pfedgp"
    label = "pFedGP"
    revision = 1
    personal = True
    draws_by_image = True

    @dataclass(frozen=True)
    class Options:
        """The values of its public code, in which the embedding is `unit`.

        features: of an image, the outputs of the network, which has them in place of logits. embedding: what the kernel sees
        of them; the tree is made of z itself. steps: of the Gibbs sampler. chains, test_chains: M in training and in
        prediction. clip: the largest norm of a gradient.
        """

        lr: float = option(0.05, above=0)
        momentum: float = option(0.9, low=0, high=1)
        weight_decay: float = option(1e-3, low=0)
        clip: float = option(50.0, above=0)
        features: int = option(84, low=1)
        embedding: Literal["raw", "unit"] = "raw"
        outputscale: float = option(8.0, above=0)
        lengthscale: float = option(1.0, above=0)
        steps: int = option(5, low=1)
        chains: int = option(20, low=1)
        test_chains: int = option(30, low=1)

    options: Options

    def __init__(self, options: PFedGP.Options) -> None:
        super().__init__(options)
        self.sgd = SGD(options.lr, options.momentum, options.weight_decay)
        self.kernel = Kernel(options.outputscale, options.lengthscale, options.embedding == "unit")

    def outputs(self, classes: int) -> int:
        return self.options.features

    def init_server(self, server: Node) -> State:
        return {"theta": server.initial()}

    @torch.no_grad()
    def embedded(self, c: Node, theta: Tensor, x: Tensor) -> Tensor:
        """Return z (n, D) of images (n, C, H, W), by the embedding as the client received it."""
        return torch.cat([c.received(theta, part) for part in x.split(TOGETHER)])

    def start(self, c: Node, message: State) -> State:
        x, y = c.images()
        theta = message["theta"].clone()
        tree = tree_of(self.embedded(c, theta, x), y, c.classes)
        return {"theta": theta, "common": theta.clone(), "tree": tree} | self.sgd.start("theta", theta)

    def step(self, c: Learner, batch: Batch) -> None:
        o, (theta,) = self.options, leaves(c["theta"])
        half, order = len(batch.y) // 2, c.noise(c["theta"].new_empty(len(batch.y))).argsort()
        z = c.model(theta, batch.x).index_select(0, order)
        y = c["tree"].index_select(1, batch.y.index_select(0, order))
        seen, asked = z[:half], z[half:]
        K = self.kernel(seen.double(), seen.double())
        with torch.no_grad():
            omega = gibbs(root(K).to(z.dtype), y[:, :half], o.chains, o.steps, c.noise)
        mean, variance = predictive(K.to(z.dtype), self.kernel(asked, seen), o.outputscale, y[:, :half], omega)
        side = y[:, half:]
        p = expected_sigmoid(side * mean, variance).mean(0)
        (g,) = grad(-(side.square() * p.log()).sum() / len(asked), theta)
        self.sgd.step(c, theta=clip(g, o.clip))

    def finish(self, c: Node) -> State:
        return {"theta": c["theta"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        server["theta"] = average(updates, "theta", shares(updates, equal=True))
        return {}

    def client_predictors(self, c: Node) -> Sequence[Predictor]:
        made: list[Classifier] = []

        def log_probabilities(x: Tensor) -> Tensor:
            theta = c["common"]
            if not made:
                images, y = c.images()
                made.append(Classifier.of(self, c, self.embedded(c, theta, images), y))
            return made[0].log_probabilities(self.embedded(c, theta, x))

        return [Predictor("personal", log_probabilities)]


@dataclass(frozen=True)
class Classifier:
    """A client's GPs, given all its training images and Polya-Gamma samples: those of each node of the tree."""

    tree: Tensor
    held: Tensor  # which labels the client has seen (classes,)
    landmarks: Landmarks
    nodes: list[WeightPosterior]

    @staticmethod
    def of(method: PFedGP, c: Node, z: Tensor, y: Tensor) -> Classifier:
        """Make it from the client's embedded training images z (n, D) and their labels y (n,)."""
        landmarks, nodes = Landmarks.among(z, method.kernel, TOLERANCE, LANDMARKS), []
        features = landmarks.features(z)
        for node in c["tree"]:
            below = node[y] != 0
            seen, side = features[below], node[y[below]]
            omega = gibbs(seen, side, method.options.test_chains, method.options.steps, c.noise)
            nodes.append(WeightPosterior.given(seen, side, omega))
        return Classifier(c["tree"], y.bincount(minlength=c.classes) > 0, landmarks, nodes)

    def log_probabilities(self, z: Tensor) -> Tensor:
        """Return log probabilities (n, classes) of embedded images z (n, D)."""
        features, product = self.landmarks.features(z), self.held.to(z.dtype).repeat(len(z), 1)
        for node, weights in zip(self.tree, self.nodes, strict=True):
            p = expected_sigmoid(*weights.at(features, self.landmarks.kernel.outputscale)).mean(0)[:, None]
            product *= torch.where(node == 1, p, torch.where(node == -1, 1 - p, 1))
        return ((1 - UNSEEN) * product + UNSEEN / len(self.held)).log()


METHOD = PFedGP
