"""Values, names and lists of them as text."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def text(value: object) -> str:
    """Write a value as records and plans do: numbers by `%g` if that keeps every digit, None as ""."""
    if value is None:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def spoken(name: object) -> str:
    """Write a name of the code as people do."""
    return str(name).replace("_", " ")


def unique(values: Iterable[str]) -> list[str]:
    """List the different values, in order of first appearance."""
    return list(dict.fromkeys(values))


def duration(seconds: float) -> tuple[str, str]:
    """Write a time in seconds as people say it: the number and its unit."""
    if seconds < 59.5:
        return f"{seconds:.0f}", "s"
    minutes = round(seconds / 60)
    return (str(minutes), "min") if minutes < 60 else (f"{seconds / 3600:.1f}", "h")


def thinned(places: Sequence[T], most: int) -> list[T]:
    """At most so many of the places of a curve: the last, and every n-th before it."""
    every = max(1, -(-len(places) // most))
    return list(places[::-1][::every][::-1])
