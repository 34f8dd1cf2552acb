"""A run's progress as one safetensors file: states, metric history, and how it has been computed so far."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bayesfed import files
from bayesfed.engine.labelling import Labelled
from bayesfed.engine.rounds import Divergence, Progress, Row
from bayesfed.errors import InputError
from bayesfed.methods.base import State

FILE = "checkpoint.safetensors"  # its name in a run folder, unless it is kept elsewhere


@dataclass
class Record:
    """What a checkpoint says beside the tensors. A resume keeps precision and executor; seconds and samples add up."""

    key: str
    precision: str
    executor: str
    seconds: float = 0.0
    samples: int = 0


def save(path: Path, progress: Progress, record: Record) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = progress.tensors()
    history = json.dumps([dataclasses.astuple(row) for row in progress.history]).encode()
    tensors["history"] = torch.frombuffer(bytearray(history), dtype=torch.uint8)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"round": str(progress.round), "record": json.dumps(dataclasses.asdict(record))}
    if progress.diverged:
        metadata["diverged"] = json.dumps(dataclasses.asdict(progress.diverged))
    with files.replacing(path) as scratch:
        save_file(tensors, scratch, metadata)


def load(path: Path, key: str, device: torch.device) -> tuple[Progress, Record]:
    """Read the checkpoint of the run `key`, the server's state to `device`; raises InputError for a damaged file or another run's."""
    server: State = {}
    clients: dict[int, State] = {}
    labelled: Labelled = {}
    try:
        with safe_open(path, "pt") as stored:
            metadata = stored.metadata()
            record = Record(**json.loads(metadata["record"]))
            diverged = Divergence(**json.loads(metadata["diverged"])) if "diverged" in metadata else None
            history = json.loads(bytes(stored.get_tensor("history").numpy()))
            for name in stored.keys():  # noqa: SIM118  (not a dict)
                owner, _, rest = name.partition("/")
                if owner == "server":
                    server[rest] = stored.get_tensor(name).to(device)
                elif owner == "labelled":
                    labelled[int(rest)] = stored.get_tensor(name)
                elif owner == "client":
                    client, _, rest = rest.partition("/")
                    clients.setdefault(int(client), {})[rest] = stored.get_tensor(name)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: this checkpoint is damaged ({error}); delete it to train from the start") from None
    if record.key != key:
        raise InputError(f"{path}: this checkpoint belongs to run {record.key}, not to {key}; give another path")
    rows = [Row(*row) for row in history]
    return Progress(int(metadata["round"]), server, clients, rows, diverged, dict(sorted(labelled.items()))), record
