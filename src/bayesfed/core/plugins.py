"""Plugins by name: methods, networks, datasets, preparations and partition schemes; ours, those of installed packages, and a
user's own.

A user's own lie in a folder that a config or a run file names under `plugins`: `methods/*.py`, `networks/*.py`,
`preparations/*.py` and `partitions/*.py`, each a module like ours, and `datasets/<name>/`. An installed package names its
modules by entry points of the groups `bayesfed.methods`, `bayesfed.networks` and so on: the plugin's name, and the module
that holds it. No name stands for two plugins.

Ours enter a run's key by their revisions, all others by a digest of their source: of the file, of all files of the
package folder where a plugin in a user's folder is one, and of all files of the top-level package where it is installed.
What a plugin imports from elsewhere is not in the digest. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bayesfed.core import files
from bayesfed.core.errors import OWN, InputError, nearest, out_of_memory, words

KINDS = ("methods", "networks", "datasets", "preparations", "partitions", "callbacks")
PAPERS = "papers"  # the sub-folder with papers of a user's own
DATA = Path("data")  # where datasets are fetched to, unless a command is told otherwise
WEIGHTS = Path("weights")  # where files of pretrained weights are, by default
NAME = re.compile(r"[A-Za-z][\w.-]*")  # names are in folders' names


@dataclass(frozen=True)
class Plugin:
    """A plugin: its origin, what its name stands for, the digest of its source, "" for ours, and its file or package
    folder if it is a module in a user's folder.
    """

    origin: str
    value: Callable[[], Any]
    digest: Callable[[], str]
    path: Path | None = None


@dataclass
class InUse:
    """The folder of own plugins in use: its state when last read, the plugins found by kind, and digests of its datasets."""

    folder: Path | None = None
    data: Path = DATA
    state: object = None
    found: dict[str, dict[str, Plugin]] = field(default_factory=dict)
    listings: dict[Path, str] = field(default_factory=dict)


in_use = InUse()
registered: dict[str, dict[str, Plugin]] = {
    kind: {} for kind in KINDS
}  # plugins of this process alone, as of a notebook


def use(folder: object, data: Path = DATA) -> None:
    """Take own plugins from this folder from now on, and from no other; None: from installed packages alone.

    A folder that is in use already and has not changed stays as it was read. Raises InputError for what is no folder.
    """
    if folder is not None and not (folder and isinstance(folder, str | Path) and Path(folder).is_dir()):
        raise InputError(f"plugins: there is no folder {str(folder)!r}; it is looked for from {Path.cwd()}")
    path = None if folder is None else Path(str(folder))
    if path and not any((path / kind).is_dir() for kind in (*KINDS, PAPERS)):
        raise InputError(f"plugins: {path} has none of the folders {', '.join((*KINDS, PAPERS))}")
    looked = [(file, file.stat().st_mtime_ns, file.stat().st_size) for file in own_files(path)]
    state = (path and path.resolve(), data, looked)
    if state != in_use.state:
        in_use.folder, in_use.data, in_use.state, in_use.found, in_use.listings = path, data, state, {}, {}


class Registry(ABC):
    """All plugins of a kind, by name. Subclasses say what a plugin of a folder or of an installed package is."""

    def __init__(self, kind: str, noun: str, ours: Callable[[], Mapping[str, Any]]) -> None:
        self.kind, self.noun, self.ours = kind, noun, ours

    def plugin(self, name: object, where: str) -> Plugin:
        """Return the plugin of that name; raises InputError that begins with `where` and ends with the nearest name."""
        ours, own = self.ours(), self.own()
        if isinstance(name, str) and name in ours:
            return Plugin("bayesfed", lambda: ours[name], lambda: "")
        if isinstance(name, str) and name in own:
            return own[name]
        hint = "" if in_use.folder else f" (one of your own is in `{self.kind}/` of the folder that `plugins` names)"
        called = [key for key, one in own.items() if one.path and one.path.stem == name]
        hint = f" ({own[called[0]].origin} has '{called[0]}')" if called else hint
        raise InputError(f"{where}: no {self.noun} is named '{name}'; {nearest(name, [*ours, *own])}{hint}")

    def own(self) -> dict[str, Plugin]:
        """Return the plugins that are not ours. Raises InputError for a name that is taken, or no name."""
        if self.kind not in in_use.found:
            found: dict[str, Plugin] = {}
            for name, plugin in self.listed():
                taken = "bayesfed" if name in self.ours() else found[name].origin if name in found else None
                if taken:
                    raise InputError(
                        f"{plugin.origin}: the {self.noun} '{name}' is there already ({taken}); rename yours"
                    )
                if not (isinstance(name, str) and NAME.fullmatch(name)):
                    raise InputError(
                        f"{plugin.origin}: '{name}' is no name; it has letters, digits, `_`, `-` and `.`, a letter first"
                    )
                found[name] = plugin
            in_use.found[self.kind] = found
        return in_use.found[self.kind]

    def listed(self) -> Iterator[tuple[str, Plugin]]:
        """Names and plugins of installed packages, of the folder in use, then of this process alone."""
        for entry in entry_points(group=f"bayesfed.{self.kind}"):
            yield entry.name, self.installed(entry)
        folder = in_use.folder and in_use.folder / self.kind
        for path in sorted(folder.iterdir()) if folder and folder.is_dir() else []:
            if not path.name.startswith((".", "_")):
                yield from self.lying(path)
        yield from registered[self.kind].items()

    def register(self, name: str, plugin: Plugin) -> None:
        """Add a plugin to this process, in place of an earlier one of that name from here.

        Raises InputError for a name that is taken, or no name.
        """
        before = registered[self.kind].copy()
        registered[self.kind][name] = plugin
        in_use.found.pop(self.kind, None)
        try:
            self.own()
        except InputError:
            registered[self.kind] = before
            raise

    @abstractmethod
    def installed(self, entry: EntryPoint) -> Plugin:
        """Return the plugin that an entry point names."""

    @abstractmethod
    def lying(self, path: Path) -> Iterable[tuple[str, Plugin]]:
        """Return the plugins in a file or folder of the user's."""


