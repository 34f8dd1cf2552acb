"""Schemes of FedPPD: a fixed number of images or shards for every client, and images for the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.data.schemes.base import Indices, Partition, Scheme, of_training_images

if TYPE_CHECKING:
    from bayesfed.data.schemes.spec import PartitionSpec


class WithServer(Scheme):
    """A scheme that sets training images aside for the server."""

    def set_aside(self, labels: Indices, spec: PartitionSpec, random: np.random.Generator) -> tuple[Indices, Indices]:
        """Draw the server's training images; return them, and all others in a random order.

        Of each class in proportion: equally spaced ones of images in the order of their labels. Raises InputError if
        nothing is left.
        """
        assert spec.server is not None  # checked by PartitionSpec
        self.check_room(len(labels), 0, spec)
        shuffled = random.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        server = np.sort(by_label[np.arange(spec.server) * len(labels) // max(spec.server, 1)])
        return server, shuffled[~np.isin(shuffled, server)]


class Shards(WithServer):
    """Shards of images sorted by label, and a few images of every class."""

    name = "shards"
    options = ("shards", "shards_each", "share", "least", "server")
    in_common = True

    def draw(self, train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
        """Deal shards of images sorted by label, and a few images of every class (FedPPD's public code).

        `server` random images, of each class in proportion, are the server's. The others, shuffled and sorted by label,
        are cut into `shards` of equal size, rounded down. A client gets `shards_each` of them at random, and of each the
        first `share`, rounded down. It also gets `least` random images of every class that it does not have yet. No two
        clients share a shard; the `least` images may be another client's too, but never the server's. Nobody gets test
        images. Images are stored in no publisher's order, so "the first 50 000 images" of MNIST, and its last 10 000 as
        the server's, are random ones here. Raises InputError for too few shards or images.
        """
        random = rng.generator(seed, "partition")
        server, rest = self.set_aside(train_labels, spec, random)
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
        return of_training_images(hands, server, spec)


class IID(WithServer):
    """Random images, equally many for every client."""

    name = "iid"
    options = ("images_each", "server")

    def draw(self, train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
        """Deal `images_each` random training images to every client, and `server` to the server (FedPPD, Table 8).

        Nobody gets test images. Raises InputError for too few images.
        """
        random = rng.generator(seed, "partition")
        server, rest = self.set_aside(train_labels, spec, random)
        each = spec.images_each
        assert each is not None  # checked by PartitionSpec
        return of_training_images(list(rest[: spec.clients * each].reshape(spec.clients, each)), server, spec)
