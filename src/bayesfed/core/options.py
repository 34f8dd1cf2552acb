"""Options as dataclass fields with bounds, and the one reader of mappings into them, with one-line errors.

Run files, methods' options, configs and papers are all dataclasses that `read` fills.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from bayesfed.core.errors import InputError, nearest, nearest_key

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a value beside its kind; for a type by `Annotated[tuple[int, ...], Bounds(least=1)]`.

    low, above, high, below: of a number, or of each in a list. least: of letters, of a list's values, of a mapping's keys.
    unique: no value of a list twice. pattern: what a whole text must match; `words` say it in errors.
    """

    low: float | None = None
    above: float | None = None
    high: float | None = None
    least: int = 0
    unique: bool = False
    pattern: str = ""
    words: str = ""
    below: float | None = None


NONE = Bounds()


def option(default: Any = dataclasses.MISSING, *, low: float | None = None, above: float | None = None,
           high: float | None = None, below: float | None = None) -> Any:  # fmt: skip
    """Return a field that must be at least `low`, greater than `above`, at most `high` and less than `below`; required
    without default."""
    return dataclasses.field(default=default, metadata={"bounds": Bounds(low, above, high, below=below)})


def optional() -> Any:
    """Return a field that a file may leave out: an empty mapping then."""
    return dataclasses.field(default_factory=dict)


def rest() -> Any:
    """Return a field, a Mapping, that takes all keys which are no field of their own."""
    return dataclasses.field(default_factory=dict, metadata={"rest": True})


def read(cls: type[T], mapping: object, where: str = "") -> T:
    """Return an instance of the dataclass `cls` from the keys of `mapping`; `where` precedes a key in errors.

    Raises InputError for an unknown or missing key, a wrong type, a value out of range or not among the choices.
    """
    prefix = f"{where}." if where else ""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = hints_of(cls)  # type: ignore[arg-type]
    others = next((name for name, field in fields.items() if field.metadata.get("rest")), None)
    named = fields.keys() - {others}
    mapping = check_mapping(mapping, where) if others else check_keys(mapping, fields, where)
    values = {
        name: check(mapping[name], hints[name], bounds_of(field), prefix + name)
        for name, field in fields.items()
        if name in mapping and name in named
    }
    if others:
        left = {key: value for key, value in mapping.items() if key not in named}
        values[others] = check(left, hints[others], NONE, where)
    for name, field in fields.items():
        if name not in values and dataclasses.MISSING is field.default is field.default_factory:
            raise InputError(f"{prefix}{name} is missing; {remedy(hints[name], bounds_of(field))}")
    return cls(**values)


def bounds_of(field: dataclasses.Field[Any]) -> Bounds:
    """Return the bounds that `option` gave a field."""
    bounds: Bounds = field.metadata.get("bounds", NONE)
    return bounds


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, `Annotated` ones with their bounds."""
    return typing.get_type_hints(cls, include_extras=True)


PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def fault(cls: type) -> str:
    """Name why a run file cannot give a field of a dataclass; "" where it can give all of them."""
    try:
        hints = hints_of(cls)
    except NameError as error:
        return f"a type of its options is not known: {error}"
    fields = {field.name: field for field in dataclasses.fields(cls)}
    defaults = {name: field for name, field in fields.items() if field.default is not dataclasses.MISSING}
    for name, kind in hints.items():
        if typing.get_origin(kind) is typing.ClassVar:
            continue
        if name not in fields:
            return f"its option '{name}' is no field; write @dataclass(frozen=True, kw_only=True) above the class"
        if readable(kind) and name in defaults:
            try:
                check(defaults[name].default, kind, bounds_of(defaults[name]), name)
            except InputError as error:
                return f"its default of {error}"
        if not readable(kind):
            return (
                f"its option '{name}' has the type {cls.__annotations__.get(name, kind)}, which no run file can give; take int, "
                "float, bool, str, a Literal of texts, one of these `| None`, or a tuple[kind, ...] of one"
            )
    return ""


def readable(kind: Any) -> bool:
    """Return True if an option may have a kind: a plain value in a run file, or a list of such."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return readable(inside[0])
    if origin in UNIONS:
        return (
            len(inside) == 2 and type(None) in inside and all(readable(one) for one in inside if one is not type(None))
        )
    if origin is tuple:
        return len(inside) == 2 and inside[1] is ... and readable(inside[0])
    return kind is Any or origin is typing.Literal or (isinstance(kind, type) and kind in PLAIN)


