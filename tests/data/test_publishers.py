"""SVHN, KMNIST and FEMNIST: small files in their publishers' formats are read, verified and recorded."""

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.data import store
from bayesfed.data.catalogue import described
from bayesfed.data.fetch import fetch
from bayesfed.data.sources import SOURCES
from bayesfed.plan import plan
from bayesfed.runs import run_file

COUNTS = {"train": 30, "test": 20}
RANDOM = np.random.default_rng(0)


def small(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source with the counts and checksums of the files in a folder."""
    told = SOURCES[name]
    files = tuple(replace(file, md5=hashlib.md5((folder / file.name).read_bytes()).hexdigest()) for file in told.files)
    monkeypatch.setitem(SOURCES, name, replace(told, files=files, **COUNTS))


def svhn(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """MATLAB files as of SVHN: images (32, 32, 3, N), labels (N, 1) from 1 to 10. Gives images (N, 3, 32, 32), labels."""
    (folder / "svhn").mkdir(parents=True)
    found = {}
    for split, count in COUNTS.items():
        images = RANDOM.integers(0, 256, (32, 32, 3, count)).astype(np.uint8)
        labels = 1 + np.arange(count) % 10
        savemat(folder / f"svhn/{split}_32x32.mat", {"X": images, "y": labels[:, None].astype(np.uint8)})
        found[split] = np.moveaxis(images, (3, 2), (0, 1)), np.where(labels == 10, 0, labels)
    return found


def kmnist(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs of idx files."""
    (folder / "kmnist").mkdir(parents=True)
    found = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        images = RANDOM.integers(0, 256, (COUNTS[split], 28, 28)).astype(np.uint8)
        labels = (np.arange(COUNTS[split]) % 10).astype(np.uint8)
        for kind, magic, array in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
            head = np.array([magic, *array.shape], ">u4").tobytes()
            (folder / f"kmnist/{stem}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), mtime=0))
        found[split] = images[:, None], labels
    return found


def leaf(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """LEAF's json files, two a split, two users each; gives the letters alone, from class 0, and their users' numbers."""
    found = {}
    for split in COUNTS:
        (folder / "femnist" / split).mkdir(parents=True)
        kept: list[list[np.ndarray]] = [[], [], []]
        for number in range(2):
            users = {}
            for place, user in enumerate(("f0001_41", "f0002_07")):
                images = RANDOM.integers(0, 256, (12, 28, 28)).astype(np.uint8)
                labels = RANDOM.permutation([3, 9, 10, 35, 36, 61, 12, 40, 0, 11, 22, 60])
                x = (images.reshape(12, -1) / 255).tolist()
                users[f"{user}_{number}"] = {"x": x, "y": labels.tolist()}
                kept[0].append(images[labels >= 10][:, None])
                kept[1].append(labels[labels >= 10] - 10)
                kept[2].append(np.full((labels >= 10).sum(), 2 * place + number, np.int32))
            content = {"users": list(users), "num_samples": [12, 12], "user_data": users}
            (folder / f"femnist/{split}/all_data_{number}.json").write_text(json.dumps(content))
        found[split] = np.concatenate(kept[0]), np.concatenate(kept[1]), np.concatenate(kept[2])
    return found


def in_order(images: np.ndarray, labels: np.ndarray, *clients: np.ndarray) -> list[bytes]:
    """The records of a split in canonical order."""
    records = [
        bytes([label]) + b"".join(one.tobytes() for one in (*client, image))
        for image, label, *client in zip(images, labels, *clients, strict=True)
    ]
    return sorted(records, key=lambda record: hashlib.sha256(record).digest())


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, in use."""
    monkeypatch.setattr(plugins, "in_use", plugins.InUse(data=tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize(("name", "write"), [("svhn", svhn), ("kmnist", kmnist), ("femnist", leaf)])
def test_what_is_in_the_files_comes_back(
    name: str,
    write: Any,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = write(tmp_path / "mirror")
    if name != "femnist":
        small(name, tmp_path / "mirror", monkeypatch)
    folder = fetch(name, data, tmp_path / "mirror")
    record = json.loads((folder / "dataset.json").read_text())
    for split, (images, labels, *clients) in written.items():
        with np.load(folder / f"{split}.npz") as arrays:
            found = [
                bytes([label]) + b"".join(one.tobytes() for one in (*client, image))
                for image, label, *client in zip(
                    arrays["images"], arrays["labels"], *[arrays["clients"] for _ in clients], strict=True
                )
            ]
        assert found == in_order(images, labels, *clients)
        digests = b"".join(hashlib.sha256(one).digest() for one in found)
        assert record["fingerprints"][split] == hashlib.sha256(digests).hexdigest()
        assert record["images"][split] == len(labels)
    assert record["fingerprints"]["train"] in capsys.readouterr().err
    loaded = store.load(name, data)
    assert loaded.train_images.shape[2] == loaded.source.side
    assert len(loaded.source.mean) == len(loaded.source.std) == loaded.source.channels
    before = (folder / "dataset.json").stat().st_mtime_ns
    fetch(name, data, tmp_path / "mirror")
    assert (folder / "dataset.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(("name", "write", "file"), [
    ("svhn", svhn, "svhn/test_32x32.mat"), ("kmnist", kmnist, "kmnist/t10k-labels-idx1-ubyte.gz"),
])  # fmt: skip
def test_without_fingerprints_every_file_must_be_the_publishers(
    name: str, write: Any, file: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mirror")
    small(name, tmp_path / "mirror", monkeypatch)
    content = bytearray((tmp_path / "mirror" / file).read_bytes())
    content[-20] ^= 1
    (tmp_path / "mirror" / file).write_bytes(content)
    with pytest.raises(InputError, match=rf"{file} is damaged: md5 \w+, the publisher's is"):
        fetch(name, data, tmp_path / "mirror")
    (tmp_path / "mirror" / file).unlink()
    with pytest.raises(InputError, match=f"no file {file} in the mirror"):
        fetch(name, data, tmp_path / "mirror")
    assert not (data / name).exists()


def test_identity_is_the_files_where_these_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run has its key before the data are there."""
    before = SOURCES["svhn"].fingerprint
    files = SOURCES["svhn"].files
    other = replace(SOURCES["svhn"], files=(files[0], replace(files[1], md5="0" * 32)))
    assert before != other.fingerprint
    assert SOURCES["svhn"].fingerprint == before


RUN = {
    "dataset": "femnist",
    "partition": {"scheme": "iid", "images_each": 5, "server": 5, "clients": 3, "min_train": 1, "min_test": 0},
    "method": {"name": "fedavg"}, "models": {"global": "lenet5"}, "rounds": 1, "local_epochs": 1, "batch_size": 8, "seed": 0,
}  # fmt: skip


def test_leafs_files_without_letters_are_refused(tmp_path: Path) -> None:
    leaf(tmp_path / "mirror")
    for path in (tmp_path / "mirror/femnist/train").glob("*.json"):
        content = json.loads(path.read_text())
        for user in content["user_data"].values():
            user["y"] = [0] * len(user["y"])
        path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"femnist/train: no letters among its images"):
        fetch("femnist", tmp_path / "data", tmp_path / "mirror")


def test_leafs_files_are_what_was_fetched_first(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run can be planned before; its key is that of the data when they are there, and plans are made anew."""
    monkeypatch.setattr(plugins, "DATA", data)
    config = {"name": "x", "papers": []}
    planned, key = plan.content_hash(config), run_file.resolve(RUN, data).key
    assert described("femnist").count("train") == 0
    written = leaf(tmp_path / "mirror")
    fetch("femnist", data, tmp_path / "mirror")
    run = run_file.resolve(RUN, data)
    assert run.sources[0].count("train") == len(written["train"][1])
    assert run.key != key
    assert plan.content_hash(config) != planned


def test_leaf_has_no_files_to_download(data: Path) -> None:
    with pytest.raises(InputError, match=r"femnist: LEAF publishes a script .* by --mirror"):
        fetch("femnist", data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is none of LEAF's files"),
        ('{"user_data": {"a": {"x": [[0.5]], "y": [11]}}}', "is none of LEAF's files"),
        (json.dumps({"user_data": {"a": {"x": [[2.0] * 784], "y": [11]}}}), "levels from 0 to 1"),
        (json.dumps({"user_data": {"a": {"x": [[1.0] * 784], "y": [62]}}}), "labels from 0 to 61"),
        (json.dumps({"user_data": {"a": {"x": [[1.0] * 784], "y": [11, 12]}}}), "as many labels"),
        (
            json.dumps(
                {"user_data": {"a": {"x": [[1.0] * 784], "y": [11, 12]}, "b": {"x": [[1.0] * 784] * 2, "y": [11]}}}
            ),
            "as many labels",
        ),
        (None, "no json files in .*femnist/test"),
    ],
)
def test_wrong_leaf_files(content: str | None, message: str, data: Path, tmp_path: Path) -> None:
    leaf(tmp_path / "mirror")
    for path in (tmp_path / "mirror/femnist/test").iterdir():
        path.unlink() if content is None else path.write_text(content)
    with pytest.raises(InputError, match=message):
        fetch("femnist", data, tmp_path / "mirror")


def test_a_matlab_file_of_another_shape(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn(tmp_path / "mirror")
    small("svhn", tmp_path / "mirror", monkeypatch)
    monkeypatch.setitem(SOURCES, "svhn", replace(SOURCES["svhn"], test=21))
    with pytest.raises(InputError, match=r"expected images of shape \(32, 32, 3, 21\) .* found \(32, 32, 3, 20\)"):
        fetch("svhn", data, tmp_path / "mirror")
