"""A paper's results in short, as Markdown: its tables as far as they are run, beside the published numbers and with
their cost, and the claims."""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.results import cells, formatting, hardware, markdown, published_page, selection, tails
from bayesfed.results.cells import Cell
from bayesfed.results.derived import Derived
from bayesfed.results.formatting import unique
from bayesfed.results.records import DIVERGED, Record
from bayesfed.results.study import Study

APART = "†"
"""Behind a number that is not of the paper's run."""

OTHER_ROUNDS = "‡"
"""Behind a cell with a number that is not of the run's last rounds, but of the last in which a model was tested."""

LEGEND = "Means over seeds ± standard deviation"
IN_BRACKETS = ", published ones in brackets with their own where they have one"
LAST = " Behind a slash the mean of the last five rounds, where the round of the number before it is chosen on the test set"
CLAIMS = "Claims that have been tested"
RUNS = "Finished runs of each experiment, by seed"


def cost(seconds: Sequence[float]) -> str:
    """Write what a run took, or from least to most: `4 to 22 min`, `20 min to 2.1 h`."""
    least, most = formatting.duration(min(seconds)), formatting.duration(max(seconds))
    if least == most:
        return " ".join(most)
    return " to ".join([least[0] if least[1] == most[1] else " ".join(least), " ".join(most)])


def number(cell: Cell, records: Sequence[Record]) -> str:
    """Write the value of some of a cell's records; "" without a finished one.

    Behind a slash the mean of the last five rounds, if the round is chosen on the test set; a mark if they are not of
    the paper's run.
    """
    whole = len(records) == len(cell.records)
    score = cell.score if whole else cells.score(records, cell.statistic)
    here = score.shown()
    if not here:
        return ""
    if score.seeds and cell.statistic.chosen:
        last5 = cell.last5 if whole else cells.score(records, cell.statistic.last5)
        here += f" / {last5.number(last5.mean)}" if last5.seeds else ""
    return here + ("" if all(record.is_the_papers for record in records) else APART)


def cell_text(cell: Cell, row: Mapping[str, str]) -> str:
    """Write a cell's value, the published number in brackets, and whatever else a reader must know; "" without a
    finished run.
    """
    here = number(cell, cell.records)
    if not here:
        return ""
    score = cell.score
    spread = f" ± {row['published_sd']}" if row["published_sd"] else ""
    here += f" ({row['published']}{spread})" if row["published"] else ""
    here += OTHER_ROUNDS if of_rounds(cell) else ""
    told = [selection.chosen(cell.records), score.count().partition(", ")[2] if score.seeds else ""]
    return "; ".join([here, *filter(None, told)])


def of_rounds(cell: Cell) -> str:
    """Of which rounds a cell's last numbers are, as far as it shows them; "" where they are of the run's last rounds."""
    shown = [cell.statistic, *([cell.statistic.last5] if cell.statistic.chosen else [])]
    return tails.of_rounds(cell.records, *shown)


def beside(study: Study, keys: Mapping[str, str], cell: Cell) -> str:
    """Name what a cell has in common with those that it is to be compared with: its labels but the method's.

    `keys`: those of its row.
    """
    of_row = [study.written(key, value) for key, value in keys.items() if key != "method"]
    if "method" in keys:
        return ", ".join([*of_row, cell.column])
    of_column = [study.written(key, value) for key, value in cell.keys.items() if key not in keys and key != "method"]
    return ", ".join([*of_row, *of_column])


