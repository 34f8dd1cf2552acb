"""Every run taken apart: accuracy per client, and the uncertainty metrics of each evaluated predictor."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from bayesfed.results import cells, runs

ACCURACIES = ("best", "last", "last5")
METRICS = ("nll", "brier", "ece", "mce")
RUN = ("experiment", "dataset", "dataset_used", "setting", "alpha", "stragglers", "axes", "method", "seed")

Rows = tuple[list[str], list[dict[str, str]]]


def by_run(study: cells.Study) -> Iterator[tuple[dict[str, str], list[cells.Record]]]:
    """The columns that name a finished run and its budget, and its records: once, though experiments may share it."""
    found: dict[Path, list[cells.Record]] = {}
    for record in study.records:
        if not record.done:
            continue
        found.setdefault(record.folder, []).append(record)
    for folder, asked in found.items():
        own = list({record.client: record for record in reversed(asked)}.values())[::-1]
        first = own[0]
        columns = {
            "experiment": "+".join(cells.unique(record.experiment for record in asked)),
            "dataset": "+".join(cells.unique(study.labels(record.dataset) for record in own)),
            "dataset_used": "+".join(cells.unique(study.labels(record.used) for record in own)),
            "setting": first.setting,
            "alpha": first.alpha,
            "stragglers": first.stragglers,
            "axes": study.axes(first),
            "method": first.method,
            "seed": first.seed,
            **{field: str(getattr(first, field)) for field in cells.BUDGET},
            "budget": study.budget(own),
            "run": folder.name,
        }
        yield columns, own


def clients(study: cells.Study) -> Rows:
    """One row a finished run and client (counted from 1), then their `mean`, then the server's model (`global`).

    Accuracy in percent: a client on its own test shard, `global` on the full test set; `diverged` for a run that
    was stopped since a value in it was no longer finite.
    """
    header = [*RUN, "client", "model", *ACCURACIES, *cells.BUDGET, "budget", "run"]
    found = []
    for columns, records in by_run(study):
        own = [record for record in records if record.client != "global"]
        means = {}
        for name in ACCURACIES:
            values = [value for record in own if (value := record.value(name)) is not None]
            means[name] = _percent(statistics.fmean(values) if values else None)
        found += [{**columns, **_identity(study, record)} for record in own]
        found.append({**columns, "client": "mean", **means})
        found += [{**columns, **_identity(study, record)} for record in records if record not in own]
    return header, found


def _identity(study: cells.Study, record: cells.Record) -> dict[str, str]:
    """Who a row is about, and its accuracies in percent."""
    return {
        "client": record.client,
        "model": study.label(record.model),
        "dataset": study.labels(record.dataset),
        "dataset_used": study.labels(record.used),
        **{name: cells.DIVERGED if record.diverged else _percent(record.value(name)) for name in ACCURACIES},
    }


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def uncertainty(study: cells.Study) -> Rows:
    """One row a finished run and predictor: NLL (nats), Brier, ECE and MCE (in [0, 1]) of the last round."""
    header = [*RUN, "predictor", *METRICS, *cells.BUDGET, "budget", "run"]
    found = []
    for columns, records in by_run(study):
        summary = runs.summary(records[0].folder)
        assert summary is not None  # these are finished runs
        for predictor, values in summary["uncertainty"].items():
            numbers = {name: runs.number(values.get(name)) for name in METRICS}
            written = {name: "" if value is None else f"{value:.4f}" for name, value in numbers.items()}
            found.append({**columns, "predictor": predictor, **written})
    return header, found
