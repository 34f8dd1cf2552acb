"""Files from strangers: YAML that stands for more than it is, names that lead elsewhere, texts that are formulas or
commands."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayesfed import cli
from bayesfed.core import files, options
from bayesfed.core.errors import InputError
from bayesfed.papers.spec import Config, Paper

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "config/test.yaml").read_text())
PAPER = yaml.safe_load((ROOT / "config/papers/hbfl.yaml").read_text())
LAUGHS = "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "its aliases stand for more than 1000000 keys and values; write fewer"),
        ("a: &a [*a]", "nested too deeply, or an alias that stands for itself"),
        ("[" * 1000, "nested too deeply, or an alias that stands for itself"),
        ("!!python/object/apply:os.system ['touch pwned']", "not readable as YAML: could not determine a constructor"),
        ("a: !!python/name:os.system", "not readable as YAML: could not determine a constructor"),
    ],
)
def test_yaml_that_is_more_than_it_is(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        files.read_yaml(path)
    assert cli.main(["plan", "run.yaml", "--out", "out"]) == cli.main(["train", "run.yaml", "--out", "out"]) == 2
    assert [found.name for found in tmp_path.iterdir()] == ["run.yaml"]


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Where it stands, and in a mapping that is merged into others it is none of these."""
    path = tmp_path / "run.yaml"
    path.write_text("a: 1\nb:\n  c: 1\n  c: 2\n")
    with pytest.raises(InputError, match="the key 'c' occurs twice in the block that begins in line 3; keep one"):
        files.read_yaml(path)
    path.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, y: 3}\n")
    assert files.read_yaml(path)["c"] == {"x": 2, "y": 3}


def test_aliases_that_save_writing_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a: &a {b: 1}\nc: *a\n")
    assert files.read_yaml(path) == {"a": {"b": 1}, "c": {"b": 1}}


def changed(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The tree with another value at a place, or another key where the place ends with "key"."""
    tree = copy.deepcopy(tree)
    *above, last = place
    inner = tree
    for key in above:
        inner = inner[key]
    if last == "key":
        inner[value] = inner.pop(next(iter(inner)))
    else:
        inner[last] = value
    return tree


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a b", "a'b", "$(touch pwned)", "a\n", "", ".hidden", "{wildcards.x}"]
)
def test_names_of_files_and_folders_are_plain(name: str) -> None:
    """Of configs, papers, tables and figures."""
    for kind, tree, place in (
        (Config, CONFIG, ("name",)), (Paper, PAPER, ("paper",)), (Paper, PAPER, ("tables", "key")),
        (Paper, PAPER, ("figures", "key")),
    ):  # fmt: skip
        with pytest.raises(InputError, match="expected"):
            options.read(kind, changed(tree, place, name), "file")
        options.read(kind, changed(tree, place, "plain"), "file")


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1+cmd|' /C calc'!A0", "-2+3", "\t=1"])
def test_texts_are_no_formulas(text: str) -> None:
    """What goes from a paper into the cells of CSV files."""
    for place in (
        ("title",), ("reference",), ("labels", "cnn2"), ("settings", "0.05"), ("methods", "key"), ("claims", 0, "claim"),
        ("tables", "table1", "title"), ("figures", "figure3", "title"),
    ):  # fmt: skip
        with pytest.raises(InputError, match="spreadsheets"):
            options.read(Paper, changed(PAPER, place, text), "file")


def test_nothing_is_run_by_a_name_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "$(touch pwned)", "--out", "a\nb"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
