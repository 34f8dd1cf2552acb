"""The formats of published datasets: what each one's files hold, as records.

Nothing is unpickled, and no archive is unpacked to disk: the files wanted are read by name.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from pathlib import Path

import numpy as np

from bayesfed.core.errors import InputError
from bayesfed.data import arrays, pickled
from bayesfed.data.records import SPLITS, Records, canonical_order, in_test_split
from bayesfed.data.source import Source


def read_cifar(wanted: Source, split: str, folder: Path) -> Records:
    """Read records of the CIFAR binary version: label bytes, then 3072 pixels, in one or several files."""
    width = wanted.label_bytes + wanted.channels * wanted.size**2
    parts = wanted.parts[split]
    expected = wanted.count(split) // len(parts) * width
    archive = wanted.files[0]
    if all((folder / part).is_file() for part in parts):
        contents = [sized(folder / part, (folder / part).read_bytes(), expected) for part in parts]
    elif (folder / archive.name).is_file():
        contents = read_archive(folder / archive.name, archive.md5, parts, expected)
    elif wanted.torchvision and all(as_torchvision(wanted, folder, part).is_file() for part in parts):
        return np.concatenate([pickled.read(as_torchvision(wanted, folder, part), width) for part in parts])
    else:
        missing = next(part for part in parts if not (folder / part).is_file())
        also = f" nor {wanted.torchvision}/{Path(missing).stem}" if wanted.torchvision else ""
        raise InputError(f"{wanted.name}: neither {missing} nor {archive.name}{also} is in the mirror {folder}")
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, width)


def as_torchvision(wanted: Source, folder: Path, name: str) -> Path:
    """Return where torchvision puts what a file holds: in a folder of its own, unpacked."""
    return folder / wanted.torchvision / Path(name).name.removesuffix(".gz").removesuffix(".bin")


def located(wanted: Source, folder: Path, name: str) -> Path:
    """Return the path of a publisher's file in a mirror, which may be as torchvision has made it."""
    packed = folder / wanted.torchvision / Path(name).name
    return packed if wanted.torchvision and not (folder / name).is_file() and packed.is_file() else folder / name


def read_archive(path: Path, md5: str, members: tuple[str, ...], expected: int) -> list[bytes]:
    """Read `members` into memory: the archive decides neither where bytes go nor how many come."""
    contents = {}
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name in members and member.isfile() else None
                if file is not None:
                    contents[member.name] = sized(path / member.name, file.read(expected + 1), expected)
            while stream.read(1 << 20):  # to the end, where gzip's checksum is
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}): {remedy(path, md5)}") from None
    missing = [name for name in members if name not in contents]
    if missing:
        raise InputError(f"{path} holds no file {missing[0]}: {remedy(path, md5)}")
    return [contents[name] for name in members]


def read_idx(wanted: Source, split: str, folder: Path) -> Records:
    """Read records of a pair of idx files, gzipped or not: big-endian magic number and dimensions, then bytes."""
    count, size = wanted.count(split), wanted.size
    columns = []
    headers = ((2051, count, size, size), (2049, count))
    for name, header in zip(wanted.parts[split], headers, strict=True):
        path = located(wanted, folder, name)
        if wanted.torchvision and not path.is_file():
            path = as_torchvision(wanted, folder, name)
        md5 = next(file.md5 for file in wanted.files if file.name == name)
        start = np.array(header, ">u4").tobytes()
        expected = len(start) + int(np.prod(header[1:]))
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                content = file.read(expected + 1)  # one more, to meet the end and its checksum
        except FileNotFoundError:
            raise InputError(f"{wanted.name}: no file {name} in the mirror {folder}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} is damaged ({error}): {remedy(path, md5)}") from None
        if not sized(path, content, expected).startswith(start):
            raise InputError(f"{path} is no idx file of shape {header[1:]}: {remedy(path, md5)}")
        columns.append(np.frombuffer(content, np.uint8, offset=len(start)).reshape(count, -1))
    images, labels = columns
    return np.concatenate([labels, images], axis=1)


