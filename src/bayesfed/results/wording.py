"""How values, names and lists of them are written."""

from collections.abc import Iterable


def text(value: object) -> str:
    """A value as records and plans write it: numbers by `%g` where that is all of them, nothing as ""."""
    if value is None:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def spoken(name: object) -> str:
    """A name of the code as people write it."""
    return str(name).replace("_", " ")


def unique(values: Iterable[str]) -> list[str]:
    """The different values, in order of first appearance."""
    return list(dict.fromkeys(values))
