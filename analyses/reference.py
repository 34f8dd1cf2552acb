"""Reference pages from code: what a run file can name, methods with their options, the command line."""

import argparse
import dataclasses
import inspect
import re
import typing

from analyses.markdown import table
from bayesfed import cli, methods, models
from bayesfed.core.options import Bounds, bounds_in_words, bounds_of, hints_of, kind_in_words
from bayesfed.data.schemes import SCHEMES, Scheme, keys_of
from bayesfed.data.sources import SOURCES
from bayesfed.methods import base
from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, Phase
from bayesfed.methods.predictors import Predictor
from bayesfed.papers import spec
from bayesfed.results import claims, statistics

BLOCKS = {
    "The file": spec.Paper,
    "`run`": spec.PaperRun,
    "`methods`, each": spec.MethodBlock,
    "`experiments`, each": spec.Experiment,
    "`cases`, each": spec.Case,
    "`axes`": spec.Axes,
    "`given`, each": spec.Rule,
    "`tables`, each": spec.Table,
    "`columns`, each": spec.Column,
    "`search`": spec.Search,
    "`figures`, each": spec.Figure,
    "`shows`": spec.Shows,
    "`claims`, each": spec.Claim,
}
"""The blocks of a paper's file, by what the page calls them."""
CONTRACT = {
    "A method": Method,
    "The server and a client in a round": Node,
    "What a step sees, and a node has": Learner,
    "A mini-batch": Batch,
    "What a client sent": Update,
    "A phase": Phase,
    "What a node predicts with": Predictor,
}
"""The classes of the contract, by what the page calls them."""
SOURCE = "../../src/bayesfed/methods"


def names() -> str:
    """Return the names that a run file can use: datasets, models and partition schemes."""
    datasets = [[f"`{name}`", source.title, source.licence] for name, source in SOURCES.items()]
    common = keys_of(Scheme)
    schemes = [
        [f"`{name}`", sentence(scheme.draw), code(key for key in keys_of(scheme) if key not in common)]
        for name, scheme in SCHEMES.items()
    ]
    return (
        table(["`dataset`", "title", "licence"], datasets)
        + table(["`models`", ""], [[f"`{name}`", models.about(one)] for name, one in models.registry.ours().items()])
        + table(["`partition.scheme`", "", "options"], schemes)
    )


def code(names: typing.Iterable[str]) -> str:
    """Names as code, in a row."""
    return ", ".join(f"`{name}`" for name in names)


def sentence(one: object) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.)\s", " ".join((inspect.getdoc(one) or "").split()))[0]


def methods_page() -> str:
    """Every method with its options, as its file has them."""
    text = "# Methods and their options\n\nEach method is one file, with its equations beside the code. "
    text += "In a run file options are under `method`, beside `name`.\n\n"
    for name, cls in sorted(methods.registry.ours().items()):
        about = inspect.getdoc(inspect.getmodule(cls)) or ""
        text += (
            f"## `{name}`\n\n**{cls.label}**. Source: [`{name}.py`]({SOURCE}/{name}.py).\n\n```text\n{about}\n```\n\n"
        )
        text += options(cls)
    return text


def options(cls: type[Method]) -> str:
    """Return the options of a method: default, and what is allowed."""
    hints = hints_of(cls.Options)
    rows = [
        [f"`{one.name}`", f"`{shown(one.default)}`", allowed(hints[one.name], bounds_of(one))]
        for one in dataclasses.fields(cls.Options)
    ]
    if not rows:
        return "No options.\n\n"
    return f"{table(['option', 'default', 'allowed'], rows)}{inspect.getdoc(cls.Options)}\n\n"


def contract_page() -> str:
    """Every part of a method, and all that it is given, as the code has it."""
    text = "# What a method gives and sees\n\nAll names are in `bayesfed.methods.base`. "
    text += "[Your method](../guides/your-method.md) says how to write one.\n\n"
    for title, cls in CONTRACT.items():
        text += f"## {title}\n\n`{cls.__name__}`. {inspect.getdoc(cls)}\n\n"
        attributes = re.findall(r"((?:    # .*\n)+)    (\w+): ClassVar", inspect.getsource(cls))
        if rows := [[f"`{name}`", " ".join(re.findall(r"# (.*)", said))] for said, name in attributes]:
            text += table(["on the class", "meaning"], rows)
        if rows := [[member(name, one), prose(one)] for name, one in vars(cls).items() if is_part(name, one)]:
            text += table(["member", "meaning"], rows)
    functions = {name: one for name in base.__all__ if inspect.isfunction(one := getattr(base, name))}
    rows = [
        [f"`{name}({', '.join(inspect.signature(one).parameters)})`", prose(one)] for name, one in functions.items()
    ]
    return f"{text}## Functions\n\n{table(['function', 'what it gives'], rows)}"


