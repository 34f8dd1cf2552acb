"""The error of a user's mistake, the hint that names what would be right, and what is said of a machine's faults."""

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Input that is refused before any work; the command line prints its one line and exits with 2.

    The line stays one whatever the input holds: characters that do not print are written as Python writes them.
    """

    def __init__(self, text: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def fault(error: Exception) -> str | None:
    """One line about a fault of the machine, a full disk, a folder that is not writable, memory that ran out, and what to do;
    None for any other error, which is ours and wants its traceback."""
    again = "what is finished is kept; start the same command again once that is mended"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; {again}"
    if out_of_memory(error):
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "allocation failed"
        return f"memory ran out ({reason[:200]}); {again}, with fewer jobs at once"
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of its GPU: no fault of whosever code was running."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def nearest(value: object, valid: Iterable[object]) -> str:
    """The words that end an error on a wrong name: the closest of `valid`, or all of them."""
    names = [str(name) for name in valid]
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(sorted(names))}"
