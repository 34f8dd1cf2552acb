"""What a run file says of the images that clients are dealt: dataset, partition scheme and seed.

Apart from `run_file.py`, since that loads methods, and with them torch, which takes seconds: jobs that deal images do
without.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesfed.core import files, options, plugins
from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.data import schemes
from bayesfed.data.catalogue import source
from bayesfed.data.schemes import Scheme, Whole

LARGEST_SEED = 2**63 - 1
BLOCKS = {  # that every run file has, with an example for each
    "dataset": "mnist",
    "partition": "{alpha: 0.1, clients: 10}",
    "method": "{name: fedavg}",
    "models": "{global: mlp}",
}


@dataclass(frozen=True)
class Seed:
    """The seed of a run file."""

    seed: int = option(low=0, high=LARGEST_SEED)


def load(path: Path, data: Path = plugins.DATA) -> tuple[tuple[str, ...], Scheme, int]:
    """Return the datasets, the partition scheme and the seed of the run file at `path`, whose plugins are in use from now
    on; raise InputError for anything wrong in them. The rest of the file is not looked at.
    """
    mapping = mapping_of(path)
    check_kind(mapping)
    check_blocks(mapping)
    plugins.use(mapping.get("plugins"), data)
    partition = schemes.read(mapping["partition"])
    seed = options.read(Seed, {key: value for key, value in mapping.items() if key == "seed"}).seed
    return read_datasets(mapping["dataset"], partition), partition, seed


def mapping_of(path: Path) -> Mapping[str, Any]:
    """Read the keys and values of the run file at `path`; raise InputError for a file without any."""
    mapping = files.read_yaml(path)
    if not isinstance(mapping, Mapping):
        found = "an empty file" if mapping is None else reprlib.repr(mapping)
        raise InputError(
            f"{path}: expected keys and values, found {found}; see examples/run.yaml and docs/reference/run-file.md"
        )
    return mapping


def check_kind(mapping: Mapping[str, Any]) -> None:
    """Raise InputError for a config or a paper's file, which are no run file."""
    if "papers" in mapping:
        raise InputError("run file: this is a sweep config; expand it with `bayesfed plan FILE --out DIR`")
    if {"paper", "reference"} <= mapping.keys():
        raise InputError(
            "run file: this is a paper's file; name it in a config, `papers: [NAME]`, and expand that with `bayesfed plan`"
        )


def check_blocks(mapping: Mapping[str, Any]) -> None:
    """Raise InputError where a block that every run file has is missing."""
    for key, example in BLOCKS.items():
        if key not in mapping:
            raise InputError(f"{key} is missing; give one, e.g. `{key}: {example}`")


def read_datasets(value: object, partition: Scheme) -> tuple[str, ...]:
    """Read the datasets' names: one, or one a client where the partition says that each holds a whole one."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        source(str(name))
    whole = isinstance(partition, Whole)
    if whole and len(names) != partition.clients:
        raise InputError(
            f"dataset: partition '{Whole.name}' needs one for each of {partition.clients} clients, found {len(names)}"
        )
    if not whole and len(names) != 1:
        raise InputError(f"dataset: {len(names)} datasets need the partition scheme '{Whole.name}'; give one dataset")
    if not whole:
        one = source(str(names[0]))
        if one.train:
            partition.check_data(one)
        # Before anything is made for each client; of a dataset that is still to be fetched the size is not known.
        if one.train and partition.clients > one.train + one.test:
            raise InputError(
                f"partition.clients: {partition.clients} clients are more than the {one.train + one.test} images of "
                f"dataset '{one.name}'"
            )
    return tuple(str(name) for name in names)
