"""A run's progress as one safetensors file: states, metric history, and how it has been computed so far. States of clients
that are too many for memory are files of their own, in a folder beside it.

The file's metadata hold the sha256 of the whole file, taken with zeros in its place, and every byte is checked when it is
read. The checkpoint before stays beside it, until the run is done: where the newest one is damaged or missing, a run goes
on from that one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.engine import client_states
from bayesfed.engine.active_learning import Labelled
from bayesfed.engine.client_states import ClientStates
from bayesfed.engine.cost import Seconds
from bayesfed.engine.divergence import Divergence
from bayesfed.engine.rounds import Progress
from bayesfed.methods.node import State
from bayesfed.runs.run_file import difference
from bayesfed.runs.run_folder import CLIENTS, Row

FILE = "checkpoint.safetensors"  # its name in a run folder, unless it is kept elsewhere
NO_DIGEST = "0" * 64
LARGEST_HEADER = 100 * 2**20  # bytes, as safetensors has it
PIECE = 2**20  # bytes read at once


@dataclass
class Header:
    """The header of a checkpoint, beside its tensors.

    A resume keeps the precision, and on the same device the executor; seconds and samples add up, `sessions` say by
    what machine, code and versions, each with its rounds, seconds and those of the processor, and `run` is the run file.
    `apart`: of the seconds those of clients, server and testing. `rounds_asked`: whether the method has asked how many
    rounds there are, as it may have before that was noted. `begun`: the key and rounds of the run that it has gone on from.
    """

    key: str
    precision: str
    executor: str
    seconds: float = 0.0
    samples: int = 0
    sessions: list[dict[str, Any]] = field(default_factory=list)
    run: Mapping[str, Any] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    rounds_asked: bool = True
    begun: Mapping[str, Any] | None = None

    @property
    def cpu_seconds(self) -> float | None:
        """The time that the processor's cores together spent in rounds; None where a session of an earlier version lacks
        it.
        """
        counted = all("cpu_seconds" in session for session in self.sessions)
        return sum(session["cpu_seconds"] for session in self.sessions) if counted else None

    def add(self, by: Mapping[str, Any], seconds: float, cpu_seconds: float, samples: int, apart: Seconds) -> None:
        """Count a round, to the last session where that was `by` the same."""
        self.seconds += seconds
        for name, value in dataclasses.asdict(apart).items():
            self.apart[name] = self.apart.get(name, 0.0) + value
        self.samples += samples
        if not self.sessions or self.sessions[-1]["by"] != by:
            self.sessions.append({"by": by, "rounds": 0, "seconds": 0.0, "cpu_seconds": 0.0})
        self.sessions[-1]["rounds"] += 1
        self.sessions[-1]["seconds"] += seconds
        self.sessions[-1]["cpu_seconds"] += cpu_seconds


def before(path: Path) -> Path:
    """Return where the checkpoint before the one at `path` is kept."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def of_clients(path: Path) -> Path:
    """Return the folder with the states of clients that are not in the checkpoint at `path`, nor in the one before it."""
    suffix = path.suffix if path.suffix != ".before" else ""  # of a path without a suffix, what is before it ends so
    own = path.with_name(path.stem.removesuffix(".before") + suffix)
    return own.with_name((own.stem if own.suffix == ".safetensors" else own.name) + CLIENTS)


def found(path: Path) -> list[Path]:
    """Return the checkpoints to go on from: the one at `path`, and the one before."""
    return [one for one in (path, before(path)) if one.exists()]


def of_workflow(folder: Path) -> list[Path]:
    """Return where the workflow keeps the checkpoint of a run folder: beside the tree of run folders; none elsewhere."""
    folder = folder.resolve()
    return [
        above.parent / "checkpoints" / f"{folder.relative_to(above)}.safetensors"
        for above in folder.parents
        if above.name == "runs"
    ]


def delete_older(path: Path, key: str) -> None:
    """Delete the checkpoint before the last, which a finished run does not need; another run's stays."""
    if key_of(before(path)) == key:
        before(path).unlink(missing_ok=True)  # another process may have met the same finished run
        client_states.prune(of_clients(path), stored_by(path))


def stored_by(path: Path) -> set[str]:
    """Return the files of clients that a checkpoint names; none where there is none that can be read."""
    try:
        with safe_open(path, "pt") as stored:
            return set(named(stored, "clients").values())
    except (SafetensorError, OSError, RuntimeError, ValueError):
        return set()


def named(stored: Any, what: str) -> Any:
    """Return what an open checkpoint holds as JSON; {} where it does not."""
    there = what in stored.keys()  # noqa: SIM118  (not a dict)
    return json.loads(bytes(stored.get_tensor(what).numpy())) if there else {}


