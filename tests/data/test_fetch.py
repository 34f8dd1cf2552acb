"""Fetching: mirror and download, verification, canonical order, nothing half-done."""

import dataclasses
import errno
import functools
import hashlib
import http.server
import io
import json
import os
import pickle
import random
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.damage import flip, put

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.data import catalogue, records, sources, store
from bayesfed.data.fetch import fetch
from bayesfed.data.prepare import Seen


def tree(folder: Path) -> list[str]:
    """All that lies in `folder`, but for the locks."""
    found = (str(p.relative_to(folder)) for p in folder.rglob("*"))
    return sorted(name for name in found if not name.endswith(".lock"))


def damage(path: Path, position: int) -> None:
    path.write_bytes(flip(path.read_bytes(), position))


def pack(mirror: Path, members: dict[str, bytes]) -> Path:
    """Put `members` in the archive of toy-cifar, in place of the unpacked files."""
    for path in (mirror / "toy-bin").iterdir():
        path.unlink()
    with tarfile.open(mirror / "toy.tar.gz", "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return mirror / "toy.tar.gz"


def honest(records) -> dict[str, bytes]:
    train, test = records["toy-cifar"]["train"], records["toy-cifar"]["test"]
    return {
        "toy-bin/a.bin": train[:30].tobytes(),
        "toy-bin/b.bin": train[30:].tobytes(),
        "toy-bin/test.bin": test.tobytes(),
    }


@pytest.mark.parametrize("name", ["toy-cifar", "toy-idx"])
def test_records_come_back_whole_and_in_canonical_order(name, mirror, records, tmp_path):
    fetch(name, tmp_path / "data", mirror)
    data = store.load(name, tmp_path / "data")
    wanted = catalogue.source(name)
    rows = sorted(records[name]["train"], key=lambda row: hashlib.sha256(bytes(row)).digest())
    for image, label, row in zip(data.train_images, data.train_labels, rows, strict=True):
        native = image if wanted.size == 32 else image[:, 2:-2, 2:-2]
        assert bytes(row[-native.size :]) == native.tobytes()
        assert label == row[wanted.label_bytes - 1]
    assert data.train_images.shape == (60, wanted.channels, 32, 32)
    assert (data.train_images.dtype, data.train_labels.dtype) == (np.uint8, np.int64)
    assert data.test_images.shape == (30, wanted.channels, 32, 32)


def test_record_names_licence_counts_and_checksums(mirror, tmp_path):
    folder = fetch("toy-idx", tmp_path / "data", mirror)
    record = json.loads((folder / "dataset.json").read_text())
    assert record["licence"] == "none"
    assert record["images"] == {"train": 60, "test": 30}
    assert record["files"]["train.npz"]["sha256"] == files.sha256(folder / "train.npz")
    assert tree(tmp_path / "data") == [
        "toy-idx", "toy-idx/dataset.json", "toy-idx/test.npz", "toy-idx/train.npz",
    ]  # fmt: skip


def test_the_order_of_the_mirror_changes_nothing(mirror, records, tmp_path):
    first = fetch("toy-cifar", tmp_path / "one", mirror)
    shuffled = records["toy-cifar"]["train"][np.random.default_rng(5).permutation(60)]
    (mirror / "toy-bin/a.bin").write_bytes(shuffled[:30].tobytes())
    (mirror / "toy-bin/b.bin").write_bytes(shuffled[30:].tobytes())
    second = fetch("toy-cifar", tmp_path / "two", mirror)
    for file in ("train.npz", "test.npz", "dataset.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_archive_and_unpacked_files_give_the_same(mirror, records, tmp_path):
    first = fetch("toy-cifar", tmp_path / "one", mirror)
    pack(mirror, honest(records))
    second = fetch("toy-cifar", tmp_path / "two", mirror)
    assert (first / "train.npz").read_bytes() == (second / "train.npz").read_bytes()


def test_the_environment_names_the_mirror(mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESFED_MIRROR", str(mirror))
    assert (fetch("toy-idx", tmp_path / "data") / "dataset.json").exists()


def test_missing_mirror_file(mirror, tmp_path):
    (mirror / "toy-bin/b.bin").unlink()
    with pytest.raises(InputError, match=r"toy-bin/b\.bin nor toy\.tar\.gz .*/mirror$"):
        fetch("toy-cifar", tmp_path / "data", mirror)
    (mirror / "toy-idx/test-labels.gz").unlink()
    with pytest.raises(InputError, match=r"no file toy-idx/test-labels\.gz in the mirror .*/mirror$"):
        fetch("toy-idx", tmp_path / "data", mirror)
    with pytest.raises(InputError, match=r"no folder .*/nowhere"):
        fetch("toy-idx", tmp_path / "data", tmp_path / "nowhere")
    assert tree(tmp_path / "data") == []


def test_unknown_name_has_a_hint(tmp_path):
    with pytest.raises(InputError, match="'cifar1O'; did you mean 'cifar10'"):
        fetch("cifar1O", tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [("toy-cifar", "toy-bin/b.bin"), ("toy-idx", "toy-idx/train-images.gz"), ("toy-cifar", "toy.tar.gz")],
)
@pytest.mark.parametrize("place", [0.01, 0.3, 0.6, 0.99])
def test_one_flipped_byte(name, file, place, mirror, records, tmp_path):
    if file == "toy.tar.gz":
        pack(mirror, honest(records))
    path = mirror / file
    damage(path, int(path.stat().st_size * place))
    with pytest.raises(InputError, match=r"(fingerprint|md5) [0-9a-f]+, .*; replace") as error:
        fetch(name, tmp_path / "data", mirror)
    assert file in str(error.value)
    assert "\n" not in str(error.value)
    assert tree(tmp_path / "data") == []


def test_a_file_of_another_length(mirror, tmp_path):
    path = mirror / "toy-bin/a.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"a\.bin has not the 92220 bytes"):
        fetch("toy-cifar", tmp_path / "data", mirror)


def test_an_archive_writes_nowhere(mirror, records, tmp_path):
    members = honest(records)
    members["../../evil.txt"] = b"evil"
    members[str(tmp_path / "absolute.txt")] = b"evil"
    pack(mirror, members)
    before = tree(tmp_path)
    fetch("toy-cifar", tmp_path / "data", mirror)
    assert [name for name in tree(tmp_path) if not name.startswith("data")] == before


def test_a_link_in_the_place_of_a_file_is_refused(mirror, tmp_path):
    for path in (mirror / "toy-bin").iterdir():
        path.unlink()
    with tarfile.open(mirror / "toy.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("toy-bin/a.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(InputError, match=r"holds no file toy-bin/a\.bin: md5"):
        fetch("toy-cifar", tmp_path / "data", mirror)


def test_interrupted_fetch_leaves_nothing(mirror, tmp_path, monkeypatch):
    real, calls = records.write_npz, []

    def interrupted(path, arrays):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(path, arrays)

    monkeypatch.setattr("bayesfed.data.fetch.write_npz", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("toy-idx", tmp_path / "data", mirror)
    assert tree(tmp_path / "data") == []
    monkeypatch.setattr("bayesfed.data.fetch.write_npz", real)
    fetch("toy-idx", tmp_path / "data", mirror)
    store.load("toy-idx", tmp_path / "data")


def test_what_a_killed_fetch_left_is_cleared_away(mirror, tmp_path):
    left = tmp_path / "data/.toy-idx.scratch"
    left.mkdir(parents=True)
    (left / "train.npz").write_bytes(b"half")
    fetch("toy-idx", tmp_path / "data", mirror)
    assert not left.exists()


def test_fetched_data_are_left_alone_and_damaged_ones_replaced(mirror, tmp_path):
    folder = fetch("toy-idx", tmp_path / "data", mirror)
    before = (folder / "train.npz").stat().st_mtime_ns
    fetch("toy-idx", tmp_path / "data", tmp_path / "no mirror needed")
    assert (folder / "train.npz").stat().st_mtime_ns == before
    damage(folder / "train.npz", 5000)
    fetch("toy-idx", tmp_path / "data", mirror)
    store.load("toy-idx", tmp_path / "data")


def test_a_linked_folder_gets_its_files_on_its_own_disk(mirror, tmp_path, monkeypatch):
    data, far = tmp_path / "data", tmp_path / "disk/far"
    data.mkdir()
    (data / "toy-idx").symlink_to(far)
    with pytest.raises(InputError, match=r"data/toy-idx: this link leads to .*disk/far, which is no folder; make that"):
        fetch("toy-idx", data, mirror)
    far.mkdir(parents=True)
    replace = os.replace

    def on_one_disk(old, new):
        if (tmp_path / "disk" in Path(old).resolve().parents) != (tmp_path / "disk" in Path(new).resolve().parents):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(old, new)

    monkeypatch.setattr(os, "replace", on_one_disk)
    fetch("toy-idx", data, mirror)
    store.load("toy-idx", data)
    assert tree(far) == ["dataset.json", "test.npz", "train.npz"]
    assert tree(far.parent) == ["far", "far/dataset.json", "far/test.npz", "far/train.npz"]


# Loading


def test_missing_dataset_names_the_command(tmp_path):
    with pytest.raises(InputError, match="run `bayesfed fetch cifar10 --data"):
        store.load("cifar10", tmp_path)


@pytest.mark.parametrize("file", ["train.npz", "test.npz", "dataset.json"])
@pytest.mark.parametrize("how", ["truncate", "flip"])
def test_damaged_cache(file, how, mirror, tmp_path):
    path = fetch("toy-idx", tmp_path / "data", mirror) / file
    if how == "truncate":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        damage(path, 0)
    with pytest.raises(InputError, match=r"(changed|damaged).*run `bayesfed fetch toy-idx --data"):
        store.load("toy-idx", tmp_path / "data")


@pytest.mark.parametrize("file", ["train.npz", "test.npz", "dataset.json"])
def test_every_flipped_byte_of_a_cache_is_noticed(file, mirror, tmp_path):
    """All of the record, a sample of the arrays; one bit of a byte, which differs from byte to byte."""
    path = fetch("toy-idx", tmp_path / "data", mirror) / file
    wanted, whole = catalogue.source("toy-idx"), path.read_bytes()
    every = range(len(whole))
    for at in every if file == "dataset.json" else [0, len(whole) - 1, *random.Random(1).sample(every, 60)]:
        put(path, flip(whole, at))
        with pytest.raises(InputError, match=r"(changed|damaged).*run `bayesfed fetch toy-idx --data"):
            store.check(wanted, tmp_path / "data")
    path.write_bytes(whole)
    store.check(wanted, tmp_path / "data")


def test_cache_of_other_data_is_refused(mirror, tmp_path, monkeypatch):
    fetch("toy-idx", tmp_path / "data", mirror)
    other = dataclasses.replace(catalogue.source("toy-idx"), fingerprints={"train": "1", "test": "2"})
    monkeypatch.setitem(sources.SOURCES, "toy-idx", other)
    with pytest.raises(InputError, match="other data"):
        store.load("toy-idx", tmp_path / "data")


def test_no_pickle_is_read(mirror, tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a pickle was read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    fetch("toy-idx", tmp_path / "data", mirror)
    fetch("toy-cifar", tmp_path / "data", mirror)
    store.load("toy-cifar", tmp_path / "data")


# Digits, which come with scikit-learn


def test_digits_are_split_by_class_and_enlarged(tmp_path):
    fetch("digits", tmp_path)
    data = store.load("digits", tmp_path)
    assert (len(data.train_labels), len(data.test_labels)) == (data.source.train, data.source.test)
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    assert np.abs(test - (train + test) / 5).max() <= 0.5
    assert data.train_images.shape[1:] == (1, 32, 32)
    assert (data.train_images.min(), data.train_images.max()) == (0, 255)
    pixels = data.train_images[:, :, ::4, ::4]
    np.testing.assert_array_equal(data.train_images, np.kron(pixels, np.ones((4, 4), np.uint8)))
    pixels = data.train_images / 255
    assert pixels.mean() == pytest.approx(data.source.mean[0], abs=1e-4)
    assert pixels.std() == pytest.approx(data.source.std[0], abs=1e-4)


def test_parity_is_a_second_task_on_the_same_splits(tmp_path):
    for name in ("digits", "digits-parity"):
        fetch(name, tmp_path)
    digits, parity = (store.load(name, tmp_path) for name in ("digits", "digits-parity"))
    by_image = {image.tobytes(): label for image, label in zip(digits.test_images, digits.test_labels, strict=True)}
    for image, label in zip(parity.test_images, parity.test_labels, strict=True):
        assert by_image[image.tobytes()] % 2 == label
    assert len(parity.test_labels) == len(digits.test_labels)


# Downloads, from a server on this machine


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(mirror, records, monkeypatch):
    """The mirror over HTTP; toy-cifar has a first URL that does not answer and a second that does."""
    content = pack(mirror, honest(records)).read_bytes()
    handler = functools.partial(Quiet, directory=str(mirror))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        root = f"http://127.0.0.1:{running.server_port}"
        file = sources.File(
            "toy.tar.gz", (f"{root}/gone/toy.tar.gz", f"{root}/toy.tar.gz"), hashlib.md5(content).hexdigest()
        )
        toy = dataclasses.replace(catalogue.source("toy-cifar"), files=(file,))
        monkeypatch.setitem(sources.SOURCES, "toy-cifar", toy)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield mirror
        running.shutdown()
        thread.join()


def test_download_falls_back_to_the_next_url(server, tmp_path):
    fetch("toy-cifar", tmp_path / "data")
    store.load("toy-cifar", tmp_path / "data")
    assert len(tree(tmp_path / "data")) == 4


def test_download_with_a_wrong_checksum_is_refused(server, tmp_path):
    damage(server / "toy.tar.gz", 500)
    with pytest.raises(InputError, match=r"cannot download toy\.tar\.gz .*gone.*hash.*--mirror") as error:
        fetch("toy-cifar", tmp_path / "data")
    assert "\n" not in str(error.value)
    assert tree(tmp_path / "data") == []


def test_images_as_a_run_sees_them(digits_dir):
    """At native size they are normalised by what they are, or by 0.5."""
    whole = store.load("digits", digits_dir)
    native = store.load("digits", digits_dir, Seen(prepare="none"))
    assert whole.train_images.shape[1:] == (1, 32, 32)
    assert native.train_images.shape[1:] == (1, 8, 8)
    pixels = native.train_images / 255
    assert native.source.mean == (pytest.approx(pixels.mean(), abs=1e-6),)
    assert native.source.std == (pytest.approx(pixels.std(), abs=1e-6),)
    half = store.load("digits", digits_dir, Seen(normalise="half")).source
    assert (half.mean, half.std) == ((0.5,), (0.5,))


def test_turned_digits_are_the_same_images_on_their_side(tmp_path):
    """A stroke from top to bottom lies from left to right; labels and splits stay."""
    for name in ("digits", "digits-turned"):
        fetch(name, tmp_path)
    digits, turned = (store.load(name, tmp_path) for name in ("digits", "digits-turned"))
    assert {image.tobytes() for image in np.rot90(digits.test_images, axes=(2, 3))} == {
        image.tobytes() for image in turned.test_images
    }
    np.testing.assert_array_equal(np.bincount(digits.train_labels), np.bincount(turned.train_labels))
