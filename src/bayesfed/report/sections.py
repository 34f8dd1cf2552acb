"""The sections below a paper's tables: cost of runs, calibration, logs of servers, images that clients hold, and every
run.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bayesfed.report import chart_specs, charts, run_details
from bayesfed.report.charts import Chart, Panel
from bayesfed.report.html_tables import Plain, Table, plain, run_id
from bayesfed.results import formatting, hardware, per_run
from bayesfed.results.derived import Derived
from bayesfed.results.records import DIVERGED
from bayesfed.results.study import Study

Json = dict[str, Any]
CLAIM_COLUMNS = ["claim", "by", "method", "than", "dataset", "alpha", "stragglers", "axes", "model", "client", "holds",
                 "ties", "of", "planned", "difference", "verdict", "flags", "budget", "precision", "of_rounds"]  # fmt: skip
HEADS = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "mce": "MCE", "auroc_mistakes": "AUROC of mistakes"}


def mean_and_sd(values: Sequence[float], form: str = ".4f") -> str:
    """Write `0.1234 ± 0.0012`, the first alone for one value, "" for none."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}{spread}"


def measure(texts: Sequence[str]) -> str:
    """Write `mean_and_sd` of the numbers among texts, and what the others say: `0.9123 (without 1 of 3: no mistakes)`."""
    others = [text for text in texts if text and not text[0].isdigit()]
    numbers = [float(text) for text in texts if text[:1].isdigit()]
    why = " or ".join(formatting.unique(others))
    if not why or len(others) == len(texts):
        return why or mean_and_sd(numbers)
    return f"{mean_and_sd(numbers)} (without {len(others)} of {len(texts)}: {why})"


def link_to(names: Collection[str]) -> str:
    """Return the link to these runs on the page."""
    return f"#runs={','.join(dict.fromkeys(names))}"


def claim_table(study: Study, rows: Sequence[Mapping[str, str]]) -> Plain:
    """Every claim, over all its cells and in each, as in claims.csv."""
    frame = pd.DataFrame([[row.get(name, "") for name in CLAIM_COLUMNS] for row in rows], columns=CLAIM_COLUMNS)
    kept = [name for name in CLAIM_COLUMNS if name in ("claim", "holds", "of") or frame[name].any()]
    return plain(f"{study.paper}-claims", f"{study.paper}: claims", frame[kept])


def against(study: Study, shown: Sequence[Table]) -> Chart | None:
    """Every percentage that may be compared with the published numbers, as a point; None without any."""
    rows = []
    for table in shown:
        for keys, of_row in table.rows:
            for column, cell in zip(table.columns, of_row, strict=True):
                if table.counted and cell.percent and cell.kind in ("close", "higher", "lower"):
                    row, name = cell.row, ", ".join([formatting.spoken(table.name), *keys, column])
                    said = f"{row['difference']} ({row['verdict']})"
                    rows.append((name, float(row["published"]), float(row["mean"]), cell.kind, said, cell.runs))
    if not rows:
        return None
    frame = pd.DataFrame(rows, columns=["cell", "x", "value", "kind", "verdict", "run"])
    limits = charts.bounds(pd.concat([frame["x"], frame["value"]]), True)
    words = "; ".join(f"{name}: published {there:g}, here {here:g}" for name, there, here, *_ in rows[:12])
    words += f"; and {len(rows) - 12} more, all in the tables above" if len(rows) > 12 else ""
    small = "A point: a published percentage with a run beside it, at the paper's budget and data. On the dashed line both are equal."
    panel = Panel("", charts.csv(frame), words, limits, limits)
    title = "Our numbers against the published ones"
    return Chart(f"{study.paper}-against", "", title, small, [], [panel], chart_specs.beside_published())


