"""An account of a config: which of its values come into a run, so that one without effect is refused by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayesfed.core.errors import InputError

# Why no run takes a value, and what to do, by the key that holds it: of the config, or of a change to an experiment.
UNTAKEN = {
    "run": "an axis, a case or the experiment itself decides; leave it out, or change that under `experiments`",
    "methods": "none has this method, or an axis or a case decides; leave it out, or change that under `experiments`",
    "datasets": "none asks for this dataset, or its experiment has another stand-in; leave it out",
    "seeds": "every experiment has seeds of its own; leave it out, or change those under `experiments`",
}
OF_GRID = (
    "axes",
    "cases",
    "skip",
    "deviation",
    "full_names",
)  # of an experiment: what decides which cells there are, or is said of them


class Entry:
    """A value of a config, its place there, and whether a run has taken it."""

    def __init__(self, value: object, place: str, why: str) -> None:
        self.value, self.place, self.why, self.taken = value, place, why, False

    def __repr__(self) -> str:
        return repr(self.value)  # as the error about a wrong value shows it


def entered(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Entry]]:
    """Return the config with entries in the place of all values that a run file may take, and these entries.

    What merges mappings key by key carries entries along: those that are in a run file at last are the ones it takes.
    """
    entries: list[Entry] = []

    def enter(value: object, place: str, why: str) -> Any:
        if isinstance(value, Mapping):
            return {key: enter(one, f"{place}.{key}", why) for key, one in value.items()}
        entries.append(Entry(value, place, why))
        return entries[-1]

    def of_experiment(change: object, place: str) -> Any:
        if not isinstance(change, Mapping):
            return change
        return {
            key: one if key in OF_GRID else enter(one, f"{place}.{key}", UNTAKEN.get(key, UNTAKEN["run"]))
            for key, one in change.items()
        }

    found = {
        key: enter(value, f"config.{key}", UNTAKEN[key]) if key in UNTAKEN else value for key, value in config.items()
    }
    if isinstance(changes := config.get("experiments"), Mapping):
        found["experiments"] = {name: of_experiment(one, f"config.experiments.{name}") for name, one in changes.items()}
    return found, entries


def plain(value: Any) -> Any:
    """Return the value without entries."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return value.value if isinstance(value, Entry) else value


def taken(value: Any) -> Any:
    """Return the value without entries, for a run: they are taken."""
    if isinstance(value, Mapping):
        return {key: taken(one) for key, one in value.items()}
    if isinstance(value, Entry):
        value.taken = True
    return plain(value)


def check(entries: Iterable[Entry]) -> None:
    """Raise InputError for values that no run has taken: all that have one reason, by name."""
    left = [entry for entry in entries if not entry.taken]
    if left:
        places = ", ".join(entry.place for entry in left if entry.why == left[0].why)
        raise InputError(f"{places}: no run takes this, since {left[0].why}")
