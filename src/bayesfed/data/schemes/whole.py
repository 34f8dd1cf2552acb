"""The scheme of multi-task learning, which deals nothing: every client holds a dataset of its own."""

from __future__ import annotations

from dataclasses import dataclass

from bayesfed.core.errors import InputError
from bayesfed.data.schemes.base import Indices, Partition, Scheme


@dataclass(frozen=True, kw_only=True)
class Whole(Scheme):
    """A whole dataset for every client, so that a run has as many datasets as clients (multi-task learning)."""

    name = "whole"
    deals_test = True

    def check_room(self, train: int, test: int) -> None:
        pass  # no client shares a dataset with another

    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Give client k all of dataset k."""
        raise InputError("partition.scheme: whole needs no partition file; each client holds a dataset")
