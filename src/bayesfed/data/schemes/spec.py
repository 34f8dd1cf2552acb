"""The block `partition` of a run file, the schemes by name, ours and a user's own, and the sampling of a partition."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesfed.core import options, plugins
from bayesfed.core.errors import InputError, nearest
from bayesfed.data.schemes.base import Indices, Partition, Scheme
from bayesfed.data.schemes.check import wrongly_dealt
from bayesfed.data.schemes.counts import IID, Shards
from bayesfed.data.schemes.dirichlet import DirichletClassFloor, DirichletClassShared, DirichletClient, QuantitySkew
from bayesfed.data.schemes.features import NoiseSkew, RotationSkew
from bayesfed.data.schemes.given import Given
from bayesfed.data.schemes.labels import LABELS5_SIZES, ClassesApart, Labels5

WHOLE = "whole"  # deals nothing: client k holds all of the run's dataset k (multi-task)
OPTIONS = ("shards", "shards_each", "share", "least", "images_each", "server", "size")  # of single schemes
LARGEST_ALPHA = 1e9  # far above it sampling overflows; long before it all shares are equal

SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        DirichletClassShared(), DirichletClassFloor(), DirichletClient(), ClassesApart(), Labels5(), Shards(), IID(), Given(),
        QuantitySkew(), NoiseSkew(), RotationSkew(),
    )
}  # fmt: skip


def fault(name: str, scheme: Any) -> str:
    """Say what keeps this from being a partition scheme; "" if nothing does."""
    if not (isinstance(scheme, type) and issubclass(scheme, Scheme)):
        return "expected a class derived from bayesfed.data.schemes.Scheme"
    if missing := sorted(scheme.__abstractmethods__):
        return f"the class has no `{missing[0]}`"
    if not dataclasses.is_dataclass(scheme.Options):
        return "its Options are no dataclass; write @dataclass(frozen=True) above the class"
    if taken := {field.name for field in dataclasses.fields(scheme.Options)} & {*PartitionSpec.__dataclass_fields__}:
        return f"its option '{min(taken)}' is a key of every partition; rename it"
    if scheme.in_common and scheme.seen is not Scheme.seen:
        return "clients may have images in common, so none can see them otherwise than the others; leave `seen` out"
    return options.fault(scheme.Options)


registry = plugins.Modules("partitions", "partition scheme", lambda: {**SCHEMES, WHOLE: None}, "SCHEME", fault)


def scheme_named(name: str) -> Scheme | None:
    """Return the scheme of that name; None for `whole`. Raises InputError with the nearest name."""
    found = registry.plugin(name, "partition.scheme").value()
    return found() if isinstance(found, type) else found


def partition_keys() -> list[str]:
    """Return every key that the block `partition` may have, by one scheme or another."""
    every = [found for name in (*registry.ours(), *registry.own()) if (found := scheme_named(name))]
    own = [field.name for one in every for field in dataclasses.fields(one.Options)]
    return list(dict.fromkeys([*(key for key in PartitionSpec.__dataclass_fields__ if key != "more"), *own]))


def own_source(name: str) -> str:
    """Return the digest of the source of a user's own scheme; "" for ours."""
    return registry.plugin(name, "partition.scheme").digest()