def cost(study: Study, own: Mapping[str, Json]) -> Plain | None:
    """Return the table of what runs took, by experiment, data, method and hardware."""
    rows = [
        {
            "experiment": formatting.spoken(one["columns"]["experiment"]),
            "dataset": one["columns"].get("dataset_used", ""),
            "method": one["columns"]["method"],
            "hardware": hardware.place(one["provenance"]),
            "seconds": one["provenance"]["train_seconds"],
            "images": one["provenance"]["samples_per_second"],
        }
        for one in own.values()
    ]
    if not rows:
        return None
    found = []
    for keys, of_group in pd.DataFrame(rows).groupby(["experiment", "dataset", "method", "hardware"], sort=False):
        minutes = of_group["seconds"] / 60
        numbers = [
            str(len(of_group)),
            f"{minutes.mean():.1f}",
            f"{minutes.sum():.1f}",
            f"{of_group['images'].mean():.0f}",
        ]
        found.append([*map(str, keys), *numbers])
    heads = [
        "experiment",
        "dataset",
        "method",
        "hardware",
        "runs",
        "minutes a run",
        "minutes in all",
        "images a second",
    ]
    return plain(f"{study.paper}-cost", f"{study.paper}: what its runs took", pd.DataFrame(found, columns=heads))


def calibration(of: Derived) -> Plain | None:
    """NLL, Brier, ECE and MCE of each evaluated predictor in the last round, mean and sd over seeds; None without any."""
    study, (header, measured) = of.study, per_run.uncertainty(of.study, of.runs)
    if not measured:
        return None
    where = [name for name in (*per_run.RUN, "model", "predictor", "budget") if name not in ("seed", "dataset_used")]
    heads = [name for name in HEADS if name in header]
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in measured:
        groups.setdefault(tuple(row[name] for name in where), []).append(row)
    rows, links = [], []
    for keys, own in groups.items():
        row = dict(zip(where, keys, strict=True)) | {name: measure([one[name] for one in own]) for name in heads}
        seeds = str(len({one["seed"] for one in own if any(one[name] for name in heads)}))
        rows.append(row | {"experiment": formatting.spoken(row["experiment"]), "seeds": seeds})
        links.append(link_to([one["run"] for one in own]))
    table = pd.DataFrame(rows)
    plain_values = {"stragglers": "0", "budget": study.unchanged}  # where all have these, they need no column
    shown = [name for name in [*where[:-1], *heads, "budget", "seeds"] if table[name].any()]
    kept = [name for name in shown if (table[name] != plain_values.get(name, "")).any()]
    title = f"{study.paper}: calibration after the last round"
    return plain(f"{study.paper}-calibration", title, table[kept].rename(columns=HEADS), links)


def logged(study: Study) -> tuple[Plain | None, list[Chart]]:
    """Return what the servers logged: a table of the last round, and charts over rounds."""
    last: dict[tuple[str, ...], list[tuple[str, float, str]]] = {}
    over = []
    for record in study.records:
        if record.level != "global" or not record.done or record.diverged:
            continue
        cell = charts.cell_name(study, record)
        for name, values in run_details.diagnostics(record.run).items():
            of, run = (name, record.experiment, cell, record.method), run_id(record.folder)
            last.setdefault(of, []).append((record.seed, [*values.values()][-1], run))
            if len(values) > 1:
                over += [(*of, record.seed, at, value, run) for at, value in values.items()]
    if not last:
        return None, []
    rows, links = [], []
    for (name, experiment, cell, method), own in last.items():
        number, seeds = mean_and_sd([value for _, value, _ in own], ".4g"), str(len({seed for seed, _, _ in own}))
        rows.append([formatting.spoken(name), formatting.spoken(experiment), cell, method, number, seeds])
        links.append(link_to([run for _, _, run in own]))
    table = pd.DataFrame(rows, columns=["what", "experiment", "cell", "method", "in the last round", "seeds"])
    columns = ["name", "experiment", "panel", "curve", "seed", "x", "value", "run"]
    found = []
    for what, of_name in pd.DataFrame(over, columns=columns).groupby("name", sort=False):
        words = formatting.spoken(what)
        found += charts.by_experiment(study, of_name.drop(columns="name"), str(what), words, "round", words)
    return plain(f"{study.paper}-logged", f"{study.paper}: what its servers logged", table, links), found


