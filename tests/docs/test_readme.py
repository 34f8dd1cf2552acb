"""README's table of methods has every method, by its label and its file."""

import importlib
import re
from pathlib import Path

from bayesfed import methods

PROJECT = Path(__file__).parents[2]
FILES = [
    path for path in (PROJECT / "src/bayesfed/methods").glob("*.py") if re.search(r"^METHOD = ", path.read_text(), re.M)
]


def test_every_method_is_in_the_table_with_its_file() -> None:
    section = (PROJECT / "README.md").read_text().split("\n## Methods\n")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| (.+?) \(\[`(\w+)\.py`\]\((src/bayesfed/methods/\w+\.py)\)\) \| (.+?) \| (.+?) \|$", section, re.M
    )
    assert len(rows) == len(section.split("|---|---|---|\n")[1].split("\n\n")[0].splitlines())
    found = {file: title for title, file, _, _, _ in rows}
    assert found.keys() == {path.stem for path in FILES}
    for title, file, place, _, papers in rows:
        assert place == f"src/bayesfed/methods/{file}.py"
        assert title.startswith(methods.get(importlib.import_module(f"bayesfed.methods.{file}").METHOD.name).label)
        assert papers == "all four" or set(papers.split(", ")) <= {"HBFL", "FOLA", "FedPPD", "pFedBayes"}


def test_the_number_of_methods() -> None:
    assert f"* **{len(FILES)} methods**" in (PROJECT / "README.md").read_text()
