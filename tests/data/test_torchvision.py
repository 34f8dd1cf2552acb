"""Mirrors in torchvision's layouts: idx files that are unpacked, and CIFAR's pickles, which nobody unpickles."""

from __future__ import annotations

import gzip
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesfed.core.errors import InputError
from bayesfed.data import pickled, sources
from bayesfed.data.fetch import fetch


class Attack:
    """An object that runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def python_2(rows: np.ndarray) -> bytes:
    """A batch as Python 2 and its numpy pickled it, protocol 2: labels first, then the array, names of files last."""
    labels = b"".join(b"K" + bytes([label]) for label in rows[:, 0])
    size, pixels = len(rows), rows[:, 1:].tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85U\x01b\x87Rq\x08(K\x01"
    array += (
        b"M"
        + size.to_bytes(2, "little")
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\x09U\x02u1K\x00K\x01\x87Rq\x0a(K\x03U\x01|NNNJ"
    )
    array += b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    names = b"U\x09filenamesq\x0b]q\x0c(U\x05a.pngU\x05b.pnge"
    return b"\x80\x02}q\x01(U\x06labelsq\x04]q\x05(" + labels + b"eU\x04dataq\x0d" + array + names + b"u."


def test_what_is_written_here_as_python_2_does_can_be_unpickled() -> None:
    rows = np.random.default_rng(0).integers(0, 10, (12, 3073)).astype(np.uint8)
    held = pickle.loads(python_2(rows), encoding="bytes")
    assert held[b"labels"] == rows[:, 0].tolist()
    np.testing.assert_array_equal(held[b"data"], rows[:, 1:])


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("first", ["coarse_labels", "data", "filenames"])
def test_batches_of_any_protocol(tmp_path: Path, protocol: int, first: str) -> None:
    rows = np.random.default_rng(0).integers(0, 100, (300, 3074)).astype(np.uint8)
    held = {
        b"batch_label": b"training batch 1 of 1", b"fine_labels": rows[:, 1].tolist(), b"data": rows[:, 2:],
        b"filenames": [b"a.png"] * 300, b"coarse_labels": rows[:, 0].tolist(),
    }  # fmt: skip
    held = {first.encode(): held[first.encode()]} | held
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps(held, protocol))
    np.testing.assert_array_equal(pickled.read(path, 3074), rows)
    named = {key.decode(): value for key, value in held.items()}
    path.write_bytes(pickle.dumps(named, protocol))
    np.testing.assert_array_equal(pickled.read(path, 3074), rows)


def test_a_file_of_python_2(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 10, (12, 3073)).astype(np.uint8)
    (tmp_path / "a").write_bytes(python_2(rows))
    np.testing.assert_array_equal(pickled.read(tmp_path / "a", 3073), rows)


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pickle.dumps({b"labels": [1], b"data": Attack(tmp_path / "pwned")}))
    with pytest.raises(
        InputError, match=r"a: this is none of CIFAR's Python files; replace it, or take the binary version"
    ):
        pickled.read(tmp_path / "a", 3073)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("cut", [0, 1, 5000])
def test_broken_pickles_are_refused(tmp_path: Path, cut: int) -> None:
    whole = python_2(np.ones((12, 3073), np.uint8))
    (tmp_path / "a").write_bytes(whole[:-1][:-cut] if cut else b"")
    with pytest.raises(InputError, match="none of CIFAR's Python files"):
        pickled.read(tmp_path / "a", 3073)


def test_a_mirror_of_pickles(mirror: Path, records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same dataset as from the publisher's files; the binary version goes first where both are there."""
    monkeypatch.setitem(sources.SOURCES, "toy-cifar", replace(sources.SOURCES["toy-cifar"], torchvision="toy-py"))
    first = (fetch("toy-cifar", tmp_path / "one", mirror) / "train.npz").read_bytes()
    shutil.rmtree(mirror / "toy-bin")
    with pytest.raises(InputError, match=r"neither toy-bin/a.bin nor toy.tar.gz nor toy-py/a is in the mirror"):
        fetch("toy-cifar", tmp_path / "two", mirror)
    (mirror / "toy-py").mkdir()
    train, test = records["toy-cifar"]["train"], records["toy-cifar"]["test"]
    for name, rows in (("a", train[:30]), ("b", train[30:]), ("test", test)):
        held = {"coarse_labels": rows[:, 0].tolist(), "fine_labels": rows[:, 1].tolist(), "data": rows[:, 2:]}
        (mirror / "toy-py" / name).write_bytes(pickle.dumps(held, 2))
    assert (fetch("toy-cifar", tmp_path / "two", mirror) / "train.npz").read_bytes() == first
    rows = records["toy-cifar"]["test"][::-1] ^ 1
    held = {"coarse_labels": rows[:, 0].tolist(), "fine_labels": rows[:, 1].tolist(), "data": rows[:, 2:]}
    (mirror / "toy-py/test").write_bytes(pickle.dumps(held, 2))
    with pytest.raises(InputError, match=r"the test images in .* are damaged: fingerprint"):
        fetch("toy-cifar", tmp_path / "three", mirror)


@pytest.mark.parametrize("packed", [True, False])
def test_a_mirror_of_idx_files(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setitem(sources.SOURCES, "toy-idx", replace(sources.SOURCES["toy-idx"], torchvision="Toy/raw"))
    first = (fetch("toy-idx", tmp_path / "one", mirror) / "train.npz").read_bytes()
    (mirror / "Toy/raw").mkdir(parents=True)
    for path in (mirror / "toy-idx").iterdir():
        if packed:
            shutil.copy(path, mirror / "Toy/raw")
        else:
            (mirror / "Toy/raw" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    shutil.rmtree(mirror / "toy-idx")
    assert (fetch("toy-idx", tmp_path / "two", mirror) / "train.npz").read_bytes() == first


def test_the_layouts_are_torchvisions() -> None:
    """Where its own classes look for their files."""
    datasets = pytest.importorskip("torchvision.datasets")
    for name, of in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        source = sources.SOURCES[name]
        assert source.torchvision == of.base_folder
        assert [Path(part).stem for part in source.parts["train"]] == [file for file, _ in of.train_list]
        assert [Path(part).stem for part in source.parts["test"]] == [file for file, _ in of.test_list]
    for name, of in (("mnist", datasets.MNIST), ("fashion-mnist", datasets.FashionMNIST), ("kmnist", datasets.KMNIST)):
        source = sources.SOURCES[name]
        assert source.torchvision == f"{of.__name__}/raw"
        assert {Path(file.name).name: file.md5 for file in source.files} == dict(of.resources)
