"""The methods, one file each; the registry finds every module here that defines METHOD."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from bayesfed.errors import InputError, nearest
from bayesfed.methods.base import Method


@cache
def registry() -> dict[str, type[Method]]:
    """Every method by name."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        method = getattr(importlib.import_module(f"{__name__}.{module.name}"), "METHOD", None)
        if method is not None:
            found[method.name] = method
    return found


def names() -> list[str]:
    """The names of all methods, sorted."""
    return sorted(registry())


def get(name: object) -> type[Method]:
    """The method of that name; raises InputError with the nearest name."""
    if name not in registry():
        raise InputError(f"method.name: no method is named '{name}'; {nearest(name, registry())}")
    return registry()[str(name)]
