"""The schemes that divide a dataset among clients: one class each, with its options, from labels and seed to a partition.

A new scheme of ours is a class in one of these modules, and an entry in SCHEMES (`known.py`). It is a public name of Python
too (`bayesfed/__init__.py`). One of a user's own is in `partitions/` of the plugins folder.
"""

from bayesfed.data.schemes.base import NO_IMAGES, Indices, Partition, Scheme, of_training_images, packed
from bayesfed.data.schemes.check import wrongly_dealt
from bayesfed.data.schemes.counts import IID, Shards
from bayesfed.data.schemes.dirichlet import Dirichlet, DirichletClient, DirichletFloor, QuantitySkew, TwoLevel
from bayesfed.data.schemes.features import NoiseSkew, RotationSkew
from bayesfed.data.schemes.given import Given
from bayesfed.data.schemes.known import (
    SCHEMES,
    divide,
    keys_of,
    own_source,
    partition_keys,
    read,
    registry,
    scheme_named,
)
from bayesfed.data.schemes.labels import ClassesApart, Labels5, TwoClasses
from bayesfed.data.schemes.whole import Whole

__all__ = [
    "IID", "NO_IMAGES", "SCHEMES", "ClassesApart", "Dirichlet", "DirichletClient", "DirichletFloor", "Given",
    "Indices", "Labels5", "NoiseSkew", "Partition", "QuantitySkew", "RotationSkew", "Scheme", "Shards", "TwoClasses", "TwoLevel", "Whole", "divide",
    "keys_of", "of_training_images", "own_source", "packed", "partition_keys", "read", "registry", "scheme_named",
    "wrongly_dealt",
]  # fmt: skip
