"""The CSV file of claims: each over all its cells, then in each."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bayesfed.results import csv_file
from bayesfed.results.claims import MATCH, Outcome, Test, Tested
from bayesfed.results.derived import Derived
from bayesfed.results.formatting import text, unique
from bayesfed.results.records import Record
from bayesfed.results.study import Study

COLUMNS = (
    "claim", "by", "kind", "metric", "method", "than", "experiment", "dataset", "dataset_used", "alpha",
    "stragglers", "axes", "model", "client", "holds", "ties", "of", "planned", "difference", "verdict", "flags",
    "budget", "precision",
)  # fmt: skip


def rows(study: Study, of: Tested) -> list[dict[str, str]]:
    """Lay out a claim's rows: first over all cells (`dataset` is "all", it counts pairs of cell and seed), then each."""
    claim = of.claim
    common = {
        "claim": claim["claim"],
        "by": claim["by"],
        "kind": claim["kind"],
        "metric": claim["metric"],
        "experiment": "+".join(claim["experiments"]),
    }
    sides = {"method": claim.get("method", ""), "than": ", ".join(map(text, claim.get("than", [])))}
    whole = [{**common, **sides, "dataset": "all", **_columns(of.total)}]
    for test, outcome in zip(of.tests, of.each, strict=True):
        chosen = {"chosen": choices(test)} if "search" in claim else {}
        whole.append({**common, **_cell(study, test), **_columns(outcome), **chosen})
    return whole


def _columns(outcome: Outcome) -> dict[str, str]:
    """Write an outcome as text."""
    return {
        "holds": str(outcome.holds) if outcome.of else "",
        "ties": str(outcome.ties) if outcome.of else "",
        "of": str(outcome.of),
        "planned": str(outcome.planned),
        "difference": outcome.difference,
        "verdict": outcome.verdict,
        "flags": "; ".join(outcome.flags),
        "dataset_used": outcome.used,
        "budget": outcome.budget,
        "precision": outcome.precision,
        "of_rounds": outcome.of_rounds,
    }


def _cell(study: Study, test: Test) -> dict[str, str]:
    """Return the columns that name a test's cell; what differs within it stays empty."""
    common = set.intersection(*({(axis, r.field(axis)) for axis in r.axes} for r in test.records))

    def axes(record: Record) -> str:
        return study.axes(
            replace(record, axes={axis: each for axis, each in record.axes.items() if (axis, each) in common})
        )

    row = {"method": test.method, "than": test.than}
    for field in MATCH:
        values = unique(axes(r) if field == "axes" else r.field(field) for r in test.records)
        row[field] = study.labels(values[0]) if len(values) == 1 else ""
    row["dataset"] = " and ".join(unique(study.labels(record.dataset) for record in test.records))
    row["client"] = study.written("client", row["client"].replace("global", ""))
    return row


def choices(test: Test) -> str:
    """Describe what a search has chosen for a test, and for which of its cells: `FOLA, alpha 0.1: lr 0.01 (best of 5,
    ...)`.
    """
    chosen = [record for record in test.records if record.chosen]
    named = (f"{r.method}{f', alpha {r.alpha}' if r.alpha else ''}: {r.chosen}" for r in chosen)
    return "; ".join(unique(named))


def write(found: Iterable[Derived], out: Path) -> list[Path]:
    """Write `<out>/<paper>/claims.csv` for each paper; returns the files."""
    written = []
    for one in found:
        whole = [row for tested in one.claims for row in rows(one.study, tested)]
        said = {
            "of_rounds": any(row["of_rounds"] for row in whole),
            "chosen": any("search" in tested.claim for tested in one.claims),
        }
        header = [*COLUMNS, *(name for name, shown in said.items() if shown)]
        kept = [{name: row.get(name, "") for name in header} for row in whole]
        written.append(csv_file.write(out / one.study.paper / "claims.csv", header, kept))
    return written
