"""The reader of a dataset of a user's own: whatever it reads belongs to the dataset, and no change of it goes unnoticed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.own_data import mapping, refused

from bayesfed import cli
from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.data import fetch, reader, store
from bayesfed.runs import run_file

READER = """
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3] / "lib"))


def read(folder):
    import beside
    import elsewhere

    out = {}
    for split in ("train", "test"):
        table = np.loadtxt(folder / f"{split}.csv", delimiter=",", dtype=np.int64)
        labels = np.loadtxt(folder / "more" / f"{split}.txt", dtype=np.int64)
        out[split] = beside.images(table), elsewhere.labels(labels)
    return out
"""
BESIDE = "def images(table):\n    return table.reshape(-1, 8, 8).astype('uint8')\n"
ELSEWHERE = "def labels(read):\n    return read\n"
FETCH = ["fetch", "mine", "--plugins", "own"]
TRAIN = ["train", "run.yaml", "--out", "out", "--device", "cpu"]
OWN = Path("own/datasets/mine")


def table(path: Path, count: int, seed: int) -> None:
    """Images as rows of a table, and their labels in another file."""
    random = np.random.default_rng(seed)
    (path / "more").mkdir(parents=True, exist_ok=True)
    split = "train" if count == 60 else "test"
    np.savetxt(path / f"{split}.csv", random.integers(0, 256, (count, 64)), fmt="%d", delimiter=",")
    np.savetxt(path / "more" / f"{split}.txt", np.arange(count) % 3, fmt="%d")


def describe(mirror: Path | None = None) -> None:
    """The dataset's description, which lists the tables where they are in a mirror, and their labels nowhere."""
    listed = [] if mirror is None else [mirror / "train.csv", mirror / "test.csv"]
    files = [{"name": one.name, "urls": [], "md5": hashlib.md5(one.read_bytes()).hexdigest()} for one in listed]
    (OWN / "dataset.yaml").write_text(yaml.safe_dump({"title": "Mine", "files": files}))


@pytest.fixture(params=["beside", "mirror"])
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the files of the dataset are: in its own folder, or in a mirror."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BAYESFED_MIRROR", raising=False)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    OWN.mkdir(parents=True)
    (OWN / "reader.py").write_text(READER)
    (OWN / "beside.py").write_text(BESIDE)
    Path("lib").mkdir()
    Path("lib/elsewhere.py").write_text(ELSEWHERE)
    Path("run.yaml").write_text(yaml.safe_dump(mapping()))
    where = OWN if request.param == "beside" else Path("mirror")
    table(where, 60, 0)
    table(where, 30, 1)
    describe(where if where != OWN else None)
    if where != OWN:
        monkeypatch.setenv("BAYESFED_MIRROR", "mirror")
    yield where
    plugins.use(None)


def key() -> str:
    return run_file.load(Path("run.yaml")).key


def other_labels(path: Path) -> None:
    path.write_text(path.read_text().replace("2\n", "1\n", 1))


