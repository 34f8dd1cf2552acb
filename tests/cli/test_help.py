"""The help of every command: examples that parse, exit codes, and a noun phrase with its default for each option."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import plans

from bayesfed import cli
from bayesfed.cli.arguments import EXIT_CODES

# First words of a help that is a sentence or a command.
NO_NOUNS = (
    "the",
    "a",
    "an",
    "where",
    "what",
    "how",
    "which",
    "whether",
    "write",
    "set",
    "use",
    "give",
    "list",
    "of",
    "for",
)


def commands() -> dict[str, argparse.ArgumentParser]:
    """The whole command line and each command, by what a user types."""
    main = cli.parser()
    subs = next(action for action in main._actions if isinstance(action, argparse._SubParsersAction))
    return {"bayesfed": main} | {f"bayesfed {name}": sub for name, sub in subs.choices.items()}


EVERY = pytest.mark.parametrize("name", commands())


def options(name: str) -> Iterator[argparse.Action]:
    """The arguments of a command that are not `--help`, `--version` or a command."""
    for action in commands()[name]._actions:
        if action.dest not in ("help", "version") and not isinstance(action, argparse._SubParsersAction):
            yield action


@EVERY
def test_it_ends_with_three_examples_and_exit_codes(name: str) -> None:
    """Each example is of this command, and one that the parser takes."""
    told = commands()[name].format_help()
    assert told.endswith(f"\n\n{EXIT_CODES}\n")
    shown = re.findall(r"^  (bayesfed .+)$", told.partition("examples:\n")[2], re.M)
    assert len(shown) == 3
    for line in shown:
        assert line.startswith(name)
        assert callable(cli.parser().parse_args(shlex.split(line)[1:]).run)


@EVERY
def test_each_option_is_a_noun_phrase_with_its_default(name: str) -> None:
    for action in options(name):
        text = action.help or ""
        assert text.split()[0].lower() not in NO_NOUNS, text
        assert not text.endswith("."), text
        needed = (
            action.required
            or not action.option_strings
            or action.metavar in ("PLAN",)
            or action.dest in ("out", "runs")
        )
        assert needed or "; default: " in text, text


@EVERY
def test_a_default_is_the_one_that_is_told(name: str) -> None:
    for action in options(name):
        if action.default not in (None, [], False):
            assert f"default: {action.default}" in (action.help or "")


def test_a_reader_that_leaves_ends_it_silently(tmp_path: Path) -> None:
    """As `head` does, whether the pipe is closed before the first line or behind it."""
    plan = plans.write(tmp_path, [{"key": "one", "folder": "one"}])
    command = [sys.executable, "-m", "bayesfed", "status", str(plan)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait() == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("train a.yaml --out a --plugins b", "bayesfed train: unrecognized arguments: --plugins b (`plugins` is a key of the run file); see bayesfed train"),
        ("compare --method fedavg", "bayesfed compare: unrecognized arguments: --method (methods go without an option: `bayesfed compare fedavg`)"),
        ("compare fedavg --seed=1 --x", "bayesfed compare: unrecognized arguments: --x; see bayesfed compare --help"),
        ("--x list methods", "bayesfed: unrecognized arguments: --x; see bayesfed --help"),
    ],
)  # fmt: skip
def test_what_a_command_does_not_know_is_told_in_its_name(
    given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parser().parse_args(given.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(told)
