"""Mini-batches in a fixed order go round in it, whatever the executor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.playing import federation, play, tensors

from bayesfed.engine.batches import Mixer
from bayesfed.engine.executors import EXECUTORS
from bayesfed.methods.node import Phase

Make = Callable[..., dict[str, Any]]
FIXED = {"local_epochs": 0, "local_batches": 7, "batch_order": "fixed", "batch_size": 16}
ONE = {"partition": {"alpha": 100.0, "clients": 2}}


def test_rounds_go_on_where_the_last_one_ended(mapping: Make, data_dir: Any) -> None:
    of = federation(mapping(**ONE, **FIXED), data_dir)
    shard, phase = of.shards[0], Phase(of.method.step, batches=7)
    seen = []
    for round in (1, 2, 3):
        mixer = Mixer(of, of.node(0, round), [phase])
        seen += [one for chunk in mixer.phase(shard, phase) for one in chunk.index.split(16)]
    count = len(shard.train)
    whole = -(-count // 16)
    assert whole not in (7, 14, 21)
    assert [len(one) for one in seen[:whole]] == [16] * (whole - 1) + [count - 16 * (whole - 1)]
    assert torch.equal(torch.cat(seen[:whole]).sort().values, torch.arange(count))
    for place, one in enumerate(seen):
        assert torch.equal(one, seen[place % whole])


def test_epochs_repeat_and_random_ones_do_not(mapping: Make, data_dir: Any) -> None:
    for order, same in (("fixed", True), ("random", False)):
        of = federation(mapping(**ONE, batch_order=order, local_epochs=2), data_dir)
        phase = Phase(of.method.step, epochs=2)
        chunks = [c.index for c in Mixer(of, of.node(0, 1), [phase]).phase(of.shards[0], phase)]
        first, second = torch.cat(chunks).split(len(of.shards[0].train))
        assert torch.equal(first, second) is same


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_executor_has_the_same_batches(executor: str, mapping: Make, data_dir: Any) -> None:
    of = federation(mapping(**ONE, **FIXED), data_dir)
    eager, found = tensors(play(of, 3)), tensors(play(of, 3, executor=executor))
    for name, tensor in eager.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12)
