"""Contents of an object, to be compared with what it held before: so state that a method keeps is found.

Looked at is all that can be reached from it: its attributes and its class's, the closures and
defaults of their functions, and all names of the modules that these are from, through containers and objects of any kind.
Functions and modules of libraries, and ours, are not entered; their
objects are.

A cache of `functools` may grow: what depends on its arguments alone is the same when it is computed again. What such a cache
holds must stay as it is.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.core.plugins import KINDS, is_library

# Of our own classes those that methods are made of; the others belong to the engine, which changes them in a round.
PIECES = ("bayesfed.methods", "bayesfed.bayes", "bayesfed.core.options")
PLAIN = {
    type(None), type(...), bool, int, str, bytes, complex, torch.dtype, torch.device, torch.Size, types.CodeType,
}  # fmt: skip
# The process's own generators: they are no one's state.
SHARED = random._inst, np.random.mtrand._rand, torch.default_generator

Found = list[tuple[str, object]]  # objects, or their contents, each with how it is told of
Apart = tuple[object, str, object]  # a key, how it is told of, and the object
Look = Callable[[str, Any], tuple[object, Iterable[tuple[str, object]]]]


@dataclass
class Held:
    """The contents found, in order, and apart from them what may come later without being kept there: modules by name,
    and values in caches by their place in memory. `alive` is all that has been seen, lest another object takes its
    place.
    """

    contents: Found
    apart: dict[object, Found]
    alive: list[object]

    def changed(self, before: Held) -> str | None:
        """Return the path of the first content that differs from what was there before; None if all is as it was."""
        pairs = [(self.contents, before.contents)]
        pairs += [(self.apart[one], before.apart[one]) for one in self.apart.keys() & before.apart.keys()]
        for now, then in pairs:
            if now != then:
                new, old = next(both for both in zip_longest(now, then, fillvalue=("", None)) if both[0] != both[1])
                gone = old[0] not in {path for path, _ in now}
                return old[0] if gone or not new[0] else new[0]
        return None


def held(roots: Mapping[str, object]) -> Held:
    """Return what can be reached from objects, each by what it is called."""
    found = Held([], {}, [])
    seen = {id(one) for one in SHARED}
    found.contents, waiting = walk(deque(roots.items()), seen, found.alive)
    while waiting:
        key, path, one = waiting.pop()
        if key not in found.apart:
            # Each by itself: where one more has come, the others must be found as they were.
            found.apart[key], more = walk(deque(inside_of(path, one)), set(seen), found.alive)
            waiting += more
    return found


def walk(waiting: deque[tuple[str, object]], seen: set[int], alive: list[object]) -> tuple[Found, list[Apart]]:
    """Return the contents of objects and of all that they refer to, level by level, and what was met that is looked at
    apart.
    """
    found: Found = []
    apart: list[Apart] = []
    while waiting:
        path, one = waiting.popleft()
        kind = type(one)
        if kind in PLAIN:
            found.append((path, one))
        elif isinstance(one, types.ModuleType):
            if not foreign(one.__name__):
                apart += [(one.__name__, title(one), one), *compiled(one)]
        elif id(one) not in seen:
            seen.add(id(one))
            alive.append(one)
            if isinstance(one, functools._lru_cache_wrapper):
                apart += [(id(value), f"a value that {path} holds", value) for value in values_of(one)]
            content, inside = way_of(kind)(path, one)  # type: ignore[arg-type]
            found.append((path, content))
            waiting.extend(inside)
    return found, apart


def compiled(module: types.ModuleType) -> list[Apart]:
    """List names such as torch.compile adds to a module when a function is first called."""
    own = [(name, value) for name, value in list(vars(module).items()) if name.startswith("__") and not special(name)]
    return [(f"{module.__name__}.{name}", f"{title(module)}.{name}", value) for name, value in own]


def special(name: str) -> bool:
    """Return whether Python itself sets an attribute of that name."""
    return name.startswith("__") and name.endswith("__")


def values_of(cache: Any) -> list[object]:
    """Return the keys and values in a cache of `functools`, which the garbage collector alone can tell."""
    inside = gc.get_referents(cache)
    at = next(place for place, one in enumerate(inside) if one is cache.__wrapped__)
    found: list[object] = [*inside[: at - 1], *inside[at - 1].values()]
    return [one for one in found if not isinstance(one, type) and type(one) not in PLAIN]


def inside_of(path: str, one: object) -> Found:
    """Return what is looked at apart; of a module its names, and the package that it is in."""
    if not isinstance(one, types.ModuleType):
        return [(path, one)]
    package = sys.modules.get(one.__name__.partition(".")[0], one)
    names = {name: value for name, value in list(vars(one).items()) if not name.startswith("__")}
    return [*attributes(path, names), (path, package)]


@functools.cache
def foreign(module: str) -> bool:
    """Return whether a module is Python's, an installed library's or ours; not so what an entry point of ours names."""
    top = module.partition(".")[0]
    if top in packages():
        return False
    if top in sys.stdlib_module_names:
        return True
    names = [name for name in (module, top) if name in sys.modules]
    files = [getattr(sys.modules[name], "__file__", None) or "" for name in names]
    file = next(filter(os.path.isabs, files), None)
    return not names or (file is not None and is_library(Path(file)))


@functools.cache
def packages() -> set[str]:
    """Return the top-level packages that plugins are installed from."""
    return {entry.module.partition(".")[0] for kind in KINDS for entry in entry_points(group=f"bayesfed.{kind}")}


def title(module: types.ModuleType) -> str:
    """Return a module's name in messages: its file's, or its folder's if it is a package."""
    path = Path(getattr(module, "__file__", None) or module.__name__)
    return path.parent.name if path.stem == "__init__" else path.stem


