"""Files: read with one-line errors, written whole or not at all, their digests, and the lock on a run folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import reprlib
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bayesfed.core.errors import InputError

YAML_PARTS = 1_000_000


def path(value: object, key: str) -> Path:
    """Return a path that was given for a key; raise InputError for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{key}: expected a path, found {value!r}")
    return Path(value)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path` to write to; it becomes `path` when the block ends, and vanishes if it
    fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own = secrets.token_hex(4)  # a process of another container or node may have this one's number
    scratch = path.with_name(f".{path.stem}.{os.getpid()}-{own}{path.suffix}")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def left_behind(path: Path) -> list[Path]:
    """List what `replacing` has left beside `path` when its process was killed."""
    name = re.compile(rf"\.{re.escape(path.stem)}\.\d+-\w+{re.escape(path.suffix)}")
    return [one for one in path.parent.glob(".*") if name.fullmatch(one.name)]


def read_yaml(path: Path) -> Any:
    """Read a YAML file; raise InputError where there is no file, no YAML in it, a key twice, or more than is written
    there.

    An alias of an alias of an alias may stand for more than any memory holds, or for itself.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if twice := [key for key, count in keys.items() if count > 1]:
                line = node.start_mark.line + 1
                raise InputError(
                    f"{path}: the key '{twice[0]}' occurs twice in the block that begins in line {line}; keep one"
                )
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, LookupError, AttributeError, ArithmeticError):  # 2026-13-45 is no date
                kind, line = node.tag.rpartition(":")[2], node.start_mark.line + 1
                raise InputError(
                    f"{path}: not readable as YAML: {reprlib.repr(node.value)} in line {line} is no {kind}; put text in quotes"
                ) from None

    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader)
        if parts_of(value, {}) > YAML_PARTS:
            raise InputError(f"{path}: its aliases stand for more than {YAML_PARTS} keys and values; write fewer")
        return value
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder; expected a YAML file") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply, or an alias that stands for itself") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None


def parts_of(value: Any, known: dict[int, int]) -> int:
    """Count a tree's keys and values, each alias written out; `known`: those of the mappings and lists seen so far.

    Raises RecursionError for a tree that holds itself.
    """
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        below = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(parts_of(each, known) for each in below)
    return known[id(value)]


def yaml_text(value: Any, flow: bool | None = False) -> str:
    """YAML, keys as they come; `flow`: as `default_flow_style` of PyYAML."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # five times as fast where it was built
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=flow))


def write_yaml(path: Path, value: Any, *, flow: bool | None = False) -> None:
    """Write `yaml_text` whole."""
    write_text(path, yaml_text(value, flow))


def write_text(path: Path, text: str) -> None:
    """Write text whole."""
    write_bytes(path, text.encode())


def write_changed(path: Path, text: str) -> None:
    """Write text whole where the file has another: replacing hundreds of files takes a disk seconds."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes whole."""
    with replacing(path) as scratch:
        scratch.write_bytes(content)


def json_text(value: Any) -> str:
    """Indented JSON. Raises ValueError for NaN and infinities, which are no JSON."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole, indented."""
    write_text(path, json_text(value))


def sealed_json(content: Mapping[str, Any]) -> str:
    """Return the one text of a sealed mapping: its JSON with the sha256 of that JSON as the last key, `digest`."""
    content = {key: value for key, value in content.items() if key != "digest"}
    return json_text({**content, "digest": hashlib.sha256(json_text(content).encode()).hexdigest()})


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Read a file written by `sealed_json`; raise ValueError if its content was altered, FileNotFoundError."""
    return unsealed(path.read_text(encoding="utf-8"))


def unsealed(text: str) -> dict[str, Any]:
    """Read the text of `sealed_json`; raise ValueError if a byte of it was altered."""
    body, _, end = text.rpartition(',\n "digest": "')
    digest = hashlib.sha256((body + "\n}\n").encode()).hexdigest()
    if end != f'{digest}"\n}}\n':
        raise ValueError("this is not as it was written")
    content: dict[str, Any] = json.loads(text)
    return content


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Held(Exception):
    """Another process holds a lock."""


@contextlib.contextmanager
def locked(path: Path, what: str, wait: bool = True) -> Iterator[None]:
    """Hold the kernel lock of a file, made if it is missing; say once `what` another process holds, and wait.

    Raises Held instead of waiting unless `wait`, and OSError with the lock's place where the file system cannot lock,
    as some that come over a network.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise Held from None
                print(f"{what}; waiting", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise OSError(error.errno, f"cannot be locked here ({error.strerror})", str(path)) from None
        yield


def is_locked(path: Path) -> bool:
    """Return true while another process holds the kernel lock of a file; False for one that is not there.

    A shared lock asks: readers do not take each other for a holder, and need not be allowed to write.
    """
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def digest(text: str, paths: Iterable[Path]) -> str:
    """12 hex digits over a text and the names and contents of files, missing ones too."""
    total = hashlib.sha256(text.encode())
    for path in paths:
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"
        total.update(f"\n{path.name} {content}".encode())
    return total.hexdigest()[:12]
