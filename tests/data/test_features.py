"""Data that are no images: features of any shape from npz and CSV files, scikit-learn's tables and readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import own_data

import bayesfed
from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.data import fetch, store
from bayesfed.data.catalogue import source
from bayesfed.runs import run_file

PROJECT = Path(__file__).parents[2]
Make = Callable[..., Path]


def drawn(count: int, *shape: int, seed: int) -> dict[str, Any]:
    """Features whose means tell their three classes apart, far from 0 and of unequal scale."""
    random, labels = np.random.default_rng(seed), np.arange(count) % 3
    values = random.normal(size=(count, *shape)) + labels.reshape(-1, *[1] * len(shape))
    return {"features": (50 + 10 * values).astype(np.float32), "labels": labels}


@pytest.fixture
def make(own_folder: None) -> Make:
    """A function that writes the dataset `mine` with features of a shape, and takes its folder into use."""

    def write(*shape: int, train: dict[str, Any] | None = None, **description: Any) -> Path:
        splits = {"train": drawn(90, *shape, seed=0) | (train or {}), "test": drawn(60, *shape, seed=1)}
        return own_data.write(splits if shape else {}, **description)

    return write


def mapping(**changes: Any) -> dict[str, Any]:
    return own_data.mapping(**{"rounds": 4, "local_epochs": 4, "batch_size": 8} | changes)


@pytest.mark.parametrize("shape", [(30,), (5, 7), (2, 6, 9), (2, 3, 4, 5)])
def test_features_of_any_shape_train(make: Make, shape: tuple[int, ...]) -> None:
    """As they are stored; an MLP flattens them; a loaded model gives the recorded accuracy."""
    folder = make(*shape, prepare="standardise")
    fetch.fetch("mine", Path("data"))
    record = json.loads(Path("data/mine/dataset.json").read_text())
    assert (record["shape"], record["dtype"]) == (list(shape), "float32")
    stored = np.load("data/mine/train.npz")["features"]
    native = np.load(folder / "train.npz")["features"]
    assert sorted(one.tobytes() for one in stored) == sorted(one.tobytes() for one in native)
    result = bayesfed.train(mapping(), "out")
    assert result.summary["global"]["accuracy_last"] > 0.8
    features, labels = result.images()
    assert features.dtype == np.float32
    found = result.server["global"].log_probabilities(features).argmax(-1).numpy() == labels
    np.testing.assert_allclose(found.mean(), result.summary["global"]["accuracy_last"])
    with pytest.raises(InputError, match=r"^features: expected float32 \(N, .*found uint8"):
        result.server["global"].prepare(features.astype(np.uint8))


def test_features_are_standardised_by_the_training_split(make: Make) -> None:
    values = drawn(90, 4, seed=0)["features"]
    values[:, 2] = 7
    make(4, train={"features": values}, prepare="standardise")
    fetch.fetch("mine", Path("data"))
    data = store.load("mine", Path("data"))
    np.testing.assert_allclose(data.train_images.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(data.train_images.std(0), [1, 1, 0, 1], rtol=1e-5)
    native = np.load("data/mine/test.npz")["features"]
    mean, std = values.mean(0, np.float64), values.std(0, dtype=np.float64)
    np.testing.assert_allclose(data.test_images[:, 0], (native[:, 0] - mean[0]) / std[0], rtol=1e-4)
    assert not data.test_images[:, 2].any()  # constant in training, whatever it is in the test split
    plain = store.load("mine", Path("data"), run_file.resolve(mapping(images={"prepare": "none"})).images)
    np.testing.assert_array_equal(plain.test_images, native)


@pytest.mark.parametrize("executor", ["eager", "threads"])
def test_every_executor_of_a_cpu_takes_features(make: Make, executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same accuracies, in the same bits."""
    make(5, 7)
    fetch.fetch("mine", Path("data"))
    Path("run.yaml").write_text(yaml.safe_dump(mapping()))
    found = []
    for one in ("eager", executor):
        assert cli.main(["train", "run.yaml", "--out", one, "--executor", one, "--device", "cpu"]) == 0
        found.append(Path(one, "metrics.csv").read_text())
    assert found[0] == found[1]


HOLE = drawn(90, 4, seed=0)["features"]
HOLE[7, 2] = np.nan


