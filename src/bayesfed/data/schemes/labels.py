"""Schemes that give each client whole classes, or a fixed number of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.data.schemes.base import Indices, Partition, Scheme, packed

if TYPE_CHECKING:
    from bayesfed.data.schemes.spec import PartitionSpec

# Training and test images that a client has of each of its labels, times the number of clients: in pFedBayes ten clients
# have 50 and 950 of MNIST in the small setting, twenty have 25 and 475 of CIFAR-10.
LABELS5_SIZES = {"small": (500, 9500), "medium": (2000, 8000), "large": (9000, 3000)}
LABELS5_CLASS = 6000  # images of a class for which LABELS5_SIZES hold; of a smaller class all of them shrink alike


class ClassesApart(Scheme):
    """Classes of its own for every client (FOLA's study of two clients)."""

    name = "classes_apart"
    deals_test = True
    deals_all = True

    def draw(self, train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
        """Give every client classes of its own, all their images (FOLA's study of two clients).

        Clients have equally many classes, as far as that goes: of ten, the first of two clients holds 0 to 4. Raises
        InputError for more clients than classes.
        """
        self.check_room(len(train_labels), len(test_labels), spec)
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
        return Partition(*packed(hands[0]), *packed(hands[1]))


class Labels5(Scheme):
    """Deal five labels to every client, from the pool of both splits (pFedBayes)."""

    name = "labels5"
    deals_test = True
    pooled = True
    options = ("size",)

    def draw(self, train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
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
                raise InputError(
                    f"partition: a class has too few images for {spec.clients} clients of size {spec.size}"
                )
            mixed = random.permutation(np.concatenate(hand))
            hands[0].append(mixed[: 5 * train])
            hands[1].append(mixed[5 * train :])
        return Partition(*packed(hands[0]), *packed(hands[1]))
