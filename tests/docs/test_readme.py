"""README's table of methods has every method, by its label and its file; docs/design.md what a run file can name; every link
between the pages leads somewhere."""

import importlib
import re
from pathlib import Path

import pytest

from bayesfed import methods
from bayesfed.data.schemes import SCHEMES, WHOLE
from bayesfed.data.sources import SOURCES
from bayesfed.models import NETWORKS

PROJECT = Path(__file__).parents[2]
PAGES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("config/*.md")]


def test_every_method_stands_in_the_table_with_its_file() -> None:
    section = (PROJECT / "README.md").read_text().split("\n## Methods\n")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| (.+?) \| \[`(\w+)\.py`\]\((src/bayesfed/methods/\w+\.py)\) \| (.+?) \| (.*?) ?\|$", section, re.M
    )
    assert len(rows) == len(section.split("|---|---|---|---|\n")[1].strip().splitlines())
    found = {file: title for title, file, _, _, _ in rows}
    assert found.keys() == {path.stem for path in methods_files()}
    for title, file, place, papers, _ in rows:
        assert place == f"src/bayesfed/methods/{file}.py"
        assert title.startswith(methods.get(importlib.import_module(f"bayesfed.methods.{file}").METHOD.name).label)
        assert papers == "all four" or set(papers.split(", ")) <= {"HBFL", "FOLA", "FedPPD", "pFedBayes"}


def test_what_a_run_file_can_name() -> None:
    section = (PROJECT / "docs/design.md").read_text().split("\nWhat it can name")[1].split("\nBlocks that")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.M))
    named = {key: set(re.findall(r"`([\w-]+)`", text)) for key, text in rows.items()}
    assert named["dataset"] == set(SOURCES)
    assert named["models"] | {f"{name}_student" for name in named["models"] if name.startswith("fedppd")} == set(
        NETWORKS
    )
    options = {option for scheme in SCHEMES.values() for option in scheme.options}
    assert named["partition.scheme"] == {*SCHEMES, WHOLE, *options, "alpha"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, heading = link.partition("#")
        if "://" not in link:
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), link
            assert not heading or heading in headings(target), link


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def methods_files() -> list[Path]:
    """Those that define a METHOD."""
    folder = PROJECT / "src" / "bayesfed" / "methods"
    return [path for path in folder.glob("*.py") if re.search(r"^METHOD = ", path.read_text(), re.M)]