@pytest.mark.parametrize(
    ("train", "description", "message"),
    [
        ({"features": HOLE}, {}, "train.npz: 1 of 90 examples have missing or infinite values, the first is number 7 from 0; fill"),
        ({"features": np.full((90, 4), "a")}, {}, "features are <U1; expected numbers: write texts and classes as numbers"),
        ({"features": np.zeros(90)}, {}, r"features \(90,\); expected \(N, ...\), the examples first"),
        ({"features": np.zeros((90, 1, 388, 388), np.uint8)}, {}, "an example has 150544 features, at most 150528"),
        ({"features": np.zeros((90, 5))}, {}, r"training images have float32 \(5,\), test images float32 \(4,\)"),
        ({"labels": np.array(["b", "a", "c"] * 30)}, {}, r"labels are texts \(a, b, c\); expected whole numbers: number the classes"),
        ({"labels": np.arange(90) % 2}, {}, "labels from 0 to 1; .* 2 is among the test images alone"),
        ({}, {"prepare": "resize"}, "prepare: 'resize' is for images; features take none or standardise"),
        ({}, {"mean": [0.5], "std": [0.5]}, "dataset.yaml.mean: this is for images; leave it out, and take `prepare: standardise`"),
        ({}, {"augment": True}, "dataset.yaml.augment: this is for images"),
    ],
)  # fmt: skip
def test_wrong_features_are_refused(make: Make, train: dict[str, Any], description: Any, message: str) -> None:
    make(4, train=train, **description)
    with pytest.raises(InputError, match=message) as caught:
        source("mine")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": {"normalise": "half"}}, "^images.normalise: 'half' is for images, and dataset 'mine' has features; leave it out"),
        ({"images": {"augment": "crop_flip"}}, "^images.augment: 'crop_flip' is for images"),
        ({"images": {"channels": 3}}, "^images.channels: '3' is for images"),
        ({"tasks": {"foreign": ["digits"]}}, "^tasks.foreign: 'digits' cannot be shown as 'mine': only images"),
        ({"models": {"global": "lenet5"}}, r"^model 'lenet5': its convolutions take \(channels, height, width\), and not the shape "
         r"\(4,\); dataset 'mine' has features of the shape \(4,\); take another network$"),
        ({"models": {"global": "pfedbayes_vgg"}}, r"^model 'pfedbayes_vgg', built for images of 4: RuntimeError: .*take another network$"),
    ],
)  # fmt: skip
def test_what_is_for_images_is_refused_of_features(make: Make, changes: dict[str, Any], message: str) -> None:
    make(4)
    with pytest.raises(InputError, match=message) as caught:
        run_file.resolve(mapping(**changes))
    assert "\n" not in str(caught.value)


def test_images_are_not_standardised_feature_by_feature(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'standardise' is for features; images are normalised by channel anyway"):
        bayesfed.train(mapping(dataset="digits", plugins=None, images={"prepare": "standardise"}), tmp_path)


@pytest.mark.parametrize("name", ["lenet5", "shaped"])
def test_convolutions_take_images_that_are_not_square(make: Make, name: str) -> None:
    """A chain of ours, and a module whose builder asks for the shape."""
    Path("own/networks").mkdir()
    Path("own/networks/shaped.py").write_text(
        "from torch import nn\n\n\ndef shaped(classes, shape):\n    channels, height, width = shape\n"
        "    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(),\n"
        "                         nn.Linear(4 * (height - 2) * (width - 2), classes))\n\n\nNETWORKS = {'shaped': shaped}\n"
    )
    make(1, 20, 32, prepare="standardise")
    fetch.fetch("mine", Path("data"))
    result = bayesfed.train(mapping(models={"global": name}, batch_size=8), "out")
    assert result.summary["global"]["accuracy_last"] > 0.6
    module, (features, labels) = result.server["global"].network, result.images()
    outputs = module(result.server["global"].prepare(features))
    assert (outputs.argmax(-1).numpy() == labels).mean() == result.summary["global"]["accuracy_last"]
    assert isinstance(outputs, torch.Tensor)


def table(count: int, seed: int) -> list[str]:
    """Lines of a CSV file with two features and a client."""
    held = drawn(count, 2, seed=seed)
    rows = zip(held["features"], held["labels"], strict=True)
    return ["age,label,dose,client", *(f"{x[0]},{y},{x[1]},clinic {n % 3}" for n, (x, y) in enumerate(rows))]


def test_tables_in_csv_files(make: Make) -> None:
    """Columns in their order; `client` says whose an example is."""
    folder = make()
    for split, count, seed in (("train", 90, 0), ("test", 60, 1)):
        (folder / f"{split}.csv").write_text("\n".join(table(count, seed)) + "\n")
    fetch.fetch("mine", Path("data"))
    data = store.load("mine", Path("data"))
    assert json.loads(Path("data/mine/dataset.json").read_text())["clients"] == ["clinic 0", "clinic 1", "clinic 2"]
    native = drawn(90, 2, seed=0)
    rows = {tuple(x): (y, n % 3) for n, (x, y) in enumerate(zip(native["features"], native["labels"], strict=True))}
    assert data.train_clients is not None
    for x, y, client in zip(data.train_images, data.train_labels, data.train_clients, strict=True):
        assert rows[tuple(x)] == (y, client)
    result = bayesfed.train(mapping(partition={"scheme": "given", "clients": 3}), "out")
    assert result.summary["test_images"] == [20, 20, 20]


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (4, "1.5,0,,clinic 0", "train.csv, line 5: 'dose' is missing; fill it in, or leave the line out"),
        (4, "old,0,2,clinic 0", "train.csv, line 5: 'age' is 'old'; expected a number"),
        (4, "1,ill,2,clinic 0", "train.csv, line 5: 'label' is 'ill'; expected a whole number"),
        (4, "1,0,nan,clinic 0", "train.csv: 1 of 90 examples have missing or infinite values, the first is number 3 from 0"),
        (4, "1,0,2", "train.csv, line 5: 3 values for 4 columns"),
        (0, "age,label,age,client", "train.csv: the column 'age' occurs twice; rename one"),
        (0, "age,diagnosis,dose,client", "train.csv: there is no column 'label'; valid: age, client, diagnosis, dose"),
        (0, ",label,dose,client", "train.csv: column 1 has no name; name it or leave it out, as pandas' to_csv(index=False) does"),
        (0, "dose,label,age,client", "test.csv: 'age' where train.csv has 'dose'; give both the same columns in the same order"),
        (0, "age,label,client,client 2", "test.csv: 'dose' where train.csv has 'client 2'"),
        (4, "1,0,2, ", "train.csv, line 5: 'client' is missing; fill it in, or leave the line out"),
        (4, "", "train.csv, line 5: 0 values for 4 columns"),
        (0, "age;label;dose;client", "train.csv: its columns are parted by ';'; write commas"),
        (0, "age\tlabel\tdose\tclient", "train.csv: its columns are parted by tabs; write commas"),
    ],
)  # fmt: skip
def test_wrong_tables_are_refused(make: Make, line: int, text: str, message: str) -> None:
    folder, lines = make(), table(90, 0)
    lines[line] = text
    (folder / "train.csv").write_text("\n".join(lines))
    (folder / "test.csv").write_text("\n".join(table(60, 1)))
    with pytest.raises(InputError) as caught:
        source("mine")
    assert message in str(caught.value)


