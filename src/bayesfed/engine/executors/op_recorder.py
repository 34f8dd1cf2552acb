"""Steps recorded once, operator by operator, and replayed without what led to them: a CPU's counterpart of CUDA graphs.

A step of a small network is some twenty short operators, and more time goes into what leads to them: Python, autograd,
views, memory. Recorded, the operators work on the same memory again and again, and nothing else is left of a step. Their
results are those of the step to the last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bayesfed.engine.executors import fused, normal

aten = torch.ops.aten
ALLOCATE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
COPY = {aten.clone, aten._to_copy}
# Arguments of operators that make tensors, which memory that is there already has no use for.
LAYOUT = {"dtype", "layout", "device", "pin_memory"}
# What depends on the values of tensors, or on more than the arguments.
LOOSE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
SMALL = 64 * 2**10  # bytes of a result that may be copied where it belongs


class Call(NamedTuple):
    """A function with its arguments, and the operator that it stands for where that works entry by entry."""

    function: Callable[..., object]
    args: Any
    kwargs: dict[str, Any]
    by_entry: fused.Operator | None = None


class OpRecorder(TorchDispatchMode):
    """Notes the operators that run inside, with the memory that they work on.

    `whole`: whether all of them can be replayed. Not so where one depends on the values of tensors, draws from no
    generator of the step's, has a large result and no way to compute it into given memory (convolutions), or where all
    results together have more than `limit` bytes. `size`: the bytes that a recording keeps.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.fresh: dict[int, torch.UntypedStorage] = {}  # memory that the step made, by its place
        self.limit, self.size = limit, 0
        self.whole = True
        self.replays: list[Callable[[], object]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would load its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.whole:
            calls = self.calls_of(func, args, kwargs or {}, result)
            self.whole = calls is not None and self.size <= self.limit
            self.calls += calls or []
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self.whole:
            self.settle()
        self.calls.clear()
        self.fresh.clear()

    def calls_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Call] | None:
        """Return the calls that compute a result into its memory again: none for views and memory alone.

        None if the operator cannot be replayed.
        """
        results = [each for each in tree_leaves(result) if each is not None]
        if unrepeatable(func, args, kwargs, results):
            return None
        given = {place(tensor) for tensor in tensors_of(args, kwargs)}
        fresh = [each for each in results if place(each) not in given]
        if func._schema.is_mutable:
            return None if fresh else [Call(bound(func), args, kwargs, fused.by_entry(func, args, kwargs, result))]
        for each in fresh:
            if each.nbytes:
                self.fresh[place(each)] = each.untyped_storage()
                self.size += each.untyped_storage().nbytes()
        if not fresh or func.overloadpacket in ALLOCATE:
            return []
        by_entry = fused.by_entry(func, args, kwargs, result)
        if func.overloadpacket in COPY:
            return [Call(Tensor.copy_, (results[0], args[0]), {}, by_entry)]
        if len(fresh) != len(results):
            return None
        call = drawn(func, kwargs, results[0]) or computed(func, args, kwargs, results, by_entry)
        return call and [call]

    def settle(self) -> None:
        """Give results that are not needed at the same time the same memory, as they mostly had it in the step."""
        self.calls = self.in_loops()
        last = self.last_uses()
        homes: dict[int, torch.UntypedStorage] = {}
        idle: dict[int, list[torch.UntypedStorage]] = {}
        self.size = 0

        def settled(each: Any) -> Any:
            if not isinstance(each, Tensor):
                return each
            if place(each) not in homes:
                return each.detach()
            return each.new_empty(0).set_(homes[place(each)], each.storage_offset(), each.shape, each.stride())

        for at, (function, args, kwargs, _) in enumerate(self.calls):
            used = {place(tensor) for tensor in tensors_of(args, kwargs)} & self.fresh.keys()
            for where in used - homes.keys():
                own = self.fresh[where]
                if spare := idle.get(own.nbytes()):
                    homes[where] = spare.pop()
                else:
                    homes[where] = own
                    self.size += own.nbytes()
            self.replays.append(functools.partial(function, *tree_map(settled, args), **tree_map(settled, kwargs)))
            for where in used:
                if last[where] == at:
                    idle.setdefault(homes[where].nbytes(), []).append(homes[where])

    def last_uses(self) -> dict[int, int]:
        """Return the number of the last call that uses memory, by its place."""
        return {
            place(tensor): at for at, call in enumerate(self.calls) for tensor in tensors_of(call.args, call.kwargs)
        }

    def in_loops(self) -> list[Call]:
        """Return the calls with one loop for many operators that work entry by entry.

        Calls between them that use none of their memory go before them.
        """
        last, done = self.last_uses(), list[Call]()
        chain, calls = fused.Chain(), list[Call]()

        def end(at: int) -> None:
            lasting = [
                target for *_, target in chain.operators if place(target) not in self.fresh or last[place(target)] >= at
            ]
            found = fused.loop_of(chain, set(map(fused.place_of, lasting)))
            done.extend([Call(*found, {})] if found else calls)

        for at, call in enumerate(self.calls):
            if call.by_entry and chain.takes(call.by_entry):
                calls.append(call)
                continue
            used = {place(tensor) for other in calls for tensor in tensors_of(other.args, other.kwargs)}
            if not call.by_entry and used.isdisjoint(map(place, tensors_of(call.args, call.kwargs))):
                done.append(call)
                continue
            end(at)
            chain, calls = fused.Chain(), []
            if call.by_entry and chain.takes(call.by_entry):
                calls.append(call)
            else:
                done.append(call)
        end(len(self.calls))
        return done

    def replay(self) -> None:
        """Do all of it again."""
        for call in self.replays:
            call()


