"""Operators that work entry by entry on long vectors, many of them in one pass over memory.

A step of a Bayesian method is a few products, and dozens of sums, products and roots of vectors as long as the network. One
by one each of these reads and writes memory that no cache holds. Here the machine's own C compiler, where there is one,
makes one loop of many; without a compiler they stay what they are. A loop is used only where it gives torch's own results to
the last bit, which is tried on numbers of all kinds when it is made.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesfed.engine.executors import native

SHORTEST = 2**15  # entries of a vector; shorter ones stay in a cache, and compiling takes longer than it saves
TRIED = 1003  # entries on which a loop is tried: whole registers, and some that are left
TYPES = {torch.float32: "float", torch.bfloat16: "unsigned short"}
HEAD = """#include <math.h>
#include <stdint.h>
#include <string.h>
static inline float wide(unsigned short b) { uint32_t u = (uint32_t)b << 16; float x; memcpy(&x, &u, 4); return x; }
static inline unsigned short narrow(float x) {
  uint32_t u; memcpy(&u, &x, 4);
  return x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
"""
OVERLOADS = {"Tensor", "Scalar", "Tensor_Scalar", "out", "default"}
Place = tuple[int, int]  # where a tensor's memory begins and ends


def number(value: float) -> str:
    """Return a number as C writes it in fp32, to the last bit."""
    rounded = ctypes.c_float(value).value
    if math.isfinite(rounded):
        return f"({rounded.hex()}f)"
    return "NAN" if math.isnan(rounded) else f"({'-' * (rounded < 0)}INFINITY)"


def scaled(sign: str) -> Callable[..., str]:
    """Return what writes a + alpha b, or a - alpha b; torch rounds it once."""

    def written(a: str, b: str, alpha: float = 1) -> str:
        return f"{a} {sign} {b}" if alpha == 1 else f"fmaf({b}, {sign}{number(alpha)}, {a})"

    return written


def multiplied(a: str, b: str, c: str, value: float = 1) -> str:
    """Write a + value b c, whose last product is rounded with the sum."""
    return f"fmaf({b}, {c}, {a})" if value == 1 else f"fmaf({number(value)} * {b}, {c}, {a})"


# How C writes what torch computes of values and numbers, by the operator's name; None where it does not.
WRITTEN: dict[str, Callable[..., str | None]] = {
    "add": scaled("+"),
    "sub": scaled("-"),
    "rsub": lambda a, b, alpha=1: f"{b} - {a}" if alpha == 1 else None,
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"{a} / {b}",
    "addcmul": multiplied,
    "addcdiv": lambda a, b, c, value=1: f"{a} + {number(value)} * {b} / {c}",
    "pow": lambda a, exponent: f"{a} * {a}" if exponent == number(2) else None,
    "neg": lambda a: f"-{a}",
    "rsqrt": lambda a: f"1.0f / sqrtf({a})",
    "reciprocal": lambda a: f"1.0f / {a}",
    "zeros_like": lambda a, **kind: "0.0f",
    "copy": lambda a: a,
    "clone": lambda a, **kind: a,
    "_to_copy": lambda a, **kind: a,
}


class Operator(NamedTuple):
    """An operator that works entry by entry, and the vector that it leaves."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Tensor

    @property
    def name(self) -> str:
        """Its name, whether or not it works in place."""
        return self.func.overloadpacket.__name__.removesuffix("_")  # type: ignore[no-any-return]

    def tensors(self) -> list[Tensor]:
        """Return the vectors and scalars that it reads and writes."""
        return [each for each in (*self.args, self.target) if isinstance(each, Tensor)]

    def written(self, value: Callable[[Any], str]) -> str | None:
        """Return what C computes, `value` being what it calls an argument; None where it does not."""
        read = self.args[self.name == "copy" :]  # a copy does not read what it writes to
        return WRITTEN[self.name](*map(value, read), **self.kwargs)


def by_entry(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Operator | None:
    """Return an operator that can be part of a loop; None for any other."""
    if not isinstance(result, Tensor) or func._overloadname not in OVERLOADS:
        return None
    found = Operator(func, args, {name: value for name, value in kwargs.items() if name != "out"}, result)
    vectors = [each for each in found.tensors() if each.dim()]
    copies = found.name in ("copy", "_to_copy")
    fits = (
        found.name in WRITTEN
        and result.numel() >= SHORTEST
        and all(each.shape == result.shape and each.is_contiguous() for each in vectors)
        and all(each.dtype == torch.float32 or (copies and each.dtype in TYPES) for each in found.tensors())
        and all(isinstance(each, (Tensor, float, int)) for each in args)
        and found.written(lambda each: "x" if isinstance(each, Tensor) else number(each)) is not None
    )
    return found if fits else None


def place_of(tensor: Tensor) -> Place:
    """Return the place of a tensor's entries."""
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


class Chain:
    """Operators that can be one loop: at each entry they touch nothing of another one."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.places: set[Place] = set()

    def takes(self, operator: Operator) -> bool:
        """Add an operator, and return true, where it goes with the others: vectors of one length, each in a place of its
        own.
        """
        places = sorted(self.places | {place_of(each) for each in operator.tensors()})
        apart = all(one[1] <= other[0] for one, other in itertools.pairwise(places))
        if not apart or (self.operators and self.operators[0].target.numel() != operator.target.numel()):
            return False
        self.operators.append(operator)
        self.places = set(places)
        return True

    def written(self, wanted: set[Place]) -> tuple[str, list[Tensor]]:
        """Return a loop in C that leaves the wanted vectors, and the tensors that it is given, in their order."""
        values: dict[Place, str] = {}
        given: dict[Place, Tensor] = {}
        once: list[str] = []
        each_entry: list[str] = []

        def value(of: Any) -> str:
            if not isinstance(of, Tensor):
                return number(of)
            if (place := place_of(of)) not in values:
                values[place] = f"x{len(given)}"
                entry = f"p{len(given)}[i]" if of.dim() else f"*p{len(given)}"
                given[place] = of
                entry = f"wide({entry})" if of.dtype == torch.bfloat16 else entry
                (each_entry if of.dim() else once).append(f"const float {values[place]} = {entry};")
            return values[place]

        for at, operator in enumerate(self.operators):
            expression = operator.written(value)
            if operator.target.dtype == torch.bfloat16:
                expression = f"wide(narrow({expression}))"
            values[place_of(operator.target)] = f"y{at}"
            each_entry.append(f"const float y{at} = {expression};")
        for place, target in {place_of(each.target): each.target for each in self.operators}.items():
            if place in wanted:
                given.setdefault(place, target)
                entry = f"narrow({values[place]})" if target.dtype == torch.bfloat16 else values[place]
                each_entry.append(f"p{list(given).index(place)}[i] = {entry};")
        pointers = [f"{TYPES[each.dtype]} *p{at} = p[{at}];" for at, each in enumerate(given.values())]
        body = "\n".join(["#pragma GCC ivdep", "for (long i = 0; i < n; i++) {", *each_entry, "}"])
        return "\n".join([f"{HEAD}void loop(void **p, long n) {{", *pointers, *once, body, "}\n"]), list(given.values())

    def gives_torchs_bits(self, loop: Loop, given: Sequence[Tensor], wanted: set[Place]) -> bool:
        """Return whether a loop leaves what torch's operators leave, on numbers of all kinds."""
        start = {place_of(each): numbers(each, seed) for seed, each in enumerate(given)}
        found = {place: tensor.clone() for place, tensor in start.items()}
        loop(TRIED, *found.values())
        expected = {place: tensor.clone() for place, tensor in start.items()}
        for func, args, kwargs, target in self.operators:
            expected.setdefault(place_of(target), numbers(target, 0))  # that of a copy is not read
            own = [expected[place_of(each)] if isinstance(each, Tensor) else each for each in args]
            expected[place_of(target)] = func.overloadpacket(*own, **kwargs)
        return all(same(found[place], expected[place]) for place in wanted)


def numbers(like: Tensor, seed: int) -> Tensor:
    """Return numbers of all kinds, of a tensor's kind: TRIED of them, or one for a scalar."""
    found = torch.randn(TRIED, generator=torch.Generator().manual_seed(seed))
    found[::3] = found[::3].exp() * 1e-4
    special = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, math.inf, -math.inf, math.nan])
    found[1 + seed * len(special) :][: len(special)] = special
    found[-1] = special[seed % len(special)]
    return (found if like.dim() else found[0]).to(like.dtype)


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two vectors have the same bits, whatever those of what is no number."""
    one, other = (torch.where(each.isnan(), 0, each).float().view(torch.int32) for each in (one, other))
    return torch.equal(one, other)


class Loop:
    """A compiled loop over the entries of the tensors that it was written for."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.function = library.loop

    def __call__(self, n: int, *tensors: Tensor) -> None:
        """Run it over n entries."""
        places = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
        self.function(places, ctypes.c_long(n))


def loop_of(chain: Chain, wanted: set[Place]) -> tuple[Callable[..., object], list[Tensor]] | None:
    """Return what does all operators of a chain and leaves the wanted vectors, and the tensors that it is to be given; None
    where that is no gain, or cannot be had to the last bit.
    """
    if len(chain.operators) < 2:
        return None
    source, given = chain.written(wanted)
    if (library := native.compiled(source)) is None:
        return None
    loop = Loop(library)
    if not chain.gives_torchs_bits(loop, given, wanted):
        return None
    return functools.partial(loop, chain.operators[0].target.numel()), given
