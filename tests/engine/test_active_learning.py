"""Active learning: what is labelled when, what clients train on, and that a resume and every executor agree."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play, tensors

from bayesfed.core.errors import InputError
from bayesfed.data import partition, store
from bayesfed.data.schemes import Partition
from bayesfed.engine import checkpoint
from bayesfed.engine.divergence import Divergence
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.predictors import Predictor
from bayesfed.runs import run_file

Make = Callable[..., dict[str, Any]]
ACTIVE = {"start": 10, "add": 20, "every": 1}
EVEN = {"scheme": "iid", "images_each": 45, "server": 60, "clients": 4, "min_test": 0}


def sizes(progress: Progress) -> list[int]:
    return [len(images) for images in progress.labelled.values()]


@pytest.mark.parametrize("by", ["entropy", "random"])
def test_labels_come_until_the_pool_is_empty(by: str, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping(active=ACTIVE | {"every": 2, "by": by}, rounds=9, partition=EVEN), data_dir)
    of.method.step = lambda c, batch: None  # type: ignore[method-assign]
    progress, before = play(of, 1), None
    for round in range(2, 10):
        progress, before = play(of, 1, progress), progress
        assert sizes(progress) == [10 if round < 2 else min(45, 10 + 20 * (round // 2))] * 4
        for k, images in progress.labelled.items():
            own = set(images.tolist())
            assert len(own) == len(images)
            assert own <= set(of.whole[k].train.tolist())
            assert images[: len(before.labelled[k])].equal(before.labelled[k])
    counted = [row.value for row in progress.history if row.metric == "labelled_images"]
    assert counted == [40, 40, 120, 120, 180, 180, 180, 180, 180]


def test_clients_train_on_what_is_labelled_alone(mapping: Make, data_dir: Path) -> None:
    """As if they had no other images: sizes, weights and batches."""
    of = federation(mapping(active=ACTIVE, partition=EVEN), data_dir)
    progress = play(of, 1)
    hands = [np.sort(images[:10].numpy()) for images in progress.labelled.values()]
    run = run_file.resolve(mapping(partition=EVEN))
    stored = partition.load("few", run.partition, 0, data_dir)
    alone = Partition(
        np.concatenate(hands), np.arange(0, 50, 10), stored.test_indices, stored.test_offsets, stored.server_indices
    )
    same = play(Federation(run, [store.load("few", data_dir, run.images)], alone, of.compute), 1)
    assert torch.equal(progress.server["theta"], same.server["theta"])


def test_the_most_uncertain_are_labelled(mapping: Make, data_dir: Path) -> None:
    """By the entropy of the server's model at the end of the round, each client in its own pool."""
    of = federation(mapping(active=ACTIVE, rounds=3, partition=EVEN), data_dir)
    first = play(of, 1)
    server = of.node(-1, 1)
    server.state = first.server
    (predictor,) = of.method.server_predictors(server)
    for k, images in first.labelled.items():
        old, new = images[:10], images[10:]
        pool = torch.tensor([i for i in of.whole[k].train.tolist() if i not in old.tolist()])
        p = of.predict(predictor, of.whole[k].train_images, pool).exp().numpy()
        entropies = dict(zip(pool.tolist(), -(p * np.log(p)).sum(1), strict=True))
        assert new.tolist() == sorted(entropies, key=lambda i: -entropies[i])[:20]


