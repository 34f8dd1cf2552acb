"""The schemes that divide a dataset, as Python writes them: `Dirichlet(alpha=0.05, clients=10)`, a class each.

Fields and defaults are those of the block `partition` of a run file; `schemes/` has what each scheme does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bayesfed.core.options import plain, read
from bayesfed.data.schemes import PartitionSpec


@dataclass(frozen=True, kw_only=True)
class PartitionScheme:
    """A scheme with its options. Raises InputError for what cannot be."""

    scheme: ClassVar[str]
    clients: int = 10
    min_train: int = 10
    min_test: int = 1

    def __post_init__(self) -> None:
        read(PartitionSpec, plain(self.to_dict()), "partition")

    def to_dict(self) -> dict[str, Any]:
        """Return the block `partition` of a run file."""
        return {"scheme": self.scheme, **vars(self)}


@dataclass(frozen=True, kw_only=True)
class Dirichlet(PartitionScheme):
    """The same Dirichlet shares of each class in the training and the test split (HBFL)."""

    scheme = "dirichlet_class_shared"
    alpha: float


@dataclass(frozen=True, kw_only=True)
class DirichletFloor(PartitionScheme):
    """Dirichlet shares of each class, rounded down, without test images (FOLA's public code)."""

    scheme = "dirichlet_class_floor"
    alpha: float
    min_test: int = 0


@dataclass(frozen=True, kw_only=True)
class DirichletClient(PartitionScheme):
    """Equally many images for each client, whose classes follow Dirichlet shares of its own (the text of FOLA)."""

    scheme = "dirichlet_client"
    alpha: float
    min_test: int = 0


@dataclass(frozen=True, kw_only=True)
class ClassesApart(PartitionScheme):
    """Classes of its own for every client (FOLA's study of two clients)."""

    scheme = "classes_apart"


@dataclass(frozen=True, kw_only=True)
class QuantitySkew(PartitionScheme):
    """Dirichlet shares of all images, whatever their class (NIID-Bench)."""

    scheme = "quantity_skew"
    beta: float


@dataclass(frozen=True, kw_only=True)
class NoiseSkew(PartitionScheme):
    """Equal parts, with Gaussian noise that grows from client to client (NIID-Bench)."""

    scheme = "noise_skew"
    sigma: float


@dataclass(frozen=True, kw_only=True)
class RotationSkew(PartitionScheme):
    """Equal parts, turned by another angle from client to client."""

    scheme = "rotation_skew"
    angles: int = 4


@dataclass(frozen=True, kw_only=True)
class Given(PartitionScheme):
    """Every client's own images, as the array `clients` of the data says."""

    scheme = "given"


@dataclass(frozen=True, kw_only=True)
class Labels5(PartitionScheme):
    """Five labels for every client, from both splits together (pFedBayes)."""

    scheme = "labels5"
    size: Literal["small", "medium", "large"]


@dataclass(frozen=True, kw_only=True)
class Shards(PartitionScheme):
    """Shards of images sorted by label, and `least` images of every class (FedPPD's public code)."""

    scheme = "shards"
    shards: int
    shards_each: int
    share: float
    least: int
    server: int
    min_test: int = 0


@dataclass(frozen=True, kw_only=True)
class IID(PartitionScheme):
    """`images_each` random images for every client (FedPPD, Table 8)."""

    scheme = "iid"
    images_each: int
    server: int
    min_test: int = 0


@dataclass(frozen=True, kw_only=True)
class Whole(PartitionScheme):
    """A whole dataset for every client, so that a run has as many datasets as clients (multi-task learning)."""

    scheme = "whole"
