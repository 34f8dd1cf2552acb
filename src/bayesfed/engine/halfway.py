"""A check that a run stopped midway, and resumed by another process, ends as one that is not.

What its method keeps outside its tensors is not there then, wherever it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bayesfed.core.errors import InputError
from bayesfed.engine import checkpoint, device
from bayesfed.engine.repeat import differing
from bayesfed.engine.rounds import Progress, Trainer
from bayesfed.engine.session import Process
from bayesfed.engine.training import Place, assemble
from bayesfed.runs import run_file

Values = Mapping[tuple[str, ...], str]  # by round, client, model, metric, as metrics.csv has them


def values_of(progress: Progress) -> Values:
    """Return what has been measured so far."""
    return {(str(row.round), row.client, row.model, row.metric): f"{row.value:.6g}" for row in progress.history}


@dataclass(frozen=True)
class Task:
    """The task of another process, which resumes a run: the run of a folder, how, from which checkpoint, and up to
    which round.
    """

    folder: str
    data: str
    weights: str
    partitions: str  # "": where the data are
    device: str
    precision: str
    executor: str
    stored: str
    rounds: int


def elsewhere(task: Task) -> None:
    """Resume in another process, which writes the checkpoint again. Raises InputError with what it says where it fails."""
    code = (
        "import json, sys; from bayesfed.engine import halfway; halfway.resume(halfway.Task(**json.loads(sys.argv[1])))"
    )
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()}); "
    command = [sys.executable, "-P", "-c", threads + code, json.dumps(vars(task))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise InputError(f"{task.folder}: another process could not resume it: {said[-1]}")


def resume(task: Task) -> None:
    """Go on from a checkpoint, and write it again."""
    data, stored = Path(task.data), Path(task.stored)
    run = run_file.of_record(Path(task.folder), data)
    partitions = Path(task.partitions) if task.partitions else None
    place = Place(Path(task.folder), stored, data, task.device, weights=Path(task.weights), partitions=partitions)
    compute = device.configure(task.device, task.precision)
    with Process() as process:
        federation = assemble(run, place, compute, process.load(run, data))
    progress, header = checkpoint.load(stored, run.key, compute.device)
    trainer = Trainer(federation, task.executor)
    while progress.round < task.rounds:
        progress = trainer.play(progress)
    checkpoint.save(stored, progress, header)


def otherwise(task: Task, straight: Progress, middle: int) -> str:
    """Name what differs in the run that was stopped after round `middle`; "" if it ends as the one that went straight
    on.
    """
    elsewhere(task)
    resumed, _ = checkpoint.load_one(Path(task.stored), torch.device(task.device))
    another = differing(straight.tensors(), resumed.tensors(), {})
    values, others = values_of(straight), values_of(resumed)
    another = another or next((", ".join(key) for key in values if others.get(key) != values[key]), None)
    if another is None:
        return ""
    return (
        f"stopped after round {middle} and resumed it gives another {another}: its method keeps something outside its tensors, "
        "or draws by itself"
    )
