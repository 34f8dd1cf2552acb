"""A paper's results at a glance, as Markdown: its tables as far as they are run, beside print and with their cost, and
the claims."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed.core import files
from bayesfed.results import (
    cells,
    claims,
    comparison,
    formatting,
    hardware,
    published_page,
    run_records,
    selection,
    tables,
    tails,
)
from bayesfed.results import study as join

APART = "†"
"""Behind a number that is not of the paper's run."""

OTHER_ROUNDS = "‡"
"""Behind a cell with a number that is not of the run's last rounds, but of the last in which a model was tested."""

LEGEND = "Means over seeds ± standard deviation"
IN_BRACKETS = ", print in brackets with its own where it has one"
LAST = " Behind a slash the mean of the last five rounds, where the round of the number before it is chosen on the test set"
AS_IN_PRINT = ", as in print"
CLAIMS = "Claims that have been tested"


def cost(seconds: Sequence[float]) -> str:
    """What a run took, or from least to most: `4 to 22 min`, `20 min to 2.1 h`."""
    least, most = formatting.duration(min(seconds)), formatting.duration(max(seconds))
    if least == most:
        return " ".join(most)
    return " to ".join([least[0] if least[1] == most[1] else " ".join(least), " ".join(most)])


def number(cell: tables.Cell, records: Sequence[cells.Record]) -> str:
    """What some of a cell's records give, behind a slash the mean of the last five rounds where the round is chosen on the
    test set, and whether they are not of the paper's run; "" without a finished one."""
    score = cells.score(records, cell.statistic)
    here = score.shown()
    if not here:
        return ""
    if score.seeds and cell.statistic.chosen:
        last5 = cells.score(records, cell.statistic.last5)
        here += f" / {last5.number(last5.mean)}" if last5.seeds else ""
    return here + ("" if all(record.as_printed for record in records) else APART)


def cell_text(cell: tables.Cell, row: Mapping[str, str]) -> str:
    """What is found here, the printed number in brackets, and whatever else a reader must know; "" without a finished
    run."""
    here = number(cell, cell.records)
    if not here:
        return ""
    score = cell.score()
    spread = f" ± {row['published_sd']}" if row["published_sd"] else ""
    here += f" ({row['published']}{spread})" if row["published"] else ""
    here += OTHER_ROUNDS if of_rounds(cell) else ""
    told = [selection.chosen(cell.records), score.count().partition(", ")[2] if score.seeds else ""]
    return "; ".join([here, *filter(None, told)])


def of_rounds(cell: tables.Cell) -> str:
    """Of which rounds a cell's last numbers are, as far as it shows them; "" where they are of the run's last rounds."""
    shown = [cell.statistic, *([cell.statistic.last5] if cell.statistic.chosen else [])]
    return tails.of_rounds(cell.records, *shown)


def beside(study: cells.Study, keys: Mapping[str, str], cell: tables.Cell) -> str:
    """What a cell has in common with those that it is to be compared with, in words: its labels but the method's.

    `keys`: those of its row.
    """
    of_row = [study.written(key, value) for key, value in keys.items() if key != "method"]
    if "method" in keys:
        return ", ".join([*of_row, cell.column])
    of_column = [study.written(key, value) for key, value in cell.keys.items() if key not in keys and key != "method"]
    return ", ".join([*of_row, *of_column])


