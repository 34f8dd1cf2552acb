"""The scheme of data that name their clients: writers, hospitals, devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bayesfed.core.errors import InputError
from bayesfed.data.records import NOBODY
from bayesfed.data.schemes.base import Indices, Partition, Scheme, of_training_images, packed

if TYPE_CHECKING:
    from bayesfed.data.schemes.spec import PartitionSpec
    from bayesfed.data.source import Source


class Given(Scheme):
    """Every client's own images, as the data say."""

    name = "given"
    deals_test = True
    by = "clients"

    def check_data(self, source: Source, spec: PartitionSpec) -> None:
        super().check_data(source, spec)
        if spec.clients != source.clients:
            raise InputError(
                f"partition.clients: {spec.clients}, but dataset '{source.name}' has {source.clients} clients; write that"
            )

    def draw(self, train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
        """Give every client its own images, as the array `clients` of the data says.

        Both arrays are of clients' numbers here. Nobody gets test images where they are in common. Raises InputError for
        a client with fewer images than asked for.
        """
        hands = [[np.flatnonzero(clients == k) for k in range(spec.clients)] for clients in (train_labels, test_labels)]
        common = bool((test_labels == NOBODY).all())
        if common and spec.min_test:
            raise InputError(f"partition.min_test: {spec.min_test}, but the test images are in common; set it to 0")
        for split, held, least in zip(("train", "test"), hands, (spec.min_train, spec.min_test), strict=True):
            short = [k for k, hand in enumerate(held) if len(hand) < least]
            if short:
                raise InputError(
                    f"partition.min_{split}: {len(short)} of {spec.clients} clients have fewer than {least} images, client "
                    f"{short[0]} {len(held[short[0]])} (`clients` in dataset.json has its name); lower it, or leave them out"
                )
        return of_training_images(hands[0]) if common else Partition(*packed(hands[0]), *packed(hands[1]))
