"""The wheel alone, beside the light dependencies in an environment of its own: it lists, and it trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1]
LIGHT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]


def needed(names: list[str]) -> set[str]:
    """These requirements and all that they require here, by name."""
    found: set[str] = set()
    left = [Requirement(name) for name in names]
    while left:
        one = left.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            left += [Requirement(text) for text in metadata.requires(one.name) or ()]
    return found


def link(name: str, into: Path) -> None:
    """Link an installed distribution's packages and modules into another environment."""
    distribution = metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (into / top).exists():
            (into / top).symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of the wheel that the sources make, in an environment with the light dependencies alone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(PROJECT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=source, check=True
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    for name in needed(LIGHT):
        link(name, packages)
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", wheel], check=True)
    return folder / "venv" / "bin" / "bayesfed"


def run(command: Path, *arguments: str, folder: Path) -> str:
    """The output of the installed command, which sees nothing of the project."""
    whole = [str(command), *arguments]
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(whole, cwd=folder, env=threads, check=True, capture_output=True, text=True).stdout


def test_it_has_all_that_it_needs(installed: Path, tmp_path: Path, digits_dir: Path) -> None:
    assert run(installed, "--version", folder=tmp_path).startswith("bayesfed ")
    python = installed.with_name("python")
    light = (
        "import importlib.util as i; assert not any(map(i.find_spec, ('pandas', 'sklearn', 'snakemake', 'matplotlib')))"
    )
    subprocess.run([python, "-c", light], check=True, env={})
    shutil.copyfile(PROJECT / "examples" / "run.yaml", tmp_path / "run.yaml")
    shutil.copytree(digits_dir, tmp_path / "data")
    # Both in one process, which loads torch once.
    both = "from bayesfed.cli import main; main(['list', 'methods']); main('train run.yaml --out out --device cpu'.split())"
    assert "hbfl " in run(python, "-c", both, folder=tmp_path)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["global"]["accuracy_last"] > 0.5
