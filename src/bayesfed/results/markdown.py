"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rows))


def page(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], under: str) -> str:
    """Write a table with its title above, and a line below."""
    return f"**{title}**\n\n{table(head, rows)}\n{under}\n"
