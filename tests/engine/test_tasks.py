"""Tasks of a run: what entropy tells, and the bins of reliability diagrams, for every method and by every executor."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play, tensors
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from bayesfed import methods
from bayesfed.core.errors import InputError
from bayesfed.data import store
from bayesfed.data.catalogue import source
from bayesfed.data.prepare import AS_IT_IS, Seen
from bayesfed.data.records import SPLITS, write_npz
from bayesfed.data.sources import SOURCES
from bayesfed.engine import dry
from bayesfed.engine.device import Compute
from bayesfed.engine.rounds import Divergence
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.predictors import Predictor
from bayesfed.runs import run_file

Make = Callable[..., dict[str, Any]]
ASKED = {"foreign": ["digits-parity"], "mistakes": True}


def values(history: Any, model: str, round: int) -> dict[str, float]:
    """The metrics of a model of the server in a round."""
    return {row.metric: row.value for row in history if (row.client, row.model, row.round) == ("global", model, round)}


@pytest.mark.parametrize("name", sorted(methods.ours()))
def test_every_method_has_them_from_the_same_code(name: str, mapping: Make, data_dir: Path) -> None:
    """Nothing else is touched by them. Every predictor that is tested on the full test set has them, and in the last round
    a client's average over weight samples. A round on made-up images has the same predictors.
    """
    asked = play(federation(mapping(name, tasks={"foreign": ["few-parity"], "mistakes": True}), data_dir), 2)
    plain = play(federation(mapping(name), data_dir), 2)
    assert all(torch.equal(tensor, tensors(plain)[key]) for key, tensor in tensors(asked).items())
    of_samples = [row for row in plain.history if row.metric == "shard_nll" and row.model.endswith("_sampled")]
    tested = {(row.round, row.client, row.model) for row in plain.history if row.metric == "test_nll"}
    tested |= {(row.round, row.client, row.model) for row in of_samples if row.round == 2}
    assert bool(of_samples) == (name in {"fedivon", "hbfl", "pfedbayes"})
    new = [row for row in asked.history if "auroc" in row.metric or "fpr95" in row.metric]
    found = {
        metric: {(r.round, r.client, r.model) for r in new if r.metric == metric} for metric in {r.metric for r in new}
    }
    assert found == {
        f"test_{metric}": tested
        for what in ("mistakes", "foreign_few-parity")
        for metric in (f"auroc_{what}", f"auroc_{what}_sd", f"fpr95_{what}")
    }
    assert [row for row in asked.history if row not in new] == plain.history
    made_up = dry.predictor_names(run_file.resolve(mapping(name)))
    assert made_up == {row.model for row in plain.history if row.metric == "passes"}


def no_numbers_for(images: int) -> Callable[..., list[Predictor]]:
    """Predictors of a server that gives NaN where it is asked for so many images at once, and uniform probabilities."""

    def log_probabilities(x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 10), math.nan if len(x) == images else -math.log(10), dtype=torch.float64)

    return lambda self, server: [Predictor("global", log_probabilities)]


def test_predictions_of_foreign_images_that_are_no_numbers_end_a_run(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of its own test images do; they were taken for the most uncertain of all, and for perfect detection."""
    monkeypatch.setattr(FedAvg, "server_predictors", no_numbers_for(359 - 250))
    progress = play(federation(mapping(tasks=ASKED, rounds=1), data_dir), 1)
    where = "prediction by its model 'global' of images of 'digits-parity'"
    assert progress.diverged == Divergence(1, "server", where)
    assert math.isnan(values(progress.history, "global", 1)["test_auroc_foreign_digits-parity"])


