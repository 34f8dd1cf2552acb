"""Each cell of a config's tables, figures and claims: a mean over seeds alone, and filled where the config adds it."""

from collections.abc import Iterable, Mapping
from typing import Any

from bayesfed.core.errors import InputError
from bayesfed.plan.paper_check import naming, place
from bayesfed.results import cells, claims, formatting, selection
from bayesfed.results.records import BUDGET, Record, select
from bayesfed.results.statistics import POINTS
from bayesfed.results.study import Study


def means(study: Study) -> None:
    """Check that no cell of the paper's tables, no line of its figures and no side of its claims takes several runs of a
    seed for one.

    The study's records are those of a config, which may run more than the paper or less. Raises InputError that names the
    item.
    """
    for kind, check in (("tables", table_means), ("figures", figure_means)):
        for name, item in study.spec.get(kind, {}).items():
            naming(place(study, kind, name), check, study, item)
    for claim in study.spec.get("claims", []):
        naming(f"{study.paper}.yaml, claim '{claim['claim']}'", claim_means, study, claim)


def filled(study: Study) -> None:
    """Check that the study's records, those of a config, fill each table and figure that the config adds.

    Raises InputError that names the first one without any.
    """
    for kind in ("tables", "figures"):
        for name in study.spec["added"][kind]:
            item = study.spec[kind][name]
            shown = shown_in_table(study, item) if kind == "tables" else shown_in_figure(study, item)
            if not any(shown):
                place_of = place(study, kind, name)
                raise InputError(
                    f"{place_of}: no planned run is in it; leave it out, or name an experiment that is run"
                )


def shown_in_table(study: Study, table: Mapping[str, Any]) -> list[list[Record]]:
    """Return the records of each cell of a table."""
    return [cell.records for _, of_row in cells.rows(study, table) for cell in of_row]


def shown_in_figure(study: Study, figure: Mapping[str, Any]) -> list[list[Record]]:
    """Return the records of each line of a figure."""
    where = {"experiment": figure["experiment"], "method": figure["methods"], **figure.get("where", {})}
    named = [
        *figure["rows"],
        *figure["columns"],
        figure.get("curves", "method"),
        *([figure["x"]] if "x" in figure else []),
    ]
    lines: dict[tuple[str, ...], list[Record]] = {}
    for record in select(study.records, where):
        if record.level == figure["accuracy"]:
            lines.setdefault(tuple(map(record.field, named)), []).append(record)
    return list(lines.values())


def claim_means(study: Study, claim: Mapping[str, Any]) -> None:
    """`means` of a claim; a gain is one over several models."""
    for test in claims.tests(study, claim) if claim["kind"] != "smaller gain" else []:
        sides: dict[tuple[str, ...], list[Record]] = {}
        for record in test.records:
            at = record.field(claim["along"]) if "along" in claim else ""
            sides.setdefault((record.method, at), []).append(record)
        for records in sides.values():
            one_run_a_seed(records, claim, "where")


def table_means(study: Study, table: Mapping[str, Any]) -> None:
    """`means` of a table."""
    for records in shown_in_table(study, table):
        one_run_a_seed(records, table, "rows or columns")


def figure_means(study: Study, figure: Mapping[str, Any]) -> None:
    """`means` of a figure; where runs are points there is nothing to average."""
    if not POINTS.isdisjoint(figure.get("shows", {})):
        return
    for records in shown_in_figure(study, figure):
        one_run_a_seed(records, figure, "rows, columns, curves or where")


def one_run_a_seed(records: Iterable[Record], item: Mapping[str, Any], keys: str) -> None:
    """Raise InputError where records of one seed, that would be averaged, are of several runs, and name what these differ
    in; a search chooses among its own."""
    over = item["search"]["over"] if "search" in item else []
    once: dict[tuple[str, ...], Record] = {}
    for record in records:
        other = once.setdefault((record.seed, *map(record.field, over)), record)
        if other.folder != record.folder:
            fields = (*selection.FIELDS, "setting", *BUDGET, *record.axes)
            apart = ", ".join(formatting.unique(field for field in fields if record.field(field) != other.field(field)))
            raise InputError(f"runs that differ in {apart} would be averaged as if they were one; name it in {keys}")
