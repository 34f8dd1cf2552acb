"""Every run taken apart: accuracy per client, and the uncertainty metrics of each evaluated predictor."""

from collections.abc import Iterator
from pathlib import Path

from bayesfed.results import cells, runs, wording
from bayesfed.results.statistic import FOREIGN, Statistic

ACCURACIES = ("best", "last", "last5")
METRICS = ("nll", "brier", "ece", "mce")
TASKS = ("auroc_mistakes", "auroc_mistakes_sd", "foreign", "auroc_foreign", "auroc_foreign_sd")
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
        own = list({(record.level, record.client): record for record in reversed(asked)}.values())[::-1]
        first = own[0]
        columns = {
            "experiment": "+".join(wording.unique(record.experiment for record in asked)),
            "dataset": "+".join(wording.unique(study.labels(record.dataset) for record in own)),
            "dataset_used": "+".join(wording.unique(study.labels(record.used) for record in own)),
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

    Accuracy in percent: a client on its own test shard, and in `global_best`, ... the server's model there; `global` on
    the full test set; `diverged` for a run that was stopped since a value in it was no longer finite. An empty cell has
    its reason in `note`.
    """
    header = [*RUN, "client", "model", *ACCURACIES, *map(on_shard, ACCURACIES), "note", *cells.BUDGET, "budget", "run"]
    found = []
    for columns, records in by_run(study):
        own = {record.client: record for record in records if record.level == "client"}
        shards = {record.client: record for record in records if record.level == "global_on_shard"}
        for client, record in own.items():
            found.append({**columns, **_identity(study, record), **_accuracies(record, shards[client])})
        means = {name: cells.score(own.values(), Statistic(name)) for name in ACCURACIES}
        means |= {on_shard(name): cells.score(shards.values(), Statistic(name)) for name in ACCURACIES}
        own_mean, on_shards = means["best"], means[on_shard("best")]
        why = [*own_mean.missing, *own_mean.without()]
        why += [f"global: {why}" for why in (*on_shards.missing, *on_shards.without())]
        written = {name: "" if one.mean is None else one.shown() for name, one in means.items()}
        found.append({**columns, "client": "mean", **written, "note": "; ".join(why)})
        found += [
            {**columns, **_identity(study, record), **_accuracies(record)}
            for record in records
            if record.level == "global"
        ]
    return header, found


def on_shard(name: str) -> str:
    """The column of the server's model on a client's shard."""
    return f"global_{name}"


def _identity(study: cells.Study, record: cells.Record) -> dict[str, str]:
    """Who a row is about."""
    return {
        "client": record.client,
        "model": study.label(record.model),
        "dataset": study.labels(record.dataset),
        "dataset_used": study.labels(record.used),
    }


def _accuracies(record: cells.Record, shard: cells.Record | None = None) -> dict[str, str]:
    """The accuracies of a row in percent, those of the server's model on the shard too, and why there are none."""
    found = {name: _percent(record, name) for name in ACCURACIES}
    if shard is not None:
        found |= {on_shard(name): _percent(shard, name) for name in ACCURACIES}
    why = [record.missing, f"global: {shard.missing}" if shard and shard.missing else ""]
    return found | {"note": "; ".join(filter(None, why))}


def _percent(record: cells.Record, statistic: str) -> str:
    value = record.value(Statistic(statistic))
    return cells.DIVERGED if record.diverged else "" if value is None else f"{100 * value:.2f}"


def uncertainty(study: cells.Study) -> Rows:
    """One row a finished run and predictor: NLL (nats), Brier, ECE and MCE (in [0, 1]) of the last round, and where the
    run was asked, AUROC of entropy for mistakes and foreign data, mean and sd over resamplings; with several foreign
    datasets, joined by `+`."""
    found, tasks = [], False
    for columns, records in by_run(study):
        summary = runs.summary(records[0].folder)
        assert summary is not None  # these are finished runs
        foreign = list(records[0].foreign.values())
        tasks |= any(name.startswith("auroc") for values in summary["uncertainty"].values() for name in values)
        for predictor, values in summary["uncertainty"].items():
            written = {name: _fraction(values.get(name)) for name in (*METRICS, *TASKS[:2])}
            written["foreign"] = "+".join(study.label(name) for name in foreign)
            for column, end in zip(TASKS[3:], ("", "_sd"), strict=True):
                each = [_fraction(values.get(f"{FOREIGN}{name}{end}")) for name in foreign]
                written[column] = "+".join(each)
            found.append({**columns, "predictor": predictor, **written})
    header = [*RUN, "predictor", *METRICS, *(TASKS if tasks else ()), *cells.BUDGET, "budget", "run"]
    return header, [{name: row[name] for name in header} for row in found]


def _fraction(value: object) -> str:
    """A number with four decimals, "" for none."""
    number = runs.number(value)
    return "" if number is None else f"{number:.4f}"
