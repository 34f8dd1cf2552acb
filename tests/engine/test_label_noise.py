"""Label noise: how many labels are wrong and which, whose stay right, and what a run makes of it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers.playing import federation, play, tensors

from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.data import partition, store
from bayesfed.data.sources import SOURCES
from bayesfed.engine import halfway
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.shards import mislabelled
from bayesfed.runs import run_file

Make = Callable[..., dict[str, Any]]
NOBODY = np.empty(0, dtype=np.int64)


def labelled(count: int) -> store.Dataset:
    """Images of digits' ten classes, of which only the labels count."""
    images = np.zeros((count, 1, 8, 8), np.uint8)
    return store.Dataset(SOURCES["digits"], images, np.arange(count) % 10, images, np.arange(count) % 10)


def trained_on(of: Federation) -> list[int]:
    """The labels of the training split as clients know them."""
    found: list[int] = of.shards[0].train_images.labels.tolist()
    return found


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.9])
def test_as_many_labels_are_wrong_as_asked_and_all_other_classes_alike(share: float) -> None:
    """Within four standard deviations of the binomial: over all images, in each class, and for each wrong class."""
    data = labelled(20_000)
    noisy = mislabelled(data, NOBODY, share, "symmetric", 0, 0)
    wrong = noisy != data.train_labels

    def as_expected(found: int, n: int, p: float) -> bool:
        return abs(found - n * p) < 4 * (n * p * (1 - p)) ** 0.5

    assert as_expected(wrong.sum(), 20_000, share)
    assert set(noisy) == set(range(10))
    for label in range(10):
        own = data.train_labels == label
        assert as_expected(wrong[own].sum(), 2_000, share)
        assert all(as_expected((noisy[own] == other).sum(), 2_000, share / 9) for other in range(10) if other != label)


def test_class_dependent_noise_has_one_wrong_class_for_each() -> None:
    data = labelled(20_000)
    noisy = mislabelled(data, NOBODY, 0.1, "class_dependent", 0, 0)
    wrong = noisy != data.train_labels
    assert abs(wrong.sum() - 2_000) < 4 * (20_000 * 0.09) ** 0.5
    assert all(len(set(noisy[wrong & (data.train_labels == label)])) == 1 for label in range(10))
    assert (wrong == (mislabelled(data, NOBODY, 0.1, "symmetric", 0, 0) != data.train_labels)).all()
    of_another_seed = [mislabelled(data, NOBODY, 0.999, "class_dependent", seed, 0) for seed in (0, 1)]
    assert (of_another_seed[0] != of_another_seed[1]).mean() > 0.2


@pytest.mark.usefixtures("data_dir")
def test_a_kind_of_noise_needs_noise(mapping: Make) -> None:
    with pytest.raises(InputError, match="give a share for label_noise, too"):
        run_file.resolve(mapping(label_noise_kind="class_dependent"))


def test_more_noise_keeps_what_is_wrong() -> None:
    data = labelled(2_000)
    less, more = (mislabelled(data, NOBODY, share, "symmetric", 0, 0) for share in (0.1, 0.4))
    wrong = less != data.train_labels
    assert (less[wrong] == more[wrong]).all()
    assert (mislabelled(data, NOBODY, 0.1, "symmetric", 1, 0) != less).any()  # another seed
    assert (mislabelled(data, NOBODY, 0.1, "symmetric", 0, 1) != less).any()  # another client's dataset


def test_an_images_number_decides_and_not_its_place() -> None:
    """A partition that deals from both splits puts the training images in the order of the clients."""
    data, order = labelled(500), np.random.default_rng(0).permutation(500)[:400]
    dealt = replace(data, train_labels=data.train_labels[order], train_numbers=order)
    assert (
        mislabelled(dealt, NOBODY, 0.3, "symmetric", 0, 0) == mislabelled(data, NOBODY, 0.3, "symmetric", 0, 0)[order]
    ).all()


def test_dealt_from_both_splits_an_image_is_as_wrong_with_other_clients(mapping: Make, digits_dir: Path) -> None:
    def noise(clients: int) -> dict[int, int]:
        asked = mapping("fedavg", dataset="digits", label_noise=0.5)
        asked["partition"] = {"scheme": "labels5", "clients": clients, "size": "medium"}
        of = federation(asked, digits_dir)
        shares = partition.load("digits", of.run.partition, 0, digits_dir)
        return dict(zip(shares.train_indices.tolist(), trained_on(of), strict=True))

    four, ten = noise(4), noise(10)
    assert len(common := four.keys() & ten.keys()) > 20
    assert all(four[number] == ten[number] for number in common)


