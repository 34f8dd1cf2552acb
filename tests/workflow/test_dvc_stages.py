"""DVC's stages see what Snakemake sees, whatever a config has and wherever its folders are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from helpers.clone import PROJECT, Clone

METHOD = """
from bayesfed.methods.fedavg import METHOD


class Mine(METHOD):
    name, label = "mine", "Mine"


METHOD = Mine
"""
PAPER = """
paper: minepaper
title: A paper with a table and no figure
reference: an example
run: {partition: {scheme: dirichlet_class_shared, clients: 4}, rounds: 1, local_epochs: 1, batch_size: 64}
methods: {Mine: {name: mine}}
experiments:
  first: {axes: {dataset: [digits], models.global: [mlp], partition.alpha: [1], method: [Mine]}}
tables:
  table1: {title: Accuracy, experiment: first, metric: global_accuracy_best, rows: {alpha: [1]}, columns: [{method: Mine}]}
"""
READER = "datasets/mine/readers/one/reader.py"
ODD = "it's $(touch pwned) {x}\" é"


@pytest.fixture
def own(tmp_path: Path) -> Clone:
    """A project with a config of own plugins, in a folder outside of it, whose data are behind a link.

    The names of both folders hold spaces, quotes and commands; the plugins' braces, too, with which DVC itself fails.
    """
    clone = Clone(tmp_path / ODD.replace("{x}", ""))
    for path, text in (("methods/mine.py", METHOD), ("papers/minepaper.yaml", PAPER), (READER, "")):
        (tmp_path / ODD / path).parent.mkdir(parents=True)
        (tmp_path / ODD / path).write_text(text)
    away = json.dumps(f"../{ODD}")
    config = f"name: own\nplugins: {away}\ndata_mirror: {away}\npapers: [minepaper]\nseeds: [0]\n"
    (clone.folder / "config" / "own.yaml").write_text(config)
    (tmp_path / "scratch").mkdir()
    (clone.folder / "data").symlink_to(tmp_path / "scratch")
    clone.track()
    clone.edit("dvc.yaml", "configs: [test, paper, all]", "configs: [own]")
    return clone


def test_own_plugins_are_dependencies(own: Clone) -> None:
    """A name in dvc.yaml is all: a change in the folder is seen, and undone it is none."""
    told = own.dvc("repro", "tables@own")
    assert "data/digits: DVC takes nothing from behind a link, and leaves it out" in told
    assert (own.folder / "results/own/checkpoints.dvc").exists()
    assert not list(own.folder.parent.rglob("pwned"))
    assert [path.name for path in (own.folder / "results/own/figures").iterdir()] == ["figures.csv"]
    stages = [f"{stage}@own" for stage in ("data", "train", "tables")]
    assert "Running stage" not in own.dvc("repro", "--dry", "tables@own")
    method = own.folder.parent / ODD / "methods/mine.py"
    method.write_text(f"{METHOD}# A comment.\n")
    assert own.dvc("status", *stages).count("results/own/plugins") == len(stages)
    method.write_text(METHOD)
    assert "up to date" in own.dvc("status", *stages)


def test_what_is_behind_a_link_is_left_out_by_name(tmp_path: Path) -> None:
    """The folder itself and what is in it; others are added."""
    clone = Clone(tmp_path / "project")
    clone.track()
    (tmp_path / "far" / "two").mkdir(parents=True)
    (clone.folder / "data" / "one").mkdir(parents=True)
    for folder in (tmp_path / "far" / "two", clone.folder / "data" / "one"):
        (folder / "file").write_text("1")
    (clone.folder / "data" / "two").symlink_to(tmp_path / "far" / "two")
    (clone.folder / "results").symlink_to(tmp_path / "far")
    done = subprocess.run(
        ["sh", PROJECT / "workflow" / "keep.sh", "data/two", "data/one", "results/two"],
        cwd=clone.folder,
        env=clone.environment | {"PATH": f"{clone.folder}/.venv/bin:{clone.environment['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["data/two", "results/two"]
    assert (clone.folder / "data" / "one.dvc").exists()
    assert not (clone.folder / "data" / "two.dvc").exists()
    none = subprocess.run(
        ["sh", PROJECT / "workflow/keep.sh", "data/none"], cwd=clone.folder, capture_output=True, text=True
    )
    assert (none.returncode, none.stderr) == (2, "data/none: no such folder\n")