def attributes(path: str, names: Mapping[str, object]) -> Found:
    """List attributes, except those that Python itself sets."""
    return [
        (f"{path}.{name}", value)
        for name, value in list(names.items())
        if not special(name) or isinstance(value, types.FunctionType)
    ]


def of_number(path: str, one: float | np.generic) -> tuple[object, Found]:
    return repr(one), []  # by which NaN is as it was


def of_sequence(path: str, one: Iterable[object]) -> tuple[object, Found]:
    parts = list(one)
    if all(type(part) in PLAIN or type(part) is float for part in parts):
        return repr(parts), []
    return len(parts), [(f"{path}[{place}]", part) for place, part in enumerate(parts)]


def of_set(path: str, one: Iterable[object]) -> tuple[object, Found]:
    parts = list(one)
    return {part for part in parts if type(part) in PLAIN}, [(path, part) for part in parts if type(part) not in PLAIN]


def of_mapping(path: str, one: Mapping[Any, object]) -> tuple[object, Found]:
    parts = list(one.items())
    named = [(repr(key) if type(key) in PLAIN else type(key).__name__, value) for key, value in parts]
    return len(parts), [
        *((f"{path}[{name:.40}]", value) for name, value in named),
        *((path, key) for key, _ in parts if type(key) not in PLAIN),
    ]


def of_array(path: str, one: np.ndarray) -> tuple[object, Found]:
    if one.dtype.hasobject:
        return of_sequence(path, one.ravel().tolist())
    return (one.shape, one.dtype.str, zlib.crc32(one.tobytes())), []


def of_tensor(path: str, one: Tensor) -> tuple[object, Found]:
    gradient = [(f"{path}.grad", one.grad)] if one.is_leaf and one.grad is not None else []
    there = one.detach().cpu() if one.device.type != "meta" else torch.empty(0)
    dense = there if there.layout is torch.strided else there.to_dense()
    content = zlib.crc32(dense.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) if dense.numel() else 0
    names = {
        name: value for name, value in vars(one).items() if not name.startswith("_dynamo")
    }  # torch.compile's notes
    return (one.shape, one.dtype, content), [*gradient, *attributes(path, names)]


def of_generator(path: str, one: torch.Generator) -> tuple[object, Found]:
    return one.get_state().numpy().tobytes(), []


def of_running(path: str, one: types.GeneratorType[Any, Any, Any]) -> tuple[object, Found]:
    frame = one.gi_frame
    return (frame.f_lasti, attributes(path, frame.f_locals)) if frame else (None, [])


def of_variable(path: str, one: ContextVar[Any]) -> tuple[object, Found]:
    return None, [(path, one.get(None))]


