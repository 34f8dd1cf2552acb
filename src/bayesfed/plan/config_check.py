"""Checks of a config against the runs that are planned of it: every value must come into a run."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.papers.grid import Tree
from bayesfed.papers.spec import ShortRuns

if TYPE_CHECKING:
    from bayesfed.runs.spec import Run


def check_papers(papers: Tree, cells: Iterable[Tree]) -> None:
    """Refuse a paper of which nothing is run."""
    run = {cell["paper"] for cell in cells}
    if not run:
        raise InputError(
            "config.experiments: no experiment is left to run, all are skipped; take `skip: true` from one"
        )
    for paper in papers:
        if paper not in run:
            raise InputError(f"config.papers: all experiments of '{paper}' are skipped; leave the paper out")


def check_settings(config: Tree, papers: Tree, runs: Iterable[Run], papers_folder: Path) -> None:
    """Refuse a folder of own plugins or of weights, and a size of jobs, that no run is for."""
    short = config.get("short_runs", {})
    own = any(Path(spec["published_file"]).parent != papers_folder for spec in papers.values())
    for key, used in (
        ("plugins", own or any(map(takes_plugins, runs))),
        ("weights", any(run.weights for run in runs)),
    ):
        if config.get(key) and not used:
            raise InputError(f"config.{key}: no run takes anything of {config[key]}; leave it out, or name what it has")
    if "together" in short and not any(run.cost < ShortRuns(**short).below for run in runs):
        raise InputError("config.short_runs.together: no run is short; leave it out, or raise `below`")


def takes_plugins(run: Run) -> bool:
    """Return whether anything of a run lies in the folder of plugins in use, its callback included."""
    own = [*run.own_plugins, *([f"callbacks/{run.on_round}"] if run.on_round else [])]
    return any(map(plugins.lies_in_folder, own))


def check_methods(papers: Tree, cells: Sequence[Tree]) -> None:
    """Refuse a method of the config's own that is in no cell: nothing would be trained of it, and nothing said."""
    used = {cell["method"] for cell in cells}
    for name in itertools.chain(*(spec["added"]["methods"] for spec in papers.values())):
        if name not in used:
            raise InputError(
                f"config.methods.{name}: no experiment names it; put it into one's axis, "
                f"experiments.NAME.axes.method: [..., {name}]"
            )


def check_stand_ins(config: Tree, asked: Container[str]) -> None:
    """Refuse a stand-in for a dataset that neither exists nor is asked for: it would replace nothing."""
    from bayesfed.data import catalogue

    changes = {f"config.experiments.{name}": change for name, change in config.get("experiments", {}).items()}
    for where, change in ({"config": config} | changes).items():
        for name in change.get("datasets", {}):
            if name not in asked:
                catalogue.registry.plugin(name, f"{where}.datasets")


def check_weights(runs: Iterable[Run], config: Tree) -> None:
    """Look for the files of pretrained weights that runs name: a mistake must not wait until their turn has come."""
    from bayesfed.models import pretrained

    for name in sorted({name for run in runs for _, name in run.weights}):
        pretrained.find(Path(config.get("weights") or plugins.WEIGHTS), name)
