"""The datasets by name: the published ones, and those of a user's own."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path

from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.data import own
from bayesfed.data.source import Source
from bayesfed.data.sources import SOURCES


def source(name: str) -> Source:
    """Return the dataset called `name`; raises InputError with the nearest name, and for one that must be fetched
    first.
    """
    found = described(name)
    if not found.known:
        raise InputError(
            f"dataset '{name}': what its reader gives is known when it has been fetched: {how_to_fetch(name, plugins.in_use.data)}"
        )
    return found


def how_to_fetch(name: str, data: Path, folder: object = None) -> str:
    """Return the command that fetches a dataset into the folder `data`, with the plugins folder if it is one of those: the
    one in use, unless another is given.
    """
    folder = folder or plugins.in_use.folder
    own = "" if name in SOURCES or folder is None else f" --plugins {shlex.quote(str(folder))}"
    place = "" if data == plugins.DATA else f" --data {shlex.quote(str(data))}"
    return f"run `bayesfed fetch {name}{own}{place}`"


def described(name: str) -> Source:
    """Return the dataset called `name`, of no size where only its reader can tell, of format leaf as it was fetched."""
    found: Source = registry.plugin(name, "dataset").value()
    if found.format != "leaf":
        return found
    facts = own.recorded(plugins.in_use.data / name)
    if facts is None:
        return found
    train, test = facts.counts["train"], facts.counts["test"]
    return replace(found, train=train, test=test, fingerprints=facts.fingerprints, clients=len(facts.clients))


def _identity(source: Source) -> str:
    """Return a digest of what of a dataset's description, beside its records, decides results."""
    decides = [source.classes, source.prepare, source.side, source.augment, source.mean, source.std]
    decides += [source.reader] if source.reader else []
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


registry = plugins.Folders("datasets", "dataset", lambda: SOURCES, own.describe, _identity)
