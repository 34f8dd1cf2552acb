"""The YAML files of papers and configs: every key that they may have, its type, and what it means.

`Paper` is config/papers/<paper>.yaml, `Config` is config/<name>.yaml; `options.read` checks both. Experiments give axes by
the full names of run file keys (`partition.alpha`, `method.lr`). Tables, figures and claims name cells by fields and by
the axes' short names (`alpha`, `lr`; `grid.short`). plan/paper_check.py checks names across a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bayesfed.core.options import Bounds, option, optional, rest

Text = Annotated[
    str,
    Bounds(
        pattern=r"[^=+@\t\r-].*",
        words="a text that does not begin with =, +, - or @, by which spreadsheets know a formula",
    ),
]
Name = Annotated[
    str,
    Bounds(
        pattern="[a-z][a-z0-9_-]+",
        words="a name of two or more small letters, digits, _ and -, a letter first",
    ),
]
Filename = Annotated[
    str,
    Bounds(
        pattern="[A-Za-z0-9][A-Za-z0-9_-]*",
        words="a name that a file can have, of letters, digits, _ and -",
    ),
]
Folder = Annotated[
    str,
    Bounds(
        pattern="[^~{}<>][^{}<>]*", words="a folder, written out without ~, and without braces, < and > in its name"
    ),
]
Word = Annotated[str, Bounds(least=2)]  # Snakemake refuses keys of one letter, and no name needs to be so short
Names = tuple[str, ...]
Block = Mapping[str, Any]
Values = Annotated[tuple[Any, ...], Bounds(least=1, unique=True)]
Seeds = Annotated[tuple[Annotated[int, Bounds(low=0, high=2**63 - 1)], ...], Bounds(least=1, unique=True)]
Datasets = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunKeys:
    """Keys of a run file, without method and seed. Blocks are changed key by key; a partition that names
    its scheme replaces the one before."""

    partition: Block = optional()
    models: Block = optional()
    images: Block = optional()
    schedule: Block = optional()
    tasks: Block = optional()
    active: Block = optional()
    others: Mapping[Word, Any] = rest()


@dataclass(frozen=True, kw_only=True)
class PaperRun(RunKeys):
    """A paper's budget: what all its runs have in common."""

    partition: Block
    rounds: Any
    local_epochs: Any
    batch_size: Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """Values of axes that belong together. Other keys than these are full names of axes, as `models.global`,
    `partition.alpha`, `method.lr`, `stragglers`. dataset: a name, or one for each client. method: a label of `methods`."""

    dataset: Datasets = ""
    method: str = ""
    others: Mapping[Word, Any] = rest()


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of each axis, all crossed with each other; other keys as in `cases`. dataset: names. method: labels."""

    dataset: Annotated[tuple[Datasets, ...], Bounds(least=1, unique=True)] = ()
    method: Annotated[Names, Bounds(least=1, unique=True)] = ()
    others: Mapping[Word, Values] = rest()


@dataclass(frozen=True, kw_only=True)
class Grid(RunKeys):
    """A grid of runs: every case with every combination of the axes, once for each seed.

    All other keys are those of a run file, for the whole grid. deviation: how it is less or other than what the
    paper did, in words; its cells get no verdict. full_names: axes that tables and figures call by their full names.
    """

    cases: Annotated[tuple[Case, ...], Bounds(least=1)] = ()
    axes: Axes = Axes()
    deviation: Text = ""
    full_names: Names = ()


@dataclass(frozen=True, kw_only=True)
class Experiment(Grid):
    """A grid that a paper ran, with keys of a run file for all of it.

    cases: values of axes that belong together. axes: values that are all crossed. deviation: how it is less or other than
    what the paper did, in words; its cells get no verdict. full_names: axes that tables and figures call by their full
    names. seeds: how often the paper repeated it, where it says so (seeds 0, 1, ...).
    """

    seeds: int = option(1, low=1)


@dataclass(frozen=True, kw_only=True)
class Change(Grid):
    """A config's change of a paper's experiment, or an experiment of its own, with all keys of a `Grid`.

    In a paper's: skip it, or give other seeds, stand-in datasets, keys of its run, cases, or values of its axes.
    """

    skip: bool = False
    seeds: Seeds = ()
    datasets: Mapping[str, str] = optional()
    run: RunKeys = RunKeys()


@dataclass(frozen=True)
class Rule:
    """Settings where axes have certain values. where: axis, by its full name -> a value or several. run: keys of a run
    file. methods: label -> hyperparameters.
    """

    where: Mapping[str, Any]
    run: RunKeys = RunKeys()
    methods: Mapping[str, Block] = optional()


@dataclass(frozen=True)
class Search:
    """The best of a grid in the place of its cells. over: axes to choose among, by their short names. by: the accuracy whose
    mean over seeds decides."""

    over: Names
    by: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; other keys than these are fields or axes (short) of its cells, each with its value. title: in
    the head, made of those values unless given. metric: where the table has none."""

    title: Text = ""
    metric: str = ""
    where: Mapping[str, Any] = rest()