@dataclass(frozen=True)
class PartitionSpec:
    """The division of a dataset; raises InputError for a scheme, alpha or count that cannot be.

    `scheme` is one of SCHEMES, or `whole`. `min_train` and `min_test` are the images every client must hold (assumption
    A17; 0 takes any sample). The other options are those of single schemes: each wants its own, and no other.
    """

    scheme: str = "dirichlet_class_shared"
    alpha: float | None = None
    clients: int = 10
    min_train: int = 10
    min_test: int = 1
    shards: int | None = None  # that the training images are cut into
    shards_each: int | None = None  # of these, a client's
    share: float | None = None  # of each of its shards, what a client takes
    least: int | None = None  # images of every class that a client has beside them
    images_each: int | None = None  # a client's
    server: int | None = None  # images that the server has, and no client
    size: str | None = None  # one of LABELS5_SIZES
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata={"rest": True}, hash=False)  # see `own`

    def __post_init__(self) -> None:
        scheme = scheme_named(self.scheme)
        for key, least in (("clients", 1), ("min_train", 0), ("min_test", 0)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"partition.{key}: {value!r} is not a whole number from {least}")
        for key in OPTIONS:
            self.check_option(key, scheme is not None and key in scheme.options)
        if scheme and not scheme.deals_test and self.min_test:
            raise InputError(
                f"partition.min_test: {self.min_test}, but scheme {self.scheme} deals no test images; set it to 0"
            )
        self.check_alpha(scheme is not None and scheme.dirichlet)
        named = scheme.all_options if scheme else ()
        options.check_keys(
            self.more, [*(key for key in vars(self) if key not in (*OPTIONS, "more")), *named], "partition"
        )
        for key, value in vars(self.own).items():
            if isinstance(value, float) and float(f"{value:g}") != value:
                raise InputError(f"partition.{key}: {value!r} has more digits than names hold; write {value:g}")

    @property
    def rule(self) -> Scheme:
        """The scheme. Nobody asks for that of `whole`."""
        found = scheme_named(self.scheme)
        assert found is not None
        return found

    @property
    def own(self) -> Any:
        """The options that the scheme declares in its `Options`."""
        scheme = scheme_named(self.scheme)
        return options.read(scheme.Options if scheme else Scheme.Options, self.more, "partition")

    def check_alpha(self, wanted: bool) -> None:
        """Raise InputError for an alpha that is missing, out of range, or of a scheme without one."""
        if not wanted:
            if self.alpha is not None:
                raise InputError(
                    f"partition.alpha: {self.alpha!r} means nothing with scheme {self.scheme}; leave it out"
                )
            return
        if self.alpha is None:
            raise InputError("partition.alpha is missing; give a number > 0, e.g. 0.05")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise InputError(f"partition.alpha: {self.alpha!r} is not a number; give one > 0, e.g. 0.05")
        if not 0 < self.alpha <= LARGEST_ALPHA:
            raise InputError(f"partition.alpha: {self.alpha!r} is not above 0 and up to {LARGEST_ALPHA:g}; e.g. 0.05")
        if not math.isclose(float(f"{self.alpha:g}"), self.alpha, rel_tol=1e-12):
            raise InputError(f"partition.alpha: {self.alpha!r} has more digits than names hold; write {self.alpha:g}")

    def check_option(self, key: str, wanted: bool) -> None:
        """Raise InputError for a scheme's own option that is missing, out of range, or another scheme's."""
        value = getattr(self, key)
        if not wanted:
            if value is not None:
                raise InputError(f"partition.{key}: {value!r} means nothing with scheme {self.scheme}; leave it out")
        elif key == "size":
            if value not in LABELS5_SIZES:
                raise InputError(
                    f"partition.size: {value!r} is no size of labels5; {nearest(str(value), LABELS5_SIZES)}"
                )
        elif key == "share":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value <= 1 or float(f"{value:g}") != value:
                raise InputError(
                    f"partition.share: {value!r} is not a number above 0 and up to 1 of at most six digits"
                )
        else:
            low = 0 if key in ("least", "server") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InputError(
                    f"partition.{key}: {value!r} is not a whole number from {low}; scheme {self.scheme} needs it"
                )

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return all of it except options of other schemes; without `defaults` what differs from them alone."""
        if not defaults:
            own = options.not_default(self.own)
            return {key: value for key, value in options.not_default(self).items() if key != "more"} | own
        found = {key: value for key, value in vars(self).items() if key not in OPTIONS or value is not None}
        del found["more"]
        return found | vars(self.own)

    @property
    def label(self) -> str:
        """Part of a file name for the spec: `dirichlet_class_shared-alpha~0.05-clients~10`."""
        parts = [self.scheme]
        if self.alpha is not None:
            parts.append(f"alpha~{self.alpha:g}")
        parts.append(f"clients~{self.clients}")
        for key in (one for one in OPTIONS if getattr(self, one) is not None):
            value = getattr(self, key)
            parts.append(f"{key}~{value if isinstance(value, str) else format(value, 'g')}")
        parts += [f"{key}~{in_name(value)}" for key, value in vars(self.own).items()]
        for key in ("min_train", "min_test"):
            if getattr(self, key) != getattr(PartitionSpec, key):
                parts.append(f"{key}~{getattr(self, key)}")
        return "-".join(parts)


def in_name(value: Any) -> str:
    """Write an option's value as a part of a file's name."""
    if isinstance(value, tuple):
        return "+".join(map(in_name, value))
    return format(value, "g") if isinstance(value, float) else str(value)


def divide(train_labels: Indices, test_labels: Indices, spec: PartitionSpec, seed: int) -> Partition:
    """Draw the partition of a spec, from the arrays that its scheme deals by; raise InputError as the scheme does, and
    for what a user's own scheme raises or deals wrongly.
    """
    if spec.scheme in SCHEMES:
        return SCHEMES[spec.scheme].draw(train_labels, test_labels, spec, seed)
    origin = registry.plugin(spec.scheme, "partition.scheme").origin
    with plugins.one_line(origin):
        found = spec.rule.draw(train_labels, test_labels, spec, seed)
    if wrong := wrongly_dealt(found, spec.rule, spec.clients, len(train_labels), len(test_labels)):
        raise InputError(f"{origin}: partition scheme '{spec.scheme}': {wrong}")
    for split, offsets, least in (
        ("train", found.train_offsets, spec.min_train),
        ("test", found.test_offsets, spec.min_test),
    ):
        if (fewest := int(np.diff(offsets).min())) < least:
            raise InputError(f"partition.min_{split}: {least}, but a client gets {fewest} {split} images; lower it")
    return found