# What is changed, how, and whether the images or labels are others then.
CHANGES: dict[str, Callable[[Path], Path]] = {
    "reader": lambda place: OWN / "reader.py",
    "helper": lambda place: OWN / "beside.py",
    "helper elsewhere": lambda place: Path("lib/elsewhere.py"),
    "second file": lambda place: place / "more" / "train.txt",
}
EDITS = {
    "reader": ("elsewhere.labels(labels)", "(labels + 1) % 3"),
    "helper": ("table.reshape", "(table+1).reshape"),
    "helper elsewhere": ("return read", "return 2-read"),
    "second file": ("2\n", "1\n"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_is_read_is_named(what: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By fetch and by train; the way that the message says gives another run. All in one process."""
    assert cli.main(FETCH) == 0
    assert cli.main(TRAIN) == 0
    before, path = key(), CHANGES[what](place)
    stamp = path.stat()
    old, new = EDITS[what]
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 10**6))  # within the same second
    message = refused(capsys, *TRAIN[:3], "other")
    assert message.startswith(str(path)) or message.startswith(str(path.resolve()))
    assert message.endswith(
        ": this file has changed since data/mine was fetched; put the old one back, or run `bayesfed fetch mine --plugins own`"
    )
    message = refused(capsys, *FETCH)
    assert message.startswith((str(path), str(path.resolve())))
    assert "this file has changed, and the train images and labels are not those that were fetched" in message
    assert "delete data/mine and data/partitions/mine" in message
    for one in [*Path("data/mine").iterdir(), *Path("data/partitions/mine").iterdir()]:
        one.unlink()
    assert cli.main(FETCH) == 0
    assert key() != before
    assert "--out out: this folder holds run" in refused(capsys, *TRAIN)
    path.write_text(text)
    for one in Path("data/mine").iterdir():
        one.unlink()
    assert cli.main(FETCH) == 0
    assert key() == before


@pytest.mark.parametrize("what", ["reader", "helper"])
def test_planning_gives_other_keys_for_another_source(what: str, place: Path) -> None:
    assert cli.main(FETCH) == 0
    before, path = key(), CHANGES[what](place)
    path.write_text(path.read_text().replace(*EDITS[what]))
    assert key() != before


def test_a_remark_in_a_reader_wants_it_read_again_and_no_more(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(FETCH) == 0
    stored = Path("data/mine/train.npz").read_bytes()
    (OWN / "reader.py").write_text(f"{READER}# A remark.\n")
    assert "reader.py: this file has changed since data/mine was fetched" in refused(capsys, *TRAIN)
    assert cli.main(FETCH) == 0
    assert Path("data/mine/train.npz").read_bytes() == stored
    assert cli.main(TRAIN) == 0


def test_new_and_lost_files_are_named(place: Path) -> None:
    """Of the dataset's own folder: its reader may look for all of a kind. Of hidden ones and bytecode nothing is said."""
    assert cli.main(FETCH) == 0
    for name in (".note", "__pycache__/beside.cpython-311.pyc"):
        (OWN / name).parent.mkdir(exist_ok=True)
        (OWN / name).write_text("")
    store.load("mine", Path("data"))
    (OWN / "new.csv").write_text("")
    with pytest.raises(InputError, match=r"^own/datasets/mine/new\.csv: this file is new since data/mine was fetched"):
        store.load("mine", Path("data"))
    (OWN / "new.csv").unlink()
    (OWN / "beside.py").unlink()
    with pytest.raises(InputError, match=r"^own/datasets/mine/beside\.py: this file is gone since"):
        store.load("mine", Path("data"))


def test_other_words_of_a_description_are_no_change(place: Path) -> None:
    assert cli.main(FETCH) == 0
    before = key()
    description = yaml.safe_load((OWN / "dataset.yaml").read_text())
    (OWN / "dataset.yaml").write_text(yaml.safe_dump(description | {"title": "Other words"}))
    store.load("mine", Path("data"))
    assert key() == before


@pytest.mark.parametrize("place", ["mirror"], indirect=True)
def test_listed_files_of_a_mirror(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another content than listed is damage; another list is another dataset; a mirror that moved or is gone is neither."""
    assert cli.main(FETCH) == 0
    before = key()
    path = place / "train.csv"
    text = path.read_text()
    path.write_text(text[::-1])
    assert refused(capsys, *FETCH).startswith("mirror/train.csv is damaged: md5")
    assert refused(capsys, *TRAIN).startswith(f"{path.resolve()}: this file has changed since")
    describe(place)
    assert refused(capsys, *TRAIN).startswith("own/datasets/mine/dataset.yaml: its list of `files` has changed since")
    assert key() != before
    path.write_text(text)
    describe(place)
    place.rename("moved")
    assert cli.main([*FETCH, "--mirror", "moved"]) == 0
    assert cli.main(TRAIN) == 0
    assert key() == before
    other_labels(Path("moved/more/test.txt"))
    message = refused(capsys, *FETCH, "--mirror", "moved")
    assert message.startswith(
        "moved/more/test.txt: this file has changed, and the test images and labels are not those"
    )


def test_a_record_that_says_nothing_of_a_reader_is_made_anew(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As those of earlier versions."""
    assert cli.main(FETCH) == 0
    path = Path("data/mine/dataset.json")
    record: dict[str, Any] = json.loads(path.read_text())
    noted = record.pop("reader")
    path.write_text(fetch.files.sealed_json(record))
    assert "data/mine/dataset.json: it does not say what reader.py read; run `bayesfed fetch" in refused(capsys, *TRAIN)
    assert cli.main(FETCH) == 0
    assert json.loads(path.read_text())["reader"] == noted


def test_what_is_seen_of_what_is_opened(tmp_path: Path) -> None:
    """Whatever opens it to read, of any thread; not what is written alone."""
    for name in ("text", "bytes", "low", "both"):
        (tmp_path / name).write_text("")
    with reader.watching() as opened:
        (tmp_path / "text").read_text()
        open(os.fsencode(tmp_path / "bytes"), "rb").close()
        os.close(os.open(tmp_path / "low", os.O_RDONLY))
        open(tmp_path / "both", "r+").close()
        (tmp_path / "written").write_text("")
    (tmp_path / "text").read_text()
    assert opened == {tmp_path / name for name in ("text", "bytes", "low", "both")}
