"""How far a paper's tables agree with print, and what its experiments cost, as Markdown."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from bayesfed.core import files
from bayesfed.results import cells, claims, comparison, hardware, run_records, tables
from bayesfed.results import study as join

WITHIN = (1, 3, 5)  # points of a percentage
VERDICTS = {
    "holds": "held so far",
    "holds in part": "held in part",
    "does not hold": "not held",
    "level": "level",
    cells.DIVERGED: cells.DIVERGED,
}


Pairs = list[tuple[float, float]]
"""(print, ours) of cells."""
Beside = list[tuple[tables.Cell, dict[str, str]]]
"""Cells, each with its row of the comparison with print."""


def in_percent(
    study: cells.Study, name: str, spec: Mapping[str, Any], published: Sequence[Mapping[str, str]]
) -> Beside:
    """The cells of a table that are printed in percent."""
    own = [cell for _, of_row in tables.rows(study, spec) for cell in of_row]
    rows = comparison.compare(study, spec, spec.get("published", [name]), published)
    both = zip(own, rows, strict=True)
    return [(cell, row) for cell, row in both if row["published"] and cell.statistic.scale == 100]


def as_in_print(printed: Beside) -> Beside:
    """Those of them whose runs stand, and are the paper's in everything."""
    return [each for each in printed if each[1]["verdict"].startswith(("higher", "lower", "within"))]


def compared(stand: Beside) -> list[Pairs]:
    """A list for the cells that differ in nothing but the method."""
    alike = dict[tuple[object, ...], Pairs]()
    for cell, row in stand:
        rest = (cell.metric, *((key, value) for key, value in cell.keys.items() if key != "method"))
        alike.setdefault(rest, []).append((float(row["published"]), float(row["mean"])))
    return list(alike.values())


def rank_correlation(pairs: Pairs) -> float | None:
    """Spearman's, of our cells with the printed ones; None where there are fewer than three, or all of one side are
    equal."""
    if len(pairs) < 3 or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def order(alike: Sequence[Pairs]) -> str:
    """How far the order of methods is print's: the mean rank correlation, and its range and number where there are several;
    "" where nowhere three methods can be compared."""
    ranked = [found for found in map(rank_correlation, alike) if found is not None]
    if not ranked:
        return ""
    spread = f" ({min(ranked):.1f} to {max(ranked):.1f} in {len(ranked)})" if len(ranked) > 1 else ""
    return f"{statistics.fmean(ranked):.2f}{spread}"


