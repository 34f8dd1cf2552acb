"""The schemes that divide a dataset among clients: one function each, from labels, spec and seed to a partition.

A new scheme is a function in SCHEMES. `whole` deals nothing: client k holds all of the run's dataset k (multi-task).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import rng
from bayesfed.core.errors import InputError, nearest

WHOLE = "whole"
OPTIONS = ("shards", "shards_each", "share", "least", "images_each", "server", "size")  # of single schemes
DRAWS = 1000  # how often a Dirichlet draw with too small a client is drawn again
LARGEST_ALPHA = 1e9  # far above it the draw overflows; long before it all shares are equal

Indices = NDArray[np.int64]
NO_IMAGES: Indices = np.zeros(0, np.int64)
T = TypeVar("T")


@dataclass(frozen=True)
class PartitionSpec:
    """How a dataset is divided; raises InputError for a scheme, alpha or count that cannot be.

    `scheme` is one of SCHEMES, or `whole`. `min_train` and `min_test` are the images every client must hold (reading
    A17; 0 takes any draw). The other options are those of single schemes: each wants its own, and no other.
    """

    scheme: str = "dirichlet_class_shared"
    alpha: float | None = None
    clients: int = 10
    min_train: int = 10
    min_test: int = 1
    shards: int | None = None  # that the training images are cut into
    shards_each: int | None = None  # of these, a client's
    share: float | None = None  # of each of its shards, what a client takes
    least: int | None = None  # images of every class that a client has beside them
    images_each: int | None = None  # a client's
    server: int | None = None  # images that the server has, and no client
    size: str | None = None  # one of LABELS5_SIZES

    def __post_init__(self) -> None:
        known = [*SCHEMES, WHOLE]
        if self.scheme not in known:
            raise InputError(f"partition.scheme: unknown '{self.scheme}', {nearest(self.scheme, known)}")
        for key, least in (("clients", 1), ("min_train", 0), ("min_test", 0)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"partition.{key}: {value!r} is not a whole number from {least}")
        scheme = SCHEMES.get(self.scheme, Scheme(dirichlet=False))
        for key in OPTIONS:
            self.check_option(key, key in scheme.options)
        if scheme.draw and not scheme.deals_test and self.min_test:
            raise InputError(
                f"partition.min_test: {self.min_test}, but scheme {self.scheme} deals no test images; set it to 0"
            )
        if not scheme.dirichlet:
            if self.alpha is not None:
                raise InputError(
                    f"partition.alpha: {self.alpha!r} means nothing with scheme {self.scheme}; leave it out"
                )
            return
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise InputError(f"partition.alpha: {self.alpha!r} is not a number above 0, for example 0.05")
        if not 0 < self.alpha <= LARGEST_ALPHA:
            raise InputError(f"partition.alpha: {self.alpha!r} is not above 0 and up to {LARGEST_ALPHA:g}")
        if not math.isclose(float(f"{self.alpha:g}"), self.alpha, rel_tol=1e-12):
            raise InputError(f"partition.alpha: {self.alpha!r} has more digits than names hold; write {self.alpha:g}")

    def check_option(self, key: str, wanted: bool) -> None:
        """Raise InputError for a scheme's own option that is missing, out of range, or another scheme's."""
        value = getattr(self, key)
        if not wanted:
            if value is not None:
                raise InputError(f"partition.{key}: {value!r} means nothing with scheme {self.scheme}; leave it out")
        elif key == "size":
            if value not in LABELS5_SIZES:
                raise InputError(
                    f"partition.size: {value!r} is no size of labels5; {nearest(str(value), LABELS5_SIZES)}"
                )
        elif key == "share":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value <= 1 or float(f"{value:g}") != value:
                raise InputError(
                    f"partition.share: {value!r} is not a number above 0 and up to 1 of at most six digits"
                )
        else:
            low = 0 if key in ("least", "server") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InputError(
                    f"partition.{key}: {value!r} is not a whole number from {low}; scheme {self.scheme} needs it"
                )

    def to_dict(self) -> dict[str, Any]:
        """All of it but for options of other schemes."""
        return {key: value for key, value in vars(self).items() if key not in OPTIONS or value is not None}

    @property
    def label(self) -> str:
        """The spec as part of a file name: `dirichlet_class_shared-alpha~0.05-clients~10`."""
        parts = [self.scheme]
        if self.alpha is not None:
            parts.append(f"alpha~{self.alpha:g}")
        parts.append(f"clients~{self.clients}")
        for key in (one for one in OPTIONS if getattr(self, one) is not None):
            value = getattr(self, key)
            parts.append(f"{key}~{value if isinstance(value, str) else format(value, 'g')}")
        for key in ("min_train", "min_test"):
            if getattr(self, key) != getattr(PartitionSpec, key):
                parts.append(f"{key}~{getattr(self, key)}")
        return "-".join(parts)


@dataclass(frozen=True)
class Partition:
    """Client k holds `indices[offsets[k]:offsets[k + 1]]` of each split, ascending; all arrays int64. `server_indices`:
    the training images that a scheme sets aside for the server."""

    train_indices: Indices
    train_offsets: Indices
    test_indices: Indices
    test_offsets: Indices
    server_indices: Indices = field(default_factory=lambda: NO_IMAGES)

    def train(self, client: int) -> Indices:
        """The training images of `client`, counted from 0."""
        return self.train_indices[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test(self, client: int) -> Indices:
        """The test images of `client`, counted from 0."""
        return self.test_indices[self.test_offsets[client] : self.test_offsets[client + 1]]


def dirichlet_class_shared(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Divide both splits by the same Dirichlet shares of each class (HBFL; spec 1 and 2.4).

    For each class c one draw p_c ~ Dir(alpha * 1_N); the class's images, shuffled, are cut at
    floor(cumsum(p_c) * n_c), in the training and in the test split alike. While a client has fewer images
    than `spec` asks for, all shares are drawn again (A17). Raises InputError where the splits cannot feed so
    many clients, and when no draw succeeds.
    """
    check_room(len(train_labels), len(test_labels), spec)
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    counts = [np.bincount(labels, minlength=classes) for labels in (train_labels, test_labels)]
    random = rng.generator(seed, "partition")

    def draw() -> tuple[list[Indices], int, int]:
        shares = random.dirichlet(np.full(spec.clients, spec.alpha), size=classes)
        cuts = [_cuts(shares, count) for count in counts]
        train_size, test_size = (int(np.diff(cut, axis=1).sum(axis=0).min()) for cut in cuts)
        return cuts, train_size, test_size

    cuts = redrawn(draw, spec)
    return Partition(*_deal(train_labels, cuts[0], random), *_deal(test_labels, cuts[1], random))