def test_blank_lines_at_the_end_of_a_table_are_none(make: Make) -> None:
    folder = make()
    (folder / "train.csv").write_text("\n".join([*table(90, 0), "", "", ""]))
    (folder / "test.csv").write_text("\n".join(table(60, 1)))
    assert source("mine").classes == 3


def test_a_table_without_features_is_refused(make: Make) -> None:
    folder = make()
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("label,client\n0,a\n1,a\n")
    with pytest.raises(
        InputError, match=r"train\.csv: there is no column beside 'label' and 'client'; give the features"
    ):
        source("mine")


def test_a_single_class_is_refused(make: Make) -> None:
    folder = make()
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("label,age\n0,1\n0,2\n")
    with pytest.raises(InputError, match="all labels are 0; a dataset needs two classes or more"):
        source("mine")


def test_a_table_with_a_column_more_is_refused(make: Make) -> None:
    folder = make()
    (folder / "train.csv").write_text("\n".join(table(90, 0)))
    (folder / "test.csv").write_text("\n".join(f"{line},{n or 'more'}" for n, line in enumerate(table(60, 1))))
    with pytest.raises(InputError, match=r"test\.csv: 'more' where train.csv has no further column"):
        source("mine")


def test_tables_that_scikit_learn_bundles(make: Make) -> None:
    """Of each class the share is tested on; a table that is not bundled is refused."""
    from sklearn.datasets import load_wine

    make(bunch="wine", test=0.25)
    fetch.fetch("mine", Path("data"))
    data, whole = store.load("mine", Path("data")), load_wine()
    counts = np.bincount(whole.target)
    np.testing.assert_array_equal(np.bincount(data.test_labels), np.round(counts / 4).astype(int))
    both = np.concatenate([data.train_images, data.test_images])
    assert sorted(map(tuple, both)) == sorted(map(tuple, whole.data.astype(np.float32)))
    make(bunch="wines")
    with pytest.raises(InputError, match=r"dataset.yaml.bunch: no table 'wines' is bundled; did you mean 'wine'\?"):
        source("mine")


def test_the_example_of_tables_and_text_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five methods on three datasets, a round each, and the table that the example's paper describes."""
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((PROJECT / "examples/tabular/config.yaml").read_text(encoding="utf-8"))
    config |= {"plugins": str(PROJECT / "examples/tabular"), "run": {"rounds": 1, "local_epochs": 1}}
    Path("config.yaml").write_text(yaml.safe_dump(config))
    names = ["breast-cancer", "wine", "notes"]
    assert cli.main(["fetch", *names, "--plugins", config["plugins"]]) == 0
    assert cli.main(["plan", "config.yaml", "--out", "results/tabular/plan"]) == 0
    plan = json.loads(Path("results/tabular/plan/plan.json").read_text())
    assert len(plan["runs"]) == 15
    for run in plan["runs"]:
        bayesfed.train(f"results/tabular/plan/runs/{run['key']}.yaml", f"results/tabular/runs/{run['folder']}")
    assert cli.main(["tables", "results/tabular/plan/plan.json", "--out", "results/tabular/tables"]) == 0
    rows = Path("results/tabular/tables/tabular/table1.csv").read_text().splitlines()
    assert len(rows) == 4
    assert all(cell for row in rows for cell in row.split(",")[-5:])
