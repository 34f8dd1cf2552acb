"""Schemes of FedPPD: a fixed number of images or shards for every client, and images for the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.core.options import Bounds, option
from bayesfed.data.schemes.base import Indices, Partition, Scheme, of_training_images


class WithServer(Scheme):
    """A scheme that sets `server` training images aside for the server, and deals no test images."""

    server: int

    @property
    def aside(self) -> int:
        return self.server

    def check_room(self, train: int, test: int) -> None:
        if self.server >= train:
            raise InputError(f"partition.server: {self.server} of {train} images leave none to the clients")
        super().check_room(train, test)

    def set_aside(self, labels: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
        """Draw the server's training images; return them, and all others in a random order.

        Of each class in proportion: equally spaced ones of images in the order of their labels. Raises InputError if
        nothing is left.
        """
        self.check_room(len(labels), 0)
        shuffled = random.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        server = np.sort(by_label[np.arange(self.server) * len(labels) // max(self.server, 1)])
        return server, shuffled[~np.isin(shuffled, server)]


@dataclass(frozen=True, kw_only=True)
class Shards(WithServer):
    """Shards of images sorted by label, and a few images of every class (FedPPD's public code).

    shards: how many the training images are cut into. shards_each: of these, a client's. share: of each of its shards, what
    a client takes. least: images of every class that a client has beside them. server: images that no client has.
    """

    name = "shards"
    in_common = True

    min_test: int = option(0, low=0)
    shards: Annotated[int, Bounds(low=1)]
    shards_each: Annotated[int, Bounds(low=1)]
    share: Annotated[float, Bounds(above=0, high=1)]
    least: Annotated[int, Bounds(low=0)]
    server: Annotated[int, Bounds(low=0)]

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal shards of images sorted by label, and a few images of every class (FedPPD's public code).

        `server` random images, of each class in proportion, are the server's. The others, shuffled and sorted by label,
        are cut into `shards` of equal size, rounded down. A client gets `shards_each` of them at random, and of each the
        first `share`, rounded down. It also gets `least` random images of every class that it does not have yet. No two
        clients share a shard; the `least` images may be another client's too, but never the server's. Nobody gets test
        images. Images are stored in no publisher's order, so "the first 50 000 images" of MNIST, and its last 10 000 as
        the server's, are random ones here. Raises InputError for too few shards or images.
        """
        random = rng.generator(seed, "partition")
        server, rest = self.set_aside(train_labels, random)
        rest = rest[np.argsort(train_labels[rest], kind="stable")]
        count, each, share, least = self.shards, self.shards_each, self.share, self.least
        if self.clients * each > count:
            raise InputError(
                f"partition.shards_each: {self.clients} clients with {each} shards each need {self.clients * each}; "
                f"there are {count}"
            )
        size = len(rest) // count
        taken = int(size * share + 1e-9)  # 0.07 of 100 images is a bit less than 7
        if not taken:
            raise InputError(
                f"partition.share: {share:g} of a shard of {size} images is none; take fewer shards or a larger share"
            )
        dealt = random.permutation(count)[: self.clients * each].reshape(self.clients, each)
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
        return of_training_images(hands, server, self)


@dataclass(frozen=True, kw_only=True)
class IID(WithServer):
    """Random images, equally many for every client (FedPPD, Table 8).

    images_each: a client's. server: images that no client has.
    """

    name = "iid"

    min_test: int = option(0, low=0)
    images_each: Annotated[int, Bounds(low=1)]
    server: Annotated[int, Bounds(low=0)]

    def largest(self, images: int) -> int:
        return self.images_each

    def check_room(self, train: int, test: int) -> None:
        super().check_room(train, test)
        if self.clients * self.images_each > train - self.server:
            raise InputError(
                f"partition.images_each: {self.clients} clients with {self.images_each} images each need "
                f"{self.clients * self.images_each}; there are {train - self.server}"
            )

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal `images_each` random training images to every client, and `server` to the server (FedPPD, Table 8).

        Nobody gets test images. Raises InputError for too few images.
        """
        random = rng.generator(seed, "partition")
        server, rest = self.set_aside(train_labels, random)
        hands = rest[: self.clients * self.images_each].reshape(self.clients, self.images_each)
        return of_training_images(list(hands), server, self)
