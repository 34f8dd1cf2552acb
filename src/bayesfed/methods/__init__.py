"""The methods, one file each: every module here that defines METHOD, and those of a user's own (`bayesfed.core.plugins`).

`bayesfed.methods.HBFL` is the class of a method by its name in Python, `HBFL(temperature=1e-4)` a choice of its options.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
import typing
from functools import cache
from typing import Any, Protocol, cast

from bayesfed.core import options, plugins
from bayesfed.core.errors import InputError, nearest
from bayesfed.methods.method import Method


@cache
def ours() -> dict[str, type[Method]]:
    """Every method of this package by name."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        method = getattr(importlib.import_module(f"{__name__}.{module.name}"), "METHOD", None)
        if method is not None:
            found[method.name] = method
    return found


def fault(name: str, method: Any) -> str:
    """Name what keeps this from being a method; "" if nothing does."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        return "expected a class derived from bayesfed.methods.base.Method"
    missing = [name for name in ("name", "label", "revision") if not hasattr(method, name)]
    if missing:
        return f"the class has no `{missing[0]}`"
    if not dataclasses.is_dataclass(method.Options):
        return "its Options are no dataclass; write @dataclass(frozen=True) above the class"
    if of_options := options.fault(method.Options) or lacks(method):
        return of_options
    if wrong := mistyped(method):
        return wrong
    if almost := misspelt(method):
        return almost
    if method.step is Method.step and method.phases is Method.phases:
        return "the class defines neither `step` nor `phases`, so a client would do nothing"
    if method.aggregate is Method.aggregate and method.finish is not Method.finish:
        return "the class defines `finish` and no `aggregate`, so what clients send would change nothing"
    return ""


def lacks(method: type[Method]) -> str:
    """Describe an option that the inherited constructor of a class reads, and its own Options do not have; "" for none."""
    base = next(one for one in method.__mro__ if "__init__" in vars(one))
    own = {option.name for option in dataclasses.fields(method.Options)}
    needed = dataclasses.fields(base.Options) if issubclass(base, Method) else ()
    missing = [option.name for option in needed if option.name not in own]
    inherits = f"{base.__name__}.Options"
    return f"its Options lack `{missing[0]}` of {inherits}; write `class Options({inherits}):`" if missing else ""


def mistyped(method: type[Method]) -> str:
    """Describe an attribute of a class that is not of the kind that `Method` says; "" where there is none."""
    for name, kind in options.hints_of(Method).items():
        value = getattr(method, name)
        (kind,) = typing.get_args(kind)  # of ClassVar
        try:
            options.check(value, kind, options.NONE, f"its `{name}`")
        except InputError as error:
            of_one = isinstance(value, str) and typing.get_origin(kind) is tuple
            return f"{error}; a tuple of one has a comma: ({value!r},)" if of_one else str(error)
    for name, part in vars(Method).items():
        if inspect.isfunction(part) and not callable(value := getattr(method, name)):
            return f"its `{name}` is {value!r}; expected a function"
    taken = inspect.signature(method.__init__)
    try:
        taken.bind(None, None)
    except TypeError:
        return f"its `__init__` takes ({', '.join(taken.parameters)}); expected (self, options)"
    return ""


def misspelt(method: type[Method]) -> str:
    """Describe an attribute of a class whose name is nearly that of a part that it does not define; "" where there is
    none.
    """
    parts, own = [part for part in dir(Method) if not part.startswith("_")], vars(method)
    lacks = [part for part in parts if part not in own]
    for name in (name for name in own if name not in parts and not name.startswith("_")):
        if close := difflib.get_close_matches(name, lacks, n=1, cutoff=0.8):
            return f"it has `{name}`, which nothing calls; is `{close[0]}` meant? Else name it otherwise"
    return ""


registry = plugins.Modules("methods", "method", ours, "METHOD", fault)


def get(name: object) -> type[Method]:
    """Return the method of that name; raises InputError with the nearest name."""
    method: type[Method] = registry.plugin(name, "method.name").value()
    return method


class MethodClass(Protocol):
    """The class of a method, as a run's choice of it is written."""

    def __call__(self, **options: Any) -> Method:
        """Return the method with these options; raises InputError as a run file does."""

    def describe(self) -> None:
        """Print what the method is, and its options with defaults and bounds."""


def classes() -> dict[str, type[Method]]:
    """Return the class of every method by its name in Python, ours and a user's own."""
    own = [part.value() for part in registry.own().values()]
    return {method.__name__: method for method in [*own, *ours().values()]}


def __getattr__(name: str) -> MethodClass:
    """Return a method's class, found when it is first asked for: methods are read from files that import this module."""
    if name[0].isupper():
        if found := classes().get(name):
            return cast(MethodClass, found)
        raise AttributeError(f"no method's class is named '{name}'; {nearest(name, classes())}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *classes()})
