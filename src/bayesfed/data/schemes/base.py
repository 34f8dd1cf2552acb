"""The contract of a partition scheme, and the partition that it draws."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bayesfed.core.errors import InputError
from bayesfed.core.options import bounds_of, check, hints_of, option, plain

if TYPE_CHECKING:
    from bayesfed.data.source import Source

USUAL = "dirichlet_class_shared"  # the scheme of a run file that names none
Indices = NDArray[np.int64]
NO_IMAGES: Indices = np.zeros(0, np.int64)
LONGEST = 150  # bytes of a label; a file's name has at most 255, with seed and digests


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


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A way to deal a dataset to clients, with its options: the block `partition` of a run file.

    A subclass is a dataclass too: its fields are the scheme's own options, with their types, bounds and defaults.

    clients: how many. min_train, min_test: the images that every client must hold (assumption A17; 0 takes any sample).
    Raises InputError for a value of a wrong type or out of range.
    """

    # The name in run files.
    name: ClassVar[str]
    # True if clients get test images.
    deals_test: ClassVar[bool] = False
    # True if every image of both splits is dealt; else some may be left over.
    deals_all: ClassVar[bool] = False
    # The array of each split that `draw` gets: its labels, or the numbers of its clients, where the data name some.
    by: ClassVar[Literal["labels", "clients"]] = "labels"
    # True if clients may have images in common.
    in_common: ClassVar[bool] = False
    # True if indices of both halves count in the pool of both splits, training images first; some may be left over, and the
    # server has none.
    pooled: ClassVar[bool] = False

    clients: int = option(10, low=1)
    min_train: int = option(10, low=0)
    min_test: int = option(1, low=0)

    def __post_init__(self) -> None:
        for one in fields(self):
            key = f"partition.{one.name}"
            value = check(plain(getattr(self, one.name)), hints_of(type(self))[one.name], bounds_of(one), key)
            if isinstance(value, float) and not math.isclose(float(f"{value:g}"), value, rel_tol=1e-12):
                raise InputError(f"{key}: {value!r} has more digits than names hold; write {value:g}")
            object.__setattr__(self, one.name, value)  # as a run file gives it: 1 as 1.0, numpy's numbers as Python's
        if self.min_test and not self.deals_test:
            raise InputError(
                f"partition.min_test: {self.min_test}, but scheme {self.name} deals no test images; set it to 0"
            )

    @abstractmethod
    def draw(self, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        """Draw the partition of labels (N,); raise InputError if the options cannot be met."""

    def seen(self, images: NDArray[Any], client: int, random: np.random.Generator) -> NDArray[Any]:
        """Return some images (n, ...) of a client as it sees them, in the same shape and dtype: as they are.

        `random`: the client's own stream for the split.
        """
        return images

    @property
    def changes_images(self) -> bool:
        """True if clients see images otherwise than they are."""
        return type(self).seen is not Scheme.seen

    @property
    def aside(self) -> int | None:
        """The number of training images that the server gets; None if the scheme sets none aside."""
        return None

    def largest(self, images: int) -> int:
        """Return the number of training images, of so many, that no client has more of."""
        return images

    @property
    def own_options(self) -> dict[str, Any]:
        """The scheme's own options, without the three that every scheme has."""
        return {key: value for key, value in vars(self).items() if key not in COMMON}

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return the block `partition` of a run file; without `defaults` what differs from them alone.

        Keys of runs are made from the latter. There `min_test` counts as 1 by default, whatever the scheme's own default.
        """
        if defaults:
            return {"scheme": self.name, "alpha": None} | vars(self)  # records have an alpha for every scheme
        usual = {one.name: one.default for one in (*fields(self), *fields(Scheme))} | {"scheme": USUAL}
        return {key: value for key, value in ({"scheme": self.name} | vars(self)).items() if value != usual[key]}

    @property
    def label(self) -> str:
        """Part of a file name for the scheme: `dirichlet_class_shared-alpha~0.05-clients~10`.

        A long one has a digest in place of the options.
        """
        least = {key: getattr(self, key) for key in ("min_train", "min_test")}
        unusual = {key: value for key, value in least.items() if value != getattr(Scheme, key)}
        own = self.own_options
        alpha = {"alpha": own.pop("alpha")} if "alpha" in own else {}
        values = alpha | {"clients": self.clients} | own | unusual
        whole = "-".join([self.name, *(f"{key}~{in_name(value)}" for key, value in values.items())])
        return whole if len(whole.encode()) <= LONGEST else f"{self.name}-{short_digest(whole)}"

    def check_data(self, source: Source) -> None:
        """Raise InputError for a dataset that the scheme cannot deal, before it is loaded."""
        if self.by == "clients" and not source.clients:
            raise InputError(
                f"partition.scheme: {self.name} deals by the array `clients` of the data, and dataset '{source.name}' has none; "
                "take another scheme"
            )

    def check_room(self, train: int, test: int) -> None:
        """Raise InputError if splits of so many images are too small, whatever their labels."""
        if self.in_common or self.pooled:
            return
        for split, images, least in (("training", train, max(self.min_train, 1)), ("test", test, self.min_test)):
            if self.clients * least > images:
                raise InputError(
                    f"partition.clients: {self.clients} clients with at least {least} {split} images need "
                    f"{self.clients * least}, there are {images}: at most {images // least} clients fit"
                )


COMMON = tuple(one.name for one in fields(Scheme))  # options that every scheme has


def in_name(value: Any) -> str:
    """Write an option's value as a part of a file's name: by a digest where it has other characters than names may have."""
    if isinstance(value, tuple):
        return "+".join(map(in_name, value))
    text = format(value, "g") if isinstance(value, float) else str(value)
    return text if re.fullmatch(r"[\w.+-]*", text) else short_digest(text)


def short_digest(text: str) -> str:
    """Return 12 hex digits over a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def of_training_images(hands: list[Indices], server: Indices = NO_IMAGES, scheme: Scheme | None = None) -> Partition:
    """Return a partition of the training images alone.

    With a scheme, raises InputError for a client with fewer images than it asks for.
    """
    fewest = min(map(len, hands))
    if scheme and fewest < scheme.min_train:
        raise InputError(f"partition: a client gets {fewest} training images, fewer than min_train {scheme.min_train}")
    return Partition(*packed(hands), *packed([NO_IMAGES] * len(hands)), server)


def packed(hands: list[Indices]) -> tuple[Indices, Indices]:
    """Return indices and offsets of one split from the images of each client."""
    offsets = np.cumsum([0, *map(len, hands)], dtype=np.int64)
    return np.concatenate([np.sort(hand) for hand in hands]).astype(np.int64), offsets
