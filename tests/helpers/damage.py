"""Bytes with one bit that is another."""

from collections.abc import Iterator
from pathlib import Path


def flip(whole: bytes, at: int, bit: int | None = None) -> bytes:
    """The same bytes but for one bit of the one at that place; by default a bit that differs from place to place."""
    changed = bytearray(whole)
    changed[at] ^= 1 << (at % 8 if bit is None else bit)
    return bytes(changed)


def put(path: Path, content: bytes) -> None:
    """Write a file anew: where another is cut to nothing first, some file systems wait for the disk each time."""
    path.unlink()
    path.write_bytes(content)


def flips(whole: bytes) -> Iterator[bytes]:
    """One bit of each byte, byte after byte."""
    return (flip(whole, at) for at in range(len(whole)))


def cuts(whole: bytes) -> Iterator[bytes]:
    """The first 0, 1, 2 ... bytes, up to all but one."""
    return (whole[:at] for at in range(len(whole)))
