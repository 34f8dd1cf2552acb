"""Data in parts, for a machine that gets little at a time: packed here, put together there, verified at the end."""

import lzma
import re
import shutil
import tarfile
from pathlib import Path

from bayesfed.data import store
from bayesfed.data.catalogue import source
from bayesfed.errors import InputError

MIB = 2**20
# Images of 32x32 are smaller as differences to the row above.
FILTERS = [{"id": lzma.FILTER_DELTA, "dist": 32}, {"id": lzma.FILTER_LZMA2, "preset": 3}]


def pack(names: list[str], data: Path, into: Path, mib: int) -> list[Path]:
    """Write datasets as parts of at most so many MiB: `<name>+<name>-<number>-of-<count>.part`."""
    if mib < 1:
        raise InputError(f"--mib {mib}: expected 1 or more")
    into.mkdir(parents=True, exist_ok=True)
    whole = into / "whole.tar.xz"
    with lzma.open(whole, "wb", filters=FILTERS) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            store.check(source(name), data)
            for file in ("train.npz", "test.npz", "dataset.json"):
                tar.add(data / name / file, f"{name}/{file}")
    count = -(-whole.stat().st_size // (mib * MIB))
    parts = [into / f"{'+'.join(names)}-{number}-of-{count}.part" for number in range(1, count + 1)]
    with whole.open("rb") as file:
        for part in parts:
            part.write_bytes(file.read(mib * MIB))
    whole.unlink()
    return parts


def unpack(part: Path, into: Path) -> str:
    """Put a part beside those that are there; with the last one, unpack and verify the datasets. Says what is missing."""
    named = re.fullmatch(r"(.+)-(\d+)-of-(\d+)\.part", part.name)
    if not named:
        raise InputError(f"{part}: expected a part that `pack` has written, NAME-1-of-4.part")
    if not part.exists():
        raise InputError(f"{part}: there is no such file")
    names, count = named[1].split("+"), int(named[3])
    into.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(part, into / part.name)
    parts = [into / f"{named[1]}-{number}-of-{count}.part" for number in range(1, count + 1)]
    missing = [one.name for one in parts if not one.exists()]
    if missing:
        return f"missing: {', '.join(missing)}"
    whole = into / "whole.tar.xz"
    with whole.open("wb") as file:
        for one in parts:
            file.write(one.read_bytes())
    try:
        with tarfile.open(whole) as tar:
            tar.extractall(into, filter="data")
    except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
        raise InputError(f"{into}: the parts of {named[1]} are damaged ({error}); send them again") from None
    for name in names:
        store.check(source(name), into)
    for one in (*parts, whole):
        one.unlink()
    return f"complete and verified: {', '.join(names)}"
