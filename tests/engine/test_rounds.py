"""Who is trained, tested and kept in a round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from playing import federation, play, tensors

from bayesfed.engine.rounds import DETAILED_CLIENTS, DETAILED_EVERY

Make = Callable[..., dict[str, Any]]
MANY = {"alpha": 100.0, "clients": 45, "min_train": 1, "min_test": 0}


def test_of_many_clients_some_are_tested_on_the_full_set(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg", partition=MANY, rounds=1), data_dir, torch.float32)
    history = play(of, 1).history
    tested = [int(row.client) for row in history if row.metric == "test_accuracy" and row.client != "global"]
    assert tested == list(range(0, 45, 3))
    assert len(tested) <= DETAILED_CLIENTS
    own = {int(row.client) for row in history if row.metric == "shard_accuracy"}
    assert own == {k for k in range(45) if len(of.shards[k].test)}


def test_the_full_set_is_due_every_tenth_round_and_in_the_last(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg", rounds=13), data_dir, torch.float32)
    of.method.phases = lambda c: []  # type: ignore[method-assign]
    history = play(of, 13).history
    rounds = {row.round for row in history if row.metric == "test_accuracy" and row.client != "global"}
    assert rounds == {DETAILED_EVERY, 13}
    assert {row.round for row in history if row.metric == "shard_accuracy"} == set(range(1, 14))


def test_clients_that_take_no_part_stay_as_they_are(mapping: Make, data_dir: Path) -> None:
    local = {"global": "lenet5", "local": ["lenet5"] * 45}
    of = federation(mapping("fml", partition=MANY, models=local, participation=0.2), data_dir, torch.float32)
    first = play(of, 1)
    assert set(first.clients) == set(of.participants(1))
    before = {name: tensor.clone() for name, tensor in tensors(first).items()}
    second = play(of, 1, first)
    assert set(second.clients) == set(of.participants(1)) | set(of.participants(2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(first).items())
    for client in set(of.participants(1)) - set(of.participants(2)):
        assert second.clients[client] is first.clients[client]
    for client in set(of.participants(1)) & set(of.participants(2)):
        assert not torch.equal(second.clients[client]["phi"], first.clients[client]["phi"])