def test_shards_test_labels_and_the_servers_stay(mapping: Make, data_dir: Path) -> None:
    asked = mapping("fedbe", validation=0.2)
    clean, noisy = federation(asked, data_dir), federation(asked | {"label_noise": 0.4}, data_dir)
    for k in (*range(4), SERVER):
        before, after = clean.shards[k], noisy.shards[k]
        for name in ("train", "test", "validation"):
            assert torch.equal(getattr(before, name), getattr(after, name))
        assert torch.equal(before.test_images.labels, after.test_images.labels)
        own = before.train
        same = before.train_images.labels[own] == after.train_images.labels[own]
        assert same.all() if k == SERVER else not same.all()
    held = clean.shards[SERVER].validation
    assert (clean.shards[0].train_images.labels[held] != noisy.shards[0].train_images.labels[held]).any()


def test_noise_is_of_the_seed_alone(mapping: Make, data_dir: Path) -> None:
    """The same for two methods and two numbers of clients, and where each client holds a dataset, one for each."""
    first = trained_on(federation(mapping("fedavg", label_noise=0.3), data_dir))
    assert trained_on(federation(mapping("hbfl", label_noise=0.3), data_dir)) == first
    two = mapping("fedavg", label_noise=0.3, partition={"alpha": 1.0, "clients": 2})
    assert trained_on(federation(two, data_dir)) == first
    assert trained_on(federation(mapping("fedavg", label_noise=0.3, seed=1), data_dir)) != first
    tasks = mapping("fedavg", label_noise=0.3, dataset=["few", "few"], partition={"scheme": "whole", "clients": 2})
    one, other = (federation(tasks, data_dir).shards[k].train_images.labels.tolist() for k in (0, 1))
    assert one == first != other


def test_runs_of_a_process_share_images_and_not_their_noise(mapping: Make, data_dir: Path) -> None:
    clean = federation(mapping(), data_dir)
    run = run_file.resolve(mapping(label_noise=0.4))
    data = store.load("few", data_dir, run.images)
    shares = partition.load("few", run.partition, 0, data_dir)
    of = [Federation(one, [data], shares, clean.compute) for one in (run, clean.run)]
    assert trained_on(of[0]) != trained_on(of[1]) == trained_on(clean)
    pixels = [one.shards[0].train_images.pixels for one in of]  # type: ignore[union-attr]
    assert pixels[0].data_ptr() == pixels[1].data_ptr()


def test_clients_know_their_noisy_labels_alone(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg", label_noise=0.4), data_dir)
    shard, progress = of.shards[0], play(of, 1)
    _, labels = of.node(0, 1).images()
    assert torch.equal(labels, shard.train_images.labels[shard.train])
    node = of.node(SERVER, 1)
    node.state = progress.server
    (predictor,) = [one for one in of.method.server_predictors(node) if one.name == "global"]
    predicted = of.predict(predictor, shard.train_images, shard.train).argmax(-1)
    assert float(of.own_accuracy(0, predictor, on_test=False)) == pytest.approx(
        float((predicted == labels).double().mean())
    )


@pytest.mark.parametrize("executor", ["eager", "threads"])
def test_training_follows_the_labels(mapping: Make, data_dir: Path, executor: str) -> None:
    asked = mapping("fedgvi", rounds=1)
    clean, noisy = (
        play(federation(asked | more, data_dir), 1, executor=executor) for more in ({}, {"label_noise": 0.4})
    )
    assert any(not torch.equal(tensor, tensors(noisy)[name]) for name, tensor in tensors(clean).items())


@pytest.mark.usefixtures("data_dir")
def test_a_run_without_noise_keeps_its_key(mapping: Make) -> None:
    plain = run_file.resolve(mapping())
    assert run_file.resolve(mapping(label_noise=0)).folder == plain.folder
    noisy = run_file.resolve(mapping(label_noise=0.1))
    assert noisy.key != plain.key
    assert noisy.partition_file == plain.partition_file
    assert "label_noise" not in plain.to_dict(defaults=False)


def test_a_noisy_run_resumes_and_verifies(
    mapping: Make, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halfway, "elsewhere", halfway.resume)  # this process alone knows the small datasets of tests
    path, out = tmp_path / "run.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(mapping("fedavg", label_noise=0.4)))
    assert cli.main(["train", str(path), "--out", str(out), "--data", str(data_dir)]) == 0
    assert cli.main(["verify", "--data", str(data_dir), str(out), "--rounds", "2"]) == 0
    assert re.search(r"all \d+ values are the recorded ones", capsys.readouterr().out)
