"""The reference pages that are written by hand name every key, column and metric that there is."""

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from analyses import reference
from bayesfed import methods
from bayesfed.data.schemes import partition_keys
from bayesfed.papers.spec import Config
from bayesfed.runs import schedule, spec

PROJECT = Path(__file__).parents[2]
REFERENCE = PROJECT / "docs" / "reference"
TABLES = PROJECT / "results" / "paper" / "tables"
OWN_AXES = {"clients", "lr", "method.lr", "mu", "rho_start", "size", "zeta", "personal_lr", "method.alpha", "lr_w",
            "active.by", "embedding"}  # fmt: skip
"""Columns of tables that are axes of a paper."""


def code(page: str) -> set[str]:
    """Everything that a page sets as code, outside of blocks."""
    text = re.sub(r"(?ms)^```.*?^```$", "", (REFERENCE / page).read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`]+)`", text))


def keys_of_blocks(page: str) -> set[str]:
    """The keys in the YAML blocks of a page, at any depth."""
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```$", (REFERENCE / page).read_text(encoding="utf-8"))
    return {key for block in blocks for key in re.findall(r"(\w+):", block)}


@pytest.mark.parametrize("name", ["claims", "clients", "uncertainty", "*.compare"])
def test_every_column_of_the_tables_is_explained(name: str) -> None:
    heads = [file.read_text(encoding="utf-8").partition("\n")[0] for file in TABLES.glob(f"*/{name}.csv")]
    found = {column for head in heads for column in head.split(",")}
    assert found
    assert {column for column in found - OWN_AXES if column not in code("output-files.md")} == set()


def test_every_key_of_a_run_file_is_explained() -> None:
    plain = {
        field.name
        for cls in (spec.Budget, spec.Tasks, spec.Active, schedule.Schedule)
        for field in dataclasses.fields(cls)
    }
    options = set(partition_keys())
    told = code("run-file.md") | keys_of_blocks("configuration.md")
    assert (plain | options) - told == set()


def test_every_key_of_a_config_is_explained_and_no_other() -> None:
    text = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    rows = text.split("\n## Keys\n")[1].split("\n## ")[0].splitlines()
    explained = [key for row in rows if row.startswith("| `") for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(explained) == sorted(field.name for field in dataclasses.fields(Config))


def test_every_config_is_listed() -> None:
    assert {path.name for path in (PROJECT / "config").glob("*.yaml")} <= code("configuration.md")


def test_options_are_told_with_their_bounds() -> None:
    rows = reference.options(methods.get("fedavgm")).splitlines()
    assert "| `server_lr` | `1.0` | a number, above 0 |" in rows
    assert "| `momentum` | `0.9` | a number, at least 0 and at most 1 |" in rows
    assert "| `optimizer_state` | `fresh` | `fresh`, `kept` |" in rows
    assert "| `clip` | `null` | a number or null, above 0 |" in rows


@pytest.mark.parametrize("page", ["architecture.md", "engine.md", "reproducibility.md", "benchmarks.md"])
def test_every_module_that_a_page_names_is_there(page: str) -> None:
    """By its path in the project, in the package or in a folder of it; folders by a slash at their end."""
    text = (PROJECT / "docs" / "internals" / page).read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w/.-]+(?:\.py|\.sh|/))`", text) if not name.startswith("results/")}
    assert named
    assert sorted(name for name in named if not is_there(name)) == []


def is_there(name: str) -> bool:
    """Return whether the project, or the package at any depth, has a file or folder of that name."""
    return (PROJECT / name).exists() or any((PROJECT / "src" / "bayesfed").rglob(name.rstrip("/")))


def test_the_row_that_is_explained_is_a_row() -> None:
    head, row = re.findall(r"(?m)^(dataset,setting,.*)\n(.*)$", (REFERENCE / "output-files.md").read_text())[0]
    shown = dict(zip(head.split(","), row.split(","), strict=True))
    with (TABLES / "hbfl" / "clients.csv").open(encoding="utf-8", newline="") as file:
        assert any(shown.items() <= one.items() for one in csv.DictReader(file))
    assert list(PROJECT.glob(f"results/paper/runs/cifar10/*/fml/{shown['run']}/summary.json"))