def test_predictions_on_shards_that_are_no_numbers_end_a_run(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every client has a dataset of its own, and the server is tested on these alone."""
    monkeypatch.setattr(FedAvg, "server_predictors", no_numbers_for(60))
    tasks = {"dataset": ["few", "few"], "partition": {"scheme": "whole", "clients": 2}}
    progress = play(federation(mapping("fedavg", **tasks, rounds=1), data_dir), 1)
    assert progress.diverged == Divergence(1, "server", "prediction by its model 'global'")


def test_numbers_are_scikit_learns(mapping: Make, data_dir: Path) -> None:
    """By hand from what the server's model predicts: few mistakes and few images, so a resampling takes all of a kind."""
    of = federation(mapping(tasks=ASKED, rounds=3), data_dir)
    progress = play(of, 3)
    server = of.node(-1, 3)
    server.state = progress.server
    (predictor,) = of.method.server_predictors(server)
    shard = of.shards[-1]
    p = of.predict(predictor, shard.test_images, shard.test).exp().numpy()
    labels = shard.test_images.labels.numpy()
    foreign = of.foreign["digits-parity"]
    elsewhere = of.predict(predictor, foreign, torch.arange(len(foreign))).exp().numpy()
    found = values(progress.history, "global", 3)

    wrong = p.argmax(1) != labels
    entropies = [-(each * np.log(each)).sum(1) for each in (p, elsewhere)]
    for what, scores, positive in (
        ("mistakes", entropies[0], wrong),
        ("foreign_digits-parity", np.concatenate(entropies), np.arange(60 + 359) >= 60),
    ):
        size, each = min(positive.sum(), (~positive).sum()), []
        for order in of.resamplings(len(scores)):
            chosen = np.concatenate([order[torch.from_numpy(kind)[order]][:size] for kind in (positive, ~positive)])
            each.append(roc_auc_score(positive[chosen], scores[chosen]))
        assert found[f"test_auroc_{what}"] == pytest.approx(np.mean(each), abs=1e-9)
        assert found[f"test_auroc_{what}_sd"] == pytest.approx(np.std(each, ddof=1), abs=1e-9)

    images, right, confidence = (
        np.array([found[f"reliability_{number}_{what}"] for number in range(1, 16)])
        for what in ("images", "right", "confidence")
    )
    fractions, means = calibration_curve(~wrong, p.max(1), n_bins=15)
    held = images > 0
    assert right[held] / images[held] == pytest.approx(fractions)
    assert confidence[held] / images[held] == pytest.approx(means)
    gaps = np.abs(right - confidence)
    assert found["test_ece"] == pytest.approx(gaps.sum() / 60)
    assert found["test_mce"] == pytest.approx((gaps[held] / images[held]).max())


def test_bins_stand_in_the_record_once(mapping: Make, data_dir: Path) -> None:
    history = play(federation(mapping("hbfl"), data_dir), 2).history
    bins = [(row.round, row.client, row.model) for row in history if row.metric.startswith("reliability")]
    models = {row.model for row in history if row.client == "global" and row.metric == "test_nll"}
    assert {model: bins.count((2, "global", model)) for model in models} == dict.fromkeys(models, 45)
    assert len(bins) == 45 * len(models)


@pytest.mark.parametrize("executor", ["threads", "graphs"])
def test_all_executors_measure_the_same(executor: str, mapping: Make, data_dir: Path) -> None:
    first, other = (play(federation(mapping(tasks=ASKED), data_dir), 2, executor=one) for one in ("eager", executor))
    for row, same in zip(first.history, other.history, strict=True):
        assert (row.round, row.client, row.model, row.metric) == (same.round, same.client, same.model, same.metric)
        assert row.value == pytest.approx(same.value, abs=1e-6, nan_ok=True)


@pytest.fixture
def coloured(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of 3 channels and another side."""
    name = "coloured"
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 12, 12)).astype(np.uint8)
    arrays = {"images": images, "labels": np.zeros(5, np.uint8)}
    few = replace(SOURCES["digits"], name=name, channels=3, size=12, train=5, test=5, prepare="none",
                  mean=(0.5,) * 3, std=(0.5,) * 3, fingerprints={"train": "a", "test": "b"})  # fmt: skip
    monkeypatch.setitem(SOURCES, name, few)
    monkeypatch.setattr(store, "check", lambda *_: None)
    for split in SPLITS:
        write_npz(data_dir / name / f"{split}.npz", arrays)
    return name


def test_foreign_images_are_seen_as_the_runs_own(coloured: str, data_dir: Path) -> None:
    own = source("few")
    found = store.load_foreign(coloured, data_dir, AS_IT_IS, own)
    assert (found.shape, found.dtype) == ((5, 1, 32, 32), np.uint8)
    with np.load(data_dir / coloured / "test.npz") as arrays:
        raw = arrays["images"].astype(float)
    grey = store.load_foreign(coloured, data_dir, AS_IT_IS, Seen(prepare={"resize": 12}).of(own))
    luma = 0.299 * raw[:, 0] + 0.587 * raw[:, 1] + 0.114 * raw[:, 2]
    assert np.abs(grey[:, 0] - luma).max() <= 0.5 + 1e-9
    threefold = store.load_foreign("few", data_dir, AS_IT_IS, Seen(prepare={"resize": 32}).of(source(coloured)))
    small = store.load_foreign("few", data_dir, AS_IT_IS, source(coloured))
    assert small.shape == (60, 3, 12, 12)
    assert small.max() > 200  # as bright as its dataset has it, not digits' grey levels of 0 to 16
    assert threefold.shape == (60, 3, 32, 32)
    assert (threefold == threefold[:, :1]).all()
    assert (threefold[:, 0] == store.load("few", data_dir).test_images[:, 0]).all()


@pytest.mark.parametrize("prepare", [{"pad": 10}, {"enlarge": 16}])
def test_foreign_images_that_the_runs_preparation_is_not_for_are_resized(
    coloured: str, data_dir: Path, prepare: dict[str, int]
) -> None:
    """Images of 12x12, too large to pad to 10x10, and with other levels than digits have."""
    seen = Seen(prepare=prepare)
    found = store.load_foreign(coloured, data_dir, seen, seen.of(source("few")))
    own = store.load_foreign(
        coloured, data_dir, AS_IT_IS, Seen(prepare={"resize": next(iter(prepare.values()))}).of(source("few"))
    )
    assert np.array_equal(found, own)


def test_foreign_data_change_the_key_where_they_are_asked_for(mapping: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_file.resolve(mapping(dataset="digits"))
    assert run_file.resolve(mapping(dataset="digits", tasks={"foreign": [], "mistakes": False})).key == plain.key
    asked = run_file.resolve(mapping(dataset="digits", tasks={"foreign": ["digits-parity"]}))
    assert asked.key != plain.key
    assert asked.all_datasets == ["digits", "digits-parity"]
    assert asked.to_dict()["tasks"] == {"foreign": ["digits-parity"], "mistakes": False}
    assert run_file.resolve(asked.to_dict()) == asked
    keys = plain.key, asked.key
    other = replace(SOURCES["digits-parity"], fingerprints={"train": "", "test": ""})
    monkeypatch.setitem(SOURCES, "digits-parity", other)
    again = run_file.resolve(plain.to_dict()), run_file.resolve(asked.to_dict())
    assert (again[0].key == keys[0], again[1].key == keys[1]) == (True, False)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"foreign": ["digits"]}, "tasks.foreign: 'digits' is the run's own dataset"),
        (
            {"foreign": ["fashion_mnist"]},
            "tasks.foreign: no dataset is named 'fashion_mnist'; did you mean 'fashion-mnist'",
        ),
        ({"foreign": "mnist"}, "tasks.foreign: expected a list, found 'mnist'"),
        ({"foreign": ["mnist", "mnist"]}, "tasks.foreign: mnist, mnist: name each dataset once"),
        ({"mistake": True}, "tasks.mistake: unknown key; did you mean 'mistakes'"),
        (True, "tasks: expected keys and values, found True"),
    ],
)
def test_wrong_tasks(tasks: object, message: str, mapping: Make) -> None:
    with pytest.raises(InputError) as error:
        run_file.resolve(mapping(dataset="digits", tasks=tasks))
    assert message in str(error.value)


def test_clients_with_datasets_of_their_own_have_nothing_foreign(mapping: Make) -> None:
    with pytest.raises(InputError, match=r"tasks\.foreign: 'mnist' is OOD to one dataset"):
        run_file.resolve(
            mapping(
                dataset=["digits", "digits"], partition={"scheme": "whole", "clients": 2}, tasks={"foreign": ["mnist"]}
            )
        )


def test_orders_are_there_before_another_stream_may_read_them(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made at a client's end, on its own stream of a GPU, and kept for all."""
    waits: list[Compute] = []
    monkeypatch.setattr(Compute, "synchronise", lambda self: waits.append(self))
    of = federation(mapping(tasks=ASKED), data_dir)
    for n in (10, 10, 11):
        of.resamplings(n)
    assert len(waits) == 2
