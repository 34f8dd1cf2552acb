"""Shared by all schemes: the partition that a scheme draws, and the way from clients' images to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bayesfed.core.errors import InputError

if TYPE_CHECKING:
    from bayesfed.data.schemes.spec import PartitionSpec
    from bayesfed.data.source import Source

Indices = NDArray[np.int64]
NO_IMAGES: Indices = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Partition:
    """The images of each client: client k holds `indices[offsets[k]:offsets[k + 1]]` of each split, ascending.

    All arrays are int64. `server_indices`: the training images that a scheme sets aside for the server.
    """

    train_indices: Indices
    train_offsets: Indices
    test_indices: Indices
    test_offsets: Indices
    server_indices: Indices = field(default_factory=lambda: NO_IMAGES)

    def train(self, client: int) -> Indices:
        """Return the training images of `client`, counted from 0."""
        return self.train_indices[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test(self, client: int) -> Indices:
        """Return the test images of `client`, counted from 0."""
        return self.test_indices[self.test_offsets[client] : self.test_offsets[client + 1]]


class Scheme(ABC):
    """A way to deal a dataset to clients. Subclasses give `name`, `draw`, and what differs from the attributes here."""

    @dataclass(frozen=True)
    class Options:
        """The scheme's own keys in the block `partition`; `draw` finds them in `spec.own`."""

    name: ClassVar[str]
    # True if the scheme has an alpha.
    dirichlet: ClassVar[bool] = False
    # True if clients get test images.
    deals_test: ClassVar[bool] = False
    # True if every image of both splits is dealt; else some may be left over.
    deals_all: ClassVar[bool] = False
    # The array of each split that `draw` gets: its labels, or the numbers of its clients, where the data name some.
    by: ClassVar[Literal["labels", "clients"]] = "labels"
    # The scheme's own options among the fields of `PartitionSpec`, beside those in `Options`.
    options: ClassVar[tuple[str, ...]] = ()
    # True if clients may have images in common.
    in_common: ClassVar[bool] = False
    # True if indices of both halves count in the pool of both splits, training images first; some may be left over.
    pooled: ClassVar[bool] = False

    @abstractmethod
    def draw(self, train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
        """Draw the partition of labels (N,); raise InputError if the spec cannot be met."""

    def seen(self, images: NDArray[Any], client: int, spec: PartitionSpec, random: np.random.Generator) -> NDArray[Any]:
        """Return some images (n, ...) of a client as it sees them, in the same shape and dtype: as they are.

        `random`: the client's own stream for the split.
        """
        return images

    @property
    def changes_images(self) -> bool:
        """True if clients see images otherwise than they are."""
        return type(self).seen is not Scheme.seen

    @property
    def all_options(self) -> tuple[str, ...]:
        """The names of the scheme's own options."""
        return (*self.options, *(field.name for field in fields(self.Options)))

    def check_data(self, source: Source, spec: PartitionSpec) -> None:
        """Raise InputError for a dataset that the scheme cannot deal, before it is loaded."""
        if self.by == "clients" and not source.clients:
            raise InputError(
                f"partition.scheme: {self.name} deals by the array `clients` of the data, and dataset '{source.name}' has none; "
                "take another scheme"
            )

    def check_room(self, train: int, test: int, spec: PartitionSpec) -> None:
        """Raise InputError if splits of so many images are too small for the spec, whatever their labels."""
        server, each = spec.server or 0, spec.images_each or 0
        if server >= train:
            raise InputError(f"partition.server: {server} of {train} images leave none to the clients")
        if spec.clients * each > train - server:
            raise InputError(
                f"partition.images_each: {spec.clients} clients with {each} images each need {spec.clients * each}; "
                f"there are {train - server}"
            )
        if self.in_common or self.pooled:
            return
        for split, images, least in (("training", train, max(spec.min_train, 1)), ("test", test, spec.min_test)):
            if spec.clients * least > images:
                raise InputError(
                    f"partition.clients: {spec.clients} clients with at least {least} {split} images need "
                    f"{spec.clients * least}, there are {images}: at most {images // least} clients fit"
                )


def of_training_images(
    hands: list[Indices], server: Indices = NO_IMAGES, spec: PartitionSpec | None = None
) -> Partition:
    """Return a partition of the training images alone.

    With a spec, raises InputError for a client with fewer images than the spec asks for.
    """
    fewest = min(map(len, hands))
    if spec and fewest < spec.min_train:
        raise InputError(f"partition: a client gets {fewest} training images, fewer than min_train {spec.min_train}")
    return Partition(*packed(hands), *packed([NO_IMAGES] * len(hands)), server)


def packed(hands: list[Indices]) -> tuple[Indices, Indices]:
    """Return indices and offsets of one split from the images of each client."""
    offsets = np.cumsum([0, *map(len, hands)], dtype=np.int64)
    return np.concatenate([np.sort(hand) for hand in hands]).astype(np.int64), offsets