def unrepeatable(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any]) -> bool:
    """Return true for an operator whose results depend on more than its arguments' memory, or are no tensors."""
    return (
        any(each.is_mkldnn for each in tensors_of(args, kwargs, results))  # oneDNN alone knows where it lies
        or bool(LOOSE.intersection(func.tags))
        or func.overloadpacket == aten.lift_fresh
        or not all(isinstance(each, Tensor) for each in results)
        or (torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None)
    )


def long(tensor: Tensor) -> bool:
    """Return whether a tensor has so many entries in fp32, contiguous, that a loop of ours pays."""
    return tensor.numel() >= fused.SHORTEST and tensor.dtype == torch.float32 and tensor.is_contiguous()


def tensors_of(*found: Any) -> list[Tensor]:
    """Return all tensors in arguments."""
    return [each for each in tree_leaves(found) if isinstance(each, Tensor)]


def drawn(func: Any, kwargs: dict[str, Any], result: Tensor) -> Call | None:
    """Return the call that draws many normal numbers faster than torch; None where there is none."""
    if func.overloadpacket != aten.randn or not long(result) or not (draw := normal.drawing()):
        return None
    return Call(draw, (result, kwargs["generator"]), {})


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Tensor],
             by_entry: fused.Operator | None) -> Call | None:  # fmt: skip
    """Return the call that computes new results where they lie; None where they are too large to be copied there."""
    if found := into(func):
        out, names, drop = found
        kwargs = {name: value for name, value in kwargs.items() if name not in drop}
        return Call(bound(out), args, kwargs | dict(zip(names, results, strict=True)), by_entry)
    if not by_entry and sum(each.nbytes for each in results) > SMALL:
        return None
    return Call(compute_and_copy, (results, func, *args), kwargs, by_entry)


def compute_and_copy(results: list[Tensor], func: Any, *args: Any, **kwargs: Any) -> None:
    """Run an operator that makes memory of its own, and copy its results where they belong."""
    computed = [each for each in tree_leaves(func(*args, **kwargs)) if each is not None]
    for old, new in zip(results, computed, strict=True):
        old.copy_(new)


def place(tensor: Tensor) -> int:
    """Return where a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()


def bound(func: Any) -> Callable[..., object]:
    """Replace an operator with torch's own function or method of that name, which takes half the time to get to it, if
    there is one.

    Not so what makes a tensor from numbers alone: torch's own need not take `out`."""
    name, arguments = func.overloadpacket.__name__, func._schema.arguments
    outs = [argument.name for argument in arguments if argument.is_out]
    if set(outs) - {"out"} or not any("Tensor" in str(each.type) for each in arguments if not each.is_out):
        return func  # type: ignore[no-any-return]
    found = getattr(torch, name, None) or (getattr(Tensor, name, None) if name.endswith("_") else None)
    return found or func  # type: ignore[no-any-return]


@functools.cache
def into(func: Any) -> tuple[Any, list[str], set[str]] | None:
    """Return the form of an operator that computes into given memory, the names of its results, and arguments that it
    does without; None where torch has none of its own for a CPU.
    """
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
