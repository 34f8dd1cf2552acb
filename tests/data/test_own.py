"""Datasets of a user's own: arrays or a reader, checked, pinned when fetched, brought to the size that is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import own_data
from helpers.own_data import mapping, refused

import bayesfed
from bayesfed import cli
from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.data import fetch, prepare, store
from bayesfed.data.catalogue import source
from bayesfed.runs import run_file

Make = Callable[..., Path]
READER = """
import numpy as np


def read(folder):
    raw = np.fromfile(folder / "raw.bin", np.uint8).reshape(90, 401)
    images, labels = raw[:, 1:].reshape(90, 20, 20), raw[:, 0]
    return {"train": (images[:60], labels[:60]), "test": (images[60:], labels[60:])}
"""


def arrays(count: int, *shape: int, seed: int = 0, classes: int = 7) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"images": random.integers(0, 256, (count, *shape), np.uint8), "labels": np.arange(count) % classes}


@pytest.fixture
def make(own_folder: None) -> Make:
    """A function that writes the dataset `mine` with images of a shape, and takes its plugins into use."""

    def write(*shape: int, train: dict[str, Any] | None = None, **description: Any) -> Path:
        splits = {"train": arrays(60, *shape) | (train or {}), "test": arrays(30, *shape, seed=1)}
        return own_data.write(splits if shape else {}, **description)

    return write


def fetched(capsys: pytest.CaptureFixture[str]) -> str:
    return refused(capsys, "fetch", "mine", "--plugins", "own")


def test_python_fetches_from_a_folder_of_plugins(make: Make) -> None:
    make(9, 9)
    plugins.use(None)
    with pytest.raises(InputError, match="no dataset is named 'mine'"):
        bayesfed.fetch("mine")
    assert bayesfed.fetch("mine", plugins="own") == Path("data/mine")
    with pytest.raises(InputError, match="data: expected a path, found None"):
        bayesfed.fetch("mine", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (20, 20, 3), (9, 9, 4)])
def test_arrays_are_fetched_and_pinned(make: Make, shape: tuple[int, ...]) -> None:
    """One fetch; fingerprint, mean and standard deviation stand in the record."""
    folder = make(*shape)
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    record = json.loads(Path("data/mine/dataset.json").read_text())
    images = np.load(folder / "train.npz")["images"].reshape(60, *shape[:2], -1) / 255
    np.testing.assert_allclose(record["mean"], images.mean((0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(record["std"], images.std((0, 1, 2)), atol=1e-6)
    data = store.load("mine", Path("data"))
    assert data.train_images.shape == (60, images.shape[3], shape[0], shape[0])
    assert (list(data.source.mean), data.source.classes) == (record["mean"], 7)
    order = [hashlib.sha256(bytes([k % 7]) + (255 * image).round().astype(np.uint8).transpose(2, 0, 1).tobytes()).digest()
             for k, image in enumerate(images)]  # fmt: skip
    assert record["fingerprints"]["train"] == hashlib.sha256(b"".join(sorted(order))).hexdigest()
    first = images[order.index(min(order))]
    np.testing.assert_array_equal(data.train_images[0], (255 * first).round().transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"images": np.zeros((60, 28, 28))}, "train.npz: images are float64; expected uint8"),
        ({"images": np.zeros((60, 3, 28, 28), np.uint8)}, r"images \(60, 3, 28, 28\) have their channels first; expected \(N, H, W, C\)"),
        ({"images": np.zeros((60, 28, 28, 5), np.uint8)}, "with 1 to 4 channels"),
        ({"images": np.zeros((60, 784), np.uint8)}, r"images \(60, 784\); expected \(N, H, W\) or"),
        ({"images": np.zeros((60, 20, 28), np.uint8)}, "images of 20x28 pixels; expected square ones"),
        ({"images": np.zeros((60, 20, 20), np.uint8)}, r"training images have \(C, H, W\) \(1, 20, 20\), test images \(1, 28, 28\)"),
        ({"images": np.zeros((0, 28, 28), np.uint8), "labels": np.zeros(0, int)}, r"images \(0, 28, 28"),
        ({"features": np.zeros((60, 5))}, "train.npz: it has images and features; keep one of the two arrays"),
        ({"labels": np.array(["a", "b"] * 30, object)}, "train.npz: 'labels' holds Python objects, which are not read; number the classes from 0"),
        ({"clients": np.array(["a", "b"] * 30, object)}, "train.npz: 'clients' holds Python objects, which are not read; give their names as text"),
        ({"labels": np.arange(59)}, r"labels \(59,\) for images"),
        ({"labels": np.linspace(0, 6, 60)}, "labels are float64; expected whole numbers"),
        ({"labels": np.arange(60) - 1}, "labels from -1 to 58; expected 0 to 255"),
        ({"labels": np.arange(60) % 7 + 1}, "training images have labels from 1 to 7; they count from 0"),
    ],
)  # fmt: skip
def test_wrong_arrays_are_refused(make: Make, train: dict[str, Any], message: str) -> None:
    make(28, 28, train=train)
    with pytest.raises(InputError, match=message):
        source("mine")


def test_a_damaged_archive_is_refused_in_one_line(make: Make) -> None:
    """Of compressed arrays, whatever byte is another."""
    path = make(28, 28) / "train.npz"
    whole, refused = path.read_bytes(), 0
    for place in range(40, len(whole), len(whole) // 60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            source("mine")
        except InputError as error:
            refused += "not readable as npz" in str(error)
    assert refused > 20


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([0, 5, 9, 200], "from 0 to 200; they count from 0 without gaps, but 7 to 8, 10 to 199 are missing and 1 to 4, 6 are among the test images alone; mend the labels, or, "
         "where that is meant, write `classes: 201` in dataset.yaml"),
        ([0, 1, 2, 4, 6], "from 0 to 6; they count from 0 without gaps, but 3, 5 are among the test images alone; .* `classes: 7`"),
        ([0, 1, 2, 3, 4, 5], "from 0 to 5; they count from 0 without gaps, but 6 is among the test images alone; .* `classes: 7`"),
        ([1, 2, 3, 5, 6, 8], "from 1 to 8; .* but 7 is missing and 0, 4 are among the test images alone; .* `classes: 9`"),
    ],
)  # fmt: skip
def test_labels_without_training_images_are_named(make: Make, train: list[int], message: str) -> None:
    """Unless the number of classes is given; the test images have labels from 0 to 6."""
    labels = {"labels": np.resize(train, 60)}
    make(28, 28, train=labels)
    with pytest.raises(InputError, match=f"^own/datasets/mine: training images have labels {message}"):
        source("mine")
    make(28, 28, train=labels, classes=201)
    fetch.fetch("mine", Path("data"))
    assert source("mine").classes == 201


def test_the_largest_label_leaves_gaps_too(make: Make) -> None:
    labels = {"labels": np.resize([0, 255], 60).astype(np.uint8)}
    make(28, 28, train=labels)
    with pytest.raises(InputError, match=r"from 0 to 255; .* 7 to 254 are missing"):
        source("mine")


def test_the_classes_of_a_reader_are_the_datas_own_again_where_the_description_gives_none(make: Make) -> None:
    folder = make(classes=13)
    (folder / "reader.py").write_text(READER)
    (folder / "raw.bin").write_bytes(raw())
    fetch.fetch("mine", Path("data"))
    assert source("mine").classes == 13
    for given, classes in ((9, 9), (None, 7)):
        make(**({"classes": given} if given else {}))
        fetch.fetch("mine", Path("data"))
        assert source("mine").classes == classes
    make(classes=6)
    with pytest.raises(InputError, match="classes: 6, but there is a label 6"):
        source("mine")


def test_a_readers_labels_have_no_gaps_either(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make()
    (folder / "reader.py").write_text(READER.replace("raw[:, 0]", "raw[:, 0] * 2"))
    (folder / "raw.bin").write_bytes(raw())
    assert "but 1, 3, 5, 7, 9, 11 are missing" in fetched(capsys)
    make(classes=13)
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert source("mine").classes == 13


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"titel": "Mine"}, "dataset.yaml.titel: unknown key; did you mean 'title'?"),
        ({"title": None}, "dataset.yaml.title: expected text, found None"),
        ({"title": "=1+1"}, "dataset.yaml.title: '=1+1' begins as a formula of a spreadsheet does"),
        ({"classes": 5}, "dataset.yaml.classes: 5, but there is a label 6"),
        ({"augment": "yes please"}, "dataset.yaml.augment: expected true or false"),
        ({"prepare": "pat"}, "dataset.yaml.prepare: no preparation is named 'pat'; did you mean 'pad'?"),
        ({"prepare": {"resize": "big"}}, "dataset.yaml.prepare.resize: expected a whole number, found 'big'"),
        (
            {"prepare": {"resize": 1025}},
            "dataset.yaml.prepare.resize: 1025 is out of range; it must be at least 1 and at most 1024",
        ),
        ({"prepare": {"pad": 20}}, "pad: 20: the images are 28x28 already; resize them"),
        ({"prepare": "enlarge"}, "enlarge: this is for grey levels 0 to 16"),
        ({"mean": [0.5]}, "dataset.yaml.mean: expected one value for each of 1 channels, or no mean and std"),
        ({"mean": [0.5] * 3, "std": [0.5] * 3}, "dataset.yaml.mean: expected one value for each of 1 channels"),
        ({"mean": [128.0], "std": [0.5]}, "dataset.yaml.mean[0]: 128.0 is out of range"),
        ({"fingerprints": {"train": "0", "test": "0"}}, "train.npz: the train images and labels have the fingerprint"),
        ({"fingerprints": "0"}, "dataset.yaml.fingerprints: expected `train` and `test`"),
        ({"test": 0.4}, "dataset.yaml.test: without bunch nothing reads it; leave it out"),
        (
            {"files": [{"name": "a", "urls": []}]},
            "dataset.yaml.files: without reader.py nothing reads it; leave it out",
        ),
    ],
)
def test_wrong_descriptions_are_refused(
    make: Make, description: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(28, 28, **description)
    assert message in fetched(capsys)


def test_files_that_are_missing_or_broken(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make()
    assert (
        "own/datasets/mine: expected train.npz and test.npz (or .csv), `bunch`, or reader.py, found neither"
        in fetched(capsys)
    )
    (folder / "train.npz").write_bytes(b"PK nothing")
    assert "train.npz: not readable as npz" in fetched(capsys)
    make(28, 28)
    (folder / "test.npz").unlink()
    assert "test.npz: there is no such file" in fetched(capsys)
    (folder / "dataset.yaml").unlink()
    assert "dataset.yaml: there is no such file" in fetched(capsys)


def test_a_change_after_pinning_is_named(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """By fetch and by train; deleting what was fetched, as told, is the way on."""
    make(28, 28)
    Path("run.yaml").write_text(yaml.safe_dump(mapping()))
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert cli.main(["partition", "run.yaml"]) == 0
    before = run_file.load(Path("run.yaml")).key
    make(28, 28, train={"labels": (np.arange(60) + 1) % 7})
    assert run_file.load(Path("run.yaml")).key != before
    for command in (["fetch", "mine", "--plugins", "own"], ["train", "run.yaml", "--out", "out"]):
        message = refused(capsys, *command)
        assert message.startswith(
            "own/datasets/mine/train.npz: the train images and labels are not those that were fetched"
        )
        assert "delete data/mine and data/partitions/mine and run `bayesfed fetch mine --plugins own`" in message
    for path in [*Path("data/mine").iterdir(), *Path("data/partitions/mine").iterdir()]:
        path.unlink()
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) == 0


def test_the_advice_to_fetch_is_a_command_that_works(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """With the folders of own plugins and of data, where they are given."""
    make(28, 28)
    Path("run.yaml").write_text(yaml.safe_dump(mapping()))
    message = refused(capsys, "train", "run.yaml", "--out", "out", "--data", "my data")
    assert message.endswith("is missing: run `bayesfed fetch mine --plugins own --data 'my data'`")
    assert cli.main(["fetch", "mine", "--plugins", "own", "--data", "my data"]) == 0
    make(28, 28, train={"labels": (np.arange(60) + 1) % 7})
    message = refused(capsys, "train", "run.yaml", "--out", "out", "--data", "my data")
    assert message.endswith("and run `bayesfed fetch mine --plugins own --data 'my data'`")


def test_another_preparation_needs_no_new_arrays(make: Make) -> None:
    """It gives other runs, is measured where it is used, and pinned by the next fetch."""
    make(28, 28)
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    native = json.loads(Path("data/mine/dataset.json").read_text())
    make(28, 28, prepare="pad")
    padded = store.load("mine", Path("data"))
    assert padded.train_images.shape == (60, 1, 32, 32)
    assert padded.source.mean == prepare.statistics(padded.train_images)[0] != tuple(native["mean"])
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert json.loads(Path("data/mine/dataset.json").read_text())["mean"] == list(padded.source.mean)


def test_a_preparation_that_gives_other_images_than_when_pinned_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a library of another version might."""
    make(28, 28, prepare="resize")
    fetch.fetch("mine", Path("data"))
    monkeypatch.setitem(prepare.PREPARATIONS, "resize", lambda images, side: prepare.pad(images, side) // 2)
    with pytest.raises(InputError, match=r"preparation 'resize' gives images with mean .* were pinned in data/mine"):
        store.load("mine", Path("data"))


def test_given_mean_and_std_are_used(make: Make) -> None:
    make(28, 28, mean=[0.5], std=[0.5])
    fetch.fetch("mine", Path("data"))
    loaded = store.load("mine", Path("data")).source
    assert (loaded.mean, loaded.std) == ((0.5,), (0.5,))


def test_images_all_alike_want_a_std(make: Make) -> None:
    make(28, 28, train={"images": np.full((60, 28, 28), 7, np.uint8)})
    fetch.fetch("mine", Path("data"))
    with pytest.raises(InputError, match="channel 0 of all training images is constant; give mean and std"):
        store.load("mine", Path("data"))


def test_preparations() -> None:
    """Padding repeats edges on all sides; resizing keeps a gradient and averages where images get smaller."""
    ramp = np.tile(np.arange(0, 200, 10, dtype=np.uint8), (2, 3, 20, 1))
    odd = prepare.pad(ramp, 25)
    np.testing.assert_array_equal(odd[:, :, 2:-3, 2:-3], ramp)
    assert (odd[..., :2] == 0).all()
    assert (odd[..., -3:] == 190).all()
    for side in (10, 40):
        resized = prepare.resize(ramp, side)
        assert resized.shape == (2, 3, side, side)
        assert resized.dtype == np.uint8
        expected = np.interp((np.arange(side) + 0.5) * 20 / side - 0.5, np.arange(20), ramp[0, 0, 0])
        np.testing.assert_allclose(resized[0, 0, 0], expected, atol=2.5 if side < 20 else 1)
    np.testing.assert_array_equal(prepare.resize(ramp, 20), ramp)


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_size_that_a_network_cannot_take_is_refused_with_the_way_out(
    command: str, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make(16, 16)
    Path("run.yaml").write_text(yaml.safe_dump(mapping(models={"global": "cnn2"})))
    Path("own/papers").mkdir()
    spec = {
        "paper": "one", "title": "One", "reference": "none", "run": {"partition": {"clients": 2}, "rounds": 1, "local_epochs": 1, "batch_size": 16},
        "methods": {"FedAvg": {"name": "fedavg"}}, "experiments": {"one": {"axes": {"dataset": ["mine"], "partition.alpha": [10], "models.global": ["cnn2"], "method": ["FedAvg"]}}},
    }  # fmt: skip
    Path("own/papers/one.yaml").write_text(yaml.safe_dump(spec))
    Path("config.yaml").write_text(yaml.safe_dump({"name": "one", "papers": ["one"], "plugins": "own", "seeds": [0]}))
    commands = {"plan": ["plan", "config.yaml", "--out", "plan"], "train": ["train", "run.yaml", "--out", "out"]}
    message = refused(capsys, *commands[command])
    assert "model 'cnn2' does not fit images of 16x16: its convolutions need at least 18x18" in message
    assert (
        "images of dataset 'mine' are 16x16 with 1 channel: where their size is the reason, set `images: {prepare: resize}` in the run, or `prepare: resize`"
        in message
    )
    make(16, 16, prepare={"resize": 18})
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert cli.main([*commands[command], *(["--device", "cpu"] if command == "train" else [])]) == 0


IN_THREE = """
from torch import nn

NETWORKS = {
    "three": lambda classes, channels, size: nn.Sequential(nn.Conv2d(3, 4, 5, 3), nn.Flatten(), nn.LazyLinear(classes)),
    "one": lambda classes, channels, size: nn.Sequential(nn.Flatten(), nn.Linear(size * size, classes)),
}
"""


@pytest.mark.parametrize(
    ("shape", "network", "told", "cure"),
    [
        ((28, 28), "three", "have 1 channel, and the network takes 3: set `images: {channels: 3}` in the run, which repeats grey", 3),
        ((28, 28, 3), "one", "have 3 channels, and the network takes 1: set `images: {channels: 1}` in the run, which takes the luma", 1),
        ((28, 28, 2), "three", "are 28x28 with 2 channels: where their size is the reason", None),
        ((3, 3), "three", "are 3x3 with 1 channel: where their size is the reason", None),
    ],
)  # fmt: skip
def test_channels_that_a_network_does_not_take_are_told_and_brought_about(
    make: Make, capsys: pytest.CaptureFixture[str], shape: tuple[int, ...], network: str, told: str, cure: int | None
) -> None:
    """The way that is told works, and gives the network what it says."""
    make(*shape)
    Path("own/networks").mkdir()
    Path("own/networks/three.py").write_text(IN_THREE)
    fetch.fetch("mine", Path("data"))
    Path("run.yaml").write_text(yaml.safe_dump(mapping(models={"global": network})))
    train = ["train", "run.yaml", "--out", "out", "--device", "cpu"]
    assert f"images of dataset 'mine' {told}" in refused(capsys, *train)
    if cure is None:
        return
    seen = {"channels": cure, "augment": "crop_flip"}
    Path("run.yaml").write_text(yaml.safe_dump(mapping(models={"global": network}, images=seen)))
    assert cli.main(train) == 0
    native, data = (
        np.load("data/mine/test.npz")["images"],
        store.load("mine", Path("data"), prepare.Seen(channels=cure)),
    )
    weighted = native[:, 0] if cure == 3 else (native * np.reshape([0.299, 0.587, 0.114], (1, 3, 1, 1))).sum(1).round()
    for channel in range(cure):
        np.testing.assert_array_equal(data.test_images[:, channel], weighted.astype(np.uint8))
    assert data.test_images.shape == (30, cure, 28, 28)
    assert data.source.mean == prepare.statistics(data.train_images)[0]
    done = bayesfed.load_run("out")
    images, labels = done.images("test")
    right = float((done.server["global"].log_probabilities(images).argmax(1).numpy() == labels).mean())
    assert right == pytest.approx(float(done.metrics.query("metric == 'test_accuracy'")["value"].iloc[-1]), abs=0.04)
    with pytest.raises(InputError, match="expected uint8"):
        done.server["global"].prepare(data.test_images)


@pytest.mark.parametrize(
    ("channels", "message"), [(2, "only 1 and 3 are brought"), (4, "it must be at least 1 and at most 3")]
)
def test_other_channels_are_refused(make: Make, channels: int, message: str) -> None:
    make(28, 28)
    with pytest.raises(InputError, match=rf"^images\.channels: {channels}.*{message}"):
        run_file.resolve(mapping(images={"channels": channels}))


def test_foreign_images_have_the_channels_of_the_runs_own(make: Make) -> None:
    make(8, 8, 3)
    tasks = {"tasks": {"foreign": ["digits"]}, "images": {"channels": 1}, "method": {"name": "fedavg"}}
    for name in ("mine", "digits"):
        fetch.fetch(name, Path("data"))
    run = run_file.resolve(mapping(**tasks))
    own, (one,) = store.load("mine", Path("data"), run.images).source, run.sources
    assert store.load_foreign("digits", Path("data"), run.images, own).shape == (359, 1, 8, 8)
    assert one.seen_channels == 1
    assert run.key != run_file.resolve(mapping(**tasks | {"images": {}})).key


@pytest.mark.parametrize("shape", [(28, 28), (9, 9, 2), (12, 12, 4)])
def test_augmented_images_of_any_size_train(make: Make, shape: tuple[int, ...]) -> None:
    make(*shape, augment=True)
    fetch.fetch("mine", Path("data"))
    Path("run.yaml").write_text(yaml.safe_dump(mapping()))
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) == 0
    assert json.loads(Path("out/summary.json").read_text())["diverged"] is None


def raw() -> bytes:
    whole = arrays(90, 400)
    return np.concatenate([whole["labels"][:, None].astype(np.uint8), whole["images"]], 1).tobytes()


def test_a_reader_of_publishers_files(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned when it has been fetched; the files are verified; what was fetched is used without them."""
    file = {"name": "raw.bin", "urls": ["http://127.0.0.1:1/raw.bin"], "md5": hashlib.md5(raw()).hexdigest()}
    folder = make(files=[file])
    (folder / "reader.py").write_text(READER)
    Path("run.yaml").write_text(yaml.safe_dump(mapping()))
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    command = ["fetch", "mine", "--plugins", "own", "--mirror", str(mirror)]
    assert "run `bayesfed fetch mine --plugins own`" in refused(capsys, "train", "run.yaml", "--out", "out")
    assert "no file raw.bin in the mirror" in refused(capsys, *command)
    (mirror / "raw.bin").write_bytes(raw()[:-1] + b"?")
    assert "raw.bin is damaged: md5" in refused(capsys, *command)
    (mirror / "raw.bin").write_bytes(raw())
    (folder / "reader.py").write_text(READER.replace("401", "400"))
    assert "own/datasets/mine/reader.py, line 6: ValueError: cannot reshape" in refused(capsys, *command)
    (folder / "reader.py").write_text(READER.replace('"test": (', '"tset": ('))
    assert 'reader.py: expected {"train": (images, labels), "test": (images, labels)} of read' in refused(
        capsys, *command
    )
    (folder / "reader.py").write_text(READER)
    assert cli.main(command) == 0
    (mirror / "raw.bin").unlink()
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) == 0
    assert source("mine").size == 20


def test_a_reader_of_files_beside_it_and_given_fingerprints(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(fingerprints={"train": "0" * 64, "test": "0" * 64})
    (folder / "reader.py").write_text(READER)
    (folder / "raw.bin").write_bytes(raw())
    assert "reader.py: the train images and labels have the fingerprint" in fetched(capsys)
    make()
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    given = json.loads(Path("data/mine/dataset.json").read_text())["fingerprints"]
    make(fingerprints=given)
    plugins.use("own")
    assert dict(source("mine").fingerprints) == given


@pytest.mark.parametrize("name", ["/etc/passwd", "../up.bin"])
def test_a_publishers_file_stays_in_its_folder(make: Make, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(files=[{"name": name, "urls": [], "md5": "0"}])
    (folder / "reader.py").write_text(READER)
    assert f"files.name: '{name}' leads out of the folder" in fetched(capsys)
