"""README's table of methods has every method, by its label and its file."""

import importlib
import re
import subprocess
import tomllib
from pathlib import Path

from bayesfed import methods

PROJECT = Path(__file__).parents[2]
FILES = [
    path for path in (PROJECT / "src/bayesfed/methods").glob("*.py") if re.search(r"^METHOD = ", path.read_text(), re.M)
]


def test_every_method_is_in_the_table_with_its_file() -> None:
    """Each by its label."""
    section = (PROJECT / "README.md").read_text().split("\n## Methods\n")[1].split("\n## ")[0]
    rows = section.split("|---|---|\n")[1].split("\n\n")[0].splitlines()
    found = []
    for row in rows:
        _, listed = row.strip("| ").split(" | ")
        for title, file, place in re.findall(r"(?:^|[,;] )(.+?) \(\[`(\w+)\.py`\]\((.+?)\)\)", listed):
            found.append(file)
            assert place == f"src/bayesfed/methods/{file}.py"
            label = methods.get(importlib.import_module(f"bayesfed.methods.{file}").METHOD.name).label
            assert label in title
    assert sorted(found) == sorted(path.stem for path in FILES)


def test_the_number_of_methods() -> None:
    assert f"* **{len(FILES)} methods**" in (PROJECT / "README.md").read_text()


def test_the_address_of_the_repository_is_in_one_place_each() -> None:
    """So that another address is four edits; the clone's folder does not follow from it."""
    address = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    command = ["git", "grep", "--count", "--fixed-strings", address, "--", ":!results", ":!docs/results"]
    found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(found) == ["CITATION.cff:1", "README.md:1", "mkdocs.yml:1", "pyproject.toml:1"]
    assert f"git clone --depth 1 {address} bayesfed && cd bayesfed " in (PROJECT / "README.md").read_text()
