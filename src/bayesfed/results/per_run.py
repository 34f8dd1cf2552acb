"""Every run taken apart: accuracy per client, and the uncertainty metrics of each evaluated predictor."""

from collections.abc import Iterable, Iterator

from bayesfed.results import tails
from bayesfed.results.cells import Score, score
from bayesfed.results.formatting import unique
from bayesfed.results.records import BUDGET, DIVERGED, Record
from bayesfed.results.run_records import RunRecord, number
from bayesfed.results.statistics import BEST, FOREIGN, FOREIGN_FPR, Statistic
from bayesfed.results.study import Study

COLUMNS = {Statistic(name): f"accuracy_{name}_percent" for name in ("best", "last", "last5")}
"""The accuracies of a client, and their columns."""
METRICS = ("nll", "brier", "ece", "mce")
LATER = ("ece100", "adaptive_ece", "classwise_ece", "aurc", "fpr95_mistakes", "fpr95_foreign")
"""Columns of what records of earlier versions lack; there are none where no run has it."""
TASKS = ("auroc_mistakes", "auroc_mistakes_sd", "foreign", "auroc_foreign", "auroc_foreign_sd")
RUN = ("experiment", "dataset", "dataset_used", "setting", "alpha", "stragglers", "axes", "method", "seed")

OfRun = tuple[dict[str, str], list[Record]]
"""The columns that name a finished run and its budget, and its records."""
Rows = tuple[list[str], list[dict[str, str]]]
"""A header and rows."""


def by_run(study: Study) -> Iterator[OfRun]:
    """List the finished runs, each once, though experiments may share it."""
    found: dict[RunRecord, list[Record]] = {}
    for record in study.records:
        if record.done:
            found.setdefault(record.run, []).append(record)
    for run, asked in found.items():
        own = list({(record.level, record.client): record for record in reversed(asked)}.values())[::-1]
        first = own[0]
        columns = {
            "experiment": "+".join(unique(record.experiment for record in asked)),
            "dataset": "+".join(unique(study.labels(record.dataset) for record in own)),
            "dataset_used": "+".join(unique(study.labels(record.used) for record in own)),
            "setting": first.setting,
            "alpha": first.alpha,
            "stragglers": first.stragglers,
            "axes": study.axes(first),
            "method": first.method,
            "model": study.label(next((record.model for record in own if record.level == "global"), first.model)),
            "seed": first.seed,
            **{field: str(getattr(first, field)) for field in BUDGET},
            "budget": study.budget(own),
            "run": run.folder.name,
        }
        yield columns, own


def clients(study: Study, runs: Iterable[OfRun]) -> Rows:
    """Lay out clients.csv: a row a finished run and client (from 0), their `mean`, and the server's model (`global`).

    Accuracy in percent: a client on its own test shard, and in `global_accuracy_best_percent`, ... the server's model there;
    `global` on the full test set; `diverged` for a run that was stopped since a value in it was no longer finite. An empty
    cell has its reason in `note`, and a last or last five that is not of the run's last rounds has its rounds there.
    """
    header = [*RUN, "client", "model", *COLUMNS.values(), *map(on_shard, COLUMNS.values()), "note", *BUDGET]
    header += ["budget", "run"]
    found = []
    for columns, records in runs:
        own = {record.client: record for record in records if record.level == "client"}
        shards = {record.client: record for record in records if record.level == "global_on_shard"}
        for client, record in own.items():
            found.append({**columns, **_identity(study, record), **_accuracies(record, shards[client])})
        means = {column: score(own.values(), one) for one, column in COLUMNS.items()}
        means |= {on_shard(column): score(shards.values(), one) for one, column in COLUMNS.items()}
        why = notes(own.values(), means[COLUMNS[BEST]])
        why += [f"global: {why}" for why in notes(shards.values(), means[on_shard(COLUMNS[BEST])])]
        written = {name: "" if one.mean is None else one.shown() for name, one in means.items()}
        found.append({**columns, "client": "mean", **written, "note": "; ".join(why)})
        found += [
            {**columns, **_identity(study, record), **_accuracies(record)}
            for record in records
            if record.level == "global"
        ]
    return header, found


def on_shard(column: str) -> str:
    """Return the column of the server's model on a client's shard."""
    return f"global_{column}"


def notes(records: Iterable[Record], best: Score) -> list[str]:
    """List why clients have no accuracy, or no part in a mean, and of which rounds their last ones are."""
    told = tails.of_rounds(records, *COLUMNS)
    return [*best.missing, *best.without(), *([told] if told else [])]


def _identity(study: Study, record: Record) -> dict[str, str]:
    """Name who a row is about."""
    return {
        "client": record.client,
        "model": study.label(record.model),
        "dataset": study.labels(record.dataset),
        "dataset_used": study.labels(record.used),
    }


def _accuracies(record: Record, shard: Record | None = None) -> dict[str, str]:
    """Write the accuracies of a row in percent, those of the server's model on the shard too, and why there are none."""
    found = {column: _percent(record, one) for one, column in COLUMNS.items()}
    why = [record.missing, tails.of_rounds([record], *COLUMNS)]
    if shard is not None:
        found |= {on_shard(column): _percent(shard, one) for one, column in COLUMNS.items()}
        why += [f"global: {told}" for told in (shard.missing, tails.of_rounds([shard], *COLUMNS)) if told]
    return found | {"note": "; ".join(filter(None, why))}


def _percent(record: Record, statistic: Statistic) -> str:
    value = record.value(statistic)
    return DIVERGED if record.diverged else "" if value is None else f"{100 * value:.2f}"


def uncertainty(study: Study, runs: Iterable[OfRun]) -> Rows:
    """Lay out uncertainty.csv: one row a finished run and predictor; `model` is the server's network, or the first client's.

    NLL (nats), Brier, ECE and MCE (in [0, 1]) of the last round, and where the run was asked, AUROC of entropy for
    misclassification and OOD detection, mean and sd over resamplings; several OOD datasets are joined by `+`. A value that
    is no number is replaced with the reason. The last columns are what records have from a later version on.
    """
    found, tasks = [], False
    for columns, records in runs:
        run = records[0].run
        summary = run.summary
        assert summary is not None  # these are finished runs
        foreign = list(records[0].foreign.values())
        tasks |= any(name.startswith("auroc") for values in summary["uncertainty"].values() for name in values)
        for predictor, values in summary["uncertainty"].items():
            measured = {name: _fraction(value) for name, value in values.items()} | run.undefined(predictor)
            written = {name: measured.get(name, "") for name in (*METRICS, *TASKS[:2])}
            written["foreign"] = "+".join(study.label(name) for name in foreign)
            for column, kind, end in zip(
                (*TASKS[3:], LATER[-1]), (FOREIGN, FOREIGN, FOREIGN_FPR), ("", "_sd", ""), strict=True
            ):
                written[column] = "+".join(measured.get(f"{kind}{name}{end}", "") for name in foreign)
            written |= {name: measured.get(name, "") for name in LATER[:-1]}
            found.append({**columns, "predictor": predictor, **written})
    later = [name for name in LATER if any(row[name].strip("+") for row in found)]
    header = [*RUN, "model", "predictor", *METRICS, *(TASKS if tasks else ()), *later, *BUDGET, "budget", "run"]
    return header, [{name: row[name] for name in header} for row in found]


def _fraction(value: object) -> str:
    """Write a number with four decimals, "" for none."""
    return "" if (finite := number(value)) is None else f"{finite:.4f}"
