"""Schemes whose clients differ in what images look like, and in nothing else: feature skew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.core.options import Bounds, option
from bayesfed.data.schemes.base import Indices, Partition, Scheme, packed


class EqualParts(Scheme):
    """Random images of both splits, equally many for every client."""

    deals_test = True
    deals_all = True

    def equal_parts(self, train: int, test: int, seed: int) -> Partition:
        """Deal splits of so many images."""
        self.check_room(train, test)
        random = rng.generator(seed, "partition")
        hands = [np.array_split(random.permutation(count), self.clients) for count in (train, test)]
        return Partition(*packed(hands[0]), *packed(hands[1]))


@dataclass(frozen=True, kw_only=True)
class NoiseSkew(EqualParts):
    """Equal parts, with Gaussian noise that grows from client to client (NIID-Bench). sigma: the largest variance."""

    name = "noise_skew"

    sigma: Annotated[float, Bounds(above=0, high=1e6)]

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal both splits equally, and add noise that grows from client to client (NIID-Bench: Li et al., ICDE 2022).

        Client k of K, counted from 1, has noise of variance sigma * k / K, of pixels from 0 to 1. It is drawn once, in
        training and test images alike, and pixels are rounded and cut to their range.
        """
        return self.equal_parts(len(train_labels), len(test_labels), seed)

    def seen(self, images: NDArray[Any], client: int, random: np.random.Generator) -> NDArray[Any]:
        noise = random.normal(0, (self.sigma * (client + 1) / self.clients) ** 0.5, images.shape)
        if images.dtype != np.uint8:
            return (images + noise).astype(images.dtype)
        return (images + 255 * noise).round().clip(0, 255).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class RotationSkew(EqualParts):
    """Equal parts, turned by another angle from client to client. angles: how many there are."""

    name = "rotation_skew"

    angles: int = option(4, low=2, high=4)

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Deal both splits equally, and turn the images of client k by k mod `angles` quarters (Ghosh et al., NeurIPS 2020).

        Training and test images alike; clients count from 0. Raises InputError for what is no square image.
        """
        return self.equal_parts(len(train_labels), len(test_labels), seed)

    def seen(self, images: NDArray[Any], client: int, random: np.random.Generator) -> NDArray[Any]:
        if images.ndim != 4 or images.shape[2] != images.shape[3]:
            raise InputError(
                f"partition.scheme: {self.name} turns square images (C, H, H), and these are {images.shape[1:]}; take another"
            )
        return np.rot90(images, client % self.angles, axes=(2, 3))
