"""A user's file that mypy holds to its strict rules (`make lint`): what the public names give has types."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import pandas as pd
from torch import Tensor

import bayesfed as bf


@bf.register
class Plain(bf.Method):
    """FedAvg by hand."""

    name, label, revision = "plain", "Plain", 1

    @dataclass(frozen=True)
    class Options:
        """lr: the learning rate."""

        lr: float = bf.option(0.1, above=0)

    def init_server(self, server: bf.Node) -> bf.State:
        return {"theta": server.initial()}

    def start(self, c: bf.Node, message: bf.State) -> bf.State:
        return {"theta": message["theta"].clone()}

    def step(self, c: bf.Learner, batch: bf.Batch) -> None:
        (theta,) = bf.leaves(c["theta"])
        (g,) = bf.grad(batch.mean(bf.cross_entropy(c.model(theta, batch.x), batch.y)), theta)
        c["theta"].sub_(c.rate(self.options.lr) * g)

    def finish(self, c: bf.Node) -> bf.State:
        return {"theta": c["theta"]}

    def aggregate(self, server: bf.Node, updates: Sequence[bf.Update]) -> dict[str, Tensor]:
        server["theta"] = bf.shares(updates).float() @ bf.stacked(updates, "theta")
        return {}

    def server_predictors(self, server: bf.Node) -> list[bf.Predictor]:
        return [bf.softmax_of("global", server.model, server["theta"])]


def describe(seed: int) -> bf.Run:
    """A run of two rounds."""
    return bf.Run(
        dataset="digits", partition=bf.Dirichlet(alpha=1.0, clients=2), method=bf.methods.Plain(lr=0.05), model="softmax",
        rounds=2, local_epochs=1, batch_size=64, seed=seed,
    )  # fmt: skip


def main(out: Path) -> float:
    """Train it, and give the accuracy of its global model."""
    bf.fetch("digits", out / "data")
    result = bf.train(describe(0), out / "run", data=out / "data")
    assert_type(result, bf.LoadedRun)
    assert_type(result.metrics, pd.DataFrame)
    assert_type(result.server["global"], bf.TrainedModel)
    assert_type(bf.load_run(out / "run", data=out / "data").summary["global"], Any)
    assert_type(describe(0).key, str)
    assert_type(bf.methods.HBFL(temperature=1e-3), bf.Method)
    assert_type(bf.list_methods(), dict[str, str])
    assert_type(bf.list_partitions(), dict[str, str])
    found: float = result.summary["global"]["accuracy_last"]
    return found
