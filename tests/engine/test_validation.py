"""Validation images: who holds them, what is measured on them, and how `patience` ends a run by them."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from helpers.playing import federation, play
from hypothesis import given
from hypothesis import strategies as st

import bayesfed
from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.engine import federation as federations
from bayesfed.engine.federation import SERVER
from bayesfed.engine.rounds import out_of_patience
from bayesfed.engine.shards import held_out, round_half_up
from bayesfed.methods.node import Node, State
from bayesfed.runs import run_file
from bayesfed.runs.run_folder import Row

Make = Callable[..., dict[str, Any]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.01, 0.5), st.integers(0, 5))
def test_a_share_of_every_class_is_held_out(labels: list[int], share: float, client: int) -> None:
    own = np.array(labels)
    held = held_out(own, share, 0, client)
    assert held.sum() == min(round_half_up(share * len(own)), len(own) - 1)
    for label in set(labels):
        assert abs(held[own == label].sum() - share * (own == label).sum()) <= 1
    assert (held == held_out(own, share, 0, client)).all()


def test_validation_images_leave_the_training_images_of_their_client(mapping: Make, data_dir: Path) -> None:
    before = federation(mapping("fedbe"), data_dir).shards
    after = federation(mapping("fedbe", validation=0.2), data_dir).shards
    assert after[SERVER].train.tolist() == before[SERVER].train.tolist()  # the server's images are taken first
    for k in range(4):
        both = [*after[k].train.tolist(), *after[k].validation.tolist()]
        assert sorted(both) == sorted(before[k].train.tolist())
        assert after[k].test.tolist() == before[k].test.tolist()
    everyone = sorted(i for k in range(4) for i in after[k].validation.tolist())
    assert after[SERVER].validation.tolist() == everyone


def test_images_in_common_are_held_out_by_all(mapping: Make, data_dir: Path) -> None:
    """Nobody trains on what another client validates on, and the server has each image once."""
    dealt = {"shards": 8, "shards_each": 2, "share": 0.5, "least": 4, "server": 50, "min_test": 0}
    asked = mapping("fedavg", partition={"scheme": "shards", "clients": 4} | dealt)
    before = federation(asked, data_dir).shards
    after = federation(asked | {"validation": 0.2}, data_dir).shards
    held = {k: set(after[k].validation.tolist()) for k in range(4)}
    everyone = set.union(*held.values())
    assert sum(map(len, held.values())) > len(everyone)
    assert after[SERVER].validation.tolist() == sorted(everyone)
    for k in range(4):
        own = set(before[k].train.tolist())
        assert held[k] <= own
        assert set(after[k].train.tolist()) == own - everyone


@pytest.mark.usefixtures("data_dir")
def test_a_run_without_validation_keeps_its_key(mapping: Make) -> None:
    plain = run_file.resolve(mapping())
    assert run_file.resolve(mapping(validation=0.0, patience=0)).key == plain.key
    assert run_file.resolve(mapping(validation=0.1)).key != plain.key


def test_what_is_measured_is_that_of_the_models_on_these_images(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg", validation=0.2), data_dir)
    progress = play(of, 2)
    shard = of.shards[SERVER]
    images = shard.train_images
    theta, node = progress.server["theta"], of.node(SERVER, 2)
    node.state = progress.server
    with torch.no_grad():
        p = F.softmax(node.model(theta, images.plain(shard.validation)), -1).double()
    y = images.labels[shard.validation]
    confidence, guess = p.max(-1)
    edges = torch.linspace(0, 1, 16)
    gaps = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gaps += float((confidence[inside].sum() - (guess == y)[inside].sum()).abs()) / len(y)
    expected = {
        "validation_accuracy": float((guess == y).double().mean()),
        "validation_nll": float(-p[torch.arange(len(y)), y].log().mean()),
        "validation_ece": gaps,
    }
    found = {
        row.metric: row.value
        for row in progress.history
        if row.round == 2 and row.client == "global" and row.metric.startswith("validation_")
    }
    assert found == pytest.approx(expected)


def test_clients_own_models_are_measured_together(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("independent", validation=0.2), data_dir)
    seen: list[tuple[int, float]] = []
    original = federations.Federation.predict

    def noting(self: Any, predictor: Any, images: Any, indices: Any) -> Any:
        found = original(self, predictor, images, indices)
        if images is of.shards[0].train_images:
            seen.append((len(indices), float((found.argmax(-1) == images.labels[indices]).double().mean())))
        return found

    of.predict = noting.__get__(of)  # type: ignore[method-assign]
    history = play(of, 1).history
    (row,) = [row for row in history if row.metric == "validation_accuracy"]
    assert (row.client, row.model) == ("mean", "local")
    assert row.value == pytest.approx(sum(n * a for n, a in seen) / sum(n for n, _ in seen))


def curve(values: list[float]) -> list[Row]:
    return [Row(r, "global", "global", "validation_accuracy", value) for r, value in enumerate(values, start=1)]


def test_patience_counts_rounds_without_a_better_value() -> None:
    found = curve([0.1, 0.3, 0.3, 0.2])
    assert not out_of_patience(found, 3, 2)
    assert out_of_patience(found, 4, 2)
    assert not out_of_patience(found, 4, 3)
    assert not out_of_patience(found, 4, 0)
    assert not out_of_patience(curve([]), 4, 1)


@pytest.mark.usefixtures("data_dir")
def test_patience_needs_validation_images(mapping: Make) -> None:
    with pytest.raises(InputError, match="patience: it counts rounds without a better validation accuracy; give"):
        run_file.resolve(mapping(patience=3))


def test_a_run_out_of_patience_ends_with_a_whole_last_round(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learning rate of nearly 0: nothing gets better after round 1, so the last round is 1 + patience + 1."""
    asked = mapping({"name": "fedavg", "lr": 1e-9}, rounds=9, validation=0.2, patience=2)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(asked))
    command = ["train", str(path), "--data", str(data_dir), "--device", "cpu", "--out"]
    assert cli.main([*command, str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["rounds"] == 4
    assert "ece" in summary["uncertainty"]["global"]  # measured in the last round alone, which was known to be it
    assert summary["validation"]["best_round"] == 1
    assert summary["validation"]["accuracy_at_best_round"]["global"] == summary["global"]["accuracy_last"]
    stat = (tmp_path / "out/summary.json").stat()
    assert cli.main([*command, str(tmp_path / "out")]) == 0  # finished, and not gone on with
    assert (tmp_path / "out/summary.json").stat() == stat


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(("start", "sampled"), [(0.5, set()), (0.3, {3, 4})])
def test_patience_leaves_the_planned_rounds(start: float, sampled: set[int], mapping: Make, data_dir: Path) -> None:
    """Nothing gets better after round 1, so the fourth of nine rounds is the last; FedPA samples after a share of nine."""
    method = {"name": "fedpa", "lr": 1e-9, "start": start}
    of = federation(mapping(method, rounds=9, local_epochs=2, validation=0.2, patience=2), data_dir)
    seen: set[int] = set()
    finish = of.method.finish

    def noting(c: Node) -> State:
        seen.update({c.round} if "samples" in c.state else ())
        return finish(c)

    of.method.finish = noting  # type: ignore[method-assign]
    progress = play(of, 4)
    assert progress.over(of.run.budget)
    assert seen == sampled
    assert [of.node(SERVER, 4).rounds, of.node(SERVER, 4).last, of.node(SERVER, 9).last] == [9, True, False]


def test_swag_collects_in_the_round_that_patience_ends_with(mapping: Make, data_dir: Path) -> None:
    method = {"name": "fedswag", "lr": 1e-9}
    of = federation(mapping(method, rounds=9, validation=0.2, patience=2), data_dir)
    before = play(of, 3)
    assert "sigma" not in before.server
    assert "sigma" in play(of, 1, before).server


def test_clients_of_datasets_with_other_classes_are_validated_together(
    mapping: Make, tmp_path: Path, digits_dir: Path
) -> None:
    asked = mapping("fml", dataset=["digits", "digits-parity"], partition={"scheme": "whole", "clients": 2}, rounds=1)
    asked |= {"models": {"global": "convolutions", "local": ["lenet5", "lenet5"]}, "validation": 0.2, "batch_size": 256}
    found = bayesfed.train(asked | {"images": {}}, tmp_path / "out", data=digits_dir).summary["validation"]
    assert set(found["clients"]) == {"local", "meme"}
    assert all(value > 0 for of in found["clients"].values() for value in of.values())


@pytest.mark.usefixtures("modules")
def test_validation_that_leaves_nothing_is_refused(mapping: Make, data_dir: Path) -> None:
    """No image of any client, or none that a mini-batch of a network with BatchNorm could be made of."""
    with pytest.raises(InputError, match=r"validation: 0.0001 of its images is none for every client; raise it"):
        federation(mapping(validation=0.0001), data_dir)
    of = federation(mapping(models={"global": "normalised"}), data_dir)
    for k in range(4):
        of.shards[k].train = of.shards[k].train[:1]
    with pytest.raises(InputError, match=r"partition\.min_train: no client has images for a mini-batch"):
        of.participants(1)


def test_bytes_are_those_of_messages_and_statistics(mapping: Make, data_dir: Path) -> None:
    def sent(of: Any) -> dict[str, float]:
        history = play(of, 1).history
        return {row.metric: row.value for row in history if row.model == "communication"}

    plain = federation(mapping("fedavg"), data_dir, torch.float32)
    P = plain.networks[0]["global"].parameters
    assert sent(plain) == {"bytes_down": 4 * 4 * P, "bytes_up": 4 * 4 * P}
    # SCAFFOLD: the model and its control variate; HBFL: means, and variances where they travel.
    assert sent(federation(mapping("scaffold"), data_dir, torch.float32))["bytes_down"] == 2 * 4 * 4 * P
    part = federation(mapping("fedavg", participation=0.5), data_dir, torch.float32)
    assert sent(part)["bytes_up"] == 2 * 4 * P
    free = federation(mapping("scaffold"), data_dir, torch.float32)
    free.method.free = ("c",)  # type: ignore[misc]
    assert sent(free)["bytes_down"] == 4 * 4 * P


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("method", "vectors"), [("fedavg", 1), ("scaffold", 2), ("independent", 0)])
def test_statistics_of_batch_normalisation_travel_once(
    method: str, vectors: int, mapping: Make, data_dir: Path
) -> None:
    """Means and variances of three channels and a count, whether a method sends all that its server has or names it; and
    not where nothing is sent.
    """
    of = federation(mapping(method, models={"global": "normalised"}), data_dir, torch.float32)
    P = of.networks[0]["global"].parameters
    sent = {row.metric: row.value for row in play(of, 1).history if row.model == "communication"}
    expected = 4 * (4 * (vectors * P + 6) + 8) if vectors else 0
    assert sent == {"bytes_down": expected, "bytes_up": expected}
