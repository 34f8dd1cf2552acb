"""Data that name their clients, and the scheme that gives every client its own images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import own_data

import bayesfed
from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.data import fetch, partition, store
from bayesfed.data.catalogue import source
from bayesfed.data.schemes import Given
from bayesfed.runs import run_file

Make = Callable[..., Path]
TRAIN = np.array(["bo", "al", "cy"])[np.arange(60) % 3]
TEST = np.array(["cy", "al", "bo"])[np.arange(30) % 3]


@pytest.fixture
def make(own_folder: None) -> Make:
    """A function that writes the dataset `mine` with these clients, and takes its folder into use."""

    def write(train: Any, test: Any) -> Path:
        splits = {}
        for split, count, clients in (("train", 60, train), ("test", 30, test)):
            images = np.random.default_rng(count).integers(0, 256, (count, 8, 8), np.uint8)
            held = {"images": images, "labels": np.arange(count) % 5}
            splits[split] = held | ({} if clients is None else {"clients": clients})
        return own_data.write(splits)

    return write


def mapping(**changes: Any) -> dict[str, Any]:
    return own_data.mapping(partition={"scheme": "given", "clients": 3} | changes)


def test_every_client_has_its_own_images_in_both_splits(make: Make) -> None:
    """Clients are numbered in the order of their names, which the record keeps."""
    folder = make(TRAIN, TEST)
    fetch.fetch("mine", Path("data"))
    assert json.loads(Path("data/mine/dataset.json").read_text())["clients"] == ["al", "bo", "cy"]
    spec = Given(clients=3)
    partition.build("mine", spec, 0, Path("data"))
    shares, data = partition.load("mine", spec, 0, Path("data")), store.load("mine", Path("data"))
    for split, named in (("train", TRAIN), ("test", TEST)):
        native, stored = np.load(folder / f"{split}.npz")["images"], getattr(data, f"{split}_images")[:, 0]
        for client, name in enumerate(("al", "bo", "cy")):
            own = {image.tobytes() for image in stored[getattr(shares, split)(client)]}
            assert own == {image.tobytes() for image in native[named == name]}


def test_test_images_may_be_in_common(make: Make) -> None:
    make(TRAIN, None)
    fetch.fetch("mine", Path("data"))
    with pytest.raises(InputError, match=r"^partition\.min_test: 1, but the test images are in common; set it to 0"):
        partition.build("mine", Given(clients=3), 0, Path("data"))
    result = bayesfed.train(mapping(min_test=0), "out")
    assert result.summary["test_images"] == [0, 0, 0]
    assert 0 <= result.summary["global"]["accuracy_last"] <= 1


def test_whose_images_are_whose_is_in_the_key(make: Make) -> None:
    keys = set()
    for train in (TRAIN, np.roll(TRAIN, 1)):
        make(train, TEST)
        keys.add(run_file.resolve(mapping()).key)
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (TRAIN[1:], TEST, r"train.npz: clients \(59,\) for images \(60, 8, 8\); expected one for each"),
        (np.zeros(60), TEST, "train.npz: clients are float64; expected whole numbers or names"),
        (None, TEST, "own/datasets/mine: the test images have `clients`, the training images none; give those, too"),
    ],
)
def test_wrong_clients_are_refused(make: Make, train: Any, test: Any, message: str) -> None:
    make(train, test)
    with pytest.raises(InputError, match=message):
        source("mine")


def test_a_split_that_the_data_do_not_give_is_refused_when_it_is_planned(make: Make) -> None:
    make(TRAIN, TEST)
    with pytest.raises(InputError, match=r"^partition\.clients: 4, but dataset 'mine' has 3 clients; write that$"):
        run_file.resolve(mapping(clients=4))
    make(None, None)
    with pytest.raises(
        InputError,
        match=r"^partition\.scheme: given deals by the array `clients` of the data, and dataset 'mine' has none",
    ):
        run_file.resolve(mapping())


def test_a_client_in_one_split_alone_is_told_and_refused_if_it_must_have_images(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make(np.arange(60) % 4, np.arange(30) % 3 + 1 + (np.arange(30) == 29) * 4)
    assert cli.main(["fetch", "mine", "--plugins", "own"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "mine: 1 of 5 clients have training images and no test images: 0",
        "mine: 1 of 5 clients have test images and no training images: 7",
    ]
    spec = Given(clients=5, min_test=0)
    with pytest.raises(
        InputError, match=r"^partition\.min_train: 1 of 5 clients have fewer than 10 images, client 4 0 "
    ):
        partition.build("mine", spec, 0, Path("data"))
    any_size = Given(clients=5, min_train=0, min_test=0)
    partition.build("mine", any_size, 0, Path("data"))
    shares = partition.load("mine", any_size, 0, Path("data"))
    assert [len(shares.train(k)) for k in range(5)] == [15, 15, 15, 15, 0]
    assert [len(shares.test(k)) for k in range(5)] == [0, 10, 10, 9, 1]
