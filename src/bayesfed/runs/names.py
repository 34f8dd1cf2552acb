"""Names that a run file can use, each with a line that says what it is: for `bayesfed list` and for Python."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from bayesfed import methods, models
from bayesfed.core import plugins
from bayesfed.data import catalogue, schemes
from bayesfed.methods import description

AnyPath = str | os.PathLike[str]


def list_methods(plugins: AnyPath | None = None) -> dict[str, str]:
    """Return the methods by name; `plugins`: a folder with some of your own, which are listed, too."""
    return {name: description.about(one).splitlines()[0] for name, one in plugins_of(methods.registry, plugins).items()}


def list_datasets(plugins: AnyPath | None = None) -> dict[str, str]:
    """Return the datasets by name, with their titles; `plugins`: a folder with some of your own."""
    return {name: one.title for name, one in plugins_of(catalogue.registry, plugins).items()}


def list_models(plugins: AnyPath | None = None) -> dict[str, str]:
    """Return the networks by name, each with its layers; `plugins`: a folder with some of your own."""
    return {name: models.about(one) for name, one in plugins_of(models.registry, plugins).items()}


def list_partitions(plugins: AnyPath | None = None) -> dict[str, str]:
    """Return the schemes that divide a dataset, by name; `plugins`: a folder with some of your own."""
    found = plugins_of(schemes.registry, plugins).items()
    return {name: first_line(one.draw) for name, one in found}


def plugins_of(registry: plugins.Registry, folder: AnyPath | None) -> Mapping[str, Any]:
    """All plugins of a kind by name, in alphabetical order, with those of a folder."""
    plugins.use(None if folder is None else os.fspath(folder))
    found = {**registry.ours(), **{name: plugin.value() for name, plugin in registry.own().items()}}
    return dict(sorted(found.items()))


def first_line(one: object) -> str:
    """Return the first line of a docstring; "" for none."""
    text = inspect.getdoc(one)
    return text.splitlines()[0] if text else ""
