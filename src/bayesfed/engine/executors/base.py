"""Shared by executors: a client's job, its mini-batches in order, and the plain way to run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from bayesfed.engine.batches import Mixer, phase_shard
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Batch, Node, Phase, State

Result = TypeVar("Result")


@dataclass
class Job:
    """A node that is ready to train, its phases, and the engine's own hooks after each local epoch."""

    node: Node
    phases: Sequence[Phase]
    epoch_end: Sequence[Callable[[Node], None]] = ()


class Executor(ABC):
    """Trains the clients of a round, in its own way and order.

    Every executor leaves the parameters behind that the eager one does, up to rounding.
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


def layout_of(state: State) -> tuple[tuple[object, ...], ...]:
    """Names, shapes and types of a client's tensors: what is recorded for one state serves all that are alike in them."""
    # Sorted, since a checkpoint gives a client's tensors back in another order.
    return tuple(sorted((name, tensor.shape, tensor.dtype) for name, tensor in state.items()))


def epoch_hooks(job: Job, phase: Phase) -> None:
    """Run the hooks that are due at the end of an epoch; a phase that counts mini-batches has none."""
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
