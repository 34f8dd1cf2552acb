"""A paper's results at a glance, as Markdown: the cells that have a run beside print, with their cost, and the claims."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesfed import files
from bayesfed.results import cells, claims, compare, search, tables


def cost(records: Iterable[cells.Record]) -> tuple[str, str]:
    """What a run of these took (hours, mean over finished runs), and on what hardware."""
    done = {record.folder for record in records if record.done}
    found = [json.loads((folder / "provenance.json").read_text()) for folder in sorted(done)]
    if not found:
        return "", ""
    hours = statistics.fmean(each["train_seconds"] for each in found) / 3600
    took = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
    return took, " or ".join(cells.unique(map(place, found)))


def place(provenance: Mapping[str, Any]) -> str:
    """Where a run was computed: hardware, threads on a CPU, precision."""
    threads = f"{provenance['threads']} thread{'s' if provenance['threads'] > 1 else ''}"
    words = [provenance["hardware"], threads if provenance["device"] == "cpu" else "", provenance["precision"]]
    return ", ".join(word for word in words if word)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rows))


def table(study: cells.Study, spec: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> str:
    """A table's finished cells; `rows` are its rows of the comparison, one a cell in the same order. "" where none has a
    result, as where all runs are too short."""
    own = [(keys, cell) for keys, of_row in tables.rows(study, spec) for cell in of_row]
    if not any(cell.score().seeds or cell.score().diverged for _, cell in own):
        return ""
    several = len({cell.metric for _, cell in own}) > 1  # then a column's title says which
    shown = []
    for (row_keys, cell), row in zip(own, rows, strict=True):
        score = cell.score()
        if not (score.seeds or score.diverged or score.missing):
            continue
        hours, hardware = cost(cell.records)
        verdict = f"**{row['difference']}**" if row["difference"] else ""
        if not all(record.as_printed for record in cell.records) or not row["difference"]:
            verdict = f"{verdict} ({row['verdict']})".strip()
        keys = ", ".join(study.label(value) for value in (row_keys if several else cell.keys).values())
        keys += f", {cell.column}" if several else ""
        keys += f": {chosen}" if (chosen := search.chosen(cell.records)) else ""
        last5 = cell.score(cell.statistic.last5).shown() if cell.statistic.kind != "first" else ""
        shown.append([keys, row["published"], score.shown(), last5, verdict, score.count(), hours, hardware])
    head = ["", "in print", "here, best round", "here, last five", "difference", "seeds", "cost of a run", "hardware"]
    return f"**{spec['title']}**\n\n{markdown(head, shown)}\n"


def text(study: cells.Study, published: Sequence[Mapping[str, str]]) -> str:
    """The whole of it, under the label of the paper's own method: tables of the config's own, those
    named under `glance` in the paper's YAML, then every claim that a finished run touches."""
    asked = cells.unique(str(record.folder) for record in study.records)
    done = cells.unique(str(record.folder) for record in study.records if record.done)
    out = f"### {study.own_method}\n\n{len(done)} of {len(asked)} planned runs stand."
    if not done:
        return f"{out}\n\n"
    out += " Accuracies in percent, mean over seeds; `here, best round` is chosen on the test set, as in print.\n\n"
    for name in study.spec.get("glance", []):
        spec = study.spec["tables"][name]
        out += table(study, spec, compare.compare(study, spec, spec.get("published", [name]), published))
    totals = [claims.rows(study, claim)[0] for claim in study.spec.get("claims", [])]
    touched = [
        [
            row["claim"],
            row["by"],
            f"{row['holds']} of {row['of']} ({row['planned']})",
            row["difference"],
            row["verdict"],
        ]
        for row in totals
        if row["of"] != "0"
    ]
    if touched:
        head = ["claim", "by", "holds in, of finished (planned)", "mean difference", "verdict so far"]
        out += f"{markdown(head, touched)}\n"
    return out


def write(plan: Path, out: Path, runs: Path | None = None, papers: Path = Path("config/papers")) -> list[Path]:
    """Write `<out>/<paper>/glance.md` for each paper of the plan; arguments, errors as in `compare.write`."""
    written = []
    for study in cells.studies(plan, runs):
        path = out / study.paper / "glance.md"
        files.write_text(
            path, text(study, compare.read_published(study.folder(papers) / f"{study.paper}.published.csv"))
        )
        written.append(path)
    return written
