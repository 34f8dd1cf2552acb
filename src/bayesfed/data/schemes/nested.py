"""Schemes of plugins that hold their options in a class `Options`, and whose methods take them as `spec.own`.

Their files stay as they are, so that the keys of their finished runs stay, too. A new scheme has fields (`base.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.core.options import hints_of
from bayesfed.data.schemes.base import Indices, Partition, Scheme
from bayesfed.data.schemes.dirichlet import Concentration


@functools.cache
def as_fields(scheme: type[Scheme]) -> type[Scheme]:
    """Return a scheme with its nested options as fields; any other as it is."""
    given: Any = scheme
    if "spec" not in inspect.signature(given.draw).parameters:
        return scheme

    @functools.wraps(given.draw)
    def draw(self: Scheme, train_labels: Indices, test_labels: Indices, seed: int) -> Partition:
        return given.draw(self, train_labels, test_labels, self, seed)  # type: ignore[no-any-return]

    def seen(self: Scheme, images: NDArray[Any], client: int, random: np.random.Generator) -> NDArray[Any]:
        return given.seen(self, images, client, self, random)  # type: ignore[no-any-return]

    members: dict[str, Any] = {"draw": draw, "own": property(lambda self: self)}
    if given.seen is not Scheme.seen:
        members["seen"] = seen
    options = getattr(given, "Options", None)
    own: list[Any] = [("alpha", Concentration)] if getattr(given, "dirichlet", False) else []
    own += [
        (one.name, hints_of(options)[one.name], dataclasses.field(default=one.default, metadata=one.metadata))
        for one in (dataclasses.fields(options) if options else ())
    ]
    return dataclasses.make_dataclass(given.__name__, own, bases=(given,), namespace=members, frozen=True, kw_only=True)
