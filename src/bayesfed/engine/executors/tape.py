"""Steps recorded once, operator by operator, and replayed without what led to them: a CPU's counterpart of CUDA graphs.

A step of a small network is some twenty short operators, and more time goes into what leads to them: Python, autograd,
views, memory. Recorded, the operators work on the same memory again and again, and nothing else is left of a step. Their
results are those of the step to the last bit.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bayesfed.engine.executors.base import layout_of
from bayesfed.methods.base import Batch, Learner, Node, Phase, State

aten = torch.ops.aten
ALLOCATE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
COPY = {aten.clone, aten._to_copy}
# Arguments of operators that make tensors, which memory that is there already has no use for.
LAYOUT = {"dtype", "layout", "device", "pin_memory"}
# What depends on the values of tensors, or on more than the arguments.
LOOSE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
SMALL = 64 * 2**10  # bytes of a result that may be copied where it belongs
MEMORY = 256 * 2**20  # bytes of all results of a step, and of what all recordings and states of a desk hold
# torch binds an operator to Python when a mode first meets it. Of two threads that have it bound at once, one is left with
# an object that is freed, and the process ends by SIGSEGV (torch 2.13): so one records at a time.
RECORDING = threading.Lock()
Call = tuple[Callable[..., object], Any, dict[str, Any]]  # a function and its arguments


class Tape(TorchDispatchMode):
    """Notes the operators that run inside, with the memory that they work on.

    `whole`: whether all of them can be replayed. Not so where one depends on the values of tensors, draws from no
    generator of the step's, has a large result and no way to compute it into given memory (convolutions), or where all
    results together have more than `room` bytes. `size`: the bytes that a recording keeps.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.fresh: dict[int, torch.UntypedStorage] = {}  # memory that the step made, by its place
        self.room, self.size = room, 0
        self.whole = True
        self.replays: list[Callable[[], object]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would load its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.whole:
            calls = self.again(func, args, kwargs or {}, result)
            self.whole = calls is not None and self.size <= self.room
            self.calls += calls or []
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.whole:
            self.settle()
        self.calls.clear()
        self.fresh.clear()

    def again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Call] | None:
        """What computes a result anew into its memory: no call for views and memory alone; None where that cannot be."""
        if any(each.is_mkldnn for each in tensors_of(args, kwargs, result)):
            return None  # oneDNN alone knows where it lies
        given = {place(tensor) for tensor in tensors_of(args, kwargs)}
        results = [each for each in tree_leaves(result) if each is not None]
        if LOOSE.intersection(func.tags) or func.overloadpacket == aten.lift_fresh:
            return None
        if not all(isinstance(each, Tensor) for each in results):
            return None
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            return None
        fresh = [each for each in results if place(each) not in given]
        if func._schema.is_mutable:
            return None if fresh else [(bound(func), args, kwargs)]
        for each in fresh:
            if each.nbytes:
                self.fresh[place(each)] = each.untyped_storage()
                self.size += each.untyped_storage().nbytes()
        if not fresh or func.overloadpacket in ALLOCATE:
            return []
        if func.overloadpacket in COPY:
            return [(Tensor.copy_, (results[0], args[0]), {})]
        if len(fresh) != len(results):
            return None
        if found := into(func):
            out, names, drop = found
            kwargs = {name: value for name, value in kwargs.items() if name not in drop}
            return [(bound(out), args, kwargs | dict(zip(names, results, strict=True)))]
        if sum(each.nbytes for each in fresh) > SMALL:
            return None
        return [(compute_and_copy, (results, func, *args), kwargs)]

    def settle(self) -> None:
        """Give results that are not needed at the same time the same memory, as they mostly had it in the step."""
        last = {place(tensor): at for at, (_, *given) in enumerate(self.calls) for tensor in tensors_of(given)}
        homes: dict[int, torch.UntypedStorage] = {}
        idle: dict[int, list[torch.UntypedStorage]] = {}
        self.size = 0

        def settled(each: Any) -> Any:
            if not isinstance(each, Tensor) or place(each) not in homes:
                return each
            return each.new_empty(0).set_(homes[place(each)], each.storage_offset(), each.shape, each.stride())

        for at, (function, args, kwargs) in enumerate(self.calls):
            used = {place(tensor) for tensor in tensors_of(args, kwargs)} & self.fresh.keys()
            for where in used - homes.keys():
                own = self.fresh[where]
                if room := idle.get(own.nbytes()):
                    homes[where] = room.pop()
                else:
                    homes[where] = own
                    self.size += own.nbytes()
            self.replays.append(functools.partial(function, *tree_map(settled, args), **tree_map(settled, kwargs)))
            for where in used:
                if last[where] == at:
                    idle.setdefault(homes[where].nbytes(), []).append(homes[where])

    @torch.no_grad()
    def replay(self) -> None:
        """Do all of it again."""
        for call in self.replays:
            call()


def tensors_of(*found: Any) -> list[Tensor]:
    """All tensors in arguments."""
    return [each for each in tree_leaves(found) if isinstance(each, Tensor)]


