"""What executors share: a client's job, its mini-batches in order, and the plain way to run them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

from bayesfed import streams
from bayesfed.data.augment import augmentation_draws
from bayesfed.engine.federation import SERVER, Federation, Shard
from bayesfed.errors import InputError
from bayesfed.methods.base import Batch, Node, Phase

Result = TypeVar("Result")
# Images that are cropped and normalised in one go: few enough to stay in a CPU's cache, many for each launch on a GPU.
CHUNK = {"cpu": 256, "cuda": 4096}


@dataclass
class Job:
    """A node that is ready to train, its phases, and the engine's own hook after each epoch."""

    node: Node
    phases: Sequence[Phase]
    epoch_end: Callable[[Node], None] | None = None


class Executor(ABC):
    """Trains the clients of a round, in its own way and order.

    Every executor leaves the parameters behind that the eager one does, but for rounding.
    """

    name: ClassVar[str]

    def __init__(self, federation: Federation, check: Callable[[], None]) -> None:
        """`check` is called before each mini-batch, on whatever thread, and may raise to stop a run."""
        self.federation = federation
        self.check = check

    @abstractmethod
    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        """For each client: begin its job, run the phases, end it; gives the results as they come, in any order.

        `begin` changes nothing but the job that it gives, and may be called more often.
        """


@dataclass
class Chunk:
    """Some mini-batches: images x (N, C, H, W) and labels y (N,); `ends_epoch` where the epoch is over with them."""

    x: Tensor
    y: Tensor
    ends_epoch: bool


class Mixer:
    """The streams of a node's round that decide which images come when, and how they are cropped."""

    def __init__(self, federation: Federation, node: Node) -> None:
        seed = federation.run.budget.seed
        self.compute, self.size = federation.compute, federation.run.budget.batch_size
        self.tail = functools.partial(last_batch, federation, node.client)
        self.order = streams.generator(seed, "order", node.round, node.client)
        self.augment = streams.generator(seed, "augment", node.round, node.client)

    def epoch(self, shard: Shard, images: int | None = None) -> Iterator[Chunk]:
        """One pass over a shard's training images in random order, or the first `images` of it."""
        count = len(shard.train)
        order = self.compute.place(self.order.permutation(count))
        draws = self.compute.place(augmentation_draws(self.augment, count))
        used = count - count % self.size + self.tail(shard)
        shuffled, draws = shard.train[order][:used][:images], draws[:used][:images]
        many = max(1, CHUNK[self.compute.device.type] // self.size) * self.size
        left = len(shuffled)
        for indices, draw in zip(shuffled.split(many), draws.split(many), strict=True):
            left -= len(indices)
            yield Chunk(shard.train_images.augmented(indices, draw), shard.train_images.labels[indices], not left)

    def phase(self, shard: Shard, phase: Phase) -> Iterator[Chunk]:
        """The chunks of a phase: so many epochs, or so many mini-batches."""
        for _ in range(phase.epochs):
            yield from self.epoch(shard)
        batches = phase.batches
        while batches > 0:
            yield from self.epoch(shard, batches * self.size)
            batches -= len(shard.train) // self.size + bool(self.tail(shard))


def last_batch(federation: Federation, client: int, shard: Shard) -> int:
    """The images of the last, smaller mini-batch of an epoch; 0 where there is none.

    Nor is there one of a single image where a network of the node normalises over its mini-batch: that image, another
    one in each epoch, is left out.
    """
    tail = len(shard.train) % federation.run.budget.batch_size
    return 0 if tail == 1 and federation.batchwise(client) else tail


def phase_shard(federation: Federation, node: Node, phase: Phase) -> Shard:
    """Whose images a phase trains on; raises InputError where there are none."""
    shard = federation.shards[node.client if phase.data == "own" else SERVER]
    if not len(shard.train):
        raise InputError(f"server_images: method '{federation.method.name}' trains on the server's images; set some")
    return shard


def epoch_hooks(job: Job, phase: Phase) -> None:
    """What is due at the end of an epoch; a phase that counts mini-batches has none."""
    for hook in (phase.epoch_end, job.epoch_end):
        if phase.epochs and hook:
            hook(job.node)


def run_plainly(federation: Federation, job: Job, check: Callable[[], None]) -> None:
    """Run a job's phases, one mini-batch after another."""
    mixer, learner = Mixer(federation, job.node), job.node.learner()
    for phase in job.phases:
        for chunk in mixer.phase(phase_shard(federation, job.node, phase), phase):
            for x, y in zip(chunk.x.split(mixer.size), chunk.y.split(mixer.size), strict=True):
                check()
                phase.step(learner, Batch(x, y))
            if chunk.ends_epoch:
                epoch_hooks(job, phase)
        if phase.end:
            phase.end(job.node)
