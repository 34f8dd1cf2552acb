"""The error of a user's mistake, and the hint that names what would be right."""

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Input that is refused before any work; the command line prints its one line and exits with 2."""


def nearest(value: object, valid: Iterable[object]) -> str:
    """The words that end an error on a wrong name: the closest of `valid`, or all of them."""
    names = [str(name) for name in valid]
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(sorted(names))}"
