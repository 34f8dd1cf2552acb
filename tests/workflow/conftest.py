"""A finished run of the test config, clones of its results, and copies of the whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.clone import RESULTS, Clone, copy

from bayesfed.core import files, plugins


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The test config, run whole; read it, and change only copies. Processes that run tests side by side share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = shared / "finished.made"
    with files.locked(shared / "finished.lock", "another process runs the test config"):
        clone = Clone(shared / "finished")
        if not made.exists():
            clone.make_plan("config/test.yaml")
            clone.snakemake()
            made.touch()
    return clone


@pytest.fixture
def fresh(finished: Clone, tmp_path: Path) -> Clone:
    """A fresh clone that got the finished results, but none of Snakemake's records, with times in any order."""
    clone = Clone(tmp_path)
    for part in RESULTS:
        copy(finished.folder / part, tmp_path / part)
    shutil.rmtree(tmp_path / "results" / "test" / "logs")  # git ignores it
    for number, path in enumerate(sorted(tmp_path.rglob("*.*"), key=lambda path: hash(path.name))):
        os.utime(path, (1e9 + number, 1e9 + number))
    return clone


@pytest.fixture
def moved(finished: Clone, tmp_path: Path) -> Clone:
    """The whole folder, records and times too, as another place has it after a move."""
    shutil.copytree(finished.folder, tmp_path, dirs_exist_ok=True, symlinks=True)
    return Clone(tmp_path)


@pytest.fixture
def with_plugins() -> Iterator[None]:
    """Calls in this process may take plugins; behind the test none are in use."""
    yield
    plugins.use(None)
