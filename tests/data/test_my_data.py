"""The example of a dataset of one's own with a reader: its README's commands, from the project's folder."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from bayesfed import cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_data"


def test_its_commands_train_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "my_data")
    monkeypatch.chdir(tmp_path)
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^bayesfed (.+)$", readme, re.M)
    assert [cli.main(shlex.split(command)) for command in commands] == [0, 0]
    assert len(readme.splitlines()) <= 15
    summary = json.loads(Path("runs/stripes/summary.json").read_text())
    assert summary["global"]["accuracy_last"] > 0.9