def is_part(name: str, one: object) -> bool:
    """Return whether a member of a class is one that users call or define."""
    return not name.startswith("_") and (inspect.isfunction(one) or isinstance(one, property))


def member(name: str, one: object) -> str:
    """Return a member as it is called."""
    if isinstance(one, property):
        return f"`{name}`"
    assert callable(one)
    _, *arguments = inspect.signature(one).parameters
    return f"`{name}({', '.join(arguments)})`"


def prose(one: object) -> str:
    """Return a docstring in one line."""
    return " ".join((inspect.getdoc(one) or "").split())


def shown(value: object) -> str:
    """Return a default as a run file has it."""
    if value is dataclasses.MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def allowed(kind: object, bounds: Bounds) -> str:
    """Return the values that an option takes."""
    if typing.get_origin(kind) is typing.Literal:
        return code(typing.get_args(kind))
    return ", ".join(filter(None, (kind_in_words(kind), bounds_in_words(bounds))))


def paper_page() -> str:
    """Every key of a paper's file, the kinds of claims, and the metrics, as the code that reads them has it."""
    text = "# A paper's file\n\nAll keys of `papers/NAME.yaml`. [Your paper](../guides/your-paper.md) says how to write one.\n\n"
    for title, block in BLOCKS.items():
        about, meanings = described(block)
        about = about.replace("config/papers/<paper>.yaml", "`papers/NAME.yaml`")
        text += f"## {title}\n\n{about}\n\n{keys(block, meanings)}"
    kinds = (inspect.getdoc(claims) or "").partition("Kinds:")[2].strip()
    words = [[f"`{name}`", words] for name, words in statistics.IN_WORDS.items()]
    measured = [code(statistics.LEVELS), code(statistics.MEASURES), code(statistics.COSTS)]
    return (
        f"{text}## Kinds of claims\n\n{kinds}\n\n## Metrics\n\n"
        f"An accuracy is `LEVEL_accuracy_STATISTIC`, with the levels {measured[0]}. Its statistics:\n\n"
        f"{table(['statistic', 'meaning'], words)}"
        f"A measure of the server's predictions is `predictive_MEASURE_last`, or `global_MEASURE_last` for the mean model: "
        f"{measured[1]}, `auroc_foreign_DATASET`, `fpr95_foreign_DATASET`.\n\nA cost is named alone: {measured[2]}, "
        "and `megabytes_to_PERCENT`, sent until an accuracy is reached.\n"
    )


def described(block: type) -> tuple[str, dict[str, str]]:
    """Split a block's docstring, `About it. key: its meaning. other: its meaning.`, into what is about it and its keys."""
    names = "|".join(one.name for one in dataclasses.fields(block))
    about, *rest = re.split(rf"\s((?:(?:{names}), )*(?:{names})): ", " ".join((inspect.getdoc(block) or "").split()))
    return about, {
        key: words.rstrip(".") for heads, words in zip(rest[::2], rest[1::2], strict=True) for key in heads.split(", ")
    }


def keys(block: type, meanings: dict[str, str]) -> str:
    """Return the keys of a block: meaning, what each takes, and its default."""
    hints = hints_of(block)
    rows = [
        [
            f"`{one.name}`",
            meanings.get(one.name, "as in a run file"),
            allowed(hints[one.name], bounds_of(one)),
            default(one),
        ]
        for one in dataclasses.fields(block)
        if not one.metadata.get("rest")
    ]
    return table(["key", "meaning", "takes", "default"], rows)


def default(one: "dataclasses.Field[object]") -> str:
    """Return a key's default as a file has it: empty where leaving it out is leaving out what it says."""
    required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    plain = isinstance(one.default, bool | int | float | str) and one.default != ""
    return "required" if required else f"`{shown(one.default)}`" if plain else ""


def cli_page() -> str:
    """Every command with its arguments, as its parser has them."""
    parser = cli.parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    text = "# Command line\n\nExit codes: 0 done, 2 refused input, 1 anything else. A refused input gives one line.\n\n"
    for name, sub in commands.choices.items():
        text += f"## `bayesfed {name}`\n\n{sub.description}\n\n"
        text += table(["argument", "meaning"], [argument(one) for one in sub._actions if one.dest != "help"])
        text += f"```text\n{sub.epilog.strip()}\n```\n\n" if sub.epilog else ""
    return text


def argument(action: argparse.Action) -> list[str]:
    """Return an argument as a user types it, and its help."""
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else "")
    typed = " ".join([*action.option_strings[-1:], *([str(value)] if value else [])]) or action.dest
    more = "..." if action.nargs in ("+", "*") else ""
    return [
        f"`{typed}{more}`".replace("|", "\\|"),
        (action.help or "") + (" (required)" if action.required and action.nargs != "*" else ""),
    ]
