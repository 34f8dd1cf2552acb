"""The dataset `mine` among a user's own plugins, in `own` below the working folder; runs on it, and refused commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bayesfed import cli
from bayesfed.core import plugins

FOLDER = Path("own/datasets/mine")


def write(splits: Mapping[str, Mapping[str, Any]], **description: Any) -> Path:
    """Write the dataset with the arrays of each split, and take the plugins into use; gives its folder."""
    (FOLDER / "dataset.yaml").write_text(yaml.safe_dump({"title": "Mine"} | description))
    for split, arrays in splits.items():
        np.savez(FOLDER / f"{split}.npz", **arrays)
    plugins.use("own")
    return FOLDER


def mapping(**changes: Any) -> dict[str, Any]:
    """A run file."""
    return {
        "dataset": "mine", "partition": {"alpha": 10.0, "clients": 2}, "method": {"name": "fedavg"}, "models": {"global": "mlp"},
        "rounds": 1, "local_epochs": 1, "batch_size": 16, "seed": 0, "plugins": "own",
    } | changes  # fmt: skip


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert cli.main(list(command)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("bayesfed: ")
