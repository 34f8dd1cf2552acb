"""Facts that a result depends on beside its run: code, versions, machine, precision, data."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

import bayesfed
from bayesfed.core import helper_modules
from bayesfed.data import partition
from bayesfed.data.catalogue import source
from bayesfed.engine import device
from bayesfed.runs.spec import Run


def facts(run: Run, data: Path, by: Mapping[str, Any], precision: str, partitions: Path | None) -> dict[str, Any]:
    """Return what a result depends on beside its key, as `bayesfed verify` compares it, and provenance.json has it;
    there without helpers where there are none.
    """
    return {
        **by,
        "precision": precision,
        "dataset_fingerprints": {name: source(name).fingerprint for name in (*run.datasets, *run.tasks.foreign)},
        "partition_fingerprint": partition_fingerprint(run, data, partitions),
        "helpers": helper_modules.found(run.plugin_files) or None,
    }


def machine(on: str, executor: str) -> dict[str, Any]:
    """Return those of these facts that may change when a run is resumed."""
    return {
        "code": code_hash(),
        "versions": versions(),
        "device": on,
        "hardware": device.hardware(on),
        "threads": torch.get_num_threads(),
        "executor": executor,
    }


def partition_fingerprint(run: Run, data: Path, partitions: Path | None) -> str | None:
    """Return the sha256 of the cached partition's arrays; None where every client holds a whole dataset."""
    if run.multi_task:
        return None
    shares = partition.load(run.datasets[0], run.partition, run.budget.seed, data, partitions)
    return hashlib.sha256(b"".join(array.tobytes() for array in vars(shares).values())).hexdigest()


@functools.cache
def code_hash() -> str:
    """Return the sha256 over the package's source files, by path, as they were when it was first asked for."""
    root = Path(bayesfed.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions that can change a result."""
    return {
        "bayesfed": bayesfed.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }
