"""The files of papers and configs: a key of the wrong kind, unknown or missing is one line that names its place."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayesfed.core import options
from bayesfed.core.errors import InputError
from bayesfed.papers.spec import Config, Paper

ROOT = Path(__file__).parents[2]
PAPER = yaml.safe_load((ROOT / "config/papers/fedppd.yaml").read_text())
CONFIG = yaml.safe_load((ROOT / "config/demo.yaml").read_text())


def put(tree: Any, place: str, value: Any) -> Any:
    """A copy of the tree with another value at a place (`run/rounds`); without the key where the value is `...`."""
    tree = copy.deepcopy(tree)
    *above, last = (int(key) if key.isdigit() else key for key in place.split("/"))
    inner = tree
    for key in above:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return tree


@pytest.mark.parametrize("path", [*ROOT.glob("config/papers/*.yaml"), *ROOT.glob("examples/*/papers/*.yaml")])
def test_papers_are_read(path: Path) -> None:
    tree = yaml.safe_load(path.read_text())
    paper = options.read(Paper, tree, path.name)
    assert list(paper.tables) == list(tree.get("tables", {}))
    assert [claim.claim for claim in paper.claims] == [claim["claim"] for claim in tree.get("claims", [])]


@pytest.mark.parametrize("path", [*ROOT.glob("config/*.yaml")])
def test_configs_are_read(path: Path) -> None:
    tree = yaml.safe_load(path.read_text())
    config = options.read(Config, tree, "config")
    assert config.seeds == tuple(tree["seeds"])
    for name, change in config.experiments.items():
        axes = tree["experiments"][name].get("axes", {})
        given = {"dataset": change.axes.dataset, "method": change.axes.method, **change.axes.others}
        assert {axis: list(values) for axis, values in given.items() if values} == axes


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("run/rounds", ..., "x.run.rounds is missing; "),
        ("run/partition", 3, "x.run.partition: expected keys and values, found 3"),
        ("methods", {}, "x.methods: expected 1 or more keys, found {}"),
        ("methods/FedAvg/name", ..., "x.methods.FedAvg.name is missing; "),
        ("given/0/run/x", 1, "x.given[0].run: expected 2 or more letters, found 'x'"),
        ("given/0/wehre", {}, "x.given[0].wehre: unknown key; did you mean 'where'?"),
        ("given/0/where", ..., "x.given[0].where is missing; "),
        ("experiments/active/seeds", 0, "x.experiments.active.seeds: 0 is out of range; it must be at least 1"),
        ("experiments/active/cases/0/method", [1], "x.experiments.active.cases[0].method: expected text, found [1]"),
        ("experiments/active/axes/dataset", [3], "x.experiments.active.axes.dataset[0]: expected text, found 3"),
        ("experiments/active/axes/dataset", [["mnist", 3]], "x.experiments.active.axes.dataset[0][1]: expected text"),
        ("experiments/active/axes/active.by", [], "x.experiments.active.axes.active.by: expected a list of 1 or more"),
        ("experiments/active/axes/active.by", [1, 1.0], "active.by: expected each once, found [1, 1.0]"),
        (
            "experiments/active/deviation",
            "=1",
            "x.experiments.active.deviation: expected a text that does not begin with =",
        ),
        ("first_client", -1, "x.first_client: -1 is out of range; it must be at least 0"),
        ("statistics", {"one": 3}, "x.statistics.one: expected keys and values, found 3"),
        ("tables/table1/columns/0/metric", 3, "x.tables.table1.columns[0].metric: expected text, found 3"),
        ("tables/table1/search", {"over": "lr", "by": "x"}, "x.tables.table1.search.over: expected a list, found 'lr'"),
        ("tables/table1/search", {"overr": []}, "x.tables.table1.search.overr: unknown key; did you mean 'over'?"),
        ("tables/table1/note", float("nan"), "x.tables.table1.note: expected text, found nan"),
        ("figures/reliability/shows/label", ..., "x.figures.reliability.shows.label is missing; "),
        ("figures/reliability/shows/rund", 1, "x.figures.reliability.shows.rund: unknown key; did you mean 'round'?"),
        ("claims/0/where", {"alpha": float("inf")}, "x.claims[0].where.alpha: expected a finite number, found inf"),
        ("claims/0/most", 1, "x.claims[0].most: expected true or false, found 1"),
    ],
)
def test_a_mistake_in_a_paper(place: str, value: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        options.read(Paper, put(PAPER, place, value), "x")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("seeds", [0, 0], "config.seeds: expected each once, found [0, 0]"),
        ("seeds", [-1], "config.seeds[0]: -1 is out of range; it must be at least 0"),
        ("seeds", [True], "config.seeds[0]: expected a whole number, found True"),
        ("partitions", "a{b}", "config.partitions: expected a folder, written out without ~"),
        ("partitions", "~/scratch", "config.partitions: expected a folder, written out without ~"),
        ("precision", "fp16", "config.precision: 'fp16' is not a choice; did you mean"),
        ("papers", ["x"], "config.papers[0]: expected 2 or more letters, found 'x'"),
        ("weights", 3, "config.weights: expected text, found 3"),
        ("benchmarks", "yes", "config.benchmarks: expected true or false, found 'yes'"),
        ("short_runs", {"below": -1}, "config.short_runs.below: -1.0 is out of range; it must be at least 0"),
        ("experiments/active/skip", 1, "config.experiments.active.skip: expected true or false, found 1"),
        (
            "experiments/active/run",
            {"images": 1},
            "config.experiments.active.run.images: expected keys and values, found 1",
        ),
    ],
)
def test_a_mistake_in_a_config(place: str, value: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        options.read(Config, put(CONFIG, place, value), "config")
    assert words in str(refused.value)


@pytest.mark.parametrize("key", ["weights", "data_mirror", "partitions"])
def test_a_folder_may_be_none(key: str) -> None:
    assert getattr(options.read(Config, CONFIG | {key: None}, "config"), key) is None
