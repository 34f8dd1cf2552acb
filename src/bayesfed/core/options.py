"""Options as dataclass fields with bounds, and the reading of a mapping into them with one-line errors."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from bayesfed.core.errors import InputError, nearest

T = TypeVar("T")


def option(default: Any = dataclasses.MISSING, *, low: float | None = None, above: float | None = None,
           high: float | None = None) -> Any:  # fmt: skip
    """A field that must be at least `low`, greater than `above` and at most `high`; required without default."""
    return dataclasses.field(default=default, metadata={"low": low, "above": above, "high": high})


def read(cls: type[T], mapping: object, where: str = "") -> T:
    """An instance of the dataclass `cls` from the keys of `mapping`; `where` stands before a key in errors.

    Raises InputError for an unknown or missing key, a wrong type, a value out of range or not among the choices.
    """
    prefix = f"{where}." if where else ""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = hints_of(cls)  # type: ignore[arg-type]
    mapping, values = check_keys(mapping, fields, where), {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = check(mapping[name], hints[name], field.metadata, prefix + name)
        elif dataclasses.MISSING is field.default is field.default_factory:
            raise InputError(f"{prefix}{name}: this key is missing")
    return cls(**values)


hints_of = functools.cache(typing.get_type_hints)
PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def fault(cls: type) -> str:
    """Why a run file cannot give a field of a dataclass; "" where it can give all of them."""
    try:
        hints = hints_of(cls)
    except NameError as error:
        return f"a type of its options is not known: {error}"
    defaults = {field.name: field for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING}
    for name, kind in hints.items():
        if readable(kind) and name in defaults:
            try:
                check(defaults[name].default, kind, defaults[name].metadata, name)
            except InputError as error:
                return f"its default of {error}"
        if not readable(kind):
            return (
                f"its option '{name}' has the type {cls.__annotations__.get(name, kind)}, which no run file can give; take int, "
                "float, bool, str, a Literal of texts, one of these `| None`, or a tuple[kind, ...] of one"
            )
    return ""


def readable(kind: Any) -> bool:
    """Whether `check` knows a kind."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        return (
            len(inside) == 2 and type(None) in inside and all(readable(one) for one in inside if one is not type(None))
        )
    if origin is tuple:
        return len(inside) == 2 and inside[1] is ... and readable(inside[0])
    return kind is Any or origin is typing.Literal or (isinstance(kind, type) and kind in PLAIN)


UNIONS = (types.UnionType, typing.Union)
LARGEST = 2**31 - 1  # of whole numbers without another bound: more would fit neither memory nor torch's counters


def check(value: Any, kind: Any, bounds: Mapping[str, Any], key: str) -> Any:
    """`value` as `kind` within `bounds`; InputError names `key`.

    A kind is int, float, bool, str, a Literal of strings, one of these or None, tuple[kind, ...] (a list), or Any.
    """
    if kind is Any:
        return value
    if typing.get_origin(kind) in UNIONS:  # `float | None`
        if value is None:
            return None
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{key}: expected a list, found {value!r}")
        return tuple(check(one, typing.get_args(kind)[0], bounds, key) for one in value)
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            if str(value) in choices:
                raise InputError(f"{key}: {value!r} is a choice as text; write it in quotes, '{value}'")
            raise InputError(f"{key}: '{value}' is not a choice; {nearest(value, choices)}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        power = kind is float and isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+e[-+]?\d+", value, re.I)
        hint = " (YAML reads 1e-4 as text: write 1.0e-4)" if power else ""
        raise InputError(f"{key}: expected {PLAIN[kind]}, found {value!r}{hint}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key}: expected a finite number, found {value}")
    if isinstance(value, int) and value > LARGEST and bounds.get("high") is None:
        raise InputError(f"{key}: {reprlib.repr(value)} is out of range; it must be at most {LARGEST}")
    low, above, high = bounds.get("low"), bounds.get("above"), bounds.get("high")
    inside = (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high)
    if not inside:
        raise InputError(f"{key}: {reprlib.repr(value)} is out of range; it must be {bounds_in_words(bounds)}")
    return value


def kind_in_words(kind: Any) -> str:
    """What a field of a kind takes: `a number`, `one of a, b`."""
    inside = typing.get_args(kind)
    if typing.get_origin(kind) in UNIONS:
        return " or ".join("null" if one is type(None) else kind_in_words(one) for one in inside)
    if typing.get_origin(kind) is tuple:
        return f"a list, each {kind_in_words(inside[0])}"
    return f"one of {', '.join(inside)}" if inside else PLAIN.get(kind, "anything")


def bounds_in_words(bounds: Mapping[str, Any]) -> str:
    """The bounds of a field: `above 0 and at most 1`; "" without any."""
    low, above, high = bounds.get("low"), bounds.get("above"), bounds.get("high")
    found = [f"at least {low:g}"] if low is not None else []
    found += [f"above {above:g}"] if above is not None else []
    found += [f"at most {high:g}" if isinstance(high, float) else f"at most {high}"] if high is not None else []
    return " and ".join(found)


def plain(value: Any) -> Any:
    """A mapping of options with Python's own numbers and texts in the place of numpy's, at any depth."""
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    # numpy's own, told by what they can do, since nothing here imports numpy.
    return value.tolist() if hasattr(value, "tolist") else value


def not_default(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass instance that differ from their defaults, in order."""
    return {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if getattr(instance, field.name) != field.default
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def check_mapping(value: object, where: str) -> Mapping[str, Any]:
    """The value, where it is a mapping; raises InputError otherwise."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where or 'run file'}: expected keys and values, found {reprlib.repr(value)}")
    return value


def check_keys(value: object, valid: Iterable[str], where: str) -> Mapping[str, Any]:
    """The value, where it is a mapping with these keys and no other; raises InputError otherwise.

    `where` stands before a key; "" at the top of a run file.
    """
    mapping, valid = check_mapping(value, where), list(valid)
    for key in mapping:
        if key not in valid:
            raise InputError(f"{f'{where}.' if where else ''}{key}: unknown key; {nearest(key, valid)}")
    return mapping
