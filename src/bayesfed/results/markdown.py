"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rows))