def of_function(path: str, one: types.FunctionType) -> tuple[object, Found]:
    """Look at a function; of a library's only at what it wraps, since what else it refers to is its own."""
    if foreign(str(one.__globals__.get("__name__"))):
        return one.__code__, [(path, one.__wrapped__)] if hasattr(one, "__wrapped__") else []
    code, name = one.__code__, one.__qualname__
    cells = zip(code.co_freevars, one.__closure__ or (), strict=True)
    defaults = one.__defaults__ or ()
    taken = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    values = [(variable, cell) for variable, cell in cells if filled(cell)]
    inside: Found = [(f"{variable} in {name}", cell.cell_contents) for variable, cell in values]
    inside += [(f"{variable} in {name}", value) for variable, value in zip(taken, defaults, strict=True)]
    inside += [(f"{variable} in {name}", value) for variable, value in (one.__kwdefaults__ or {}).items()]
    inside += [(f"{name}.{variable}", value) for variable, value in vars(one).items()]
    # A notebook holds all that its user has; `methods/registered.py` has refused what a method would take from there.
    names = [each for each in (one.__module__, *imported(code)) if each != "__main__"]
    modules = [sys.modules[each] for each in names if each in sys.modules]
    return code, [*inside, *((title(module), module) for module in modules)]


def filled(cell: types.CellType) -> bool:
    """Return whether a variable of a closure has a value by now."""
    try:
        return cell.cell_contents is cell.cell_contents
    except ValueError:
        return False


def imported(code: types.CodeType) -> Iterator[str]:
    """Modules of a user's own that a function may import when it is called."""
    for name in code.co_names:
        if name in sys.modules and not foreign(name):
            yield name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imported(constant)


def of_bound(path: str, one: types.MethodType) -> tuple[object, Found]:
    return None, [(path, one.__self__), (path, one.__func__)]


def of_builtin(path: str, one: types.BuiltinFunctionType) -> tuple[object, Found]:
    return one.__name__, [] if isinstance(one.__self__, types.ModuleType) else [(path, one.__self__)]


def of_class(path: str, one: type) -> tuple[object, Found]:
    if foreign(one.__module__) and not one.__module__.startswith(PIECES):
        return None, []
    bases: Found = [(base.__name__, base) for base in one.__bases__]
    return None, attributes(one.__name__, vars(one)) + bases


def of_property(path: str, one: property) -> tuple[object, Found]:
    return None, [(path, part) for part in (one.fget, one.fset, one.fdel)]


def of_static(path: str, one: staticmethod[..., Any] | classmethod[Any, ..., Any]) -> tuple[object, Found]:
    return None, [(path, one.__func__)]


def of_cache(path: str, one: Any) -> tuple[object, Found]:
    return None, [(path, one.__wrapped__)]


def of_compiled(path: str, one: object) -> tuple[object, Found]:
    """Look at the module behind torch.compile's: that changes when it is first called, the module itself does not."""
    return type(one), [(path, getattr(one, "_orig_mod", None))]


def of_engine(path: str, one: object) -> tuple[object, Found]:
    return type(one), []


def of_object(path: str, one: object) -> tuple[object, Found]:
    """Look at any other object by what pickling would keep: attributes, slots, items, the state of what is written in
    C. Where it cannot be pickled, by its attributes alone.
    """
    kind = type(one)
    try:
        reduced: Any = one.__reduce_ex__(4)
    except Exception:  # whatever a class raises that wants no copies
        reduced = kind, (), getattr(one, "__dict__", None)
    if isinstance(reduced, str):
        return reduced, []
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    with_slots = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
    inside: Found = [(path, part) for part in (*arguments, list(items or ()), dict(pairs or ()))]
    for part in state if with_slots else [state]:
        inside += attributes(path, part) if isinstance(part, dict) else [(path, part)]
    return kind, [*inside, (kind.__name__, kind)]


WAYS: list[tuple[Any, Look]] = [
    ((float, np.generic), of_number), (Tensor, of_tensor), (np.ndarray, of_array), (torch.Generator, of_generator),
    (types.MappingProxyType, of_mapping), (types.GeneratorType, of_running), (ContextVar, of_variable),
    (types.FunctionType, of_function), (types.MethodType, of_bound),
    (types.BuiltinFunctionType, of_builtin), (type, of_class), (property, of_property),
    ((staticmethod, classmethod), of_static), (functools._lru_cache_wrapper, of_cache),
]  # fmt: skip
EXACTLY: dict[type, Look] = {list: of_sequence, tuple: of_sequence, set: of_set, frozenset: of_set, dict: of_mapping}


@functools.cache
def way_of(kind: type) -> Look:
    """Return how to look at objects of a type."""
    if kind in EXACTLY:
        return EXACTLY[kind]
    for kinds, way in WAYS:
        if issubclass(kind, kinds):
            return way
    if kind.__module__.startswith("torch._dynamo"):
        return of_compiled
    ours = kind.__module__.partition(".")[0] == "bayesfed" and foreign(kind.__module__)
    return of_engine if ours and not kind.__module__.startswith(PIECES) else of_object