def reliability(study: Study) -> list[Chart]:
    """Reliability diagrams of the last round, a chart an experiment, a panel a cell, of records that hold bins."""
    rows = [
        (record.experiment, charts.cell_name(study, record), record.method, record.seed, at, 100 * accuracy, run_id(record.folder))
        for record in study.records
        if record.level == "global" and record.done
        for at, accuracy in record.reliability().items()
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["experiment", "panel", "curve", "seed", "x", "value", "run"])
    words = "confidence (%)", "accuracy (%)"
    return charts.by_experiment(study, frame, "reliability", "Reliability", *words, diagonal=True)


def held(content: Mapping[str, Any], results: Path) -> dict[str, Json]:
    """Return the number of training images of each class at each client, by partition.

    Of the partitions whose table exists and has the classes.
    """
    found = {}
    for name in formatting.unique(run["partition"] for run in content["runs"] if run.get("partition")):
        path = results / Path(name).with_suffix(".csv")
        if not path.exists():
            continue
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        classes = [at for at, column in enumerate(header) if re.fullmatch(r"class_\d+", column)]
        if classes:
            train = (row for row in rows if row[header.index("split")] == "train")
            found[name] = {"train": [[int(row[at]) for at in classes] for row in train]}
    return found


def partitions(study: Study, own: Mapping[str, Json], known: Mapping[str, Json]) -> tuple[list[Chart], int]:
    """Heat maps of the partitions of a paper's finished runs, a chart a dataset; and how many of them have no table."""
    used = formatting.unique(one["partition"] for one in own.values() if one["partition"])
    panels: dict[str, list[Panel]] = {}
    for name in used:
        if name not in known:
            continue
        clients, path = known[name]["train"], Path(name)
        sizes, classes = [sum(row) for row in clients], [sum(count > 0 for count in row) for row in clients]
        text = "client,class,images\n" + "".join(
            f"{client},{number},{count}\n"
            for client, row in enumerate(clients)
            for number, count in enumerate(row)
            if count
        )
        words = f"{len(sizes)} clients with {min(sizes)} to {max(sizes)} training images, of {min(classes)} to {max(classes)} classes each"
        title = path.stem.replace("~", " ").replace("-", ", ").replace("_", " ")
        panels.setdefault(path.parent.name, []).append(Panel(title, text, words))
    small = "Training images of each class at each client: the brighter, the more; nothing where a client has none of a class."
    found = [
        Chart(
            f"{study.paper}-partitions-{dataset}",
            "",
            study.label(dataset),
            small,
            [],
            of_dataset,
            chart_specs.heat_map(),
        )
        for dataset, of_dataset in panels.items()
    ]
    return found, sum(name not in known for name in used)


def run_list(study: Study, own: Mapping[str, Json]) -> Plain | None:
    """Every finished run, with a link to what the page tells of it; None without any."""
    rows = []
    for name, one in own.items():
        columns, server = one["columns"], one["server"]
        means = [row[3] for row in one["clients"] if row[0] == "mean"]
        stragglers = columns.get("stragglers", "0")
        more = [columns.get("axes", ""), f"stragglers {stragglers}" if stragglers != "0" else ""]
        best = f"{server['best']:.2f}" if "best" in server else ""
        rows.append(
            {
                "experiment": formatting.spoken(columns["experiment"]),
                "dataset": columns["dataset"],
                "alpha": columns.get("alpha", ""),
                "more": ", ".join(filter(None, more)),
                "method": columns["method"],
                "seed": columns["seed"],
                "server, best (%)": DIVERGED if one["diverged"] else best,
                "clients' mean, best (%)": "".join(means),
                "took (min)": f"{one['provenance']['train_seconds'] / 60:.1f}",
                "run": name.rpartition("-")[2],
            }
        )
    links = [link_to([name]) for name in own]
    return plain(f"{study.paper}-runs", f"{study.paper}: finished runs", pd.DataFrame(rows), links) if rows else None


def speed(folder: Path) -> list[Plain]:
    """Return the tables of the benchmarks that are among the results."""
    return [
        plain(path.stem, path.stem, pd.read_csv(path, dtype=str).fillna("")) for path in sorted(folder.glob("*.csv"))
    ]
