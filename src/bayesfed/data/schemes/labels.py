"""Schemes that give each client whole classes, or a fixed number of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.data.schemes.base import Indices, Partition, Scheme, of_training_images, packed

# Training and test images that a client has of each of its labels, times the number of clients: in pFedBayes ten clients
# have 50 and 950 of MNIST in the small setting, twenty have 25 and 475 of CIFAR-10.
LABELS5_SIZES = {"small": (500, 9500), "medium": (2000, 8000), "large": (9000, 3000)}
LABELS5_CLASS = 6000  # images of a class for which LABELS5_SIZES hold; of a smaller class all of them shrink alike


@dataclass(frozen=True, kw_only=True)
class ClassesApart(Scheme):
    """Classes of its own for every client (FOLA's study of two clients)."""

    name = "classes_apart"
    deals_test = True
    deals_all = True

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Give every client classes of its own, all their images (FOLA's study of two clients).

        Clients have equally many classes, as far as that goes: of ten, the first of two clients holds 0 to 4. Raises
        InputError for more clients than classes.
        """
        self.check_room(len(train_labels), len(test_labels))
        classes = int(max(train_labels.max(), test_labels.max())) + 1
        if self.clients > classes:
            raise InputError(
                f"partition.clients: {self.clients} clients cannot hold {classes} classes apart; at most {classes}"
            )
        owner = np.arange(classes) * self.clients // classes
        hands = [
            [np.flatnonzero(owner[labels] == k) for k in range(self.clients)] for labels in (train_labels, test_labels)
        ]
        for split, held, least in zip(("training", "test"), hands, (self.min_train, self.min_test), strict=True):
            for k, hand in enumerate(held):
                if len(hand) < least:
                    raise InputError(
                        f"partition: client {k} has {len(hand)} {split} images in its classes, fewer than {least}"
                    )
        return Partition(*packed(hands[0]), *packed(hands[1]))


@dataclass(frozen=True, kw_only=True)
class TwoClasses(Scheme):
    """Two classes for every client (BayesADMM's public code)."""

    name = "two_classes"

    min_test: int = option(0, low=0)

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal every client a piece of two classes (BayesADMM's public code).

        Of C classes each is cut at random into 2N/C pieces of the same size, or one image more. A client's first class is
        the one that was given out least until then, its second a random other one with pieces left. Where none is left for
        a client, all is drawn again. Nobody gets test images. Raises InputError if C does not divide 2N.
        """
        self.check_room(len(train_labels), len(test_labels))
        classes = int(train_labels.max()) + 1
        pieces, rest = divmod(2 * self.clients, classes)
        if rest or classes < 2:
            raise InputError(
                f"partition.clients: {self.clients} clients have {2 * self.clients} pieces of {classes} classes, which are "
                "not equally many of each; take another number"
            )
        random = rng.generator(seed, "partition")
        while (pairs := self.pairs(classes, pieces, random)) is None:
            pass
        piles = [
            np.array_split(random.permutation(np.flatnonzero(train_labels == label)), pieces)
            for label in range(classes)
        ]
        hands = [np.concatenate([piles[label].pop() for label in pair]) for pair in pairs]
        return of_training_images(hands, scheme=self)

    def pairs(self, classes: int, pieces: int, random: np.random.Generator) -> list[tuple[int, int]] | None:
        """Draw the two classes of each client, every class `pieces` times; None where a client has no second one."""
        given = np.zeros(classes, np.int64)
        found = []
        for _ in range(self.clients):
            first = int(given.argmin())
            given[first] += 1
            others = [label for label in np.flatnonzero(given < pieces) if label != first]
            if not others:
                return None
            second = int(random.choice(others))
            given[second] += 1
            found.append((first, second))
        return found


@dataclass(frozen=True, kw_only=True)
class Labels5(Scheme):
    """Five labels for every client, from both splits together (pFedBayes). size: of the clients' shares."""

    name = "labels5"
    deals_test = True
    pooled = True

    size: Literal["small", "medium", "large"]

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal five labels to every client, from the pool of both splits (pFedBayes).

        Client u has the labels (5u + j) mod C, j = 0..4. The pool has the training images first, then the test images;
        both halves of the partition count in it. Client by client, a label's images, shuffled, go into hands of equal
        size (LABELS5_SIZES). A hand is shuffled, then cut into training and test images. So a class has about as many
        of each as the size says, and all clients have equally many. Raises InputError if that leaves a client fewer
        images than asked for, and for fewer than five classes.
        """
        pool = np.concatenate([train_labels, test_labels])
        counts = np.bincount(pool)
        if len(counts) < 5:
            raise InputError(f"partition.scheme: labels5 needs at least 5 classes, there are {len(counts)}")
        smaller = min(1.0, int(counts.min()) / LABELS5_CLASS)
        train, test = (int(count * smaller / self.clients) for count in LABELS5_SIZES[self.size])
        for split, count, least in (("training", train, self.min_train), ("test", test, self.min_test)):
            if 5 * count < max(least, 1):
                raise InputError(
                    f"partition.clients: {self.clients} clients would have {5 * count} {split} images each; at least "
                    f"{max(least, 1)} are asked for"
                )
        random = rng.generator(seed, "partition")
        piles = [random.permutation(np.flatnonzero(pool == label)) for label in range(len(counts))]
        hands: tuple[list[Indices], list[Indices]] = ([], [])
        for client in range(self.clients):
            hand = []
            for label in (5 * client + np.arange(5)) % len(counts):
                hand.append(piles[label][: train + test])
                piles[label] = piles[label][train + test :]
            if any(len(part) < train + test for part in hand):
                raise InputError(
                    f"partition: a class has too few images for {self.clients} clients of size {self.size}"
                )
            mixed = random.permutation(np.concatenate(hand))
            hands[0].append(mixed[: 5 * train])
            hands[1].append(mixed[5 * train :])
        return Partition(*packed(hands[0]), *packed(hands[1]))
