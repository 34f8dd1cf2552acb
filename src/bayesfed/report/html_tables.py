"""The tables of the page: a paper's own, cell by cell beside the published numbers, and plain ones; each can be
downloaded."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bayesfed.results import cells, latex
from bayesfed.results.formatting import spoken, unique
from bayesfed.results.published_numbers import Compared
from bayesfed.results.records import DIVERGED, Record
from bayesfed.results.study import Study

COLOURED = {"higher": "higher", "lower": "lower", DIVERGED: "diverged", "not run": "open", "not published": "ours"}
"""The colour of a cell by its verdict; `within ...` is `close`, what cannot be compared with the published numbers is
`apart`, and finished runs without a value are `bare`."""
GLYPHS = {"close": "≈", "higher": "▲", "lower": "▼", "diverged": "✕", "apart": "†"}
"""Signs that say the same without colour."""


def run_id(folder: Path) -> str:
    """Return a run's name on the page: its folder's, which ends in its key."""
    return folder.name


def runs_of(records: Iterable[Record]) -> str:
    """Name the finished runs behind these records, joined by commas."""
    return ",".join(unique(run_id(record.folder) for record in records if record.done))


@dataclass(frozen=True)
class Files:
    """A table to download: as CSV, and in LaTeX for the package booktabs, both as links that hold all of it."""

    name: str
    csv: str
    latex: str


def download(name: str, title: str, frame: pd.DataFrame, whole: pd.DataFrame | None = None) -> Files:
    """Return the downloads of a table; the CSV is of `whole`, if that says more."""
    comment = " ".join(title.split())
    csv = (frame if whole is None else whole).to_csv(index=False, lineterminator="\n")
    return Files(name, as_link(csv, "csv"), as_link(f"% {comment}\n{in_latex(frame)}", "x-tex"))


def in_latex(frame: pd.DataFrame) -> str:
    """Write a frame of texts as a LaTeX table for booktabs; columns of two levels have the first over those it spans."""
    columns = [name if isinstance(name, tuple) else (name,) for name in frame.columns]
    heads = []
    for level in range(len(columns[0])):
        texts = [latex.escaped(str(name[level])) for name in columns]
        last = level == len(columns[0]) - 1
        spans = [(text, 1) for text in texts] if last else [(text, len([*of])) for text, of in itertools.groupby(texts)]
        heads.append([text if span == 1 else rf"\multicolumn{{{span}}}{{r}}{{{text}}}" for text, span in spans])
    body = [[latex.escaped(str(value)) for value in row] for row in frame.itertuples(index=False)]
    return "\n".join([*latex.tabular(heads, body, len(columns)), ""])


def as_link(text: str, kind: str) -> str:
    """Return a data URL that holds a text."""
    return f"data:text/{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


@dataclass(frozen=True)
class Plain:
    """A table as it is: its columns, and rows of texts; `runs` has a link for each row, or is empty."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    files: Files
    runs: Sequence[str] = ()


def plain(name: str, title: str, frame: pd.DataFrame, runs: Sequence[str] = ()) -> Plain:
    """Return a data frame of texts as a table of the page."""
    rows = [list(map(str, row)) for row in frame.itertuples(index=False)]
    return Plain(title, list(map(str, frame.columns)), rows, download(name, title, frame), runs)


@dataclass(frozen=True)
class Shown:
    """A cell of the page, beside the published numbers.

    `row` is its row of the comparison, `kind` its colour, `runs` its finished runs, joined by commas, `notes` the numbers of
    its footnotes; `best`: whether it is the best of its row's methods.
    """

    row: Mapping[str, str]
    kind: str
    seeds: str
    runs: str
    notes: list[int]
    percent: bool
    best: bool = False

    @property
    def link(self) -> str:
        """The link to its runs on the page; "" without any."""
        return f"#runs={self.runs}" if self.runs else ""

    @property
    def glyph(self) -> str:
        """The verdict without colour."""
        return GLYPHS.get(self.kind, "")