@dataclass(frozen=True)
class Table:
    """A table: means over seeds.

    title: above it. experiment: whose cells it shows. rows: field or axis (short) -> values, all crossed. columns: each
    with what tells its cells apart. metric: for columns without their own. search: to show the best of a grid.
    published: items of the published numbers that it shows, its own name unless given; [] where the paper has no such
    table, so its runs have no priority. note: text of each row's note.
    """

    title: Text
    experiment: str
    rows: Mapping[str, Annotated[tuple[Any, ...], Bounds(least=1)]]
    columns: Annotated[tuple[Column, ...], Bounds(least=1)]
    metric: str = ""
    published: Names = ()
    note: str = ""
    search: Search = optional()


@dataclass(frozen=True, kw_only=True)
class Shows:
    """The content of a figure in place of the accuracy over rounds (results/figures.py): one of these, and its axis' label.

    label: of the axis. round: of `predictors`. diagnostic: a value that the server logs. metric: one of a predictor, as
    predictive_ece. predictors: the server's predictors of that name, in a round (-1: the last). labelled: accuracy by
    labelled images. megabytes: accuracy by megabytes sent until then, both ways. reliability: accuracy by confidence.
    against: accuracy by that of another level. error: a logged value of every network.
    """

    label: Text
    diagnostic: str = ""
    metric: str = ""
    predictors: str = ""
    round: int = 1
    labelled: bool = False
    megabytes: bool = False
    reliability: str = ""
    against: str = ""
    error: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure: curves over rounds, a panel for each combination of values of rows and columns.

    title: above it. experiment: whose runs it shows. accuracy: whose, one of the levels of metrics. rows, columns,
    curves, x: fields or axes, by their short names. curves: what tells curves apart. x: an axis of numbers below,
    instead of rounds. methods: labels. where: field or axis -> values. shows: other than accuracy over rounds. note:
    text below. search: to show the best of a grid.
    """

    title: Text
    experiment: str
    accuracy: str
    rows: Names
    columns: Names
    methods: Annotated[Names, Bounds(least=1)]
    where: Mapping[str, Any] = optional()
    curves: str = "method"
    x: str = ""
    shows: Shows = optional()
    note: str = ""
    search: Search = optional()


@dataclass(frozen=True)
class Claim:
    """An ordering that a paper claims, or that we ask about, tested in every cell of its experiments (results/claims.py).

    claim: the words. by: who says so. kind: of ordering, which decides about the last seven keys. experiments: whose
    cells are compared. metric: what is compared. where: field or axis (short) -> values of the cells. apart: axes in
    which the two sides may differ. most: whether more than half of the cells are enough. search: to compare best with
    best. method: a label. than: labels, or values of `along`. methods: labels. along: an axis. at: one of its values.
    dataset: a name. than_dataset: names.
    """

    claim: Text
    by: Literal["paper", "us"]
    kind: Literal["higher", "lower", "not higher", "higher at", "falls", "rises", "smaller gain"]
    experiments: Names
    metric: str
    where: Mapping[str, Any] = optional()
    apart: Names = ()
    most: bool = False
    search: Search = optional()
    method: str = ""
    than: tuple[Any, ...] = ()
    methods: Annotated[Names, Bounds(least=1)] = ()
    along: str = ""
    at: Any = None
    dataset: str = ""
    than_dataset: Names = ()


@dataclass(frozen=True, kw_only=True)
class MethodBlock:
    """The block `method` of a run file: a method's name, and as all other keys its options. name: the method's."""

    name: str
    options: Mapping[Word, Any] = rest()


@dataclass(frozen=True)
class Paper:
    """config/papers/<paper>.yaml: what a paper ran, and what it shows.

    paper: the file's name. title, reference: of the paper. run: its budget. methods: label in tables and figures ->
    method. experiments: name -> grid of runs. given: rules for some values of axes. settings: its words for an alpha, or
    for a scheme without one, and for one of these under label noise, as `iid label_noise 0.1`. first_client: what it calls
    client 0, where `client` in the file counts from 0. labels: how it writes names. statistics: further statistics of a
    curve, as `reach30: {first: 0.3}`. summary: names of the tables on the summary page, in order. tables, figures: name ->
    what it shows. claims: orderings that the paper states.
    """

    paper: Name
    title: Text
    reference: Text
    run: PaperRun
    methods: Annotated[Mapping[Text, MethodBlock], Bounds(least=1)]
    experiments: Annotated[Mapping[str, Experiment], Bounds(least=1)]
    given: tuple[Rule, ...] = ()
    settings: Mapping[str, Text] = optional()
    first_client: int = option(0, low=0)
    statistics: Mapping[str, Block] = optional()
    summary: Names = ()
    labels: Mapping[str, Text] = optional()
    tables: Mapping[Filename, Table] = optional()
    figures: Mapping[Filename, Figure] = optional()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class ShortRuns:
    """Which runs are trained several to a job: those below an estimated cost (multiply-adds forwards of all training; 0:
    none), and how many at most. The default is three quarters of a minute of FOLA's MLP on a core, seconds of a CNN;
    starting takes four."""

    below: float = option(1e11, low=0)
    together: int = option(20, low=1)


@dataclass(frozen=True)
class Config:
    """config/<name>.yaml: which papers' grids to run, and how much of them.

    name: of results/<name>/ and reports/<name>.html. notice: text over every table, figure and the report. benchmarks:
    whether the report has the tables of speed. papers: names of their files. plugins: a folder of plugins and papers of your
    own. weights: a folder of pretrained weights; without it all networks start from scratch. run: keys of a run file that
    replace the paper's. methods: label -> hyperparameters that replace the paper's; with a `name`, a method of your own.
    datasets: the paper's dataset -> the one in its place. tables, figures: of your own, as `Table` and `Figure`
    describe. data_mirror: a folder of the publishers' files. partitions: a folder for sampled partitions. gpu_slots: how
    many jobs share a GPU. precision: how networks are computed, by the device (auto) unless given. runs: train what is
    missing (all), or take those that are finished (finished).
    """

    name: Name
    papers: Annotated[tuple[Word, ...], Bounds(least=1, unique=True)]
    title: Text = ""
    notice: str = ""
    benchmarks: bool = False
    plugins: Word = ""
    weights: str | None = None
    seeds: Seeds = ()
    run: RunKeys = RunKeys()
    methods: Mapping[Text, Mapping[Word, Any]] = optional()
    datasets: Mapping[str, str] = optional()
    experiments: Mapping[str, Change] = optional()
    tables: Mapping[Filename, Block] = optional()
    figures: Mapping[Filename, Block] = optional()
    short_runs: ShortRuns = ShortRuns()
    data_mirror: str | None = None
    partitions: Folder | None = None
    gpu_slots: int = option(1, low=1)
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    runs: Literal["all", "finished"] = "all"
