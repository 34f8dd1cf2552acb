"""The reader of a dataset of a user's own: all that it reads is noted when it runs, and compared before its data are used.

The record of a fetched dataset has it under `reader`: `own`, the files of the dataset's own folder, except its description;
`files`, those that the description lists, by md5; `place`, the mirror that they were in; `read`, what else was read: by its
path in the mirror, or its whole path, the sha256. A file that is opened by Python is seen wherever it is; one that a library
opens by other means must lie in the dataset's own folder or be listed. A file of a mirror that is gone is not missed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesfed.core import files, plugins
from bayesfed.data.source import Source

DESCRIPTION, READER = "dataset.yaml", "reader.py"
SYSTEM = ("/dev", "/etc", "/proc", "/sys")  # no data of anybody's

_watched: list[set[Path]] = []  # by those that watch, what has been opened since


def run(source: Source, place: Path, mirror: Path | None) -> tuple[Any, dict[str, Any]]:
    """Run the reader on the files in a folder; return what it gives, and what is noted of it.

    `mirror`: that folder, where it stays.

    Raises InputError of one line for whatever the reader raises.
    """
    assert source.folder is not None
    path = source.folder / READER
    before, bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # of a helper that is edited, none is left
    try:
        with watching() as opened, plugins.one_line(path):
            module, _ = plugins.load(path)
            given = module.read(place)
    finally:
        sys.dont_write_bytecode = bytecode
        for name in set(sys.modules) - before:  # a helper may be another one when it is read again
            if (file := getattr(sys.modules[name], "__file__", None)) and not plugins.is_library(Path(file)):
                del sys.modules[name]
    return given, note(source, place, mirror, opened)


@contextmanager
def watching() -> Iterator[set[Path]]:
    """Collect the files that Python opens inside to read from them."""
    _watch()
    opened: set[Path] = set()
    _watched.append(opened)
    try:
        yield opened
    finally:
        _watched[:] = [one for one in _watched if one is not opened]


@functools.cache
def _watch() -> None:
    """Have Python say what it opens. Such a hook stays for the life of a process."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and _watched:
            path, mode, flags = arguments
            reads = "r" in mode or "+" in mode if mode else flags & os.O_ACCMODE != os.O_WRONLY
            if reads and isinstance(path, str | bytes | os.PathLike):
                name = Path(os.path.abspath(os.fsdecode(path)))
                for opened in _watched:
                    opened.add(name)

    sys.addaudithook(hook)


def note(source: Source, place: Path, mirror: Path | None, opened: Iterable[Path]) -> dict[str, Any]:
    """Note what a reader has read, for the record of its dataset."""
    assert source.folder is not None
    own, listed = listing(source.folder), publishers(source)
    kept = {name: files.sha256(mirror / name) for name in listed} if mirror else {}
    known = {*both(source.folder, own), *both(place, listed)}
    temporary = [] if place in (mirror, source.folder) else both(place, [""])
    for path in sorted({python(one) for one in opened}):
        if (
            path in known
            or not path.is_file()
            or plugins.is_library(path)
            or below(path, [*map(Path, SYSTEM), *temporary])
        ):
            continue
        inside = below(path, both(mirror, [""])) if mirror else None
        kept[path.relative_to(inside).as_posix() if inside else str(path)] = files.sha256(path)
    return {"own": own, "files": listed, "place": str(mirror.absolute()) if mirror else "", "read": kept}


def noted(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the record of a dataset says of its reader; None if it says nothing.

    Raises KeyError, TypeError or ValueError for what `note` has not written.
    """
    if "reader" not in record:
        return None
    found = record["reader"]
    return {"place": str(found["place"])} | {key: dict(found[key]) for key in ("own", "files", "read")}


def changed(source: Source, then: Mapping[str, Any], mirror: Path | None = None) -> str:
    """Name what differs from when the reader ran, and its file; "" if nothing does.

    `mirror`: where its files are now, unless where they were.
    """
    assert source.folder is not None
    own = listing(source.folder)
    for name in sorted(own.keys() | then["own"].keys()):
        if own.get(name) != then["own"].get(name):
            how = "is gone" if name not in own else "is new" if name not in then["own"] else "has changed"
            return f"{source.folder / name}: this file {how}"
    if publishers(source) != then["files"]:
        return f"{source.folder / DESCRIPTION}: its list of `files` has changed"
    for name, digest in then["read"].items():
        path = (mirror or Path(then["place"])) / name
        if path.is_file() and files.sha256(path) != digest:
            return f"{path}: this file has changed"
    return ""


def identity(source: Source, then: Mapping[str, Any] | None) -> str:
    """Return a digest of all that the reader of a fetched dataset reads, as far as places do not matter."""
    assert source.folder is not None
    listed = publishers(source)
    others = sorted(digest for name, digest in then["read"].items() if name not in listed) if then else []
    return hashlib.sha256(json.dumps([own_digest(source.folder), listed, others]).encode()).hexdigest()


def own_digest(folder: Path) -> str:
    """Return a digest of the files of a dataset's own folder, as they were when own plugins were last looked at."""
    known = plugins.in_use.listings
    if folder not in known:
        known[folder] = hashlib.sha256(json.dumps(listing(folder)).encode()).hexdigest()
    return known[folder]


def listing(folder: Path) -> dict[str, str]:
    """Return the digests of the files of a dataset's own folder by name, except its description."""
    named = {path.relative_to(folder).as_posix(): path for path in plugins.files_in(folder)}
    return {name: files.sha256(path) for name, path in named.items() if name != DESCRIPTION}


def publishers(source: Source) -> dict[str, str]:
    """Return the md5 of the files that the description lists, by name."""
    return {file.name: file.md5 for file in source.files}


def both(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the paths in a folder as they are written, and with links followed."""
    found = [folder / name for name in names]
    return [Path(os.path.abspath(path)) for path in found] + [path.resolve() for path in found]


def below(path: Path, folders: Iterable[Path]) -> Path | None:
    """Return the first of some folders that a path lies in."""
    return next((folder for folder in folders if path.is_relative_to(folder)), None)


def python(path: Path) -> Path:
    """Return the source if a file is its bytecode, else the file."""
    try:
        return Path(importlib.util.source_from_cache(str(path))) if path.suffix == ".pyc" else path
    except ValueError:  # bytecode of another layout
        return path
