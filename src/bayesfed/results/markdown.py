"""Tables in Markdown, and pages of them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bayesfed.core import files
from bayesfed.results.derived import Derived


def write(name: str, text: Callable[[Derived], str], found: Iterable[Derived], out: Path) -> list[Path]:
    """Write the text of each paper to `<out>/<paper>/<name>`; returns the files."""
    paths = {one: out / one.study.paper / name for one in found}
    for one, path in paths.items():
        files.write_text(path, text(one))
    return [*paths.values()]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rows))


def page(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], under: str) -> str:
    """Write a table with its title above, and a line below."""
    return f"**{title}**\n\n{table(head, rows)}\n{under}\n"
