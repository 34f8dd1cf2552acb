"""What clients keep between their rounds: in memory, and beyond `IN_MEMORY` bytes in a folder, a file a client.

So ten thousand clients need the memory of a few hundred, and a checkpoint writes those that have changed since. A file is
named by the sha256 of its content, which is checked when it is read; none is ever changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import load, save

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.methods.node import State

IN_MEMORY = 2**28  # bytes
REMEDY = "restore it, or delete the checkpoint to train from the start"


@dataclass(frozen=True)
class ClientStates(Mapping[int, State]):
    """The states of clients by their number; one that has not taken part yet has none.

    memory: those in memory. stored: the files of the others in `folder`, by client. replaced: the files of those that are
    new since the round before, which a signal may still make the checkpoint.
    """

    memory: Mapping[int, State] = field(default_factory=dict)
    stored: Mapping[int, str] = field(default_factory=dict)
    folder: Path = Path()
    replaced: frozenset[str] = frozenset()

    def __getitem__(self, client: int) -> State:
        """Return a client's state, on the host; raises KeyError, and InputError for a file that is damaged or missing."""
        if client in self.memory:
            return self.memory[client]
        return read(self.folder / self.stored[client])

    def __iter__(self) -> Iterator[int]:
        yield from self.memory
        yield from self.stored

    def __len__(self) -> int:
        return len(self.memory) + len(self.stored)

    def __or__(self, new: Mapping[int, State]) -> ClientStates:
        """Return these states with other ones of some clients."""
        return replace(
            self,
            memory={**self.memory, **new},
            stored={client: name for client, name in self.stored.items() if client not in new},
            replaced=frozenset(name for client, name in self.stored.items() if client in new),
        )

    def bounded(self, folder: Path) -> ClientStates:
        """Return the same, with no more than `IN_MEMORY` bytes in memory, the rest in this folder of a checkpoint.

        Before it is written to, the files go that neither these states, nor those of the round before, nor its checkpoints
        name.
        """
        from bayesfed.engine import checkpoint  # only here: it imports this module

        every = (tensor for state in self.memory.values() for tensor in state.values())
        if sum(tensor.nbytes for tensor in every) <= IN_MEMORY:
            return self
        own = (folder.with_suffix(".safetensors"), folder.with_suffix(""))  # whose `of_clients` may be this folder
        stored = (checkpoint.stored_by(one) for path in own for one in (path, checkpoint.before(path)))
        prune(folder, {*self.stored.values(), *self.replaced}.union(*stored))
        written = {client: write(folder, state) for client, state in self.memory.items()}
        return ClientStates({}, {**self.within(folder).stored, **written}, folder)

    def check(self) -> None:
        """Raise InputError where files are missing."""
        missing = [name for name in self.stored.values() if not (self.folder / name).exists()]
        if missing:
            raise InputError(
                f"{self.folder}: {len(missing)} of {len(self.stored)} files of this checkpoint are missing; copy the folder whole"
            )

    def within(self, folder: Path) -> ClientStates:
        """Return the same, with all files in this folder, whole or none of them."""
        if folder != self.folder:
            for name in self.stored.values():
                if not (folder / name).exists():
                    files.write_bytes(folder / name, (self.folder / name).read_bytes())
        return replace(self, folder=folder)


def write(folder: Path, state: State) -> str:
    """Write a state into a folder, unless it is there; return its file's name."""
    content = save({name: tensor.contiguous() for name, tensor in state.items()})
    name = f"{hashlib.sha256(content).hexdigest()}.safetensors"
    path = folder / name
    if not path.exists() or path.stat().st_size != len(content):  # a machine that loses its power may leave it empty
        files.write_bytes(path, content)
    return name


def read(path: Path) -> State:
    """Read a state; raise InputError for a file that is damaged or missing."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: this part of a checkpoint is missing; {REMEDY}") from None
    if hashlib.sha256(content).hexdigest() != path.stem:
        raise InputError(f"{path}: this part of a checkpoint is damaged; {REMEDY}")
    return load(content)


def prune(folder: Path, kept: set[str]) -> None:
    """Delete a folder's files that are not among those kept, and the folder itself once it is empty."""
    for path in folder.glob("*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
    if not kept:
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
