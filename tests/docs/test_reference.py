"""The reference pages that are written by hand name every key, column and metric that there is."""

import dataclasses
import re
from pathlib import Path

import pytest

from bayesfed.data.schemes import partition_keys
from bayesfed.runs import run_file, schedule

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


@pytest.mark.parametrize("name", ["claims", "clients", "uncertainty", "*.compare"])
def test_every_column_of_the_tables_is_explained(name: str) -> None:
    heads = [file.read_text(encoding="utf-8").partition("\n")[0] for file in TABLES.glob(f"*/{name}.csv")]
    found = {column for head in heads for column in head.split(",")}
    assert found
    assert {column for column in found - OWN_AXES if column not in code("output-files.md")} == set()


def test_every_key_of_a_run_file_is_explained() -> None:
    plain = {field.name for cls in (run_file.Budget, schedule.Schedule) for field in dataclasses.fields(cls)}
    options = set(partition_keys())
    assert (plain | options) - code("run-file.md") == set()
