"""Methods as a call of `bayesfed compare` names them: `name`, or `name:key=value,...`.

Several values of a key, as in `lr=0.03/0.1/0.3`, are a search: one of all their combinations is to be chosen.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from bayesfed.core.errors import InputError

Options = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A method of a call: its name, the options that are given, and the values of those that are to be chosen."""

    name: str
    options: Options
    choices: Mapping[str, Sequence[Any]]

    @staticmethod
    def read(text: str) -> Asked:
        """Read a method; raise InputError where its options are not `key=value,...`, each key once."""
        name, colon, given = text.partition(":")
        options: Options = {}
        choices: dict[str, Sequence[Any]] = {}
        for part in given.split(",") if colon else ():
            key, equals, values = part.partition("=")
            if not (key and equals):
                raise InputError(f"{text}: expected options like `name:lr=0.1,momentum=0`, found '{part}'")
            if key == "name":
                raise InputError(f"{text}: 'name' is no option; the method's name comes before the colon")
            if key in options or key in choices:
                raise InputError(f"{text}: the option '{key}' occurs twice; keep one, or write its values as {key}=A/B")
            if "" in (written_values := values.split("/")):
                raise InputError(f"{text}: a value of '{key}' is missing; write {key}=A, or {key}=A/B")
            found = [value_of(value, text) for value in written_values]
            if len(found) > 1:
                choices[key] = found
            else:
                options[key] = found[0]
        return Asked(name, options, choices)

    @property
    def configurations(self) -> list[Options]:
        """All combinations of the values to choose from; none where there is nothing to choose."""
        every = itertools.product(*self.choices.values()) if self.choices else ()
        return [dict(zip(self.choices, values, strict=True)) for values in every]


def partition_of(text: str | None, given: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """Return the block and the name of a partition that a call gives, "" for Dirichlet's, beside `given` options of its own.

    Raises InputError for several values of an option, and for one that is given twice.
    """
    asked = Asked.read(text or "")
    if asked.choices:
        raise InputError(f"--partition {text}: only a method's options may have several values")
    for key, value in given.items():
        if value is not None and key in asked.options:
            raise InputError(f"--{key}: --partition {text} gives it too; keep one")
    return ({"scheme": asked.name, **asked.options}, [asked.name]) if text else ({}, [])


def value_of(text: str, whole: str) -> Any:
    """Return what a value would be in YAML, and 1e-4, which YAML takes for text, as a number."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):  # 2026-13-45
        raise InputError(f"{whole}: '{text}' is no value; give a number or a word") from None
    if isinstance(found, str):
        with contextlib.suppress(ValueError):
            return float(found)
    return found


def written(options: Options) -> list[str]:
    """Return options as a call gives them: `key=value` each."""
    return [f"{key}={value}" for key, value in options.items()]