class Modules(Registry):
    """Plugins in Python modules: under `attribute` a module has a mapping of names to plugins, or a plugin with a `name`."""

    def __init__(self, kind: str, noun: str, ours: Callable[[], Mapping[str, Any]], attribute: str,
                 fault: Callable[[str, Any], str]) -> None:  # fmt: skip
        """`fault`: what is wrong with a plugin, "" for one as it should be."""
        super().__init__(kind, noun, ours)
        self.attribute, self.fault = attribute, fault

    def installed(self, entry: EntryPoint) -> Plugin:
        origin = f"entry point '{entry.name}' ({entry.value})"

        def value() -> Any:
            with one_line(entry.value):
                module = importlib.import_module(entry.module)
            held = self.held(module, origin)
            if entry.name not in held:
                raise InputError(f"{origin}: the module has no {self.noun} of that name; {nearest(entry.name, held)}")
            return held[entry.name]

        return Plugin(origin, value, lambda: digest(top_level(entry)))

    def lying(self, path: Path) -> Iterable[tuple[str, Plugin]]:
        if path.suffix != ".py" and not (path / "__init__.py").is_file():
            return
        module, source = load(path)
        for name, value in self.held(module, str(path)).items():
            yield name, Plugin(str(path), lambda value=value: value, lambda: source, path)  # type: ignore[misc]

    def held(self, module: ModuleType, origin: str) -> Mapping[str, Any]:
        """Return the plugins of a module by name; raises InputError where there is none, or one is not as it should be."""
        value = getattr(module, self.attribute, None)
        if value is None:
            raise InputError(f"{origin}: the module has no {self.attribute}; add {self.attribute} = ...")
        named = value if isinstance(value, Mapping) else {str(getattr(value, "name", "")): value}
        for name, one in named.items():
            if fault := self.fault(name, one):
                raise InputError(f"{origin}: {self.attribute}{f' {name!r}' if named is value else ''}: {fault}")
        return named


class Folders(Registry):
    """Plugins that are folders, read when they are asked for."""

    def __init__(self, kind: str, noun: str, ours: Callable[[], Mapping[str, Any]],
                 read: Callable[[str, Path, Path], Any], identity: Callable[[Any], str]) -> None:  # fmt: skip
        """`read(name, folder, data)` gives the plugin, `identity` its digest."""
        super().__init__(kind, noun, ours)
        self.read, self.identity = read, identity

    def installed(self, entry: EntryPoint) -> Plugin:
        def folder() -> Path:
            with one_line(entry.value):
                spec = importlib.util.find_spec(entry.module)
            places = list(spec.submodule_search_locations or []) if spec else []
            if not places:
                raise InputError(f"entry point '{entry.name}' ({entry.value}): this is no package")
            return Path(places[0])

        return self.of(f"entry point '{entry.name}' ({entry.value})", entry.name, folder)

    def lying(self, path: Path) -> Iterable[tuple[str, Plugin]]:
        if path.is_dir():
            yield path.name, self.of(str(path), path.name, lambda: path)

    def of(self, origin: str, name: str, folder: Callable[[], Path]) -> Plugin:
        """Return the plugin in a folder."""
        data = in_use.data
        return Plugin(
            origin, lambda: self.read(name, folder(), data), lambda: self.identity(self.read(name, folder(), data))
        )


