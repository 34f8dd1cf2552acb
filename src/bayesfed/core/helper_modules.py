"""Helpers of own plugins: modules in or beside their folder that they import, and that no digest covers.

They are no part of a run's key, so they are told of, and their digests are kept with the results.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bayesfed.core import files, plugins


def found(sources: Iterable[Path]) -> dict[str, str]:
    """Return the helpers of plugins, files or package folders, of the folder in use: their paths from there, and their
    sha256.

    A module counts wherever a plugin, or a helper, imports it, in a function too. One that is found only when it has been
    imported, since the way to it is set then, is found afterwards.
    """
    folder = plugins.in_use.folder
    if folder is None:
        return {}
    around = folder.resolve().parent
    waiting = [
        path.resolve() for source in sources for path in ([source] if source.is_file() else plugins.files_in(source))
    ]
    known, helping = {*waiting}, []
    while waiting:
        for path in imported(waiting.pop()):
            if path not in known and path.is_relative_to(around) and not plugins.is_library(path):
                helping.append(path)
                waiting.append(path)
            known.add(path)
    return {Path(os.path.relpath(path, folder.resolve())).as_posix(): files.sha256(path) for path in sorted(helping)}


def told(helping: Iterable[str]) -> str:
    """Return a line that warns of helpers."""
    return (
        f"bayesfed: {', '.join(map(shown, helping))}: imported by plugins of your own, and in no run's key; put it into a "
        "package folder with its plugin, or a change of it is not noticed (docs/guides/your-method.md)"
    )


def changed(then: Mapping[str, str]) -> list[str]:
    """List the helpers of a run that are other files now."""
    folder = plugins.in_use.folder or Path()
    return [
        shown(name)
        for name, digest in then.items()
        if not (folder / name).is_file() or files.sha256(folder / name) != digest
    ]


def shown(name: str) -> str:
    """Return the path of a helper from the working folder."""
    return os.path.normpath((plugins.in_use.folder or Path()) / name)


def imported(path: Path) -> set[Path]:
    """Return the files of modules that a Python file imports anywhere in it, as far as they can be found; others of
    any folder.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # no Python
        return set()
    places: list[Path | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            places += [module(name) for alias in node.names for name in with_parents(alias.name)]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            places += [module(name) for one in names for name in with_parents(one)]
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            places += [lying(base), *(lying(base / alias.name) for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in sys.modules:
            places.append(module(node.value))  # as importlib.import_module takes it
    return {place.resolve() for place in places if place}


def with_parents(name: str) -> Iterator[str]:
    """Return `a`, `a.b` and `a.b.c` of `a.b.c`."""
    pieces = name.split(".")
    return (".".join(pieces[: count + 1]) for count in range(len(pieces)))


def module(name: str) -> Path | None:
    """Return the file of a module, whether it has been imported or not; imports nothing."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if rest:
        places = [lying(Path(place, *rest)) for place in spec.submodule_search_locations or []]
        return next((place for place in places if place), None)
    return Path(spec.origin) if spec.has_location and spec.origin else None


def lying(path: Path) -> Path | None:
    """Return the file of the module or package at a path without an ending."""
    return next((one for one in (path.with_name(f"{path.name}.py"), path / "__init__.py") if one.is_file()), None)
