"""A run as Python writes it: what a run file says, checked when it is made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed import methods
from bayesfed.core import files, plugins
from bayesfed.core.errors import InputError
from bayesfed.core.options import not_default, plain
from bayesfed.data.schemes import Scheme
from bayesfed.methods.method import Method
from bayesfed.runs import compatibility, run_file, spec

AnyPath = str | os.PathLike[str]

EPOCHS, BATCH = 5, 128  # of HBFL's runs, where nothing else is said


class Run:
    """A run. `key`: 12 hex digits over what decides its result. `folder`: its place below `runs/`.

    A run file of the same run gives the same key and folder.

    `partition`: one of the classes such as `Dirichlet`, or a run file's block. `method`: a method with its options, such as
    `methods.HBFL(temperature=1e-4)`, or a run file's block. `model`: a network's name, or the block `models` of a run file.
    `data`: the folder where datasets were fetched to. `more`: other keys of a run file, as `participation`.

    Raises InputError, naming the key, its value and what would be right, as for a run file.
    """

    def __init__(
        self,
        *,
        dataset: str | Sequence[str],
        partition: Scheme | Mapping[str, Any],
        method: Method | Mapping[str, Any],
        model: str | Mapping[str, Any],
        rounds: int,
        local_epochs: int | None = None,
        batch_size: int = BATCH,
        seed: int = 0,
        data: AnyPath = plugins.DATA,
        **more: Any,
    ) -> None:
        if "models" in more:
            raise InputError("models: `model` has the run's networks; give the block `models` of a run file as `model`")
        if local_epochs is None:
            local_epochs = 0 if more.get("local_batches") else EPOCHS
        self.given = {"dataset": dataset, "partition": partition, "method": method, "model": model, "rounds": rounds,
                      "local_epochs": local_epochs, "batch_size": batch_size, "seed": seed, **more}  # fmt: skip
        self.data = files.path(data, "data")
        checked = run_file.resolve(self.to_dict(), self.data)
        self.key, self.folder = checked.key, checked.folder

    def __repr__(self) -> str:
        return f"Run({', '.join(f'{key}={value!r}' for key, value in self.given.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def to_dict(self) -> dict[str, Any]:
        """Return the run file of this run, as a mapping."""
        found = {key: value for key, value in self.given.items() if key != "model"}
        partition, method, model = (self.given[key] for key in ("partition", "method", "model"))
        found["partition"] = partition.to_dict() if isinstance(partition, Scheme) else partition
        found["method"] = block_of(method) if isinstance(method, Method) else method
        found["models"] = {"global": model} if isinstance(model, str) else model
        return plain(found)  # type: ignore[no-any-return]


def block_of(method: Method) -> dict[str, Any]:
    """Return the block `method` of a run file. Raises InputError for a class that runs do not know by its name."""
    if methods.get(method.name) is not type(method):
        raise InputError(
            f"method: this {type(method).__name__} is not the '{method.name}' that runs know; write @register above the class, "
            "and make the run again"
        )
    return {"name": method.name} | not_default(method.options)


def resolved(run: Run | Mapping[str, Any] | AnyPath, data: Path) -> spec.Run:
    """Return a run, given by itself, by the mapping of its run file or by the file's path, with every default.

    Raises InputError for anything that is wrong, datasets with too few images included.
    """
    if isinstance(run, str | os.PathLike):
        return run_file.load(Path(run), data)
    if isinstance(run, Run):
        run = run.to_dict()
    if not isinstance(run, Mapping):
        raise InputError(f"run: expected a bayesfed.Run, the mapping of a run file, or the path of one, found {run!r}")
    found = run_file.resolve(plain(run), data)
    compatibility.check_counts(found)
    return found