def as_tensor(value: object) -> torch.Tensor:
    """Return JSON as a checkpoint holds it, uint8 (bytes,)."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def key_of(path: Path) -> str:
    """Return the run that a checkpoint says it is of; "" where there is none that can be read."""
    try:
        with safe_open(path, "pt") as stored:
            return str(json.loads(stored.metadata()["record"])["key"])
    except (SafetensorError, OSError, RuntimeError, LookupError, TypeError, ValueError):
        return ""


def save(path: Path, progress: Progress, header: Header) -> None:
    """Write a checkpoint, whole or not at all, and keep the one that was there; raise InputError for another run's."""
    if other := {key for one in found(path) if (key := key_of(one)) not in ("", header.key)}:
        raise InputError(
            f"{path}: a checkpoint of run {other.pop()} has come there meanwhile; give each run a file of its own"
        )
    clients = progress.clients.within(of_clients(path))
    tensors = dataclasses.replace(progress, clients=ClientStates(clients.memory)).tensors()
    tensors["history"] = as_tensor([[*vars(row).values()] for row in progress.history])  # astuple copies each value
    if clients.stored:
        tensors["clients"] = as_tensor(clients.stored)
    tensors = apart({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    metadata = {"round": str(progress.round), "record": json.dumps(dataclasses.asdict(header)), "digest": NO_DIGEST}
    if progress.diverged:
        metadata["diverged"] = json.dumps(dataclasses.asdict(progress.diverged))
    for half_written in files.left_behind(path):  # its process was killed
        half_written.unlink(missing_ok=True)
    with files.replacing(path) as scratch:
        scratch.touch()
        mode = scratch.stat().st_mode  # as of any file; safetensors keeps all but the owner from reading its own
        try:
            save_file(tensors, scratch, metadata)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from None
        _, at, digest = sealed(scratch)
        with scratch.open("r+b") as file:
            file.seek(at)
            file.write(digest.encode())
        scratch.chmod(mode)
        if sealed(scratch)[0] != digest:
            raise OSError(f"{path}: what was written is not what is read; is the disk in order?")
        if path.exists() and whole(path):  # a damaged one must not take the place of one that is not
            os.replace(path, before(path))
    client_states.prune(of_clients(path), {*clients.stored.values(), *stored_by(before(path))})


def apart(state: State) -> State:
    """Give each tensor memory of its own, as a file holds it: to a method two may be one, or parts of one."""
    taken: set[int] = set()
    for name, tensor in state.items():
        place = tensor.untyped_storage().data_ptr()
        state[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    return state


def sealed(path: Path) -> tuple[str, int, str]:
    """Return the digest that a file holds, its place, and the one that it should hold.

    Raises ValueError if there is no place for one.
    """
    with path.open("rb") as file:
        size = file.read(8)
        length = int.from_bytes(size, "little")
        header = file.read(length) if length <= LARGEST_HEADER else b""
        place = re.search(rb'"digest":"([0-9a-f]{64})"', header)
        if not place:
            raise ValueError("it holds no digest of its own, as every checkpoint does")
        start, end = place.span(1)
        whole = hashlib.sha256(size + header[:start] + NO_DIGEST.encode() + header[end:])
        while piece := file.read(PIECE):
            whole.update(piece)
    return place[1].decode(), 8 + start, whole.hexdigest()


def whole(path: Path) -> bool:
    """Return whether a checkpoint is as it was written."""
    try:
        digest, _, own = sealed(path)
    except ValueError:
        return False
    return digest == own


def load(path: Path, key: str, device: torch.device, run: Mapping[str, Any] | None = None) -> tuple[Progress, Header]:
    """Read the checkpoint of the run `key`, whose run file is `run`, the server's state to `device`, or, with a warning, the
    one before where that is damaged or missing. Raises InputError where both are, and for another run's."""
    try:
        progress, header = load_one(path, device)
    except InputError as error:
        older = before(path)
        if not older.exists():
            raise
        print(f"{error}; going on from the one before, {older}", file=sys.stderr)
        path = older
        progress, header = load_one(path, device)
    if header.key != key:
        apart = f" ({difference(header.run, run)})" if header.run and run else ""
        raise InputError(
            f"{path}: this checkpoint belongs to run {header.key}, not to {key}{apart}; give another --out (or --checkpoint)"
        )
    return progress, header


def load_one(path: Path, device: torch.device) -> tuple[Progress, Header]:
    """Read the checkpoint in this file."""
    server: State = {}
    clients: dict[int, State] = {}
    labelled: Labelled = {}
    try:
        digest, _, own = sealed(path)
        if digest != own:
            raise ValueError("its sha256 is not the one that it holds")
        with safe_open(path, "pt") as stored:
            metadata = stored.metadata()
            header = Header(**json.loads(metadata["record"]))
            diverged = Divergence(**json.loads(metadata["diverged"])) if "diverged" in metadata else None
            history, apart = named(stored, "history"), named(stored, "clients")
            for name in stored.keys():  # noqa: SIM118  (not a dict)
                owner, _, rest = name.partition("/")
                if owner == "server":
                    server[rest] = stored.get_tensor(name).to(device)
                elif owner == "labelled":
                    labelled[int(rest)] = stored.get_tensor(name)
                elif owner == "client":
                    client, _, rest = rest.partition("/")
                    clients.setdefault(int(client), {})[rest] = stored.get_tensor(name)
    except FileNotFoundError:
        raise InputError(f"{path}: this checkpoint is missing") from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: this checkpoint is damaged ({error}); give another path, or move it away (and summary.json, of a finished run) to train from the start"
        ) from None
    rows = [Row(*row) for row in history]
    states = ClientStates(clients, {int(client): name for client, name in apart.items()}, of_clients(path))
    states.check()
    return Progress(int(metadata["round"]), server, states, rows, diverged, dict(sorted(labelled.items()))), header