def seed_by_seed(study: Study, rows: Iterable[tuple[Mapping[str, str], Sequence[Cell]]]) -> str:
    """Write each seed's numbers if methods beside each other have different seeds; "" if none have.

    `rows`: those of `tables.rows`.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)  # by method, by seed
    for keys, of_row in rows:
        for cell in of_row:
            found = {}
            for seed in unique(record.seed for record in cell.records):
                found[seed] = number(cell, [record for record in cell.records if record.seed == seed])
            groups[beside(study, keys, cell), cell.metric][study.label(cell.keys.get("method", ""))] = found
    columns: dict[str, dict[str, str]] = {}
    for (name, _), of_methods in groups.items():
        run = {
            method: [seed for seed, shown in found.items() if shown and not shown.startswith(DIVERGED)]
            for method, found in of_methods.items()
        }
        if len({tuple(seeds) for seeds in run.values() if seeds}) > 1:
            for seed in unique(itertools.chain(*of_methods.values())):
                shown = {method: found[seed] for method, found in of_methods.items() if found.get(seed)}
                columns |= {f"{name}, seed {seed}": shown} if shown else {}
    if not columns:
        return ""
    methods = unique(method for each in columns.values() for method in each)
    lines = [[method, *(each.get(method, "") for each in columns.values())] for method in methods]
    return f"Not all on the same seeds; seed by seed:\n\n{markdown.table(['', *columns], lines)}\n"


def table(of: Derived, name: str) -> str:
    """Write a table in the paper's layout, without rows and columns that have no finished run; "" where none has a result,
    as where all runs are too short."""
    study, spec, own = of.study, of.study.tables[name], of.rows[name]
    if not any(cell.score.seeds or cell.score.diverged for _, of_row in own for cell in of_row):
        return ""
    compared = iter(of.compared[name])
    texts = [[cell_text(cell, next(compared).row) for cell in of_row] for _, of_row in own]
    kept = [column for column, of_column in enumerate(zip(*texts, strict=True)) if any(of_column)]
    shown: list[list[str]] = []
    made: dict[Path, dict[str, Any]] = {}
    for (keys, of_row), found in zip(own, texts, strict=True):
        if not any(found):
            continue
        records = [record for cell in of_row for record in cell.records if record.done]
        runs = {record.folder: record.run for record in records}
        of_these = {folder: runs[folder].provenance for folder in sorted(runs)}
        made |= of_these
        row = ", ".join(study.written(key, value) for key, value in keys.items())
        scores = [cell.score for cell in of_row]
        seeds, planned = sorted({each.seeds for each in scores if each.seeds}), max(each.planned for each in scores)
        many = " to ".join(map(str, (seeds[0], seeds[-1]) if len(seeds) > 1 else seeds)) or "0"
        many += "" if seeds == [planned] else f" of {planned}"
        shown.append(
            [
                row,
                *(found[column] for column in kept),
                many,
                cost([run["train_seconds"] for run in of_these.values()]),
            ]
        )
    head = ["", *(cells.title(study, spec["columns"][column]) for column in kept), "seeds", "cost of a run"]
    under = f"On {hardware.places(made.values())}."
    other = "not the paper's run" if study.reproduces else "other than its file asks for"
    under += f" {APART} {other}." if any(APART in text for found in texts for text in found) else ""
    told = unique(cell.caveat for _, of_row in own for cell in of_row)
    under += "".join(f" {cell[0].upper()}{cell[1:]}." for cell in told if cell)
    told = unique(filter(None, (of_rounds(cell) for _, of_row in own for cell in of_row)))
    under += f" {OTHER_ROUNDS} {' or '.join(told)}." if told else ""
    return f"**{spec['title']}**\n\n{markdown.table(head, shown)}\n{under}\n\n{seed_by_seed(study, own)}"


def legend(shown: str, published: bool) -> str:
    """Write the legend of the tables shown; `published`: whether there are published numbers."""
    last = f"{LAST}." if " / " in shown else ""
    return f"{LEGEND}{IN_BRACKETS * published}.{last}"


def runs(study: Study) -> str:
    """Tabulate how many of the planned runs of each experiment are finished, by seed: `18 of 25`."""
    planned: dict[tuple[str, str], dict[Path, bool]] = defaultdict(dict)
    for record in study.records:
        planned[record.experiment, record.seed][record.folder] = record.done
    experiments, seeds = unique(name for name, _ in planned), sorted({seed for _, seed in planned}, key=int)
    lines = []
    for name in experiments:
        of_seeds = [planned.get((name, seed), {}).values() for seed in seeds]
        lines.append([name, *(f"{sum(done)} of {len(done)}" if done else "" for done in of_seeds)])
    return f"**{RUNS}**\n\n{markdown.table(['', *(f'seed {seed}' for seed in seeds)], lines)}\n"


def text(of: Derived) -> str:
    """Write the whole page, under the label of the paper's own method.

    Tables of the config's own, those named under `summary` in the paper's YAML, the runs of each experiment, then every
    claim that a finished run touches.
    """
    study = of.study
    asked = unique(str(record.folder) for record in study.records)
    done = unique(str(record.folder) for record in study.records if record.done)
    out = f"### {study.heading}\n\n{published_page.notice(study)}{len(done)} of {len(asked)} planned runs are finished."
    if not done:
        return f"{out}\n\n"
    said = published_page.in_words(of)
    out += f"{said and f' {said}'}\n\n"
    shown = "".join(table(of, name) for name in study.spec.get("summary", []))
    out += f"{legend(shown, bool(of.published))}\n\n{shown}{runs(study)}"
    if touched := [published_page.claim_line(one) for one in of.claims if one.total.of]:
        out += f"**{CLAIMS}**\n\n{markdown.table(published_page.CLAIM_HEAD, touched)}\n"
    return out


write = functools.partial(markdown.write, "summary.md", text)
