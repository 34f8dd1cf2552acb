"""Methods that are registered in Python, as from a notebook, without a file of their own.

The class's source enters a run's key, as the file of a plugin does. So the class must hold all of it: what it takes from
around itself may be a library's alone.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import linecache
import symtable
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, TypeVar

from bayesfed import methods
from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.core.plugins import Plugin
from bayesfed.methods.method import Method

C = TypeVar("C", bound=type[Method])
# What a library may give. Other objects, such as numbers, could be the user's own.
OF_LIBRARIES = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType)


def register(method: C) -> C:
    """Let runs name a method: the decorator of its class, in a notebook's cell or a file.

    Registered again under its name, it takes the place of the earlier one. Raises InputError for a class that is no whole
    method, for a name that is another's, and for a class whose source does not say all that it does.
    """
    where = f"class {method.__name__}"
    if fault := methods.fault(getattr(method, "name", ""), method):
        raise InputError(f"{where}: {fault}")
    caller = sys._getframe(1)
    source = source_of(method.__name__, caller)
    known = {**vars(builtins), **caller.f_globals, **caller.f_locals}
    for name in names_from_around(source) - {method.__name__}:
        if name not in known or not is_librarys(known[name]):
            what = "which is a library's no more than its own" if name in known else "which is not defined yet"
            raise InputError(
                f"{where}: it uses '{name}', {what}, so that no run's key would show a change; define it inside the class, "
                "or put the method into a file (docs/guides/your-method.md)"
            )
    digest = hashlib.sha256(source.encode()).hexdigest()
    methods.registry.register(method.name, Plugin(where, lambda: method, lambda: digest))
    return method


def source_of(name: str, caller: types.FrameType) -> str:
    """Return the source of the class of that name whose decorator is called in a frame.

    A notebook's cell is no file of its module, so that `inspect` finds no class there; Python's cache of lines has it.
    """
    lines = linecache.getlines(caller.f_code.co_filename, caller.f_globals)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= caller.f_lineno <= (node.end_lineno or first):
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    raise InputError(
        f"class {name}: its source, which decides the key of its runs, is not found; write @register above the class, in a "
        "notebook's cell or a file"
    )


def names_from_around(source: str) -> set[str]:
    """Return the names that a class's source takes from around itself."""
    top = symtable.symtable(source, "class", "exec")
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    tables = top.get_children()
    while tables:
        table = tables.pop()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    return names


def is_librarys(value: Any) -> bool:
    """Return true for a module, a class and a function of Python, an installed package or ours, and for typing's forms."""
    if type(value).__module__ == "typing":
        return True
    if not isinstance(value, OF_LIBRARIES):
        return False
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if name is None:  # of a function in C
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return plugins.is_library(Path(file)) if file else name in sys.builtin_module_names