UNIONS = (types.UnionType, typing.Union)
LARGEST = 2**31 - 1  # of whole numbers without another bound: more would fit neither memory nor torch's counters


def check(value: Any, kind: Any, bounds: Bounds, key: str) -> Any:
    """`value` as `kind` within `bounds`; InputError names `key`.

    A kind is int, float, bool, str, a Literal of strings, tuple[kind, ...] (a list), Mapping[str, kind], a dataclass, one of
    several of these (`str | tuple[str, ...]`, `int | None`), each of them as `Annotated[kind, Bounds(...)]`, or Any (what
    JSON has, too).
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return check(value, inside[0], inside[1], key)
    if origin in UNIONS:
        return check_union(value, inside, bounds, key)
    if origin is tuple:
        return check_list(value, inside[0], bounds, key)
    if origin is Mapping:
        return check_map(value, inside, bounds, key)
    if origin is typing.Literal:
        return check_choice(value, inside, key)
    if dataclasses.is_dataclass(kind):
        return read(kind, value, key)  # type: ignore[arg-type]
    return check_any(value, key) if kind is Any else check_plain(value, kind, bounds, key)


def check_union(value: Any, kinds: tuple[Any, ...], bounds: Bounds, key: str) -> Any:
    """`value` as the one of several kinds that it looks like."""
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    alike = [kind for kind in kinds if isinstance(value, list | tuple) == (typing.get_origin(kind) is tuple)]
    return check(value, (alike or kinds)[0], bounds, key)


def check_list(value: Any, kind: Any, bounds: Bounds, key: str) -> tuple[Any, ...]:
    """Return the values of a list, each as `kind`."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{key}: expected a list, found {found(value)}")
    enough(value, bounds, "a list of {}", key)
    if bounds.unique and any(one in value[:place] for place, one in enumerate(value)):
        raise InputError(f"{key}: expected each once, found {reprlib.repr(value)}")
    of_numbers = Bounds(bounds.low, bounds.above, bounds.high, below=bounds.below)
    return tuple(check(one, kind, of_numbers, f"{key}[{place}]") for place, one in enumerate(value))


def check_map(value: Any, kinds: tuple[Any, Any], bounds: Bounds, key: str) -> dict[str, Any]:
    """Return a mapping, its keys and values each as one of two `kinds`."""
    mapping = check_mapping(value, key)
    enough(mapping, bounds, "{} keys", key)
    for name in mapping:
        if not isinstance(name, str):
            raise InputError(f"{key}: expected text as a key, found {name}; put it in quotes")
        check(name, kinds[0], NONE, key)
    return {name: check(one, kinds[1], NONE, f"{key}.{name}") for name, one in mapping.items()}


def check_choice(value: Any, choices: tuple[Any, ...], key: str) -> Any:
    """`value`, where it is one of these texts."""
    if value in choices:
        return value
    if str(value) in choices:
        raise InputError(f"{key}: {value!r} is a choice as text; write it in quotes, '{value}'")
    raise InputError(f"{key}: '{value}' is not a choice; {nearest(value, choices)}")


def check_any(value: Any, key: str) -> Any:
    """`value`, where JSON has it, too: no dates and sets, no keys that are no text, no numbers that are not finite."""
    if isinstance(value, Mapping):
        return check_map(value, (str, Any), NONE, key)
    if isinstance(value, list | tuple):
        return [check_any(one, f"{key}[{place}]") for place, one in enumerate(value)]
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise InputError(f"{key}: expected a finite number, found {reprlib.repr(value)}")
    if value is not None and not isinstance(value, int | float | str):
        raise InputError(f"{key}: expected text, found {found(value)}")
    return value


