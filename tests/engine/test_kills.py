"""Killed without warning at random moments, alone or two processes on one folder, a run ends with the bits of one that was
not.

The short form kills one that trains on the server too, twice; `make test-kills` kills every method fifty times.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.children import finished

from bayesfed import methods

TESTS = Path(__file__).parents[1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    long = metafunc.config.getoption("--hypothesis-profile") == "long"
    metafunc.parametrize("method", sorted(methods.ours()) if long else ["fedppd_distill"])
    metafunc.parametrize("kills", [50 if long else 2])


def test_a_run_survives_kills(
    method: str, kills: int, mapping: Callable[..., dict[str, Any]], data_dir: Path, tmp_path: Path
) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(mapping(method, rounds=3, stragglers=0.5, local_epochs=2)))
    command = [sys.executable, "-m", "helpers.killing", str(run_file), str(data_dir), str(tmp_path), str(kills), "1"]
    done = finished(command, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])})
    assert done.returncode == 0, done.stderr + "".join(path.read_text() for path in tmp_path.glob("*.log"))[-3000:]
    assert json.loads(done.stdout)["kills"] >= kills
