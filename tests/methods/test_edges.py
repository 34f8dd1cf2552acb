"""Clients at the edge of what there is: without training images, with one, with one class, without test images; batches of
one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.playing import federation, play, tensors

from bayesfed import methods
from bayesfed.core.errors import InputError
from bayesfed.engine.federation import Federation
from bayesfed.methods.method import Method
from bayesfed.methods.node import Node, State
from bayesfed.methods.predictors import softmax_average

Make = Callable[..., dict[str, Any]]
NONE, ONE, ONE_CLASS, UNTESTED = range(4)  # the clients


def at_the_edge(of: Federation) -> Federation:
    """The federation with four such clients."""
    for client, images in ((NONE, 0), (ONE, 1)):
        shard = of.shards[client]
        of.shards[client] = replace(shard, train=shard.train[:images])
    shard = of.shards[ONE_CLASS]
    labels = shard.train_images.labels[shard.train]
    of.shards[ONE_CLASS] = replace(shard, train=shard.train[labels == labels[0]])
    shard = of.shards[UNTESTED]
    few = shard.train[: of.run.budget.batch_size + 2]  # several batches, the last one smaller or of one image
    of.shards[UNTESTED] = replace(shard, train=few, test=shard.test[:0])
    of.whole = dict(of.shards)
    of.n = of.count()
    return of


@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("name", sorted(methods.ours()))
def test_every_method_trains_such_clients(name: str, batch_size: int, mapping: Make, data_dir: Any) -> None:
    """Two rounds: all is finite; who has no images sends and keeps nothing; who has no test images has no accuracy on its
    own."""
    few = {"partition": {"alpha": 100.0, "clients": 4}, "batch_size": batch_size}
    few |= {} if "images" in mapping(name) else {"images": {"prepare": {"resize": 16}}}
    of = at_the_edge(federation(mapping(name, **few), data_dir))
    progress = play(of, 2)
    assert progress.diverged is None
    assert all(tensor.isfinite().all() for tensor in tensors(progress).values() if tensor.is_floating_point())
    assert NONE not in progress.clients
    rows = {(row.client, row.metric) for row in progress.history}
    assert not any(client == str(NONE) and metric.startswith("epoch") for client, metric in rows)
    assert (str(UNTESTED), "shard_accuracy") not in rows
    assert all(row.value == row.value for row in progress.history if "accuracy" in row.metric)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name", [name for name in sorted(methods.ours()) if methods.get(name).finish is not Method.finish]
)
def test_an_update_that_is_not_finite_is_named(
    name: str, value: float, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of client 2, in its first entry: the round says whose it is, whatever the method makes of it."""
    of = federation(mapping(name), data_dir)
    finish = of.method.finish

    def broken(c: Node) -> State:
        update = {key: tensor.clone() for key, tensor in finish(c).items()}
        if c.client == 2:
            next(iter(update.values())).view(-1)[0] = value
        return update

    monkeypatch.setattr(of.method, "finish", broken)
    found = play(of, 1).diverged
    assert found is not None
    assert (found.round, found.client) == (1, "2")


@pytest.mark.parametrize(
    ("samples", "told"), [(0, "0 is out of range; it must be at least 1"), (3.0, "expected a whole number, found 3.0")]
)
def test_an_average_is_over_one_sample_or_more(samples: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"softmax_average of 'global', samples: {told}"):
        softmax_average("global", lambda theta, x: x, lambda: torch.zeros(1), samples, ("test",))
