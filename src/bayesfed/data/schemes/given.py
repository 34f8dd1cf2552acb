"""The scheme of data that name their clients: writers, hospitals, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bayesfed.core.errors import InputError
from bayesfed.data.records import NOBODY
from bayesfed.data.schemes.base import Indices, Partition, Scheme, of_training_images, packed

if TYPE_CHECKING:
    from bayesfed.data.source import Source


@dataclass(frozen=True, kw_only=True)
class Given(Scheme):
    """Every client's own images, as the array `clients` of the data says."""

    name = "given"
    deals_test = True
    by = "clients"

    def check_data(self, source: Source) -> None:
        super().check_data(source)
        if self.clients != source.clients:
            raise InputError(
                f"partition.clients: {self.clients}, but dataset '{source.name}' has {source.clients} clients; write that"
            )

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Give every client its own images, as the array `clients` of the data says.

        Both arrays are of clients' numbers here. Nobody gets test images where they are in common. Raises InputError for
        a client with fewer images than asked for.
        """
        hands = [[np.flatnonzero(clients == k) for k in range(self.clients)] for clients in (train_labels, test_labels)]
        common = bool((test_labels == NOBODY).all())
        if common and self.min_test:
            raise InputError(f"partition.min_test: {self.min_test}, but the test images are in common; set it to 0")
        for split, held, least in zip(("train", "test"), hands, (self.min_train, self.min_test), strict=True):
            short = [k for k, hand in enumerate(held) if len(hand) < least]
            if short:
                raise InputError(
                    f"partition.min_{split}: {len(short)} of {self.clients} clients have fewer than {least} images, client "
                    f"{short[0]} {len(held[short[0]])} (`clients` in dataset.json has its name); lower it, or leave them out"
                )
        return of_training_images(hands[0]) if common else Partition(*packed(hands[0]), *packed(hands[1]))