@contextlib.contextmanager
def one_line(where: object) -> Iterator[None]:
    """Turn what a user's code raises inside into an InputError of one line that names file and line; memory that ran
    out stays.
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise
        file = str(Path(str(where)).resolve())
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        at = f", line {line}" if line else ""
        raise InputError(f"{where}{at}: {words(error)}") from None


def load(path: Path) -> tuple[ModuleType, str]:
    """Import the module at `path`, a file or a package folder, and the digest of its source.

    Equal sources at one place are imported once; a changed one is another module. Raises InputError of one line for
    whatever the import raises.
    """
    source = digest(path)
    name = f"{OWN}{path.stem}_{hashlib.sha256(f'{path.resolve()} {source}'.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name], source
    file = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: this is a link to {file.resolve()}, and a Python file is needed")
    module = importlib.util.module_from_spec(spec)
    # Python tells bytecode by second and size of its source: of a plugin that is edited, none is left.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[name] = module
    try:
        with one_line(file):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module, source


def digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and contents of its files."""
    if path.is_file():
        return files.sha256(path)
    return hashlib.sha256(listing(path, files_in(path)).encode()).hexdigest()


def listing(folder: Path, paths: Iterable[Path]) -> str:
    """Return the names and digests of files in a folder, as text."""
    return "".join(f"{path.relative_to(folder).as_posix()} {files.sha256(path)}\n" for path in paths)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder at any depth, in one order on every machine, except hidden ones and bytecode."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    named = ((path.relative_to(folder).parts, path) for path in found)
    return [path for parts, path in sorted(named) if not any(part.startswith(".") for part in parts)]


@functools.cache
def is_library(path: Path) -> bool:
    """Return whether a file is Python's, an installed package's or ours, and so nobody's own code."""
    stdlib = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    place = path.resolve()
    installed = {"site-packages", "dist-packages"} & {*path.parts, *place.parts}  # some installers put links there
    return bool(installed) or any(place.is_relative_to(one) for one in (*stdlib, Path(__file__).resolve().parents[1]))


def own_files(folder: Path | None) -> list[Path]:
    """Return the files of a folder that plugins and papers are read from, those of plugins that are linked folders too."""
    kinds = [folder / kind for kind in (*KINDS, PAPERS)] if folder else []
    # `files_in` follows no link below its folder, and so never goes round in a loop.
    linked = [path for kind in kinds for path in sorted(kind.glob("[!.]*")) if path.is_symlink() and path.is_dir()]
    return [path for place in (*kinds, *linked) for path in files_in(place)]


def lies_in_folder(name: str) -> bool:
    """Return whether a plugin of a run, `methods/mine`, lies in the folder in use, and not in an installed package."""
    kind, _, name = name.partition("/")
    return in_use.folder is not None and Path(in_use.found[kind][name].origin).is_relative_to(in_use.folder)


@functools.cache
def top_level(entry: EntryPoint) -> Path:
    """Return the top-level package, or module, of an entry point, found without importing it."""
    spec = importlib.util.find_spec(entry.module.partition(".")[0])
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise InputError(f"entry point '{entry.name}' ({entry.value}): there is no such module")
    return Path(next(iter(spec.submodule_search_locations or [str(spec.origin)])))


def state(folder: object) -> str:
    """Return a text that changes with anything that own plugins are read from; "" where there are none.

    Imports none of them.
    """
    path = Path(str(folder)) if folder else None
    text = listing(path, own_files(path)) if path else ""
    for reader in sorted(path.glob("datasets/*/reader.py")) if path else []:  # what it read decides, not its files
        record = DATA / reader.parent.name / "dataset.json"
        text += f"{record} {files.sha256(record) if record.exists() else 'missing'}\n"
    entries = entry_points()
    packages = {top_level(entry) for kind in KINDS for entry in entries.select(group=f"bayesfed.{kind}")}
    return text + "".join(f"{package} {digest(package)}\n" for package in sorted(packages))