def read_mat(wanted: Source, split: str, folder: Path) -> Records:
    """Read records of a MATLAB file: X (H, W, C, N) and y (N, 1), in which 10 stands for the digit 0 (SVHN)."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise InputError(f"{wanted.name}: its MATLAB files need scipy, which is not installed") from None
    path = located(wanted, folder, wanted.parts[split][0])
    held = loadmat(path)
    shape = (wanted.size, wanted.size, wanted.channels, wanted.count(split))
    if held["X"].shape != shape or held["y"].size != shape[3]:
        raise InputError(f"{path}: expected images of shape {shape} and as many labels, found {held['X'].shape}")
    pixels = held["X"].transpose(3, 2, 0, 1).reshape(shape[3], -1)
    return np.concatenate([held["y"].reshape(-1, 1) % 10, pixels], axis=1).astype(np.uint8)


def read_leaf(wanted: Source, folder: Path) -> tuple[dict[str, Records], tuple[str, ...]]:
    """Read records of LEAF's json files of all users, and the users' names, who are the clients: x, a list of 784 levels
    of grey from 0 to 1 an image, and y, of which 0 to 9 are digits, left out here, 10 to 35 capital and 36 to 61 small
    letters.
    """
    splits = {split: leaf_split(wanted, folder / wanted.parts[split][0]) for split in SPLITS}
    return arrays.records(splits), arrays.client_names(splits)


def leaf_split(wanted: Source, place: Path) -> arrays.Split:
    """Return the letters in a folder of LEAF's json files."""
    paths = sorted(place.glob("*.json"))
    if not paths:
        raise InputError(f"{wanted.name}: no json files in {place}; run LEAF's preprocess.sh ({wanted.homepage})")
    pixels, labels, users = (
        np.concatenate(one) for one in zip(*(leaf_file(wanted, path) for path in paths), strict=True)
    )
    if not len(labels):
        raise InputError(f"{place}: no letters among its images; make LEAF's files of all classes")
    return arrays.Split(pixels, labels, users)


def leaf_file(wanted: Source, path: Path) -> tuple[Records, Records, np.ndarray]:
    """Return the letters in one of LEAF's json files: pixels (N, 784), labels from 0 and users (N,)."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))["user_data"]
        images = [np.array(user["x"], float).reshape(-1, wanted.size**2) for user in held.values()]
        labels = [np.array(user["y"], int) for user in held.values()]
        pixels, y = np.concatenate(images) * 255, np.concatenate(labels)
        users = np.repeat(list(held), [len(one) for one in labels])
        good = (
            list(map(len, images)) == list(map(len, labels))
            and y.min() >= 0
            and y.max() < 62
            and pixels.min() >= 0
            and pixels.max() <= 255
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is none of LEAF's files ({error}): make it again") from None
    if not good:
        raise InputError(f"{path}: expected as many labels from 0 to 61 as images, with levels from 0 to 1")
    letters = y >= 10
    return pixels[letters].round().astype(np.uint8), (y[letters] - 10).astype(np.uint8), users[letters]


def digits(wanted: Source) -> dict[str, Records]:
    """Load scikit-learn's 1797 digits: of each class, in canonical order, the first fifth is the test split."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    pixels = loaded.images.reshape(-1, 64).astype(np.uint8)
    records = np.concatenate([loaded.target.astype(np.uint8)[:, None], pixels], axis=1)
    records = records[canonical_order(records)[0]]
    is_test = in_test_split(records[:, 0], 0.2)
    if wanted.name == "digits-parity":
        records[:, 0] %= 2
    if wanted.name == "digits-turned":
        records[:, 1:] = np.rot90(records[:, 1:].reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)
    return {"train": records[~is_test], "test": records[is_test]}


def sized(path: Path, content: bytes, expected: int) -> bytes:
    if len(content) != expected:
        raise InputError(f"{path} has not the {expected} bytes expected: replace it by the publisher's")
    return content


def remedy(path: Path, md5: str) -> str:
    return f"md5 {file_md5(path)}, the publisher's is {md5}; replace it by the publisher's"


def file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


READERS = {"cifar": read_cifar, "idx": read_idx, "mat": read_mat}  # by `Source.format`