def check_plain(value: Any, kind: Any, bounds: Bounds, key: str) -> Any:
    """`value` as a number, a truth value or a text."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        power = kind is float and isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+e[-+]?\d+", value, re.I)
        hint = " (YAML reads 1e-4 as text: write 1.0e-4)" if power else ""
        raise InputError(f"{key}: expected {PLAIN[kind]}, found {found(value)}{hint}")
    if isinstance(value, str):
        return check_text(value, bounds, key)
    return check_number(value, bounds, key)


def check_text(value: str, bounds: Bounds, key: str) -> str:
    """Return a text that is long enough, and matches its pattern."""
    enough(value, bounds, "{} letters", key)
    if bounds.pattern and not re.fullmatch(bounds.pattern, value, re.DOTALL):
        raise InputError(f"{key}: expected {bounds.words}, found {value!r}")
    return value


def check_number(value: float, bounds: Bounds, key: str) -> float:
    """Return a finite number in range."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key}: expected a finite number, found {value}")
    if isinstance(value, int) and value > LARGEST and bounds.high is None:
        raise InputError(f"{key}: {reprlib.repr(value)} is out of range; it must be at most {LARGEST}")
    low, above, high = bounds.low, bounds.above, bounds.high
    inside = (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high)
    if not inside or (bounds.below is not None and value >= bounds.below):
        raise InputError(f"{key}: {reprlib.repr(value)} is out of range; it must be {bounds_in_words(bounds)}")
    return value


def enough(value: Any, bounds: Bounds, words: str, key: str) -> None:
    """Refuse a text, a list or a mapping that is shorter than its bound; `words` say of what there are too few."""
    if len(value) < bounds.least:
        raise InputError(f"{key}: expected {words.format(f'{bounds.least} or more')}, found {reprlib.repr(value)}")


def found(value: Any) -> str:
    """Show a value of the wrong kind as an error does."""
    shown = reprlib.repr(value) if isinstance(value, list) else repr(value)
    return f"{value}; put it in quotes" if isinstance(value, datetime.date) else shown


def kind_in_words(kind: Any) -> str:
    """Name what a field of a kind takes: `a number`, `one of a, b`."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return kind_in_words(inside[0])
    if origin in UNIONS:
        return " or ".join("null" if one is type(None) else kind_in_words(one) for one in inside)
    if origin is Mapping or dataclasses.is_dataclass(kind):
        return "keys and values"
    if origin is tuple:
        return f"a list, each {kind_in_words(inside[0])}"
    return f"one of {', '.join(inside)}" if inside else PLAIN.get(kind, "anything")


def remedy(kind: Any, bounds: Bounds) -> str:
    """Name what to give for a missing key of a kind: `give a number above 0`."""
    if typing.get_origin(kind) is typing.Annotated:
        kind, bounds = typing.get_args(kind)
    return " ".join(filter(None, ("give", kind_in_words(kind), bounds_in_words(bounds))))


def bounds_in_words(bounds: Bounds) -> str:
    """Name the bounds of a number: `above 0 and at most 1`; "" without any."""
    low, above, high = bounds.low, bounds.above, bounds.high
    found = [f"at least {low:g}"] if low is not None else []
    found += [f"above {above:g}"] if above is not None else []
    found += [f"at most {high:g}" if isinstance(high, float) else f"at most {high}"] if high is not None else []
    found += [f"below {bounds.below:g}"] if bounds.below is not None else []
    return " and ".join(found)


def plain(value: Any) -> Any:
    """Replace numpy's numbers and texts in a mapping of options with Python's own, at any depth."""
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    # numpy's own, told by what they can do, since nothing here imports numpy.
    return value.tolist() if hasattr(value, "tolist") else value


def not_default(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance that differ from their defaults, in order."""
    return {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if getattr(instance, field.name) != field.default
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def check_mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return the value, where it is a mapping; raises InputError otherwise."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where or 'run file'}: expected keys and values, found {reprlib.repr(value)}")
    return value


def check_keys(value: object, valid: Iterable[str], where: str) -> Mapping[str, Any]:
    """Return the value, where it is a mapping with these keys and no other; raises InputError otherwise.

    `where` precedes a key; "" at the top of a run file.
    """
    mapping, valid = check_mapping(value, where), list(valid)
    for key in mapping:
        if key not in valid:
            hint = nearest(key, valid) if where else nearest_key(key, valid)
            raise InputError(f"{f'{where}.' if where else ''}{key}: unknown key; {hint}")
    return mapping
