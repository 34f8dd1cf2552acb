"""The schemes that divide a dataset among clients: one class each, from labels, spec and seed to a partition.

A new scheme is a class in one of these modules, and an entry in SCHEMES (`spec.py`).
"""

from bayesfed.data.schemes.base import NO_IMAGES, Indices, Partition, Scheme
from bayesfed.data.schemes.spec import SCHEMES, WHOLE, PartitionSpec, divide

__all__ = ["NO_IMAGES", "SCHEMES", "WHOLE", "Indices", "Partition", "PartitionSpec", "Scheme", "divide"]