@dataclass(frozen=True)
class Table:
    """A table of a paper: the names of its keys, its columns, and for each row the keys' values and the cells."""

    name: str
    title: str
    keys: list[str]
    columns: list[str]
    rows: list[tuple[list[str], list[Shown]]]
    footnotes: list[str]
    note: str
    files: Files
    counted: bool
    """True if each published number is in one cell, so that cells near the published numbers can be counted."""

    @property
    def cells(self) -> list[Shown]:
        """All cells, row by row."""
        return [cell for _, of_row in self.rows for cell in of_row]

    @property
    def run(self) -> bool:
        """True if any cell has a finished run."""
        return any(cell.kind != "open" for cell in self.cells)


def of_paper(
    study: Study, name: str, table: Mapping[str, Any], rows: Sequence[cells.Row], compared: Sequence[Compared]
) -> Table:
    """Return a paper's table beside the published numbers; `compared`: its cells, row by row."""
    footnotes: list[str] = []
    beside = iter(compared)
    shown = [
        (
            [study.written(key, value) for key, value in keys.items()],
            with_best(of_row, [cell_of(next(beside), footnotes) for _ in of_row]),
        )
        for keys, of_row in rows
    ]
    columns = [cells.title(study, column) for column in table["columns"]]
    heads = [spoken(key) for key in table["rows"]]
    frame = pd.DataFrame(
        [[*keys, *(text for cell in of_row for text in three(cell.row))] for keys, of_row in shown],
        columns=pd.MultiIndex.from_tuples(
            [("", key) for key in heads]
            + [(each, of) for each in columns for of in ("published", "here", "difference")]
        ),
    )
    files = download(f"{study.paper}-{name}", table["title"], frame, pd.DataFrame([one.row for one in compared]))
    items = table.get("published", [name])
    return Table(name, table["title"], heads, columns, shown, footnotes, table.get("note", ""), files, len(items) == 1)


def with_best(of_row: Sequence[cells.Cell], shown: list[Shown]) -> list[Shown]:
    """Mark the best cell of a row whose columns are methods, alike in all else; none of one method, or of different
    metrics."""
    methods = [cell.keys.get("method") for cell in of_row]
    if len(set(methods)) < len(methods) or None in methods or len({cell.metric for cell in of_row}) > 1:
        return shown
    means = [cell.score.mean for cell in of_row if cell.score.mean is not None]
    if len(means) < 2:
        return shown
    best = max(means) if of_row[0].statistic.rising else min(means)
    return [replace(one, best=cell.score.mean == best) for cell, one in zip(of_row, shown, strict=True)]


def cell_of(one: Compared, footnotes: list[str]) -> Shown:
    """Return a cell of a table; add its remarks to the table's footnotes if they are not among them."""
    verdict, score, records = one.row["verdict"], one.cell.score, one.cell.records
    kind = "close" if verdict.startswith("within") else COLOURED.get(verdict, "apart")
    kind = "diverged" if verdict.endswith(DIVERGED) else kind
    kind = "bare" if score.missing and score.mean is None else kind
    told = "; ".join(one.remarks) if kind != "open" else ""
    footnotes += [told] if told and told not in footnotes else []
    seeds = "" if kind == "open" else f"{many(score)} seed{'s' if score.planned != 1 else ''}"
    notes = [footnotes.index(told) + 1] if told else []
    return Shown(one.row, kind, seeds, runs_of(records), notes, one.cell.statistic.scale == 100)


def many(score: cells.Score) -> str:
    """Return how many seeds a cell has; the number alone if the cell itself says why none has a value."""
    if not score.missing or score.seeds:
        return score.count()
    done = sum(score.missing.values())
    return str(done) if done == score.planned else f"{done} of {score.planned}"


def three(row: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the published value, the one here and the difference, as a row of the comparison has them."""
    here = f"{row['mean']} ± {row['sd']}" if row["sd"] else row["mean"]
    return row["published"], here, row["difference"]
