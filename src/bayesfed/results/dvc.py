"""The files that `dvc metrics` and `dvc plots` show of a config: its tables' numbers in one JSON file, their curves in one
CSV file."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from bayesfed.core import files
from bayesfed.results import csv_file, formatting
from bayesfed.results.derived import Derived
from bayesfed.results.records import Record
from bayesfed.results.study import Study

METRICS, CURVES = "metrics.json", "curves.csv"
COLUMNS = ("paper", "cell", "curve", "round", "accuracy_percent")
ROUNDS = 100  # points of a curve at most, so that the file stays small
WHOLE = ("global", "local", "personal")  # levels of which a run has one curve

Numbers = dict[str, dict[str, dict[str, float]]]


def numbers(of: Derived) -> Numbers:
    """Table -> row's keys -> column's title -> value as the table shows it; only of cells with a value."""
    found: Numbers = {}
    for name, rows in of.rows.items():
        for keys, of_row in rows:
            row = ", ".join(filter(None, (of.study.labelled(key, value) for key, value in keys.items())))
            for cell in of_row:
                if cell.score.mean is not None:
                    found.setdefault(name, {}).setdefault(row, {})[cell.column] = float(
                        cell.score.number(cell.score.mean)
                    )
    return found


def curves(of: Derived) -> Iterator[dict[str, str]]:
    """Yield the mean over seeds, in percent, round by round, of each accuracy in the tables that has one curve a run.

    Every curve of several rounds once, though several tables show it, in at most `ROUNDS` rounds, the last among them.
    """
    shown: dict[tuple[str, str, str], dict[int, Record]] = {}
    for cell in (cell for rows in of.rows.values() for _, of_row in rows for cell in of_row):
        for record in cell.records:
            whole = record.level in WHOLE and record.done and not record.diverged
            if whole and cell.statistic.of == "accuracy":
                of_curve = shown.setdefault((named(of.study, record), record.level, record.method), {})
                of_curve.setdefault(id(record.run), record)
    for (name, level, method), records in shown.items():
        of_seeds = [record.curve() for record in records.values()]
        rounds = sorted({at for curve in of_seeds for at in curve})
        for at in formatting.thinned(rounds, ROUNDS) if len(rounds) > 1 else []:
            mean = statistics.fmean(curve[at] for curve in of_seeds if at in curve)
            curve = method if level == "global" else f"{method}, {level}"
            yield dict(zip(COLUMNS, (of.study.paper, name, curve, str(at), f"{100 * mean:.2f}"), strict=True))


def named(study: Study, record: Record) -> str:
    """Name what tells a record's curve from those of other cells of its paper, except its method."""
    alpha = f"alpha {record.alpha}" if record.alpha else ""
    stragglers = f"stragglers {record.stragglers}" if record.stragglers not in ("", "0") else ""
    model = study.label(record.model)
    words = (record.experiment, study.labels(record.dataset), record.setting, alpha, stragglers, model)
    return ", ".join(filter(None, (*words, study.axes(record))))


def write(found: Sequence[Derived], out: Path) -> list[Path]:
    """Write `metrics.json`, paper -> `numbers`, and `curves.csv` beside the folder `out` of tables; returns them."""
    folder = out.parent
    files.write_json(folder / METRICS, {one.study.paper: told for one in found if (told := numbers(one))})
    rows = [row for one in found for row in curves(one)]
    return [folder / METRICS, csv_file.write(folder / CURVES, COLUMNS, rows)]