def dirichlet_class_floor(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Divide the training images by Dirichlet shares of each class, rounded down (FOLA's public code).

    For each class c one draw p_c ~ Dir(alpha * 1_N); client k gets the next floor(p_ck * n_c) images of the class, in the
    order of the dataset; what is left over is dropped. A client without any gets one image of class 0: of those left
    over, or the last one of a client that has more than one. Nobody gets test images. Redraws as
    `dirichlet_class_shared`; raises InputError likewise, and where class 0 has no image to give.
    """
    check_room(len(train_labels), len(test_labels), spec)
    counts = np.bincount(train_labels)
    random = rng.generator(seed, "partition")

    def draw() -> tuple[Indices, int, int]:
        shares = random.dirichlet(np.full(spec.clients, spec.alpha), size=len(counts))
        sizes = np.floor(shares * counts[:, None]).astype(np.int64)
        return sizes, int(sizes.sum(0).min()), 0

    sizes = redrawn(draw, spec)
    cuts = np.concatenate([np.zeros((len(counts), 1), np.int64), np.cumsum(sizes, axis=1)], axis=1)
    # The sum of shares that were rounded down can exceed the whole only by rounding of the draw itself.
    cuts = np.minimum(cuts, counts[:, None])
    of_class = [np.flatnonzero(train_labels == label) for label in range(len(counts))]
    hands = [
        np.concatenate([images[cut[k] : cut[k + 1]] for images, cut in zip(of_class, cuts, strict=True)])
        for k in range(spec.clients)
    ]
    spare = list(of_class[0][cuts[0, -1] :][::-1])
    for k in range(spec.clients):
        if not len(hands[k]):
            if not spare:
                giver = max(
                    range(spec.clients), key=lambda j: int((train_labels[hands[j]] == 0).sum()) * (len(hands[j]) > 1)
                )
                given = hands[giver][train_labels[hands[giver]] == 0][-1:]
                if not len(given) or len(hands[giver]) < 2:
                    raise InputError("partition: class 0 has no image for a client without any; take a larger alpha")
                hands[giver] = np.setdiff1d(hands[giver], given)
                spare = list(given)
            hands[k] = np.array([spare.pop()], np.int64)
    return _of_training_images(hands)


def dirichlet_client(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Deal every client as many training images, of classes as it likes them (the text of FOLA).

    Client k draws q_k ~ Dir(alpha * p) over C classes, p = 1/C each, then floor(n / N) images, the class of each by q_k,
    among the classes that have images left: where those of q_k have none, by what is left of each class. Nobody gets
    test images. Raises InputError where the split cannot feed so many clients.
    """
    check_room(len(train_labels), len(test_labels), spec)
    assert spec.alpha is not None  # checked by PartitionSpec
    counts = np.bincount(train_labels)
    random = rng.generator(seed, "partition")
    piles = [random.permutation(np.flatnonzero(train_labels == label)) for label in range(len(counts))]
    left, each = counts.copy(), len(train_labels) // spec.clients
    hands = []
    for _ in range(spec.clients):
        wishes = random.dirichlet(np.full(len(counts), spec.alpha / len(counts)))
        taken = np.zeros_like(counts)
        while (missing := each - int(taken.sum())) > 0:
            weights = np.where(left > 0, wishes, 0)
            weights = weights if weights.sum() > 0 else left.astype(float)
            asked = np.minimum(random.multinomial(missing, weights / weights.sum()), left)
            taken, left = taken + asked, left - asked
        hand = [pile[: taken[label]] for label, pile in enumerate(piles)]
        piles = [pile[taken[label] :] for label, pile in enumerate(piles)]
        hands.append(np.concatenate(hand))
    return _of_training_images(hands)


def classes_apart(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Give every client classes of its own, all their images, as equal in number as they come: of ten classes, the first
    of two clients holds 0 to 4 (FOLA's study of two clients). Raises InputError for more clients than classes.
    """
    check_room(len(train_labels), len(test_labels), spec)
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    if spec.clients > classes:
        raise InputError(
            f"partition.clients: {spec.clients} clients cannot hold {classes} classes apart; at most {classes}"
        )
    owner = np.arange(classes) * spec.clients // classes
    hands = [
        [np.flatnonzero(owner[labels] == k) for k in range(spec.clients)] for labels in (train_labels, test_labels)
    ]
    for split, held, least in zip(("training", "test"), hands, (spec.min_train, spec.min_test), strict=True):
        for k, hand in enumerate(held):
            if len(hand) < least:
                raise InputError(
                    f"partition: client {k} has {len(hand)} {split} images in its classes, fewer than {least}"
                )
    return Partition(*_packed(hands[0]), *_packed(hands[1]))


def labels5(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Five labels for every client, j = 0..4 of client u being (5u + j) mod C, from the pool of both splits (pFedBayes).

    The pool has the training images first, then the test images; both halves of the partition count in it. Client by
    client a label's images, shuffled, go into hands of equal size (LABELS5_SIZES); a hand is shuffled, then cut into
    training and test images, so a class has about as many of each as the size says, and all clients have equally many.
    Raises InputError where that leaves a client fewer images than asked for, and for fewer than five classes.
    """
    pool = np.concatenate([train_labels, test_labels])
    counts = np.bincount(pool)
    if len(counts) < 5:
        raise InputError(f"partition.scheme: labels5 needs at least 5 classes, there are {len(counts)}")
    assert spec.size is not None  # checked by PartitionSpec
    smaller = min(1.0, int(counts.min()) / LABELS5_CLASS)
    train, test = (int(count * smaller / spec.clients) for count in LABELS5_SIZES[spec.size])
    for split, count, least in (("training", train, spec.min_train), ("test", test, spec.min_test)):
        if 5 * count < max(least, 1):
            raise InputError(
                f"partition.clients: {spec.clients} clients would have {5 * count} {split} images each; at least "
                f"{max(least, 1)} are asked for"
            )
    random = rng.generator(seed, "partition")
    piles = [random.permutation(np.flatnonzero(pool == label)) for label in range(len(counts))]
    hands: tuple[list[Indices], list[Indices]] = ([], [])
    for client in range(spec.clients):
        hand = []
        for label in (5 * client + np.arange(5)) % len(counts):
            hand.append(piles[label][: train + test])
            piles[label] = piles[label][train + test :]
        if any(len(part) < train + test for part in hand):
            raise InputError(f"partition: a class has too few images for {spec.clients} clients of size {spec.size}")
        mixed = random.permutation(np.concatenate(hand))
        hands[0].append(mixed[: 5 * train])
        hands[1].append(mixed[5 * train :])
    return Partition(*_packed(hands[0]), *_packed(hands[1]))


# Training and test images that a client has of each of its labels, times the number of clients: in pFedBayes ten clients
# have 50 and 950 of MNIST in the small setting, twenty have 25 and 475 of CIFAR-10.
LABELS5_SIZES = {"small": (500, 9500), "medium": (2000, 8000), "large": (9000, 3000)}
LABELS5_CLASS = 6000  # where a class has fewer images, all these numbers shrink alike


def shards(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Deal shards of images sorted by label, and a few images of every class (FedPPD's public code; spec 7.2).

    `server` random images, of each class in proportion, are the server's. The others, shuffled and sorted by label, are cut
    into `shards` of equal size, rounded down. A client gets `shards_each` of them at random, of each the first `share`,
    rounded down, and `least` random images of every class that it does not have yet. No two clients share a shard; the
    `least` images may be another client's too, but never the server's. Nobody gets test images. "The first 50 000 images" of
    MNIST, and its last 10 000 as the server's, are random ones here: images are stored in no publisher's order. Raises
    InputError where there are too few shards or images.
    """
    random = rng.generator(seed, "partition")
    server, rest = _set_aside(train_labels, spec, random)
    rest = rest[np.argsort(train_labels[rest], kind="stable")]
    count, each, share, least = spec.shards, spec.shards_each, spec.share, spec.least
    assert count is not None and each is not None and share is not None and least is not None  # noqa: PT018
    if spec.clients * each > count:
        raise InputError(
            f"partition.shards_each: {spec.clients} clients with {each} shards each need {spec.clients * each}; "
            f"there are {count}"
        )
    size = len(rest) // count
    taken = int(size * share + 1e-9)  # 0.07 of 100 images is a bit less than 7
    if not taken:
        raise InputError(
            f"partition.share: {share:g} of a shard of {size} images is none; take fewer shards or a larger share"
        )
    dealt = random.permutation(count)[: spec.clients * each].reshape(spec.clients, each)
    hands = []
    for of_client in dealt:
        hand = np.concatenate([rest[shard * size :][:taken] for shard in of_client])
        spare = random.permutation(np.setdiff1d(rest, hand))
        of_class = [spare[train_labels[spare] == label] for label in np.unique(train_labels)]
        if min(map(len, of_class)) < least:
            raise InputError(
                f"partition.least: a class has fewer than {least} images for a client; take a smaller number"
            )
        hands.append(np.concatenate([hand, *(images[:least] for images in of_class)]))
    return _of_training_images(hands, server, spec)


def iid(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Deal `images_each` random training images to every client, and `server` to the server (FedPPD, Table 8). Nobody gets
    test images. Raises InputError where there are too few."""
    random = rng.generator(seed, "partition")
    server, rest = _set_aside(train_labels, spec, random)
    each = spec.images_each
    assert each is not None  # checked by PartitionSpec
    return _of_training_images(list(rest[: spec.clients * each].reshape(spec.clients, each)), server, spec)


def _set_aside(labels: Indices, spec: PartitionSpec, random: np.random.Generator) -> tuple[Indices, Indices]:
    """The server's training images, and all others in a random order; InputError where nothing is left.

    Random ones, of each class in proportion: of images in the order of their labels, equally spaced ones.
    """
    assert spec.server is not None  # checked by PartitionSpec
    check_room(len(labels), 0, spec)
    shuffled = random.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    server = np.sort(by_label[np.arange(spec.server) * len(labels) // max(spec.server, 1)])
    return server, shuffled[~np.isin(shuffled, server)]


@dataclass(frozen=True)
class Scheme:
    """How a scheme deals, whether it has an alpha, which options of its own, and whether clients get test images; then they
    get all images of both splits, else the training images that are dealt. Some let clients have images in common.

    `pooled`: indices of both halves count in the pool of both splits, training images first, of which some may be left
    over.
    """

    draw: Callable[[Indices, Indices, PartitionSpec, int], Partition] | None = None
    dirichlet: bool = True
    deals_test: bool = True
    options: tuple[str, ...] = ()
    in_common: bool = False
    pooled: bool = False


SCHEMES: Mapping[str, Scheme] = {
    "dirichlet_class_shared": Scheme(dirichlet_class_shared),
    "dirichlet_class_floor": Scheme(dirichlet_class_floor, deals_test=False),
    "dirichlet_client": Scheme(dirichlet_client, deals_test=False),
    "classes_apart": Scheme(classes_apart, dirichlet=False),
    "labels5": Scheme(labels5, dirichlet=False, pooled=True, options=("size",)),
    "shards": Scheme(
        shards,
        dirichlet=False,
        deals_test=False,
        options=("shards", "shards_each", "share", "least", "server"),
        in_common=True,
    ),
    "iid": Scheme(iid, dirichlet=False, deals_test=False, options=("images_each", "server")),
}


def divide(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """The partition of a spec; raises InputError as its scheme does."""
    scheme = SCHEMES[spec.scheme]
    assert scheme.draw is not None
    return scheme.draw(train_labels, test_labels, spec, seed)


def check_room(train: int, test: int, spec: PartitionSpec) -> None:
    """Raise InputError where splits of so many images are too small for what a spec asks for, whatever their labels."""
    server, each = spec.server or 0, spec.images_each or 0
    if server >= train:
        raise InputError(f"partition.server: {server} of {train} images leave none to the clients")
    if spec.clients * each > train - server:
        raise InputError(
            f"partition.images_each: {spec.clients} clients with {each} images each need {spec.clients * each}; "
            f"there are {train - server}"
        )
    if SCHEMES[spec.scheme].in_common or SCHEMES[spec.scheme].pooled:
        return
    for split, images, least in (("training", train, max(spec.min_train, 1)), ("test", test, spec.min_test)):
        if spec.clients * least > images:
            raise InputError(
                f"partition.clients: {spec.clients} clients with at least {least} {split} images need "
                f"{spec.clients * least}, there are {images}: at most {images // least} clients fit"
            )


def redrawn(draw: Callable[[], tuple[T, int, int]], spec: PartitionSpec) -> T:
    """What `draw` gives first whose smallest client has the training and test images asked for (A17).

    `draw` says what these are behind its result. Raises InputError when none of DRAWS draws does.
    """
    best = (-1, -1)
    for _ in range(DRAWS):
        drawn, train_size, test_size = draw()
        if train_size >= spec.min_train and test_size >= spec.min_test:
            return drawn
        best = max(best, (train_size, test_size))
    raise InputError(
        f"partition: none of {DRAWS} draws with alpha {spec.alpha:g} gave each of {spec.clients} clients "
        f"{spec.min_train} training and {spec.min_test} test images (the best left one with {best[0]} and "
        f"one with {best[1]}): take a larger alpha, fewer clients, or lower min_train and min_test"
    )


def _of_training_images(
    hands: list[Indices], server: Indices = NO_IMAGES, spec: PartitionSpec | None = None
) -> Partition:
    """A partition of the training images alone; of a spec, where each client must have the images that it asks for."""
    fewest = min(map(len, hands))
    if spec and fewest < spec.min_train:
        raise InputError(f"partition: a client gets {fewest} training images, fewer than min_train {spec.min_train}")
    return Partition(*_packed(hands), *_packed([NO_IMAGES] * len(hands)), server)


def _packed(hands: list[Indices]) -> tuple[Indices, Indices]:
    """Indices and offsets of one split from what each client holds."""
    offsets = np.cumsum([0, *map(len, hands)], dtype=np.int64)
    return np.concatenate([np.sort(hand) for hand in hands]).astype(np.int64), offsets


def _cuts(shares: NDArray[np.float64], counts: Indices) -> Indices:
    """Where to cut each class, [classes, clients + 1]: 0, floor(cumsum(share) * count), count."""
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None]).astype(np.int64)
    # A sum may round to just above 1: never cut behind the end.
    inner = np.minimum(inner, counts[:, None])
    return np.concatenate([np.zeros((len(counts), 1), np.int64), inner, counts[:, None]], axis=1)


def _deal(labels: Indices, cuts: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Indices and offsets of one split, from the cut points of each class."""
    hands: list[list[Indices]] = [[] for _ in range(cuts.shape[1] - 1)]
    for label, cut in enumerate(cuts):
        # Shuffled, so that other seeds give other images and not only other counts.
        images = random.permutation(np.flatnonzero(labels == label))
        for hand, piece in zip(hands, np.split(images, cut[1:-1]), strict=True):
            hand.append(piece)
    return _packed([np.concatenate(hand) for hand in hands])
