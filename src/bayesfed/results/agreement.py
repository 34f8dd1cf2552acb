"""How far a paper's tables agree with print, and what its experiments cost, as Markdown."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from bayesfed import files
from bayesfed.results import cells, claims, compare, tables

WITHIN = (1, 3, 5)  # points of a percentage
VERDICTS = {"holds": "held so far", "holds in part": "held in part", "does not hold": "not held"}


def compared(
    study: cells.Study, spec: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
) -> tuple[int, list[tuple[float, float]]]:
    """How many cells of a table are printed in percent, and (print, ours) of those whose runs are the paper's in everything.

    `rows` are the table's rows of the comparison, one a cell in the same order.
    """
    own = [cell for _, of_row in tables.rows(study, spec) for cell in of_row]
    printed = [row for cell, row in zip(own, rows, strict=True) if row["published"] and cell.statistic.scale == 100]
    judged = [row for row in printed if row["verdict"] in ("higher", "lower") or row["verdict"].startswith("within")]
    return len(printed), [(float(row["published"]), float(row["mean"])) for row in judged]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's, of our cells with the printed ones; None where there are fewer than three, or all of one side are equal."""
    if len(pairs) < 3 or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def of_tables(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """A row for each printed table: its cells, those run, how many come near, and whether their order is that of print."""
    found = []
    for name, spec in study.spec.get("tables", {}).items():
        rows = compare.compare(study, spec, spec.get("published", [name]), published)
        printed, pairs = compared(study, spec, rows)
        if not printed:
            continue
        away = [abs(ours - theirs) for theirs, ours in pairs]
        ranked = rank_correlation(pairs)
        found.append(
            [
                name,
                str(printed),
                str(len(pairs)),
                *(str(sum(distance <= limit for distance in away)) if pairs else "" for limit in WITHIN),
                f"{statistics.fmean(ours - theirs for theirs, ours in pairs):+.2f}" if pairs else "",
                f"{statistics.fmean(away):.2f}" if pairs else "",
                "" if ranked is None else f"{ranked:.2f}",
            ]
        )
    near = [f"within {limit}" for limit in WITHIN]
    head = ["table", "cells in print", "run", *near, "mean difference", "mean distance", "rank correlation"]
    return f"{tables.markdown(head, found)}\n" if found else ""


def in_words(study: cells.Study, published: Sequence[Mapping[str, str]], totals: Sequence[Mapping[str, str]]) -> str:
    """How many printed cells are run and how near they come, and what became of the paper's claims, in two sentences.

    `totals` are the first of each claim's rows. A table of means over other tables' cells prints nothing of its own.
    """
    printed, away = 0, []
    for name, spec in study.spec.get("tables", {}).items():
        items = spec.get("published", [name])
        if len(items) == 1:
            count, pairs = compared(study, spec, compare.compare(study, spec, items, published))
            printed += count
            away += [abs(ours - theirs) for theirs, ours in pairs]
    near = ", ".join(f"{sum(distance <= limit for distance in away)} within {limit}" for limit in WITHIN)
    verdicts = [row["verdict"] for row in totals if row["by"] == "paper"]
    many = {words: verdicts.count(verdict) for verdict, words in VERDICTS.items()}
    many["of other runs than the paper's"] = sum("(" in verdict for verdict in verdicts)
    many["waiting for runs"] = len(verdicts) - sum(many.values())
    out = f"Of {printed} printed percentages {len(away)} are run" + (f": {near} points of print." if away else ".")
    told = ", ".join(f"{count} {words}" for words, count in many.items() if count)
    return f"{out} The paper's {len(verdicts)} claims: {told}." if verdicts else out


def of_claims(study: cells.Study) -> str:
    """A row for each claim: in how many cells and seeds it holds."""
    found = []
    for claim in study.spec.get("claims", []):
        row = claims.rows(study, claim)[0]
        found.append(
            [row["claim"], row["by"], row["holds"], row["of"], row["planned"], row["difference"], row["verdict"]]
        )
    head = ["claim", "by", "holds in", "of finished", "planned", "mean difference", "verdict so far"]
    return f"{tables.markdown(head, found)}\n" if found else ""


def of_costs(records: Iterable[cells.Record]) -> str:
    """A row for each experiment: its runs, what one took, and what those that are open would take at that."""
    folders: dict[str, dict[Path, bool]] = {}
    for record in records:
        folders.setdefault(record.experiment, {})[record.folder] = record.done
    found = []
    for experiment, runs in folders.items():
        done = [json.loads((folder / "provenance.json").read_text()) for folder, finished in runs.items() if finished]
        hours = statistics.fmean(each["train_seconds"] for each in done) / 3600 if done else None
        found.append(
            [
                experiment,
                str(len(runs)),
                str(len(done)),
                "" if hours is None else f"{hours:.2f}",
                "" if hours is None else f"{hours * (len(runs) - len(done)):.0f}",
                " or ".join(cells.unique(map(cells.place, done))),
            ]
        )
    head = ["experiment", "runs planned", "stand", "hours of one", "hours of those open, at that", "hardware"]
    return f"{tables.markdown(head, found)}\n"


def text(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """The whole of it, under the label of the paper's own method."""
    parts = (of_tables(study, published), of_claims(study), of_costs(study.records))
    return f"### {study.own_method}\n\n" + "".join(parts)


def write(plan: Path, out: Path, runs: Path | None = None, papers: Path = Path("config/papers")) -> list[Path]:
    """Write `<out>/<paper>/agreement.md` for each paper of the plan; arguments, errors as in `compare.write`."""
    written = []
    for study in cells.studies(plan, runs):
        path = out / study.paper / "agreement.md"
        published = compare.read_published(study.folder(papers) / f"{study.paper}.published.csv")
        files.write_text(path, text(study, published))
        written.append(path)
    return written
