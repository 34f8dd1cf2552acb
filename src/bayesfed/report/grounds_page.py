"""The page of a comparison: methods on grounds in one HTML file, without a request to anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bayesfed import __version__
from bayesfed.report.templating import templates
from bayesfed.results import gains, grounds_files, hardware, paired, searches, statements
from bayesfed.results.grounds import ACCURACY, COLUMNS, PLAIN, QUALITY, SHARE, SIDES, Ground, Trial, has, shown_columns
from bayesfed.results.paired import Comparison
from bayesfed.results.searches import Searched
from bayesfed.results.study import Study

Json = dict[str, Any]


def of_plan(plan: Mapping[str, Any], studies: Sequence[Study]) -> str:
    """Render the page of a plan's grounds; "" for one of papers alone, whose tables, figures or claims are shown."""
    sides = paired.of_plan(plan, studies)
    if not sides:
        return ""
    run_of = paired.runs_of(studies)
    searched = searches.load(plan["cells"], lambda folder: run_of(folder).summary)
    return page(sides, searched, plan["title"], [], plan["notice"])


def page(
    sides: Sequence[Comparison], searched: Sequence[Searched], title: str, asked: Sequence[str], notice: str = ""
) -> str:
    """Render the page of a comparison; asked: the methods that the reader compares with all others."""
    grounds = sides[0].grounds
    return (
        templates()
        .get_template("grounds.html")
        .render(
            title=title,
            notice=notice,
            version=__version__,
            runs=sum(bool(one.summary) for ground in grounds for of in ground.trials.values() for one in of.values()),
            leaders=[found for side in sides if (found := leaders(side))],
            gains=grounds_files.gains_tables(sides),
            gains_key=gains.KEY,
            told={SIDES[side.side]: lines for side in sides if (lines := statements.further(side))},
            data=content(sides, searched, asked),
        )
    )


def content(sides: Sequence[Comparison], searched: Sequence[Searched], asked: Sequence[str]) -> Json:
    """Return all that the page's script shows."""
    grounds = sides[0].grounds
    methods = list(dict.fromkeys(method for side in sides for method in side.methods))
    return {
        "sides": {side.side: SIDES[side.side] for side in sides if side.methods},
        "baseline": grounds[0].baseline,
        "plain": PLAIN,
        "asked": list(asked),
        "methods": methods,
        "columns": [
            {"name": one.name, "title": one.head, "words": one.words, "rising": one.rising, "decimals": one.decimals,
             "quality": one in QUALITY}
            for one in COLUMNS
        ],
        "shown": {side.side: [one.name for one in shown_columns(grounds, side.side)] for side in sides},
        "grounds": [{"name": one.name, "title": grounds_files.title(one)} for one in grounds],
        "target": {side.side: [target(one, side.side) for one in grounds] for side in sides},
        "cells": {side.side: [cells(side, place) for place in range(len(grounds))] for side in sides},
        "differences": {side.side: [differences(side, place, methods) for place in range(len(grounds))] for side in sides},
        "ranks": {side.side: ranks(side) for side in sides},
        "pairs": grounds_files.PAIRS,
        "key": grounds_files.MARKS,
        "seeds": {side.side: [some_seeds(one, side.side) for one in grounds] for side in sides},
        "runs": {one.name: {method: runs(one, method) for method in one.trials} for one in grounds},
        "searches": {method: tried(method, searched) for method in methods},
    }  # fmt: skip


def leaders(side: Comparison) -> Json | None:
    """Return who leads in what, a row a ground; None where one seed says nothing."""
    if statements.one_seed(side):
        return None
    found = {words: statements.led(side, column) for column, words in statements.LEADS.items()}
    rows = {
        ground.name: [next((one for one in of if one.ground == ground.name), None) for of in found.values()]
        for ground in side.grounds
    }
    rows = {name: leads for name, leads in rows.items() if any(leads)}
    return {"title": SIDES[side.side], "heads": list(found), "rows": rows} if rows else None


def some_seeds(ground: Ground, side: str) -> dict[str, str]:
    """Count the seeds of the methods that have not all, or of which some fail: `3 of 5`, `5, 1 fails`."""
    every = {method: grounds_files.seeds(ground, side, method) for method in ground.trials}
    return {method: count for method, count in every.items() if not count.isdecimal()}


def target(ground: Ground, side: str) -> str:
    """Name the accuracy that megabytes are counted to."""
    found = ground.target.get(side)
    return f"{100 * found:.1f} % ({SHARE:.0%} of {ground.baseline})" if found else ""


def cells(side: Comparison, place: int) -> Json:
    """Return the cells of a ground: method -> column -> text, mark, mean, and why there is none."""
    found = {}
    for method in grounds_files.ordered(side, place):
        each = {name: grounds_files.cell(of[place], method) for name, of in side.compared.items()}
        found[method] = {
            name: [one.text, one.mark, None if one.mean is None else rounded(one.mean), one.why]
            for name, one in each.items()
        }
        if " of " in each["megabytes_to"].text:  # a mean over the seeds that reach it is not one to sort by
            found[method]["megabytes_to"][2] = None
    return found


def differences(side: Comparison, place: int, methods: Sequence[str]) -> Json:
    """Return the differences of a ground: column -> places of a pair's methods -> mean and ends of its interval."""
    at = {method: number for number, method in enumerate(methods)}
    return {
        column.name: {
            f"{at[a]},{at[b]}": [rounded(end) for end in (one.mean, one.low, one.high)]
            for (a, b), one in side.compared[column.name][place].differences.items()
        }
        for column in QUALITY
    }


def ranks(side: Comparison) -> Json:
    """Return mean ranks, and over how many grounds: method -> column -> both."""
    found: Json = {}
    for method in side.methods:
        found[method] = {one.name: rank for one in QUALITY if (rank := side.mean_rank(one.name, method))}
    return found


def rounded(value: float | None) -> float | None:
    """Round to five digits, so that the page stays small."""
    return None if value is None else float(f"{value:.5g}")


def runs(ground: Ground, method: str) -> list[Json]:
    """List the finished runs of a method on a ground."""
    return [run(ground, one) for one in ground.trials[method].values() if one.summary]


def run(ground: Ground, trial: Trial) -> Json:
    """Return a run: its row, its run file, and the command that checks it."""
    summary, folder = trial.summary, trial.run.folder.as_posix()
    found = [ground.value(ACCURACY, side, trial) if has(trial, side) else "" for side in SIDES]
    accuracies = [one if isinstance(one, str) else f"{one:.{ACCURACY.decimals}f}" for one in found]
    spent = summary.get("cpu_seconds") if trial.run.provenance["device"] == "cpu" else None
    row = [trial.seed, *accuracies, f"{spent or summary['train_seconds']:.0f}", hardware.place(trial.run.provenance)]
    return {"row": row, "file": trial.run.run_file, "command": f"bayesfed verify {shlex.quote(folder)} --rounds 1"}


def tried(method: str, searched: Sequence[Searched]) -> list[tuple[str, list[list[str]]]]:
    """List the searches of a method, or of what it is the plain twin of, that have a finished run: dataset, and a row a
    configuration.
    """
    own = (one for one in searched if one.method == method.removesuffix(PLAIN))
    return [(one.dataset, one.rows) for one in own if any(one.summaries)]
