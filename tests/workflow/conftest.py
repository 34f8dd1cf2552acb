"""A finished run of the test config, and fresh clones of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from clone import RESULTS, Clone, copy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them in one process, where tests run side by side: the finished run is made once."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("workflow"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The test config, run whole; read it, and change only copies."""
    clone = Clone(tmp_path_factory.mktemp("finished"))
    clone.snakemake()
    return clone


@pytest.fixture
def fresh(finished: Clone, tmp_path: Path) -> Clone:
    """A fresh clone that got the finished results, but none of Snakemake's records, with times in any order."""
    clone = Clone(tmp_path)
    for part in RESULTS:
        copy(finished.folder / part, tmp_path / part)
    for number, path in enumerate(sorted(tmp_path.rglob("*.*"), key=lambda path: hash(path.name))):
        os.utime(path, (1e9 + number, 1e9 + number))
    return clone
