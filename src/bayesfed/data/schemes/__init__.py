"""The schemes that divide a dataset among clients: one class each, from labels, spec and seed to a partition.

A new scheme of ours is a class in one of these modules, and an entry in SCHEMES (`spec.py`); one of a user's own is in
`partitions/` of the plugins folder.
"""

from bayesfed.data.schemes.base import NO_IMAGES, Indices, Partition, Scheme, of_training_images, packed
from bayesfed.data.schemes.check import wrongly_dealt
from bayesfed.data.schemes.spec import (
    SCHEMES,
    WHOLE,
    PartitionSpec,
    divide,
    own_source,
    partition_keys,
    registry,
    scheme_named,
)

__all__ = [
    "NO_IMAGES", "SCHEMES", "WHOLE", "Indices", "Partition", "PartitionSpec", "Scheme", "divide", "of_training_images",
    "own_source", "packed", "partition_keys", "registry", "scheme_named", "wrongly_dealt",
]  # fmt: skip
