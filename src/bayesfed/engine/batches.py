"""Mini-batches of a node's round: which images come when, and how they are augmented."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.engine.federation import SERVER, Federation, Shard
from bayesfed.methods.node import Node, Phase

# Images that are cropped and normalised in one go: few enough to stay in a CPU's cache, many for each launch on a GPU.
CHUNK = {"cpu": 256, "cuda": 4096}
# At least so many with FOLA's augmentation, which sorts them into groups by what they have drawn.
FOLA_CHUNK = 2048


@dataclass
class Chunk:
    """Some mini-batches: images x (N, C, H, W), labels y (N,) and places in the shard (N,); `ends_epoch` where the epoch
    is over with them."""

    x: Tensor
    y: Tensor
    index: Tensor
    ends_epoch: bool


class Mixer:
    """The streams of a node's round that decide which images come when, and how they are cropped."""

    def __init__(self, federation: Federation, node: Node, phases: Sequence[Phase] = ()) -> None:
        """`phases`: those of each of the node's rounds, by which mini-batches in a fixed order have come on so far."""
        seed = federation.run.budget.seed
        self.compute, self.usual = federation.compute, federation.run.budget.batch_size
        self.size, self.chunk = self.usual, chunk_size(federation)
        self.normalises = self.batchwise = federation.batchwise(node.client)
        self.order = rng.generator(seed, "order", node.round, node.client)
        self.augment = rng.generator(seed, "augment", node.round, node.client)
        self.fixed = federation.run.budget.batch_order == "fixed"
        self.start = functools.partial(rng.generator, seed, "order", 0, node.client)
        self.passed = (node.round - 1) * sum(phase.batches for phase in phases)  # mini-batches before the next one

    def epoch(self, shard: Shard, images: int | None = None, augment: bool = True, skip: int = 0) -> Iterator[Chunk]:
        """Yield one pass over a shard's training images in random order, or `images` of it behind the first `skip`."""
        count = len(shard.train)
        order = self.compute.place((self.start() if self.fixed else self.order).permutation(count))
        draws = self.compute.place(shard.train_images.draws(self.augment, count))
        used = whole_epoch(count, self.size, self.batchwise)
        order, draws = order[skip:used][:images], draws[skip:used][:images]
        images_of, indices = shard.train_images, shard.train[order]
        many = max(1, self.chunk // self.size) * self.size
        left = len(order)
        parts = (tensor.split(many) for tensor in (order, indices, images_of.labels[indices], draws))
        for index, at, labels, draw in zip(*parts, strict=True):
            left -= len(index)
            x = images_of.augmented(at, draw) if augment else images_of.plain(at)
            yield Chunk(x, labels, index, not left)

    def phase(self, shard: Shard, phase: Phase) -> Iterator[Chunk]:
        """Yield the chunks of a phase: so many epochs, or so many mini-batches, of `size` from now on."""
        self.size, self.batchwise = phase.batch_size or self.usual, self.normalises and not phase.evaluates
        for _ in range(phase.epochs):
            yield from self.epoch(shard, augment=phase.augment)
        batches, count = phase.batches, len(shard.train)
        whole = -(-whole_epoch(count, self.size, self.batchwise) // self.size)
        while batches > 0:
            skip = self.passed % whole if self.fixed else 0
            yield from self.epoch(shard, batches * self.size, phase.augment, skip * self.size)
            done = min(batches, whole - skip)
            self.passed, batches = self.passed + done, batches - done


def chunk_size(federation: Federation) -> int:
    """Return the images of a chunk, before it is rounded to whole mini-batches."""
    size = CHUNK[federation.compute.device.type]
    grouped = any(images.augment == "fola" for images, _ in federation.splits)
    return max(size, FOLA_CHUNK) if grouped else size


def whole_epoch(count: int, size: int, batchwise: bool) -> int:
    """Return how many of `count` images an epoch goes through.

    All, except a last mini-batch of a single image where a network of the node normalises over its mini-batch and is
    trained (`batchwise`): that image is left out, another one in each epoch unless the order is fixed.
    """
    return count - (batchwise and count % size == 1)


def trained_on(federation: Federation, client: int, phase: Phase) -> Shard:
    """Return the shard whose training images are those that a client's phase trains on."""
    shard = federation.shards[SERVER if phase.data == "server" else client]
    if phase.data == "test":
        return Shard(shard.test_images, shard.test, shard.test_images, shard.test)
    return shard


def phase_shard(federation: Federation, node: Node, phase: Phase) -> Shard:
    """Return `trained_on`; raise InputError where there are no images, or too few for a mini-batch to be normalised
    over, and for test images without `Method.leak`.
    """
    method, shard = federation.method, trained_on(federation, node.client, phase)
    if phase.data == "test" and not method.leak():
        raise InputError(f"method '{method.name}' trains on test images and does not say so; define `leak`")
    if not len(shard.train):
        where, whose, what = "server_images", "the server's", "set some"
        if phase.data == "test":
            where, whose, what = "partition.min_test", "a client's own test", f"client {node.client} has none"
        raise InputError(f"{where}: method '{method.name}' trains on {whose} images; {what}")
    if len(shard.train) == 1 and federation.batchwise(node.client) and not phase.evaluates:
        where = {"own": "partition.min_train", "test": "partition.min_test", "server": "server_images"}[phase.data]
        raise InputError(
            f"{where}: a network that normalises over a mini-batch is trained on a single image; set it to 2"
        )
    return shard
