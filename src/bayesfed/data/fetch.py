"""Fetch a dataset: from its publisher, a local mirror, or a folder of the user's; verify it; store it in canonical order.

A download is verified by the publisher's checksum, and what is read by the dataset's fingerprint, wherever
it comes from.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.core.plugins import DATA, in_use, use
from bayesfed.data import arrays, formats, own, prepare, reader, store
from bayesfed.data.catalogue import described
from bayesfed.data.reader import DESCRIPTION
from bayesfed.data.records import CLIENT, FEATURE, NOBODY, SPLITS, Records, canonical_order, write_npz
from bayesfed.data.source import File, Source

SHOWN = 10  # names in a message
MIRROR = "--mirror, BAYESFED_MIRROR or a config's data_mirror"


def fetch(
    name: str, data: Path | str = DATA, mirror: Path | str | None = None, plugins: Path | str | None = None
) -> Path:
    """Make the folder of a dataset in `data` and return it; if it is there and sound it is left alone, if damaged replaced.

    `mirror` (else the environment's BAYESFED_MIRROR) is a local folder with the publishers' files. Where one
    is given it alone is read, so that work without a network never waits for time-outs; otherwise each file
    comes from the publisher's URL or, if that fails, the next one. What we have no fingerprints of must have the
    publisher's checksums, and its fingerprints are shown and recorded. Of a dataset of the user's own, fingerprints,
    mean and standard deviation are pinned in `dataset.json`, and what its reader read, which runs again where that has
    changed; `plugins` is the folder that it is in, by default the one in use. Raises InputError for an unknown name, a file
    missing in the mirror, damaged data, a download that no URL gives, or data of the user's that changed since they were
    pinned.
    """
    data_dir = files.path(data, "data")
    use(in_use.folder if plugins is None else plugins, data_dir)  # where some datasets are described
    wanted = described(name)
    folder = data_dir / name
    mirror = Path(given) if (given := mirror or os.environ.get("BAYESFED_MIRROR")) else None
    if _is_sound(wanted, data_dir, mirror):
        return folder
    with _scratch(folder) as scratch:
        if _is_sound(wanted, data_dir, mirror):  # by whoever held it
            return folder
        noted: dict[str, object] = {}
        names: tuple[str, ...] = ()
        if wanted.folder:
            wanted, by_split, names, noted = _own_records(wanted, mirror, scratch)
            if (before := own.recorded(folder)) and before.fingerprints != wanted.fingerprints:
                what = reader.changed(wanted, before.reader, mirror) if noted and before.reader else ""
                raise store.other_data(wanted, before.fingerprints, folder, what)
        else:
            by_split, names = _records(wanted, mirror, scratch)
        measured = wanted.fingerprints
        if not measured:
            measured = {split: canonical_order(rows)[1] for split, rows in by_split.items()}
            print(f"{name}: fingerprints, which we had none to compare with: {measured}", file=sys.stderr)
        if wanted.format == "leaf":
            train, test = (len(by_split[split]) for split in SPLITS)
            wanted = replace(wanted, fingerprints=measured, train=train, test=test, clients=len(names))
        for split, records in by_split.items():
            _write_split(wanted, split, records, scratch)
        record = _record(wanted, scratch) | {"fingerprints": dict(measured)} | noted
        record["labels"] = 1 + max(int(records[:, wanted.label_bytes - 1].max()) for records in by_split.values())
        if names:
            record["clients"] = names
            _tell_clients(wanted, names, scratch)
        (scratch / "dataset.json").write_text(files.sealed_json(record))
        folder.mkdir(exist_ok=True)
        # An old record goes first and the new one comes last: with a dataset.json, the folder is whole.
        (folder / "dataset.json").unlink(missing_ok=True)
        for file in ("train.npz", "test.npz", "dataset.json"):
            os.replace(scratch / file, folder / file)
    return folder


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield a folder to work in, held by one process at a time; what a killed one left is removed first.

    It is on the disk of the dataset's folder, even if that is a link: files are moved there.
    """
    place = folder.resolve()
    if folder.is_symlink() and not place.is_dir():
        raise InputError(
            f"{folder}: this link leads to {place}, which is no folder; make that folder, or remove the link"
        )
    scratch = place.with_name(f".{place.name}.scratch")
    with files.locked(place.with_name(f".{place.name}.lock"), f"{folder}: another process fetches this"):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _is_sound(wanted: Source, data_dir: Path, mirror: Path | None) -> bool:
    try:
        store.check(wanted, data_dir, mirror)
    except InputError:
        return False
    return wanted.folder is None or _pinned(data_dir / wanted.name) == prepare.identity(wanted)


def _pinned(folder: Path) -> str:
    """Return the preparation for which a record holds mean and standard deviation."""
    return str(files.read_sealed_json(folder / "dataset.json").get("preparation"))


def _records(wanted: Source, mirror: Path | None, scratch: Path) -> tuple[dict[str, Records], tuple[str, ...]]:
    """Return the verified records of both splits in canonical order, that is sorted by their sha256, and the names of
    the clients, if the data name some.
    """
    if wanted.format == "scikit-learn":
        found = formats.digits(wanted)
        return {split: _verified(wanted, split, rows, "scikit-learn") for split, rows in found.items()}, ()
    if wanted.format == "leaf" and mirror is None:
        raise InputError(
            f"{wanted.name}: LEAF publishes a script that makes its files, and no files; run its preprocess.sh, put the "
            f"folders train and test into DIR/{wanted.name} and give DIR by --mirror ({wanted.homepage})"
        )
    folder = _published(wanted, mirror, scratch)
    if not wanted.fingerprints:
        _check_files(wanted, folder, "the publisher's is")
    names: tuple[str, ...] = ()
    if wanted.format == "leaf":
        found, names = formats.read_leaf(wanted, folder)
    else:
        found = {split: formats.READERS[wanted.format](wanted, split, folder) for split in SPLITS}
    return {split: _verified(wanted, split, rows, str(folder)) for split, rows in found.items()}, names


def _published(wanted: Source, mirror: Path | None, scratch: Path) -> Path:
    """Return a folder with the publishers' files: the mirror, or `scratch`, where they are downloaded."""
    if mirror is None:
        for file in wanted.files:
            _download(file, scratch)
        return scratch
    if not mirror.is_dir():
        raise InputError(f"there is no folder {mirror}; give one with the publishers' files by {MIRROR}")
    return mirror


def _check_files(wanted: Source, folder: Path, told: str) -> None:
    """Raise InputError for a file that is missing or has another md5 than the source says; `told`: who says it."""
    for file in wanted.files:
        path = formats.located(wanted, folder, file.name)
        if not path.is_file():
            raise InputError(f"{wanted.name}: no file {file.name} in the mirror {folder}")
        if (found := formats.file_md5(path)) != file.md5:
            raise InputError(f"{path} is damaged: md5 {found}, {told} {file.md5}")


def _own_records(
    wanted: Source, mirror: Path | None, scratch: Path
) -> tuple[Source, dict[str, Records], tuple[str, ...], dict[str, object]]:
    """Return a dataset of the user's own with all that its arrays say, its records in canonical order, the names of
    its clients, and what its record says of its reader, if it has one.
    """
    assert wanted.folder is not None
    noted: dict[str, object] = {}
    if wanted.format != "reader":
        splits = own.read_splits(wanted)
    else:
        place = _published(wanted, mirror, scratch) if wanted.files else wanted.folder
        _check_files(wanted, place, f"{DESCRIPTION} gives")
        splits, noted["reader"] = own.run_reader(wanted, place, mirror if place == mirror else None)
    ordered = {split: rows[canonical_order(rows)[0]] for split, rows in arrays.records(splits).items()}
    source = own.as_described(wanted.name, wanted.folder)
    facts = own.facts_of(splits, source)
    return own.filled(source, facts), ordered, facts.clients, noted


def _download(file: File, folder: Path) -> None:
    """Download `file` into `folder` from the first URL that gives it with the right checksum."""
    import pooch

    target = folder / file.name
    failures = []
    for url in file.urls:
        try:
            pooch.retrieve(url, known_hash=f"md5:{file.md5}", fname=target.name, path=target.parent)
            return
        except (OSError, ValueError) as error:  # no network, refused, or a wrong checksum
            reason = " ".join(str(error).split())
            failures.append(f"{url} ({reason if len(reason) <= 200 else f'... {reason[-200:]}'})")  # its end says why
    tried = f"from {'; '.join(failures)}" if failures else "without a URL"
    raise InputError(f"cannot download {file.name} {tried}: give a folder with the publishers' files by {MIRROR}")


def _verified(wanted: Source, split: str, records: Records, origin: str) -> Records:
    """Put `records` in canonical order; raise InputError that names the files if the fingerprint is not the one we
    have, if any.
    """
    order, found = canonical_order(records)
    if wanted.fingerprints and found != wanted.fingerprints[split]:
        parts = ", ".join(wanted.parts.get(split, ("digits",)))
        raise InputError(
            f"{wanted.name}: the {split} images in {origin} ({parts}) are damaged: fingerprint {found}, "
            f"expected {wanted.fingerprints[split]}; replace them by the publisher's ({wanted.homepage})"
        )
    return records[order]


def _write_split(wanted: Source, split: str, records: Records, folder: Path) -> None:
    begin = wanted.label_bytes + (CLIENT.itemsize if wanted.clients else 0)
    values = np.ascontiguousarray(records[:, begin:])
    values = values.view(FEATURE) if wanted.shape else values
    shape = wanted.shape or (wanted.channels, wanted.size, wanted.size)
    held: dict[str, np.ndarray] = {
        wanted.array: values.reshape(-1, *shape),
        "labels": records[:, wanted.label_bytes - 1],
    }
    if wanted.clients:
        held["clients"] = np.ascontiguousarray(records[:, wanted.label_bytes : begin]).view(CLIENT)[:, 0]
    write_npz(folder / f"{split}.npz", held)


def _tell_clients(wanted: Source, names: Sequence[str], folder: Path) -> None:
    """Print which clients are in one split alone, unless the test images are in common."""
    held = {}
    for split, words in zip(SPLITS, ("training", "test"), strict=True):
        with np.load(folder / f"{split}.npz", allow_pickle=False) as one:
            held[words] = np.unique(one["clients"])
    if held["test"][0] == NOBODY:
        return
    for where, lacks in (("training", "test"), ("test", "training")):
        alone = [names[k] for k in np.setdiff1d(held[where], held[lacks])]
        if alone:
            shown = ", ".join(alone[:SHOWN]) + (", ..." if len(alone) > SHOWN else "")
            print(
                f"{wanted.name}: {len(alone)} of {len(names)} clients have {where} images and no {lacks} images: {shown}",
                file=sys.stderr,
            )


def _record(wanted: Source, folder: Path) -> dict[str, object]:
    """Return the content of `dataset.json`: what the data are, and how to tell that the files are whole."""
    paths = [folder / f"{split}.npz" for split in SPLITS]
    record: dict[str, object] = {
        "name": wanted.name,
        "title": wanted.title,
        "homepage": wanted.homepage,
        "licence": wanted.licence,
        "classes": wanted.classes,
        "images": {split: wanted.count(split) for split in SPLITS},
        "shape": wanted.shape or [wanted.channels, wanted.size, wanted.size],
        "fingerprint": wanted.fingerprint,
        "fingerprints": dict(wanted.fingerprints),
        "files": {p.name: {"bytes": p.stat().st_size, "sha256": files.sha256(p)} for p in paths},
    }
    if wanted.shape:
        record |= {"preparation": prepare.identity(wanted), "dtype": FEATURE.name}
    elif wanted.folder:
        with np.load(folder / "train.npz", allow_pickle=False) as arrays:
            mean, std = prepare.statistics(prepare.prepared(arrays["images"], wanted))
        record |= {"preparation": prepare.identity(wanted), "mean": mean, "std": std}
    return record
