"""Bytes of finished runs whose records are from before they were counted: from rounds without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.data import partition
from bayesfed.engine.dry import bytes_of
from bayesfed.runs import run_file, run_folder
from bayesfed.runs.run_folder import LATER
from bayesfed.runs.spec import Run

HOW = "computed later from the run file, in rounds on made-up images without training"


def count(folder: Path, data: Path, partitions: Path | None = None) -> str:
    """Compute the bytes of a finished run, keep them in `bytes.json` beside its record, and say what they are.

    Nothing is done where the record has them. Raises InputError where the run file gives another run now.
    """
    summary = run_folder.finished(folder)
    if "bytes" in summary:
        return "bytes are in its record"
    run = run_file.load(folder / "run.yaml", data)
    if run.key != summary["key"]:
        raise InputError(
            f"{folder}: this is run {summary['key']}, and its run file gives {run.key} now; its bytes may differ"
        )
    rounds = (summary.get("diverged") or summary).get("round", summary["rounds"])
    found = bytes_of(run, rounds, able(run, data, partitions))
    files.write_json(folder / LATER, {"key": run.key, "how": HOW, **found})
    return f"{sum(found['down']) / 1e6:g} MB down, {sum(found['up']) / 1e6:g} MB up, computed later"


def able(run: Run, data: Path, partitions: Path | None) -> Sequence[bool]:
    """Return which clients have images to train on, from the partition where that is not certain; () for all."""
    if run.multi_task or run.partition.min_train > 1:
        return ()
    cell = (run.datasets[0], run.partition, run.budget.seed, data, partitions)
    partition.build(*cell)
    return [bool(count) for count in np.diff(partition.load(*cell).train_offsets)]