def test_predictions_of_a_pool_that_are_no_numbers_end_a_run(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their images would be labelled first."""

    def log_probabilities(x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 10), math.nan if len(x) == 35 else -math.log(10), dtype=torch.float64)

    monkeypatch.setattr(FedAvg, "server_predictors", lambda self, server: [Predictor("global", log_probabilities)])
    progress = play(federation(mapping(active=ACTIVE, partition=EVEN), data_dir), 1)
    where = "prediction by its model 'global' of images to label"
    assert progress.diverged == Divergence(1, "server", where)
    assert sizes(progress) == [10] * 4


def test_random_labels_are_a_control(mapping: Make, data_dir: Path) -> None:
    """The same start, others after it; other seeds label others."""
    found = {}
    for by, seed in (("entropy", 0), ("random", 0), ("random", 1)):
        of = federation(mapping(active=ACTIVE | {"by": by}, partition=EVEN, seed=seed), data_dir)
        found[by, seed] = play(of, 1).labelled[0].tolist()
    assert found["entropy", 0][:10] == found["random", 0][:10]
    assert set(found["entropy", 0]) != set(found["random", 0])
    assert found["random", 0] != found["random", 1]


@pytest.mark.parametrize("name", ["fedavg", "hbfl", "fedbe", "fedppd", "fola"])
def test_a_resumed_run_labels_and_trains_the_same(name: str, mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    run = mapping(name, active=ACTIVE, rounds=3)
    whole = play(federation(run, data_dir, torch.float32), 3)
    checkpoint.save(
        tmp_path / "c", play(federation(run, data_dir, torch.float32), 2), checkpoint.Header("k", "fp32", "eager")
    )
    again, _ = checkpoint.load(tmp_path / "c", "k", torch.device("cpu"))
    resumed = play(federation(run, data_dir, torch.float32), 1, again)
    assert resumed.history == whole.history
    assert tensors(resumed).keys() == tensors(whole).keys()
    assert all(torch.equal(tensor, tensors(whole)[key]) for key, tensor in tensors(resumed).items())


@pytest.mark.parametrize("executor", ["threads", "graphs"])
@pytest.mark.parametrize("name", ["fedavg", "hbfl"])
def test_all_executors_label_the_same(name: str, executor: str, mapping: Make, data_dir: Path) -> None:
    run = mapping(name, active=ACTIVE, rounds=3)
    first, other = (play(federation(run, data_dir), 3, executor=one) for one in ("eager", executor))
    assert all(images.equal(other.labelled[k]) for k, images in first.labelled.items())
    for key, tensor in tensors(first).items():
        assert torch.allclose(tensor, tensors(other)[key], rtol=0, atol=1e-9 * max(1.0, float(tensor.double().norm())))


def test_a_method_without_a_global_model_can_label_at_random_alone(mapping: Make, data_dir: Path) -> None:
    """By entropy it is refused with its run file, or where a method of one's own gives no such model when it is asked."""
    of = federation(mapping("fedavg", active=ACTIVE), data_dir)
    of.method.server_predictors = lambda server: []  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"active\.by: method 'fedavg' has no global model to judge images"):
        play(of, 1)
    run = mapping("independent", active=ACTIVE | {"by": "random"})
    assert max(sizes(play(federation(run, data_dir), 1))) == 30


def test_it_enters_the_key_where_it_is_asked_for(mapping: Make) -> None:
    plain = run_file.resolve(mapping(dataset="digits"))
    asked = run_file.resolve(mapping(dataset="digits", active=ACTIVE))
    same = run_file.resolve(mapping(dataset="digits", active=ACTIVE | {"by": "entropy"}))
    other = run_file.resolve(mapping(dataset="digits", active=ACTIVE | {"by": "random"}))
    assert len({plain.key, asked.key, other.key}) == 3
    assert asked.key == same.key
    assert "active" not in plain.to_dict()
    assert run_file.resolve(asked.to_dict()) == asked


@pytest.mark.parametrize(
    ("active", "message"),
    [
        ({"start": 10, "add": 20}, "active.every is missing; "),
        (ACTIVE | {"by": "margin"}, "active.by: 'margin' is not a choice"),
        (ACTIVE | {"add": 0}, "active.add: 0 is out of range"),
        (ACTIVE | {"every": 99}, "rounds; no more would ever be labelled"),
        (None, "active: expected keys and values, found None"),
    ],
)
def test_wrong_blocks(active: object, message: str, mapping: Make) -> None:
    with pytest.raises(InputError) as error:
        run_file.resolve(mapping(dataset="digits", active=active))
    assert message in str(error.value)


def test_nothing_left_to_label(mapping: Make, data_dir: Path) -> None:
    with pytest.raises(InputError, match=r"active\.start: no client has more than 45 images"):
        play(federation(mapping(active=ACTIVE | {"start": 45}, partition=EVEN), data_dir), 1)
