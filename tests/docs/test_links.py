"""Every link and picture of every Markdown page leads to a file that is there, and to a heading of it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"|(?m:^\[[^\]]+\]: (\S+)$)")


def pages() -> list[Path]:
    """All Markdown files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [PROJECT / name for name in sorted(set(names)) if (PROJECT / name).exists()]


def without_code(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"(?ms)^ *(`{3,}).*?^ *\1 *$", "", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in map("".join, LINK.findall(without_code(text))):
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if "://" not in link and not (target.exists() and (not heading or heading in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page, page.read_text(encoding="utf-8")) == []


def test_dead_links_are_found() -> None:
    page = PROJECT / "README.md"
    text = "[a](nowhere.md) [b](#methods) [c](STYLE.md#nothing) ![d](docs/images/report.png) [e](https://example.org)"
    assert dead(page, text) == ["nowhere.md", "STYLE.md#nothing"]


def test_the_repository_has_one_address() -> None:
    """Wherever a file must give it; pyproject.toml decides."""
    urls = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    for name, url in (
        ("README.md", urls["Repository"]),
        ("CITATION.cff", urls["Repository"]),
        ("mkdocs.yml", urls["Repository"]),
        ("mkdocs.yml", urls["Documentation"]),
    ):
        assert url in (PROJECT / name).read_text(encoding="utf-8"), name
