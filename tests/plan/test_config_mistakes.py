"""Mistakes in a config that a newcomer makes: each is one line that names the place and what would be right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bayesfed import cli
from bayesfed.core import files, options
from bayesfed.core.errors import InputError
from bayesfed.plan import plan

PAPERS = Path(__file__).parents[2] / "config/papers"
MINE = "experiments: {mine: {cases: [{dataset: mnist, models.global: mlp, method: FedLap}], axes: {method.lr: [0.1]}}}"
NO_METHOD = "experiments: {mine: {cases: [{dataset: mnist, models.global: mlp}], axes: {method.lr: [0.1]}}}"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a config beside the real papers, in a working folder of its own."""
    shutil.copytree(PAPERS, tmp_path / plan.PAPERS)
    monkeypatch.chdir(tmp_path)
    return Path("config", "mine.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            NO_METHOD,
            "fedlap, experiment mine (dataset mnist, model mlp, lr 0.1): method: no case and no axis names one",
        ),
        ("run: {rounds: {value: 3}}", "config.run.rounds: expected a whole number, found {'value': 3}"),
        (
            MINE.replace("method.lr", "lr"),
            "fedlap, experiment mine (dataset mnist, model mlp, method FedLap, lr 0.1): lr: unknown key; did you mean 'method.lr'?",
        ),
        (MINE.replace("models.global", "model"), "): model: unknown key; did you mean 'models.global'?"),
        (MINE.replace("method.lr", "alpha"), "): alpha: unknown key; did you mean 'partition.alpha'?"),
        (
            "experiments: {heterogeneous: {axes: {methods: [FedLap]}}}",
            "config.experiments.heterogeneous.axes.methods: unknown key; did you mean 'method'?",
        ),
        ("run: {weights: 3}", "weights: expected keys and values, found 3"),
        ("run: {alpha: 1}", "): config.run.alpha: unknown key; valid: "),
        ("run: {partition: {client: 3}}", "): config.run.partition.client: unknown key; did you mean 'clients'?"),
        ("run: {seed: 1}", "): config.run.seed: seeds are given under `seeds`"),
        ("title: 2026-02-20", "config.title: expected text, found 2026-02-20; put it in quotes"),
        (
            "title: 2026-02-30",
            "config/mine.yaml: not readable as YAML: '2026-02-30' in line 4 is no timestamp; put text",
        ),
        (
            f"methods: {{FedLap: {{lr: 1{'0' * 400}}}}}",
            "config.methods.FedLap.lr: expected a finite number, found 1000",
        ),
        ("methods: {FedLap: {lr: .nan}}", "config.methods.FedLap.lr: expected a finite number, found nan"),
        (
            "experiments: {mine: {cases: [{1: 2}]}}",
            "config.experiments.mine.cases[0]: expected text as a key, found 1;",
        ),
        (f"{MINE}\ntables: {{digits: {{title: x}}}}", "config.tables.digits: the paper has a table of that name; take"),
        (
            f"{MINE}\nfigures: {{mine: {{experiment: mine, accuracy: global, x: round, methods: []}}}}",
            "config.figures.mine.methods: expected a list of 1 or more, found []",
        ),
        ("paper: fola\nreference: x", "config: this is a paper's file; name it in a config, `papers: [NAME]`"),
        ("runs: al", "config.runs: 'al' is not a choice; did you mean 'all'?"),
        ("gpu_slots: 0", "config.gpu_slots: 0 is out of range; it must be at least 1"),
        ("short_runs: {belo: 1}", "config.short_runs.belo: unknown key; did you mean 'below'?"),
        ("run: {a: 1}", "config.run: expected 2 or more letters, found 'a'"),
        ("datasets: 3", "config.datasets: expected keys and values, found 3"),
    ],
)
def test_it_is_named(config: Path, text: str, words: str) -> None:
    config.write_text(f"name: mine\npapers: [fedlap]\nseeds: [0]\n{text}\n")
    with pytest.raises(InputError) as error:
        plan.write(config)
    assert words in str(error.value)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("papers: [fola]\nseeds: [0]", "config.name is missing; "),
        ("name: mine\npapers: [fola, fola]\nseeds: [0]", "config.papers: expected each once, found ['fola', 'fola']"),
        (
            "name: mine\npapers: [folaa]\nseeds: [0]",
            "config/papers/folaa.yaml: there is no such file; did you mean 'fola'?",
        ),
        (
            "name: mine\npapers: [fola]\nseeds: [0]\nfigures: {figure3: {}}",
            "config.figures.figure3: the paper has a figure of that name; take",
        ),
    ],
)
def test_what_every_config_has(config: Path, text: str, words: str) -> None:
    config.write_text(text)
    with pytest.raises(InputError) as error:
        plan.write(config)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("short_runs: {together: 5.0}", "config.short_runs.together: expected a whole number, found 5.0"),
        ("gpu_slots: 2.0", "config.gpu_slots: expected a whole number, found 2.0"),
    ],
)
def test_a_fraction_is_no_whole_number(config: Path, text: str, words: str) -> None:
    config.write_text(f"name: mine\npapers: [fola]\nseeds: [0]\n{text}\n")
    with pytest.raises(InputError) as error:
        plan.write(config)
    assert words in str(error.value)


def test_where_there_are_no_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"fola\.yaml: there is no such file; run this in the project's folder"):
        plan.make({"name": "mine", "papers": ["fola"], "seeds": [0]})


@pytest.mark.parametrize("scalar", ["2020-13-45", "0x_", "!!int foo", '!!int ""', "!!timestamp foo", "!!bool foo"])
def test_a_scalar_that_cannot_be_built(tmp_path: Path, scalar: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"rounds: 1\nseed: {scalar}\n")
    with pytest.raises(
        InputError, match=r"run.yaml: not readable as YAML: '.*' in line 2 is no (timestamp|int|bool); put"
    ):
        files.read_yaml(path)


@pytest.mark.parametrize(("text", "hinted"), [("1e-4", True), ("1.0e4", True), ("x", False), ("0.1 ", False)])
def test_the_hint_about_powers_of_ten(text: str, hinted: bool) -> None:
    with pytest.raises(InputError) as error:
        options.check(text, float, options.Bounds(), "lr")
    assert ("write 1.0e-4" in str(error.value)) == hinted


def test_a_number_that_no_float_holds() -> None:
    with pytest.raises(InputError, match="lr: expected a finite number"):
        options.check(10**400, float, options.Bounds(), "lr")


def test_a_crash_of_the_planning_is_told_in_its_last_line(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ".")
    Path("yaml.py").write_text("raise TypeError('odd')\n")
    with pytest.raises(InputError, match=r"^TypeError: odd$"):
        plan.load({"name": "mine", "papers": ["fola"], "seeds": [0]})


def test_a_plan_whose_cells_lack_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"papers": {}, "cells": [{}]}))
    assert cli.main(["tables", str(path), "--out", str(tmp_path)]) == 2
    assert "a plan of another version (no 'folder'); make it anew" in capsys.readouterr().err
