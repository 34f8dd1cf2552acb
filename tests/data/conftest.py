"""Two small datasets in the publishers' layouts, and a mirror that holds them."""

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import own_data

from bayesfed.core import plugins
from bayesfed.data import sources
from bayesfed.data.source import File, Source


def fingerprint(records: np.ndarray) -> str:
    """The definition of the design, written a second time."""
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(bytes(r)).digest() for r in records))).hexdigest()


def toy_records(count: int, pixels: int, classes: int, label_bytes: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    labels = np.arange(count)[:, None] % classes
    coarse = np.full((count, label_bytes - 1), 7)
    return np.hstack([coarse, labels, random.integers(0, 256, (count, pixels))]).astype(np.uint8)


@pytest.fixture(autouse=True)
def no_mirror_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAYESFED_MIRROR", raising=False)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder with a place for `helpers.own_data.write`; behind the test no plugins are in use."""
    monkeypatch.chdir(tmp_path)
    own_data.FOLDER.mkdir(parents=True)
    yield
    plugins.use(None)


@pytest.fixture
def records() -> dict[str, dict[str, np.ndarray]]:
    """Dataset -> split -> records, in the order of the files. As CIFAR-100's, a toy-cifar record has two labels."""
    return {
        "toy-cifar": {"train": toy_records(60, 3072, 3, 2, 0), "test": toy_records(30, 3072, 3, 2, 1)},
        "toy-idx": {"train": toy_records(60, 784, 3, 1, 2), "test": toy_records(30, 784, 3, 1, 3)},
    }


@pytest.fixture
def mirror(tmp_path: Path, records, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with both toy datasets, which are known under their names while the test runs."""
    folder = tmp_path / "mirror"
    (folder / "toy-bin").mkdir(parents=True)
    (folder / "toy-idx").mkdir()
    train, test = records["toy-cifar"]["train"], records["toy-cifar"]["test"]
    for name, rows in (("a.bin", train[:30]), ("b.bin", train[30:]), ("test.bin", test)):
        (folder / "toy-bin" / name).write_bytes(rows.tobytes())
    files = []
    for split, rows in records["toy-idx"].items():
        heads = {"images": (2051, len(rows), 28, 28), "labels": (2049, len(rows))}
        for kind, body in (("images", rows[:, 1:]), ("labels", rows[:, 0])):
            content = gzip.compress(np.array(heads[kind], ">u4").tobytes() + body.tobytes(), mtime=0)
            (folder / "toy-idx" / f"{split}-{kind}.gz").write_bytes(content)
            files.append(File(f"toy-idx/{split}-{kind}.gz", (), hashlib.md5(content).hexdigest()))

    common = {"licence": "none", "homepage": "https://example.org", "classes": 3, "train": 60, "test": 30}
    toys = (
        Source(
            name="toy-cifar", title="Toy", channels=3, size=32, format="cifar", label_bytes=2,
            files=(File("toy.tar.gz", (), "0" * 32),),
            parts={"train": ("toy-bin/a.bin", "toy-bin/b.bin"), "test": ("toy-bin/test.bin",)},
            fingerprints={split: fingerprint(rows) for split, rows in records["toy-cifar"].items()},
            mean=(0.5,) * 3, std=(0.25,) * 3, prepare="none", **common,
        ),
        Source(
            name="toy-idx", title="Toy", channels=1, size=28, format="idx", label_bytes=1,
            files=tuple(files),
            parts={s: (f"toy-idx/{s}-images.gz", f"toy-idx/{s}-labels.gz") for s in ("train", "test")},
            fingerprints={split: fingerprint(rows) for split, rows in records["toy-idx"].items()},
            mean=(0.5,), std=(0.25,), prepare="pad", **common,
        ),
    )  # fmt: skip
    for toy in toys:
        monkeypatch.setitem(sources.SOURCES, toy.name, toy)
    return folder
