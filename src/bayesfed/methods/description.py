"""Descriptions of methods by their docstrings and options, for people."""

from __future__ import annotations

import dataclasses
import inspect
import sys

from bayesfed.core.options import bounds_in_words, bounds_of, hints_of, kind_in_words
from bayesfed.methods.method import Method


def about(method: type[Method]) -> str:
    """Return the docstring of the file that holds a method, with its equations and their source; else that of its class."""
    module = sys.modules.get(method.__module__)
    text = module.__doc__ if module and getattr(module, "METHOD", None) is method else method.__doc__
    return inspect.cleandoc(text or method.label)


def of(method: type[Method]) -> str:
    """Describe a method: its equations and their source, and its options with defaults and bounds."""
    hints = hints_of(method.Options)
    rows = []
    for field in dataclasses.fields(method.Options):
        takes = " ".join(filter(None, (kind_in_words(hints[field.name]), bounds_in_words(bounds_of(field)))))
        default = "required" if field.default is dataclasses.MISSING else f"default {field.default!r}"
        rows.append((field.name, default, takes))
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    table = [f"    {name:{widths[0]}}  {default:{widths[1]}}  {takes}" for name, default, takes in rows]
    options = inspect.cleandoc(method.Options.__doc__ or "") if rows else "None."
    return "\n".join(
        [f"{method.label}: `method: {{name: {method.name}}}`", "", about(method), "", "Options", *table, "", options]
    )
