"""The RO-Crate of a report: what was made from what, by which software, for repositories and tools that read it.

It is a folder beside the report, `<report>-crate`, with `ro-crate-metadata.json` and links to the report and its results: so
nothing is copied, every path lies in the crate, and `zip -r` makes a package that is complete in itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from bayesfed import __version__
from bayesfed.core.errors import InputError
from bayesfed.results import hardware
from bayesfed.results.run_records import RunRecord
from bayesfed.results.study import Study
from bayesfed.runs import packing, run_folder

NAME = "ro-crate-metadata.json"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
FORMATS = {".csv": "text/csv", ".json": "application/json", ".yaml": "application/yaml", ".html": "text/html", ".md": "text/markdown",
         ".svg": "image/svg+xml", ".png": "image/png", ".log": "text/plain",
         ".xz": "application/x-xz"}  # fmt: skip


def path(report: Path) -> Path:
    """Return the path of a report's crate metadata."""
    return report.with_name(f"{report.stem}-crate") / NAME


def write(made: Path, report: Path, beside: Path | None, content: Mapping[str, Any], results: Path,
          studies: Sequence[Study]) -> None:  # fmt: skip
    """Write the crate: the report with the page `beside` it, tables and figures, every finished run with what it used, and
    the software.
    """
    folder = made.parent
    folder.mkdir(parents=True, exist_ok=True)
    pointed = {"results": results, report.name: report}
    workflow = report.with_name(f"{report.stem}-workflow.html")
    pages = [page for page in (beside, workflow) if page and page.exists()]
    pointed |= {page.name: page for page in pages}
    for name, target in pointed.items():
        if (folder / name).is_symlink():
            (folder / name).unlink()
        elif (folder / name).exists():
            raise InputError(f"{folder / name}: expected a link to {target}, found a copy of something; delete it")
        beyond = os.path.relpath(target.resolve(), folder.resolve())  # a link may lie between them
        (folder / name).symlink_to(beyond, target_is_directory=target.is_dir())
    crate = ROCrate(version="1.2")
    crate.name = str(content.get("title", report.stem))
    crate.description = " ".join(f"Report of bayesfed. {content['notice']}".split())
    crate.license = "https://spdx.org/licenses/Apache-2.0"
    crate.metadata["conformsTo"] = [{"@id": crate.metadata.profile}, {"@id": PROFILE}]
    software = entity(crate, "#bayesfed", "SoftwareApplication", name="bayesfed", version=__version__)
    articles = [
        entity(
            crate,
            f"#{study.paper}",
            "ScholarlyArticle",
            name=study.spec.get("title", study.paper),
            citation=study.spec.get("reference", ""),
        )
        for study in studies
    ]
    main = file(crate, report.name, about=articles)
    crate.mainEntity = main
    for page in pages:
        file(crate, page.name)
    for kind in ("tables", "figures", "partitions"):
        for one in sorted((results / kind).rglob("*.*")):
            file(crate, f"results/{one.relative_to(results).as_posix()}")
    runs = {record.folder: record.run for study in studies for record in study.records if record.done}
    for place in sorted(runs):
        run_entities(crate, runs[place], results, software)
    crate.metadata.write(folder)


def run_entities(crate: ROCrate, run: RunRecord, results: Path, software: Any) -> None:
    """Add a run to the crate: its record, and the action that made it of its run file."""
    place = f"results/{run.folder.relative_to(results).as_posix()}"
    used = file(crate, f"{place}/run.yaml")
    metrics = packing.PACKED if run_folder.is_packed(run.folder) else run_folder.METRICS
    made = [file(crate, f"{place}/{name}") for name in (metrics, "provenance.json", run_folder.SUMMARY)]
    entity(
        crate,
        f"#{run.folder.name}",
        "CreateAction",
        name=f"training run {run.folder.name}",
        description=hardware.place(run.provenance),
        instrument=software,
        object=used,
        result=made,
    )


def file(crate: ROCrate, place: str, **properties: Any) -> Any:
    """Add a file to the crate; return its entity."""
    kind = FORMATS.get(Path(place).suffix)
    told = {"name": Path(place).name} | ({"encodingFormat": kind} if kind else {})
    one = crate.add_file(dest_path=place, properties=told)
    for name, value in properties.items():
        one[name] = value
    return one


def entity(crate: ROCrate, identifier: str, kind: str, **properties: Any) -> Any:
    """Add a thing that is no file to the crate; return its entity."""
    one = crate.add(ContextEntity(crate, identifier, properties={"@type": kind}))
    for key, value in properties.items():
        if value:
            one[key] = value
    return one
