"""The checkable part of STYLE.md over all Markdown: length of sentences, words, pages and table cells."""

from __future__ import annotations

import ast
import io
import itertools
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
WRITTEN = "<!-- Written by "
LONGEST_SENTENCE, LONGEST_CELL, LONGEST_PAGE = 30, 40, 200
WORDS = (
    r"printed", r"(in|of|from|beside|than|with) print", r"print's", r"stands?(?! for|-in)", r"standing", r"readings", r"(a|the|our|this|one|another) reading",
    r"(a|the) draw", r"draws? of", r"in balance", r"foreign (data|images?)", r"own mistakes", r"own parts", r"likewise",
    r"but for", r"anew", r"hangs? on", r"(is|are|was) worth", r"of it", r"dear(er|est)?", r"(are|is) level", r"level with",
    r"houses?", r"floors?", r"rooms?", r"desks?", r"lanes?", r"tapes?",
)  # fmt: skip
BANNED = re.compile(rf"(?i)\b({'|'.join(WORDS)})\b")
ABBREVIATED = r"(?<!\be\.g)(?<!\bi\.e)(?<!\beq)(?<!\bal)(?<!\bvs)"


def pages() -> list[Path]:
    """All Markdown files that git knows or would add, without those that commands write whole."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [PROJECT / name for name in sorted(set(names)) if not name.startswith("results/")]
    return [page for page in found if page.exists() and not page.read_text(encoding="utf-8").startswith(WRITTEN)]


PAGES = pages()
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())


def prose(page: str) -> str:
    """A page without code blocks, comments and what commands write between markers."""
    page = re.sub(r"(?s)<!-- \S+: written by .*?<!-- end -->", "", page)
    page = re.sub(r"(?ms)^ *(`{3,}).*?^ *\1 *$", "", page)
    return re.sub(r"(?s)<!--.*?-->|^\$\$.*?\$\$$", "", page)


def plain(text: str) -> str:
    """Text without Markdown's marks: a link is its words, code is one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "code", text).replace("*", "")


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs, list items, headings and table cells of a page, each in one line."""
    lines: list[str] = []
    for line in [*prose(page).splitlines(), ""]:
        stripped = line.strip()
        starts = re.match(r"([*+-]|\d+\.) |#+ ", stripped)
        if lines and (not stripped or starts or stripped.startswith(("|", ":::"))):
            yield plain(" ".join(lines))
            lines = []
        if stripped.startswith("|"):
            yield from map(plain, cells(stripped))
        elif stripped and not stripped.startswith(":::"):
            lines.append(re.sub(r"^([*+-]|\d+\.|#+) ", "", stripped))


def cells(row: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))]


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page."""
    for text in paragraphs(page):
        yield from re.split(rf"{ABBREVIATED}[.!?][)\"]?\s+(?=[a-z]*[A-Z0-9(\"α-ω†‡]|code)", text)


def words(text: str) -> int:
    """The words of a text; marks between them are none."""
    return len(re.findall(r"\S*\w\S*", text))


@EVERY_PAGE
def test_sentences_are_short(page: Path) -> None:
    long = [f"{words(one)} words: {one}" for one in sentences(page.read_text(encoding="utf-8"))
            if words(one) > LONGEST_SENTENCE]  # fmt: skip
    assert not long, "\n".join(long)


@EVERY_PAGE
def test_words_are_the_fields(page: Path) -> None:
    if page.name == "STYLE.md":  # it names them
        return
    found = [text for text in paragraphs(page.read_text(encoding="utf-8")) if BANNED.search(text)]
    assert not found, "\n".join(found)


@EVERY_PAGE
def test_pages_and_cells_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_PAGE
    rows = [line for line in prose(text).splitlines() if line.strip().startswith("|")]
    assert [cell for row in rows for cell in cells(row) if words(plain(cell)) > LONGEST_CELL] == []


@EVERY_PAGE
def test_lists_and_tables_begin_after_an_empty_line(page: Path) -> None:
    """GitHub shows them otherwise too, the site does not."""
    lines = prose(page.read_text(encoding="utf-8")).splitlines()
    item = re.compile(r"([*-]|\d+\.) ")
    for before, line in itertools.pairwise(lines):
        text = bool(before.strip()) and not item.match(before) and not before.startswith((" ", "#", "|"))
        assert not (text and (item.match(line) or line.startswith("|"))), line


def test_readme_is_a_door() -> None:
    """Its first screen ends behind the headline table."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 180
    assert sum(words(one) for one in paragraphs(text)) <= 1200
    assert lines.index("<!-- end -->") < 45


def test_contributing_and_changelog_are_short() -> None:
    assert len((PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 80
    assert len((PROJECT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_what_is_a_sentence() -> None:
    page = """\
# A title

One sentence, e.g. this. Another (with
a second line). `code` begins the third.

* An item. Two.

| a cell | b \\| c |
|---|---|

```text
No prose. None.
```

<!-- x: written by `a` -->
Not ours. No.
<!-- end -->
"""
    found = [one.rstrip(".") for one in sentences(page)]
    assert [one for one in found if one.strip("-")] == [
        "A title", "One sentence, e.g. this", "Another (with a second line)", "code begins the third", "An item", "Two",
        "a cell", "b \\| c",
    ]  # fmt: skip


# Code may say `floor` of a number and "a copy of it".
WORDS_OF_CODE = [words for words in WORDS if words not in (r"of it", r"floors?", r"foreign (data|images?)")]
OF_CODE = re.compile(rf"(?i).{{0,40}}\b({'|'.join(WORDS_OF_CODE)}|foreign (data|images?|datasets?))\b")
FOLDERS = ("core", "bayes", "metrics", "models", "data", "methods", "runs", "engine", "papers", "plan", "cli")
MODULES = [path for folder in FOLDERS for path in sorted((PROJECT / "src/bayesfed" / folder).rglob("*.py"))]


def said(module: Path) -> Iterator[tuple[int, str]]:
    """The docstrings, messages and comments of a module, with their lines; code in them is one word."""
    source = module.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in node.values)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.relative_to(PROJECT / "src").as_posix())
def test_words_of_code_are_the_fields(module: Path) -> None:
    """In docstrings, messages and comments; the keys `tasks.foreign` and `foreign` of configs keep their names."""
    found = []
    for line, text in said(module):
        text = re.sub(r"\b(tasks\.)?foreign:", "code:", re.sub(r"`[^`]*`", "code", " ".join(text.split())))
        found += [f"{line}: {match[0]}" for match in OF_CODE.finditer(text)]
    assert not found, "\n".join(found)
