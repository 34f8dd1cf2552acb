"""How values, names and lists of them are written."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def text(value: object) -> str:
    """Give a value as records and plans write it: numbers by `%g` where that is all of them, nothing as ""."""
    if value is None:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def spoken(name: object) -> str:
    """Give a name of the code as people write it."""
    return str(name).replace("_", " ")


def unique(values: Iterable[str]) -> list[str]:
    """Give the different values, in order of first appearance."""
    return list(dict.fromkeys(values))


def duration(seconds: float) -> tuple[str, str]:
    """Give a time as people say it: the number and its unit."""
    if seconds < 59.5:
        return f"{seconds:.0f}", "s"
    minutes = round(seconds / 60)
    return (str(minutes), "min") if minutes < 60 else (f"{seconds / 3600:.1f}", "h")


def thinned(places: Sequence[T], most: int) -> list[T]:
    """At most so many of the places of a curve: the last, and every n-th before it."""
    every = max(1, -(-len(places) // most))
    return list(places[::-1][::every][::-1])