def compute_and_copy(results: list[Tensor], func: Any, *args: Any, **kwargs: Any) -> None:
    """An operator that makes memory of its own, with its results where they belong."""
    computed = [each for each in tree_leaves(func(*args, **kwargs)) if each is not None]
    for old, new in zip(results, computed, strict=True):
        old.copy_(new)


def place(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()


def bound(func: Any) -> Callable[..., object]:
    """An operator by torch's own function or method of that name, which takes half the time to get to it, if there is one.

    Not so what makes a tensor from numbers alone: torch's own need not take `out`."""
    name, arguments = func.overloadpacket.__name__, func._schema.arguments
    outs = [argument.name for argument in arguments if argument.is_out]
    if set(outs) - {"out"} or not any("Tensor" in str(each.type) for each in arguments if not each.is_out):
        return func  # type: ignore[no-any-return]
    found = getattr(torch, name, None) or (getattr(Tensor, name, None) if name.endswith("_") else None)
    return found or func  # type: ignore[no-any-return]


@functools.cache
def into(func: Any) -> tuple[Any, list[str], set[str]] | None:
    """The form of an operator that computes into given memory, the names of its results, and arguments that it does
    without; None where torch has none of its own for a CPU."""
    arguments = func._schema.arguments
    makes = not any("Tensor" in str(argument.type) for argument in arguments)
    drop = LAYOUT if makes else set()
    wanted = [(argument.name, str(argument.type)) for argument in arguments if argument.name not in drop]
    for name in func.overloadpacket.overloads():
        out = getattr(func.overloadpacket, name)
        results = [argument.name for argument in out._schema.arguments if argument.is_out]
        taken = [(argument.name, str(argument.type)) for argument in out._schema.arguments if not argument.is_out]
        if len(results) != len(func._schema.returns) or taken != wanted:
            continue
        if makes or torch._C._dispatch_has_kernel_for_dispatch_key(out.name(), "CPU"):
            return out, results, drop
    return None


@dataclass
class Recorded:
    """A step's tape, and the mini-batch in whose memory it looks for images."""

    batch: Batch
    tape: Tape


@dataclass
class Kind:
    """Memory for states of the same names and shapes on the same networks, and the steps recorded on it: by step, shape
    of the images and whether they are indexed. None for what cannot be recorded."""

    n: Tensor
    state: State
    steps: dict[Any, Recorded | None] = field(default_factory=dict)


class Desk:
    """Where clients are trained one after another, by steps recorded on memory that each finds its state in."""

    def __init__(self) -> None:
        self.kinds: dict[Any, Kind] = {}
        self.room = MEMORY
        self.generator = torch.Generator()
        self.kind: Kind  # of the client that is here
        self.learner: Learner

    def load(self, node: Node, networks: Hashable) -> None:
        """Copy a client in: its node works on the desk's memory from now on."""
        layout = layout_of(node.state)
        if (networks, layout) not in self.kinds:
            size = sum(tensor.nbytes for tensor in node.state.values())
            if size > self.room:  # clients whose states differ in shape would fill the memory
                self.kinds.clear()
                self.room = MEMORY
            state = {name: torch.empty_like(tensor) for name, tensor in node.state.items()}
            self.kinds[networks, layout] = Kind(torch.empty_like(node.n), state)
            self.room -= size
        self.kind = self.kinds[networks, layout]
        for name, tensor in node.state.items():
            self.kind.state[name].copy_(tensor)
        self.kind.n.copy_(node.n)
        self.generator.set_state(node.generator.get_state())
        node.state, node.generator = dict(self.kind.state), self.generator
        self.learner = node.learner()
        self.learner.n = self.kind.n

    def step(self, phase: Phase, batch: Batch) -> None:
        """A mini-batch of the client: recorded while it is done for the first time, then replayed."""
        key = phase.step, batch.x.shape, phase.indexed
        if not self.undisturbed():
            phase.step(self.learner, batch)
        elif key not in self.kind.steps:
            self.kind.steps[key] = self.record(phase, batch)
        elif recorded := self.kind.steps[key]:
            fill(recorded.batch, batch)
            recorded.tape.replay()
        else:
            phase.step(self.learner, batch)

    def undisturbed(self) -> bool:
        """Whether the client's tensors are those of the desk: a hook may have put in others."""
        state, own = self.learner.state, self.kind.state
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
        with RECORDING, Tape(MEMORY) as tape:
            phase.step(self.learner, own)
        moved = before != [tensor.data_ptr() for tensor in self.learner.state.values()]
        size = tape.size + own.x.nbytes
        if not tape.whole or moved or size > self.room:
            return None
        self.room -= size
        return Recorded(own, tape)


def fill(batch: Batch, other: Batch) -> None:
    """Copy a mini-batch into the memory of another."""
    batch.x.copy_(other.x)
    batch.y.copy_(other.y)
    if batch.index is not None and other.index is not None:
        batch.index.copy_(other.index)
