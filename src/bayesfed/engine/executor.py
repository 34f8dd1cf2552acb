"""The eager executor: runs the phases of a node's round batch by batch, in the plainest way.

Every other way of running steps must leave the same parameters behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from bayesfed.data.augment import augmentation_draws
from bayesfed.engine import streams
from bayesfed.engine.federation import SERVER, Federation, Shard
from bayesfed.methods.base import Batch, Node, Phase

EpochEnd = Callable[[Node], None]


class EagerExecutor:
    """Trains nodes one after another. `check` is called between batches and may raise to stop a run."""

    name = "eager"

    def __init__(self, federation: Federation, check: Callable[[], None]) -> None:
        self.federation = federation
        self.check = check

    def train(self, node: Node, phases: Sequence[Phase], epoch_end: EpochEnd | None = None) -> None:
        """Run a node's phases on its state; `epoch_end` is the engine's own hook, after the phase's."""
        federation = self.federation
        seed, size = federation.run.budget.seed, federation.run.budget.batch_size
        order = streams.generator(seed, "order", node.round, node.client)
        augment = streams.generator(seed, "augment", node.round, node.client)
        for phase in phases:
            shard = federation.shards[node.client if phase.data == "own" else SERVER]
            done = epoch = 0
            while epoch < phase.epochs or done < phase.batches:
                for batch in epoch_batches(shard, size, order, augment):
                    self.check()
                    phase.step(node, batch)
                    done += 1
                    if phase.batches and done == phase.batches:
                        break
                epoch += 1
                if phase.epochs and phase.epoch_end:
                    phase.epoch_end(node)
                if phase.epochs and epoch_end:
                    epoch_end(node)
            if phase.end:
                phase.end(node)


def epoch_batches(shard: Shard, size: int, order: np.random.Generator, augment: np.random.Generator) -> Iterator[Batch]:
    """One pass over a shard's training images in random order; the last batch may be smaller."""
    images, count = shard.train_images, len(shard.train)
    device = shard.train.device
    shuffled = shard.train[torch.from_numpy(order.permutation(count)).to(device)]
    draws = torch.from_numpy(augmentation_draws(augment, count)).to(device)
    for indices, draw in zip(shuffled.split(size), draws.split(size), strict=True):
        yield Batch(images.augmented(indices, draw), images.labels[indices])
