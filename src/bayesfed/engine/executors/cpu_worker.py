"""A place where clients are trained one after another on a CPU: memory that each is copied to, and the steps recorded
on it.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bayesfed.engine.executors.base import layout_of
from bayesfed.engine.executors.op_recorder import OpRecorder
from bayesfed.engine.executors.proof import Proofs
from bayesfed.engine.federation import Federation
from bayesfed.methods.node import Batch, Learner, Node, Phase, State

# Steps of a kind that are recorded: of a method that makes new steps each time, each would be kept, with all that it holds.
STEPS = 16
MEMORY = 256 * 2**20  # bytes of all results of a step, and of what all recordings and states of a worker hold
# torch binds an operator to Python when a mode first meets it. Of two threads that have it bound at once, one is left with
# an object that is freed, and the process ends by SIGSEGV (torch 2.13): so one records at a time.
RECORDING = threading.Lock()


@dataclass
class Recorded:
    """The recording of a step, and the mini-batch in whose memory it looks for images."""

    batch: Batch
    recorder: OpRecorder


@dataclass
class Buffers:
    """Memory for states of the same names and shapes on the same networks, and the steps recorded on it: by step, shape
    of the images and whether they are indexed. None for what cannot be recorded."""

    n: Tensor
    state: State
    steps: dict[Any, Recorded | None] = field(default_factory=dict)


class CpuWorker:
    """Trains clients one after another, by steps recorded on memory that each finds its state in."""

    def __init__(self, federation: Federation) -> None:
        self.proofs = Proofs(federation)
        self.buffers: dict[Any, Buffers] = {}
        self.memory_left = MEMORY
        self.generator = torch.Generator()
        self.current: Buffers  # of the client that is here
        self.learner: Learner

    def load(self, node: Node, networks: Hashable) -> None:
        """Copy a client in: its node works on the worker's memory from now on."""
        layout = layout_of(node.state)
        if (networks, layout) not in self.buffers:
            size = sum(tensor.nbytes for tensor in node.state.values())
            if size > self.memory_left:  # clients whose states differ in shape would fill the memory
                self.buffers.clear()
                self.memory_left = MEMORY
            state = {name: torch.empty_like(tensor) for name, tensor in node.state.items()}
            self.buffers[networks, layout] = Buffers(torch.empty_like(node.n), state)
            self.memory_left -= size
        self.current = self.buffers[networks, layout]
        for name, tensor in node.state.items():
            self.current.state[name].copy_(tensor)
        self.current.n.copy_(node.n)
        self.generator.set_state(node.generator.get_state())
        node.state, node.generator = dict(self.current.state), self.generator
        self.learner = node.learner()
        self.learner.n = self.current.n
        self.proofs.arrive(node)

    def step(self, phase: Phase, batch: Batch) -> None:
        """Do a mini-batch of the client: recorded while it is done for the first time, then replayed."""
        key, steps = (phase.step, batch.x.shape, phase.indexed), self.current.steps
        if not self.undisturbed():
            phase.train(self.learner, batch)
        elif key in steps:
            self.again(phase, batch, steps[key])
        elif len({phase.step, *(step for step, *_ in steps)}) <= STEPS:
            steps[key] = self.record(phase, batch)
        else:
            phase.train(self.learner, batch)

    def again(self, phase: Phase, batch: Batch, recorded: Recorded | None) -> None:
        """Do a mini-batch by a step that was done before."""
        if recorded:
            fill(recorded.batch, batch)
            batch = recorded.batch
        if self.proofs.due():
            step = functools.partial(phase.train, self.learner, batch)
            replay = recorded.recorder.replay if recorded else step
            self.proofs.prove(phase, self.current.state, self.generator, replay, step)
        elif recorded:
            recorded.recorder.replay()
        else:
            phase.train(self.learner, batch)

    def undisturbed(self) -> bool:
        """Return whether the client's tensors are those of the worker: a hook may have put in others."""
        state, own = self.learner.state, self.current.state
        return len(state) == len(own) and all(map(operator.is_, state.values(), own.values()))

    def record(self, phase: Phase, batch: Batch) -> Recorded | None:
        """Do a step, and record it where that can be done."""
        own = Batch(
            torch.empty_like(batch.x),
            torch.empty_like(batch.y),
            index=None if batch.index is None else torch.empty_like(batch.index),
        )
        fill(own, batch)
        before = [tensor.data_ptr() for tensor in self.learner.state.values()]
        with RECORDING, OpRecorder(MEMORY) as recorder:
            phase.train(self.learner, own)
        moved = before != [tensor.data_ptr() for tensor in self.learner.state.values()]
        size = recorder.size + own.x.nbytes
        if not recorder.whole or moved or size > self.memory_left:
            return None
        self.memory_left -= size
        return Recorded(own, recorder)


def fill(batch: Batch, other: Batch) -> None:
    """Copy a mini-batch into the memory of another."""
    batch.x.copy_(other.x)
    batch.y.copy_(other.y)
    if batch.index is not None and other.index is not None:
        batch.index.copy_(other.index)
