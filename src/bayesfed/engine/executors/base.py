"""What executors share: a client's job, its mini-batches in order, and the plain way to run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

from bayesfed import streams
from bayesfed.engine.federation import SERVER, Federation, Shard
from bayesfed.errors import InputError
from bayesfed.methods.base import Batch, Node, Phase, State

Result = TypeVar("Result")
# Images that are cropped and normalised in one go: few enough to stay in a CPU's cache, many for each launch on a GPU.
CHUNK = {"cpu": 256, "cuda": 4096}
# At least so many with FOLA's augmentation, which sorts them into groups by what they have drawn.
FOLA_CHUNK = 2048


@dataclass
class Job:
    """A node that is ready to train, its phases, and the engine's own hooks after each local epoch."""

    node: Node
    phases: Sequence[Phase]
    epoch_end: Sequence[Callable[[Node], None]] = ()


class Executor(ABC):
    """Trains the clients of a round, in its own way and order.

    Every executor leaves the parameters behind that the eager one does, but for rounding.
    """

    name: ClassVar[str]

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    @abstractmethod
    def run(
        self, clients: Sequence[int], begin: Callable[[int], Job], end: Callable[[Job], Result]
    ) -> Iterator[Result]:
        """For each client: begin its job, run the phases, end it; gives the results as they come, in any order.

        `begin` changes nothing but the job that it gives, and may be called more often.
        """


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
        self.order = streams.generator(seed, "order", node.round, node.client)
        self.augment = streams.generator(seed, "augment", node.round, node.client)
        self.fixed = federation.run.budget.batch_order == "fixed"
        self.start = lambda: streams.generator(seed, "order", 0, node.client)
        self.passed = (node.round - 1) * sum(phase.batches for phase in phases)  # mini-batches before the next one

    def epoch(self, shard: Shard, images: int | None = None, augment: bool = True, skip: int = 0) -> Iterator[Chunk]:
        """One pass over a shard's training images in random order, or `images` of it behind the first `skip`."""
        count = len(shard.train)
        order = self.compute.place((self.start() if self.fixed else self.order).permutation(count))
        draws = self.compute.place(shard.train_images.draws(self.augment, count))
        used = count - count % self.size + last_batch(count, self.size, self.batchwise)
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
        """The chunks of a phase: so many epochs, or so many mini-batches, of `size` from now on."""
        self.size, self.batchwise = phase.batch_size or self.usual, self.normalises and not phase.evaluates
        for _ in range(phase.epochs):
            yield from self.epoch(shard, augment=phase.augment)
        batches, count = phase.batches, len(shard.train)
        whole = count // self.size + bool(last_batch(count, self.size, self.batchwise))
        while batches > 0:
            skip = self.passed % whole if self.fixed else 0
            yield from self.epoch(shard, batches * self.size, phase.augment, skip * self.size)
            done = min(batches, whole - skip)
            self.passed, batches = self.passed + done, batches - done


def chunk_size(federation: Federation) -> int:
    """Images of a chunk, but for what whole mini-batches need."""
    size = CHUNK[federation.compute.device.type]
    grouped = any(images.augment == "fola" for images, _ in federation.splits)
    return max(size, FOLA_CHUNK) if grouped else size


def last_batch(count: int, size: int, batchwise: bool) -> int:
    """The images of the last, smaller mini-batch of an epoch of `count` images; 0 where there is none.

    Nor is there one of a single image where a network of the node normalises over its mini-batch and is trained
    (`batchwise`): that image, another one in each epoch, is left out.
    """
    tail = count % size
    return 0 if tail == 1 and batchwise else tail


def trained_on(federation: Federation, client: int, phase: Phase) -> Shard:
    """The shard whose training images are those that a client's phase trains on."""
    shard = federation.shards[SERVER if phase.data == "server" else client]
    if phase.data == "test":
        return Shard(shard.test_images, shard.test, shard.test_images, shard.test)
    return shard


def phase_shard(federation: Federation, node: Node, phase: Phase) -> Shard:
    """`trained_on`; raises InputError where there are no images, or too few for a mini-batch to be normalised over, and for
    test images without `Method.leak`."""
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


def layout_of(state: State) -> tuple[tuple[object, ...], ...]:
    """Names, shapes and types of a client's tensors: what is recorded for one state serves all that are alike in them."""
    # Sorted, since a checkpoint gives a client's tensors back in another order.
    return tuple(sorted((name, tensor.shape, tensor.dtype) for name, tensor in state.items()))


def epoch_hooks(job: Job, phase: Phase) -> None:
    """What is due at the end of an epoch; a phase that counts mini-batches has none."""
    if phase.epochs:
        for hook in (*filter(None, [phase.epoch_end]), *(job.epoch_end if phase.counted else ())):
            hook(job.node)


def run_plainly(federation: Federation, job: Job, step: Callable[[Phase, Batch], None] | None = None,
                hooked: Callable[[], None] = lambda: None) -> None:  # fmt: skip
    """Run a job's phases, one mini-batch after another; `step` does one, the phase's own step unless given. `hooked` is
    called when hooks may have run."""
    mixer, learner = Mixer(federation, job.node, job.phases), job.node.learner()
    step = step or (lambda phase, batch: phase.train(learner, batch))
    for phase in job.phases:
        for chunk in mixer.phase(phase_shard(federation, job.node, phase), phase):
            parts = (tensor.split(mixer.size) for tensor in (chunk.x, chunk.y, chunk.index))
            for x, y, index in zip(*parts, strict=True):
                federation.check()
                step(phase, Batch(x, y, index=index if phase.indexed else None))
            if chunk.ends_epoch:
                epoch_hooks(job, phase)
                hooked()
        if phase.end:
            phase.end(job.node)
        hooked()
