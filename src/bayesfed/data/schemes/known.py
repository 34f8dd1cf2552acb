"""The schemes by name, ours and a user's own; the block `partition` of a run file, read; and the sampling of a partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from bayesfed.core import options, plugins
from bayesfed.core.errors import InputError
from bayesfed.data.schemes.base import COMMON, USUAL, Indices, Partition, Scheme
from bayesfed.data.schemes.check import wrongly_dealt
from bayesfed.data.schemes.counts import IID, Shards
from bayesfed.data.schemes.dirichlet import Dirichlet, DirichletClient, DirichletFloor, QuantitySkew, TwoLevel
from bayesfed.data.schemes.features import NoiseSkew, RotationSkew
from bayesfed.data.schemes.given import Given
from bayesfed.data.schemes.labels import ClassesApart, Labels5, TwoClasses
from bayesfed.data.schemes.whole import Whole

SCHEMES: Mapping[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        Dirichlet, DirichletFloor, DirichletClient, ClassesApart, Labels5, Shards, IID, Given, TwoLevel, TwoClasses, QuantitySkew, NoiseSkew,
        RotationSkew, Whole,
    )
}  # fmt: skip


def fault(name: str, scheme: Any) -> str:
    """Name what keeps this from being a partition scheme; "" if nothing does."""
    if not (isinstance(scheme, type) and issubclass(scheme, Scheme)):
        return "expected a class derived from bayesfed.data.schemes.Scheme"
    if missing := sorted(scheme.__abstractmethods__):
        return f"the class has no `{missing[0]}`"
    if scheme.in_common and scheme.seen is not Scheme.seen:
        return "clients may have images in common, so none can see them otherwise than the others; leave `seen` out"
    if wrong := options.fault(scheme):
        return wrong
    if taken := [key for key in COMMON if options.hints_of(scheme)[key] is not int]:
        return f"its option '{taken[0]}' is a key of every partition, a whole number; rename it"
    return ""


registry = plugins.Modules("partitions", "partition scheme", lambda: SCHEMES, "SCHEME", fault)


def scheme_named(name: str) -> type[Scheme]:
    """Return the scheme of that name; raise InputError with the nearest name if there is none."""
    scheme: type[Scheme] = registry.plugin(name, "partition.scheme").value()
    return scheme


def keys_of(scheme: type[Scheme]) -> list[str]:
    """Return the keys that the block `partition` may have with a scheme."""
    return ["scheme", *(field.name for field in fields(scheme))]


def partition_keys() -> list[str]:
    """Return every key that the block `partition` may have, with one scheme or another."""
    names = (*registry.ours(), *registry.own())
    return list(dict.fromkeys(key for name in names for key in keys_of(scheme_named(name))))


def read(value: object) -> Scheme:
    """Return the scheme of a block `partition`; raise InputError for anything in it that is wrong."""
    block = options.check_mapping(value, "partition")
    name = options.check(block.get("scheme", USUAL), str, options.NONE, "partition.scheme")
    scheme = scheme_named(name)
    others = [key for key in block if key not in keys_of(scheme) and key in partition_keys()]
    for key in others:
        if block[key] is not None:  # records have `alpha: null` for a scheme without one
            raise InputError(f"partition.{key}: {block[key]!r} means nothing with scheme {name}; leave it out")
    return options.read(scheme, {key: block[key] for key in block if key not in ("scheme", *others)}, "partition")


def own_source(name: str) -> str:
    """Return the digest of the source of a user's own scheme; "" for ours."""
    return registry.plugin(name, "partition.scheme").digest()


def divide(train_labels: Indices, test_labels: Indices, scheme: Scheme, seed: int) -> Partition:
    """Draw a scheme's partition, from the arrays that it deals by; raise InputError as the scheme does, and for what a
    user's own scheme raises or deals wrongly.
    """
    if scheme.name in SCHEMES:
        return scheme.draw(train_labels, test_labels, seed)
    origin = registry.plugin(scheme.name, "partition.scheme").origin
    with plugins.one_line(origin):
        found = scheme.draw(train_labels, test_labels, seed)
    if wrong := wrongly_dealt(found, scheme, len(train_labels), len(test_labels)):
        raise InputError(f"{origin}: partition scheme '{scheme.name}': {wrong}")
    with plugins.one_line(origin):
        again = vars(scheme.draw(train_labels, test_labels, seed))
    if not all(np.array_equal(array, again[name]) for name, array in vars(found).items()):
        raise InputError(
            f"{origin}: partition scheme '{scheme.name}': draw was called again with the same seed and dealt otherwise; draw "
            'from rng.generator(seed, "partition"), and take nothing else that changes'
        )
    for split, offsets, least in (
        ("train", found.train_offsets, scheme.min_train),
        ("test", found.test_offsets, scheme.min_test),
    ):
        if (fewest := int(np.diff(offsets).min())) < least:
            raise InputError(f"partition.min_{split}: {least}, but a client gets {fewest} {split} images; lower it")
    return found
