"""Schemes whose clients differ by a Dirichlet draw with concentration alpha."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.core.options import Bounds, option
from bayesfed.data.schemes.base import USUAL, Indices, Partition, Scheme, of_training_images, packed

# Far above 1e9 sampling overflows; long before it all shares are equal.
Concentration = Annotated[float, Bounds(above=0, high=1e9)]
DRAWS = 1000  # how often a partition with too small a client is sampled again
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Scheme):
    """The same Dirichlet shares of each class in both splits (HBFL). alpha: the concentration; smaller is less even."""

    name = USUAL
    deals_test = True
    deals_all = True

    alpha: Concentration

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Divide both splits by the same Dirichlet shares of each class (HBFL).

        For each class c one draw p_c ~ Dir(alpha * 1_N); the class's images, shuffled, are cut at
        floor(cumsum(p_c) * n_c), in the training and in the test split alike. While a client has fewer images
        than `min_train` and `min_test`, all shares are drawn again (A17). Raises InputError where the splits cannot feed so
        many clients, and when no draw succeeds.
        """
        self.check_room(len(train_labels), len(test_labels))
        return by_shares(train_labels, test_labels, self, "alpha", seed)


@dataclass(frozen=True, kw_only=True)
class QuantitySkew(Scheme):
    """Dirichlet shares of all images, whatever their class (NIID-Bench). beta: the concentration."""

    name = "quantity_skew"
    deals_test = True
    deals_all = True

    beta: Concentration

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Divide both splits by one Dirichlet draw, whatever the classes (NIID-Bench: Li et al., ICDE 2022).

        One draw q ~ Dir(beta * 1_N); client k gets the share q_k of the training and of the test images, random ones.
        Redraws as `dirichlet_class_shared`.
        """
        self.check_room(len(train_labels), len(test_labels))
        return by_shares(np.zeros_like(train_labels), np.zeros_like(test_labels), self, "beta", seed)


@dataclass(frozen=True, kw_only=True)
class DirichletFloor(Scheme):
    """Dirichlet shares of each class, rounded down, without test images (FOLA's public code). alpha: the concentration."""

    name = "dirichlet_class_floor"

    min_test: int = option(0, low=0)
    alpha: Concentration

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Divide the training images by Dirichlet shares of each class, rounded down (FOLA's public code).

        For each class c one draw p_c ~ Dir(alpha * 1_N); client k gets the next floor(p_ck * n_c) images of the class, in
        the order of the dataset; what is left over is dropped. A client without any gets one image of class 0: of those
        left over, or the last one of a client that has more than one. Nobody gets test images. Samples again as
        `dirichlet_class_shared`; raises InputError as that does, and where class 0 has no image to give.
        """
        self.check_room(len(train_labels), len(test_labels))
        counts = np.bincount(train_labels)
        random = rng.generator(seed, "partition")

        def draw() -> tuple[Indices, int, int]:
            shares = random.dirichlet(np.full(self.clients, self.alpha), size=len(counts))
            sizes = np.floor(shares * counts[:, None]).astype(np.int64)
            return sizes, int(sizes.sum(0).min()), 0

        sizes = redrawn(draw, self, "alpha")
        cuts = np.concatenate([np.zeros((len(counts), 1), np.int64), np.cumsum(sizes, axis=1)], axis=1)
        # The sum of shares that were rounded down can exceed the whole only by rounding of the sample itself.
        cuts = np.minimum(cuts, counts[:, None])
        of_class = [np.flatnonzero(train_labels == label) for label in range(len(counts))]
        hands = [
            np.concatenate([images[cut[k] : cut[k + 1]] for images, cut in zip(of_class, cuts, strict=True)])
            for k in range(self.clients)
        ]
        spare = list(of_class[0][cuts[0, -1] :][::-1])
        for k in range(self.clients):
            if not len(hands[k]):
                if not spare:
                    giver = max(
                        range(self.clients),
                        key=lambda j: int((train_labels[hands[j]] == 0).sum()) * (len(hands[j]) > 1),
                    )
                    given = hands[giver][train_labels[hands[giver]] == 0][-1:]
                    if not len(given) or len(hands[giver]) < 2:
                        raise InputError(
                            "partition: class 0 has no image for a client without any; take a larger alpha"
                        )
                    hands[giver] = np.setdiff1d(hands[giver], given)
                    spare = list(given)
                hands[k] = np.array([spare.pop()], np.int64)
        return of_training_images(hands)


@dataclass(frozen=True, kw_only=True)
class DirichletClient(Scheme):
    """Equally many images for every client, of classes by its own Dirichlet shares (the text of FOLA).

    alpha: the concentration, over all classes. Nobody gets test images.
    """

    name = "dirichlet_client"

    min_test: int = option(0, low=0)
    alpha: Concentration

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Give every client the same number of training images, with class shares of its own Dirichlet sample (FOLA's text).

        Client k draws q_k ~ Dir(alpha * p) over C classes, p = 1/C each, then floor(n / N) images, the class of each by q_k,
        among the classes that have images left: where those of q_k have none, by what is left of each class. Nobody gets
        test images. Raises InputError where the split cannot feed so many clients.
        """
        self.check_room(len(train_labels), len(test_labels))
        counts = np.bincount(train_labels)
        random = rng.generator(seed, "partition")
        piles = [random.permutation(np.flatnonzero(train_labels == label)) for label in range(len(counts))]
        left, each = counts.copy(), len(train_labels) // self.clients
        hands = []
        for _ in range(self.clients):
            wishes = random.dirichlet(np.full(len(counts), self.alpha / len(counts)))
            taken = np.zeros_like(counts)
            while (missing := each - int(taken.sum())) > 0:
                weights = np.where(left > 0, wishes, 0)
                weights = weights if weights.sum() > 0 else left.astype(float)
                asked = np.minimum(random.multinomial(missing, weights / weights.sum()), left)
                taken, left = taken + asked, left - asked
            hand = [pile[: taken[label]] for label, pile in enumerate(piles)]
            piles = [pile[taken[label] :] for label, pile in enumerate(piles)]
            hands.append(np.concatenate(hand))
        return of_training_images(hands)


@dataclass(frozen=True, kw_only=True)
class TwoLevel(Scheme):
    """Dirichlet shares of all images for the clients, and of classes for each (public code of FedLap and BayesADMM).

    sizes: the concentration of the first. alpha: of the others. share: of the training images, what is dealt. Nobody gets
    test images.
    """

    name = "two_level"

    min_test: int = option(0, low=0)
    sizes: Concentration
    alpha: Concentration
    share: float = option(1.0, above=0, high=1)

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal by sizes p ~ Dir(sizes * 1_N) and classes c_k ~ Dir(alpha * 1_C) (public code of FedLap and BayesADMM).

        Of the n_c images of class c client k gets round(share * n_c * p_k c_kc / sum_j p_j c_jc), two where that is one: the
        next ones of the class, shuffled, as far as there are any. Nobody gets test images. Redraws as
        `dirichlet_class_shared`; the public code has no least size, here `min_train: 0`.
        """
        self.check_room(int(self.share * len(train_labels)), len(test_labels))
        counts = np.bincount(train_labels)
        random = rng.generator(seed, "partition")

        def draw() -> tuple[Indices, int, int]:
            sizes = random.dirichlet(np.full(self.clients, self.sizes))
            weights = sizes * random.dirichlet(np.full(len(counts), self.alpha), size=self.clients).T
            # A class that no client wants (all of its weights are 0) is dealt to none.
            shares = weights / np.maximum(weights.sum(1, keepdims=True), np.finfo(float).tiny)
            asked = np.round(self.share * counts[:, None] * shares).astype(np.int64)
            ends = np.minimum(np.cumsum(np.where(asked == 1, 2, asked), axis=1), counts[:, None])
            return ends, int(np.diff(ends, axis=1, prepend=0).sum(0).min()), 0

        ends = redrawn(draw, self, "alpha")
        pieces = [
            np.split(random.permutation(np.flatnonzero(train_labels == label)), end)[:-1]
            for label, end in enumerate(ends)
        ]
        return of_training_images([np.concatenate(hand) for hand in zip(*pieces, strict=True)])


def by_shares(train_labels: Indices, test_labels: Indices, scheme: Scheme, key: str, seed: int) -> Partition:
    """Divide both splits by the same Dirichlet shares of each class, drawn again while a client has too few images."""
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    counts = [np.bincount(labels, minlength=classes) for labels in (train_labels, test_labels)]
    random = rng.generator(seed, "partition")

    def draw() -> tuple[list[Indices], int, int]:
        shares = random.dirichlet(np.full(scheme.clients, getattr(scheme, key)), size=classes)
        cuts = [cut_points(shares, count) for count in counts]
        train_size, test_size = (int(np.diff(cut, axis=1).sum(axis=0).min()) for cut in cuts)
        return cuts, train_size, test_size

    cuts = redrawn(draw, scheme, key)
    return Partition(*deal(train_labels, cuts[0], random), *deal(test_labels, cuts[1], random))


def redrawn(draw: Callable[[], tuple[T, int, int]], scheme: Scheme, key: str) -> T:
    """Draw until the smallest client has the training and test images asked for (A17); return that draw.

    `draw` returns its result and both numbers of the smallest client. `key`: the option with the concentration. Raises
    InputError if none of DRAWS draws fits.
    """
    best = (-1, -1)
    for _ in range(DRAWS):
        drawn, train_size, test_size = draw()
        if train_size >= scheme.min_train and test_size >= scheme.min_test:
            return drawn
        best = max(best, (train_size, test_size))
    raise InputError(
        f"partition: none of {DRAWS} draws with {key} {getattr(scheme, key):g} gave each of {scheme.clients} clients "
        f"{scheme.min_train} training and {scheme.min_test} test images (the best left one with {best[0]} and "
        f"one with {best[1]}): take a larger {key}, fewer clients, or lower min_train and min_test"
    )


def cut_points(shares: NDArray[np.float64], counts: Indices) -> Indices:
    """Return the points to cut each class at, (classes, clients + 1): 0, floor(cumsum(share) * count), count."""
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None]).astype(np.int64)
    # A sum may round to just above 1: never cut behind the end.
    inner = np.minimum(inner, counts[:, None])
    return np.concatenate([np.zeros((len(counts), 1), np.int64), inner, counts[:, None]], axis=1)


def deal(labels: Indices, cuts: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Deal one split by the cut points of each class; return indices and offsets."""
    hands: list[list[Indices]] = [[] for _ in range(cuts.shape[1] - 1)]
    for label, cut in enumerate(cuts):
        # Shuffled, so that other seeds give other images and not only other counts.
        images = random.permutation(np.flatnonzero(labels == label))
        for hand, piece in zip(hands, np.split(images, cut[1:-1]), strict=True):
            hand.append(piece)
    return packed([np.concatenate(hand) for hand in hands])
