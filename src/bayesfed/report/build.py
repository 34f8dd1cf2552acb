"""The page: everything that a plan's finished runs say, in one HTML file without a request to anywhere."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair
import vl_convert

from bayesfed import __version__
from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.report import claims_text, grounds_page, ro_crate, run_details, sections
from bayesfed.report.charts import Chart, of_figure
from bayesfed.report.claims_text import Answer, Closeness
from bayesfed.report.html_tables import Plain, Table, of_paper
from bayesfed.report.templating import templates
from bayesfed.results import claims_table, derived, formatting, hardware, paired, verdicts
from bayesfed.results.derived import Derived
from bayesfed.results.records import DIVERGED, Record
from bayesfed.runs.planned import home

Json = dict[str, Any]


@dataclass(frozen=True)
class Paper:
    """A paper's tab: all that the templates show of it."""

    name: str
    label: str
    title: str
    reference: str
    reproduces: bool
    published: bool
    first_client: int
    lead: list[str]
    done: int
    planned: int
    seeds: str
    budget: list[str]
    hours: str
    hardware: str
    closeness: Closeness
    answers: list[Answer]
    claims: Plain
    tables: list[Table]
    against: Chart | None
    figures: list[Chart]
    calibration: Plain | None
    reliability: list[Chart]
    logged: Plain | None
    diagnostics: list[Chart]
    terms: list[tuple[str, str]]
    partitions: list[Chart]
    without_partition: int
    cost: Plain | None
    runs: Plain | None

    @property
    def own(self) -> list[Answer]:
        """The claims that the paper itself makes."""
        return [one for one in self.answers if one.by == "paper"]

    @property
    def first(self) -> list[Answer]:
        """The paper's first claim that has been tested, for the overview; empty without any."""
        return [one for one in self.own if one.run][:1]

    @property
    def charts(self) -> list[Chart]:
        """All charts of the tab."""
        alone = [self.against] if self.against else []
        return [*alone, *self.figures, *self.reliability, *self.diagnostics, *self.partitions]


def write(plan: Path, out: Path) -> list[Path]:
    """Write the report of a plan to `out`, and its RO-Crate to a folder beside it; returns the files.

    Where the plan has grounds and papers, the page of its grounds lies beside that of its papers, as `<name>-methods.html`.
    Reads the plan's results folder: runs, tables of partitions if they exist, and of benchmarks if the config asks for
    them. The workflow's own report is linked if it is beside `out`, as `<name>-workflow.html`. Raises
    InputError for a missing plan, a damaged run folder, and an `out` that is a folder or no .html.
    """
    if out.is_dir():
        raise InputError(f"--out {out}: this is a folder; expected the page to write, like {out / 'report.html'}")
    if out.suffix != ".html":
        raise InputError(f"--out {out}: expected a name that ends in .html, as browsers want it")
    found = derived.load(plan)
    content, results = json.loads(plan.read_text(encoding="utf-8")), home(plan)
    studies, metadata = [one.study for one in found], ro_crate.path(out)
    grounds = grounds_page.of_plan(content, studies)
    apart = paired.of_grounds(studies) if grounds else []
    papers = [one for one in found if one.study not in apart]
    beside = out.with_name(f"{out.stem}-methods.html") if grounds and papers else None
    if papers:
        files.write_text(out, of_papers(papers, content, results, out, beside))
    if grounds:
        files.write_text(beside or out, grounds)
    ro_crate.write(metadata, out, beside, content, results, studies)
    return [out, *([beside] if beside else []), metadata]


def of_papers(
    found: Sequence[Derived], content: Mapping[str, Any], results: Path, out: Path, beside: Path | None
) -> str:
    """Render the page of papers, a tab each; beside: the page of the plan's grounds."""
    held = sections.held(content, results)
    runs = [run_details.of_study(one, content) for one in found]
    shown = [paper(one, own, held, content) for one, own in zip(found, runs, strict=True)]
    workflow, metadata = out.with_name(f"{out.stem}-workflow.html"), ro_crate.path(out)
    return (
        templates()
        .get_template("page.html")
        .render(
            name=out.stem,
            title=content.get("title", out.stem),
            notice=content["notice"],
            version=__version__,
            papers=shown,
            words=[
                *verdicts.WORDS,
                *formatting.unique(one.word for each in shown for one in each.own if one.word == DIVERGED),
            ],
            speed=sections.speed(results / "speed") if content["benchmarks"] else [],
            data={
                "charts": {chart.name: chart.data() for one in shown for chart in one.charts},
                "papers": {one.study.paper: list(own) for one, own in zip(found, runs, strict=True)},
                "runs": {name: run for own in runs for name, run in own.items()},
                "partitions": held,
                "specs": run_details.specs(),
            },
            libraries=libraries(),
            workflow=workflow.name if workflow.exists() else "",
            grounds=beside.name if beside else "",
            crate=metadata.relative_to(out.parent).as_posix(),
        )
    )


@functools.cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed, in the version that Altair writes for, as a script that a page may hold."""
    version = altair.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version).replace("</script", r"<\/script")


def paper(of: Derived, own: Mapping[str, Json], held: Mapping[str, Json], plan: Mapping[str, Any]) -> Paper:
    """Return a paper's tab; `own` are its runs by their names on the page, `held` the images that clients hold in each
    partition.
    """
    study, spec = of.study, of.study.spec
    tables = [of_paper(study, name, table, of.rows[name], of.compared[name]) for name, table in study.tables.items()]
    compared = [one for of_table in of.compared.values() for one in of_table]
    known, numbers = claims_text.published(compared), claims_text.closeness(tables)
    claim_rows = [claims_table.rows(study, one) for one in of.claims]
    found = [claims_text.answer(one, rows[1:], known) for one, rows in zip(of.claims, claim_rows, strict=True)]
    finished = [record for record in study.records if record.done]
    unlike: dict[tuple[object, ...], Record] = {}
    for record in finished:
        unlike.setdefault((record.dataset, record.used, record.changes), record)
    done = len({record.run for record in finished})
    planned = len({record.run for record in study.records})
    logged, diagnostics = sections.logged(study)
    partitions, without = sections.partitions(study, own, held)
    return Paper(
        name=study.paper,
        label=study.heading,
        title=spec.get("title", study.paper),
        reference=spec.get("reference", ""),
        reproduces=study.reproduces,
        published=any(one.row["published"] for one in compared),
        first_client=study.first_client,
        lead=claims_text.lead(study.heading, found, numbers, done, planned),
        done=done,
        planned=planned,
        seeds=", ".join(formatting.unique(record.seed for record in finished)),
        budget=formatting.unique(study.changes([record]) for record in unlike.values()),
        hours=" ".join(formatting.duration(sum(one["provenance"]["train_seconds"] for one in own.values()))),
        hardware=hardware.names(one["provenance"] for one in own.values()),
        closeness=numbers,
        answers=found,
        claims=sections.claim_table(study, [row for rows in claim_rows for row in rows]),
        tables=tables,
        against=sections.against(study, tables),
        figures=[of_figure(study, name, figure) for name, figure in spec.get("figures", {}).items()],
        calibration=sections.calibration(of),
        reliability=sections.reliability(study),
        logged=logged,
        diagnostics=diagnostics,
        terms=run_details.terms(own.values(), plan),
        partitions=partitions,
        without_partition=without,
        cost=sections.cost(study, own),
        runs=sections.run_list(study, own),
    )