def seed_by_seed(study: cells.Study, rows: Iterable[tuple[Mapping[str, str], Sequence[tables.Cell]]]) -> str:
    """Each seed's numbers where methods that stand beside each other are not run on the same seeds; "" where all are.

    `rows`: those of `tables.rows`.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)  # by method, by seed
    for keys, of_row in rows:
        for cell in of_row:
            found = {}
            for seed in formatting.unique(record.seed for record in cell.records):
                found[seed] = number(cell, [record for record in cell.records if record.seed == seed])
            groups[beside(study, keys, cell), cell.metric][study.label(cell.keys.get("method", ""))] = found
    columns: dict[str, dict[str, str]] = {}
    for (name, _), of_methods in groups.items():
        run = {method: [seed for seed, shown in found.items() if shown] for method, found in of_methods.items()}
        if len({tuple(seeds) for seeds in run.values() if seeds}) > 1:
            for seed in formatting.unique(itertools.chain(*of_methods.values())):
                shown = {method: of_methods[method][seed] for method, seeds in run.items() if seed in seeds}
                columns |= {f"{name}, seed {seed}": shown} if shown else {}
    if not columns:
        return ""
    methods = formatting.unique(method for each in columns.values() for method in each)
    lines = [[method, *(each.get(method, "") for each in columns.values())] for method in methods]
    return f"Not all on the same seeds; seed by seed:\n\n{tables.markdown(['', *columns], lines)}\n"


def table(study: cells.Study, spec: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> str:
    """A table in the paper's layout, without rows and columns that have no finished run; `rows` are its rows of the
    comparison, one a cell in the same order. "" where none has a result, as where all runs are too short."""
    own = list(tables.rows(study, spec))
    if not any(cell.score().seeds or cell.score().diverged for _, of_row in own for cell in of_row):
        return ""
    compared = iter(rows)
    texts = [[cell_text(cell, next(compared)) for cell in of_row] for _, of_row in own]
    kept = [column for column, of_column in enumerate(zip(*texts, strict=True)) if any(of_column)]
    shown: list[list[str]] = []
    made: dict[Path, dict[str, Any]] = {}
    for (keys, of_row), found in zip(own, texts, strict=True):
        if not any(found):
            continue
        records = [record for cell in of_row for record in cell.records if record.done]
        of_these = {folder: run_records.provenance(folder) for folder in sorted({record.folder for record in records})}
        made |= of_these
        name = ", ".join(study.written(key, value) for key, value in keys.items())
        scores = [cell.score() for cell in of_row]
        seeds, planned = sorted({each.seeds for each in scores if each.seeds}), max(each.planned for each in scores)
        many = " to ".join(map(str, (seeds[0], seeds[-1]) if len(seeds) > 1 else seeds)) or "0"
        many += "" if seeds == [planned] else f" of {planned}"
        shown.append(
            [
                name,
                *(found[column] for column in kept),
                many,
                cost([run["train_seconds"] for run in of_these.values()]),
            ]
        )
    head = ["", *(tables.title(study, spec["columns"][column]) for column in kept), "seeds", "cost of a run"]
    under = f"On {hardware.places(made.values())}."
    other = "not the paper's run" if study.reproduces else "other than its file asks for"
    under += f" {APART} {other}." if any(APART in text for found in texts for text in found) else ""
    told = formatting.unique(filter(None, (of_rounds(cell) for _, of_row in own for cell in of_row)))
    under += f" {OTHER_ROUNDS} {' or '.join(told)}." if told else ""
    return f"**{spec['title']}**\n\n{tables.markdown(head, shown)}\n{under}\n\n{seed_by_seed(study, own)}"


def legend(shown: str, printed: bool) -> str:
    """What is to be known of the tables shown; `printed`: whether there are numbers in print."""
    last = f"{LAST}{AS_IN_PRINT * printed}." if " / " in shown else ""
    return f"{LEGEND}{IN_BRACKETS * printed}.{last}"


def text(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """The whole of it, under the label of the paper's own method: tables of the config's own, those
    named under `glance` in the paper's YAML, then every claim that a finished run touches."""
    asked = formatting.unique(str(record.folder) for record in study.records)
    done = formatting.unique(str(record.folder) for record in study.records if record.done)
    out = f"### {study.heading}\n\n{published_page.notice(study)}{len(done)} of {len(asked)} planned runs stand."
    if not done:
        return f"{out}\n\n"
    tested = [claims.tested(study, claim) for claim in study.spec.get("claims", [])]
    said = published_page.in_words(study, published, tested)
    out += f"{said and f' {said}'}\n\n"
    shown = ""
    for name in study.spec.get("glance", []):
        spec = study.spec["tables"][name]
        shown += table(study, spec, comparison.compare(study, spec, spec.get("published", [name]), published))
    out += f"{legend(shown, bool(published))}\n\n{shown}"
    if touched := [published_page.claim_line(one) for one in tested if one.total.of]:
        out += f"**{CLAIMS}**\n\n{tables.markdown(published_page.CLAIM_HEAD, touched)}\n"
    return out


def write(plan: Path, out: Path) -> list[Path]:
    """Write `<out>/<paper>/glance.md` for each paper of the plan; arguments, errors as in `compare.write`."""
    written = []
    for study in join.studies(plan):
        path = out / study.paper / "glance.md"
        files.write_text(path, text(study, comparison.read_published(study.published)))
        written.append(path)
    return written
