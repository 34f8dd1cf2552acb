"""What `dvc metrics` and `dvc plots` show of a config: its tables' numbers in one JSON file, their curves in one CSV
file."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from bayesfed.core import files
from bayesfed.results import cells, csv_file, formatting, tables
from bayesfed.results import study as join

METRICS, CURVES = "metrics.json", "curves.csv"
COLUMNS = ("paper", "cell", "curve", "round", "accuracy_percent")
ROUNDS = 100  # points of a curve at most, so that the file stays small
WHOLE = ("global", "local", "personal")  # levels of which a run has one curve

Numbers = dict[str, dict[str, dict[str, float]]]


def numbers(study: cells.Study) -> Numbers:
    """Table -> row's keys -> column's title -> value as the table shows it; only of cells with a value."""
    found: Numbers = {}
    for name, table in study.spec.get("tables", {}).items():
        for keys, of_row in tables.rows(study, table):
            row = ", ".join(filter(None, (study.labelled(key, value) for key, value in keys.items())))
            for cell in of_row:
                score = cell.score()
                if score.mean is not None:
                    found.setdefault(name, {}).setdefault(row, {})[cell.column] = float(score.number(score.mean))
    return found


def curves(study: cells.Study) -> Iterator[dict[str, str]]:
    """The mean over seeds, in percent, round by round, of each accuracy in the tables that has one curve a run: every curve
    of several rounds once, though several tables show it, in at most `ROUNDS` rounds, the last among them."""
    shown: dict[tuple[str, str, str], list[cells.Record]] = {}
    for table in study.spec.get("tables", {}).values():
        for _, of_row in tables.rows(study, table):
            for cell in of_row:
                for record in cell.records:
                    if record.level in WHOLE and record.done and cell.statistic.of == "accuracy":
                        of_curve = shown.setdefault((named(study, record), record.level, record.method), [])
                        of_curve += [] if record in of_curve else [record]
    for (name, level, method), records in shown.items():
        of_seeds = [record.curve() for record in records]
        rounds = sorted({round for curve in of_seeds for round in curve})
        for round in formatting.thinned(rounds, ROUNDS) if len(rounds) > 1 else []:
            mean = statistics.fmean(curve[round] for curve in of_seeds if round in curve)
            curve = method if level == "global" else f"{method}, {level}"
            yield dict(zip(COLUMNS, (study.paper, name, curve, str(round), f"{100 * mean:.2f}"), strict=True))


def named(study: cells.Study, record: cells.Record) -> str:
    """What tells a record's curve from those of other cells of its paper, but for its method."""
    alpha = f"alpha {record.alpha}" if record.alpha else ""
    stragglers = f"stragglers {record.stragglers}" if record.stragglers not in ("", "0") else ""
    model = study.label(record.model)
    words = (record.experiment, study.labels(record.dataset), record.setting, alpha, stragglers, model)
    return ", ".join(filter(None, (*words, study.axes(record))))


def write(plan: Path, out: Path) -> list[Path]:
    """Write `metrics.json`, paper -> `numbers`, and `curves.csv` beside the folder `out` of tables; returns them. Errors
    as in `tables.write`."""
    studies = join.studies(plan)
    folder = out.parent
    files.write_json(folder / METRICS, {study.paper: found for study in studies if (found := numbers(study))})
    rows = [row for study in studies for row in curves(study)]
    return [folder / METRICS, csv_file.write(folder / CURVES, COLUMNS, rows)]