def of_tables(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """A row for each printed table: its cells, those run, how many come near, and whether their order is that of print."""
    found = []
    for name, spec in study.spec.get("tables", {}).items():
        printed = in_percent(study, name, spec, published)
        if not printed:
            continue
        stand = as_in_print(printed)
        away = [distance(row) for _, row in stand]
        found.append(
            [
                name,
                str(len(printed)),
                str(len(away)),
                *(str(sum(points <= limit for points in away)) if away else "" for limit in WITHIN),
                f"{statistics.fmean(float(row['difference']) for _, row in stand):+.2f}" if stand else "",
                f"{statistics.fmean(away):.2f}" if away else "",
                order(compared(stand)),
            ]
        )
    near = [f"within {limit}" for limit in WITHIN]
    head = ["table", "cells in print", "run", *near, "mean difference", "mean distance", "order of methods"]
    return f"{tables.markdown(head, found)}\n" if found else ""


def printing(study: cells.Study) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables with printed cells; one of means over other tables' cells prints nothing of its own."""
    named = study.spec.get("tables", {}).items()
    return [(name, spec) for name, spec in named if len(spec.get("published", [name])) == 1]


def distance(row: Mapping[str, str]) -> float:
    """How many points a row of the comparison is from print."""
    return abs(float(row["difference"]))


def of_far(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """A row for each printed percentage that is further from print than the widest of WITHIN."""
    found = []
    for name, spec in printing(study):
        for cell, row in as_in_print(in_percent(study, name, spec, published)):
            if distance(row) > WITHIN[-1]:
                where = tables.title(study, {key: cell.keys[key] for key in spec["rows"]})
                numbers = [row[column] for column in ("mean", "published", "difference", "seeds")]
                found.append([name, f"{where}, {cell.column}", *numbers])
    head = [f"more than {WITHIN[-1]} points from print", "cell", "here", "print", "difference", "seeds"]
    return f"{tables.markdown(head, found)}\n" if found else ""


def in_words(study: cells.Study, published: Sequence[Mapping[str, str]], found: Sequence[claims.Tested]) -> str:
    """How many printed cells are run and how near they come, and what became of the paper's claims, in a sentence each; ""
    where it has neither."""
    printed, away = 0, []
    for name, spec in printing(study):
        beside = in_percent(study, name, spec, published)
        printed += len(beside)
        away += [distance(row) for _, row in as_in_print(beside)]
    near = ", ".join(f"{sum(points <= limit for points in away)} within {limit}" for limit in WITHIN)
    own = [one.total for one in found if one.claim["by"] == "paper"]
    told = [one.told for one in own]
    many = {words: told.count(verdict) for verdict, words in VERDICTS.items()}
    many["tested in a part of their cells"] = sum(bool(one.part and not one.apart) for one in own)
    many["of other runs than the paper's"] = sum(bool(one.apart) for one in own)
    many["not in this plan"] = sum(not one.planned for one in own)
    many["waiting for runs"] = sum(one.verdict == "not run" and one.planned > 0 for one in own)
    many["without a number in the runs that stand"] = len(own) - sum(many.values())
    out = f"Of {printed} printed percentages {len(away)} are run" + (f": {near} points of print." if away else ".")
    counts = ", ".join(f"{count} {words}" for words, count in many.items() if count)
    said = [out if printed else "", f"The paper's {len(own)} claims: {counts}." if own else ""]
    return " ".join(filter(None, said))


def of_claims(study: cells.Study) -> str:
    """A row for each claim: in how many cells and seeds it holds."""
    found = [claim_line(claims.tested(study, claim)) for claim in study.spec.get("claims", [])]
    return f"{tables.markdown(CLAIM_HEAD, found)}\n{RULE}\n\n" if found else ""


RULE = (
    "A claim holds where it does in every cell and seed tested (one that speaks of most: in more than half), in part where in "
    "some. Differences are means over these, of the first named minus what it is compared with, or of the last place minus the "
    "first."
)
CLAIM_HEAD = ["claim", "by", "holds in, of finished (planned)", "mean difference", "verdict so far"]


def claim_line(of: claims.Tested) -> list[str]:
    """A claim in the columns of CLAIM_HEAD: `2 of 5, 3 level (15)`; with the precisions where runs of different ones are
    compared."""
    total = of.total
    counted, verdict = "", "not in this plan"
    if total.planned:
        level = f", {total.level} level" if total.level else ""
        counted = f"{total.holds} of {total.of}{level} ({total.planned})"
        verdict = f"{total.told}{f', {total.precision}' if ' against ' in total.precision else ''}"
    difference = claims.amount(total.difference, of.tests[0].statistic, signed=True) if total.difference else ""
    return [of.claim["claim"], of.claim["by"], counted, difference, verdict]


def of_costs(records: Iterable[cells.Record]) -> str:
    """A row for each experiment: its runs, what one took on a CPU, and what those that are open would take at the mean of
    their like, runs of the same method, network and data; how many have none that stands."""
    experiments: dict[str, dict[Path, cells.Record]] = {}
    for record in records:
        experiments.setdefault(record.experiment, {}).setdefault(record.folder, record)
    found = []
    for experiment, of in experiments.items():
        took: dict[tuple[str, str, str], list[float]] = {}
        for folder, record in of.items():
            made = run_records.provenance(folder) if record.done else {}
            if made and all(hardware.machines(made).values()):  # each with its threads: all were CPUs
                took.setdefault(kind(record), []).append(made["train_seconds"] / 3600)
        each = [hours for hours_of in took.values() for hours in hours_of]
        still = [record for record in of.values() if not record.done]
        known = [statistics.fmean(took[kind(record)]) for record in still if kind(record) in took]
        found.append(
            [
                experiment,
                str(len(of)),
                str(len(of) - len(still)),
                f"{statistics.fmean(each):.2f}" if each else "",
                f"{sum(known):.0f} ({len(known)} runs)" if known else "",
                str(len(still) - len(known)),
                hardware.places(run_records.provenance(one) for one in of if of[one].done),
            ]
        )
    head = [
        "experiment",
        "runs planned",
        "stand",
        "hours of one on a CPU",
        "hours of open ones like these",
        "open ones unlike",
        "hardware",
    ]
    return f"{tables.markdown(head, found)}\n"


def kind(record: cells.Record) -> tuple[str, str, str]:
    """What a run's time hangs on: its method, network and data."""
    return record.method, record.model, record.used


def text(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """The whole of it, under the label of the paper's own method."""
    parts = (of_tables(study, published), of_far(study, published), of_claims(study), of_costs(study.records))
    return f"### {study.heading}\n\n{notice(study)}" + "".join(parts)


def notice(study: cells.Study) -> str:
    """What the config says of all its numbers, and how its finished runs differ from the paper's, a paragraph each."""
    changes = study.changes([record for record in study.records if record.done] or list(study.records))
    told = [study.notice, f"Its runs: {changes}." if study.notice and changes else ""]
    return "".join(f"**{words}**\n\n" for words in told if words)


def write(plan: Path, out: Path) -> list[Path]:
    """Write `<out>/<paper>/agreement.md` for each paper of the plan; arguments, errors as in `compare.write`."""
    written = []
    for study in join.studies(plan):
        path = out / study.paper / "agreement.md"
        published = comparison.read_published(study.published)
        files.write_text(path, text(study, published))
        written.append(path)
    return written
