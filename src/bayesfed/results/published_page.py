"""Agreement of a paper's tables with the published numbers, and the cost of its experiments, as Markdown."""

import functools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from bayesfed.results import cells, claims, hardware, markdown, verdicts
from bayesfed.results.derived import Derived
from bayesfed.results.published_numbers import Compared
from bayesfed.results.records import DIVERGED, Record
from bayesfed.results.run_records import RunRecord
from bayesfed.results.study import Study

WITHIN = (1, 3, 5)  # points of a percentage

Pairs = list[tuple[float, float]]
"""(published, ours) of cells."""


def in_percent(of: Derived, name: str) -> list[Compared]:
    """List the cells of a table that are published in percent."""
    return [one for one in of.compared[name] if one.row["published"] and one.cell.statistic.scale == 100]


def comparable(known: Iterable[Compared]) -> list[Compared]:
    """Select the cells whose runs are finished, and are the paper's in everything."""
    return [one for one in known if one.row["verdict"].startswith(("higher", "lower", "within"))]


def compared(ours: Iterable[Compared]) -> list[Pairs]:
    """Group published and measured values of cells that differ in nothing but the method."""
    alike = dict[tuple[object, ...], Pairs]()
    for one in ours:
        rest = (one.cell.metric, *((key, value) for key, value in one.cell.keys.items() if key != "method"))
        alike.setdefault(rest, []).append((float(one.row["published"]), float(one.row["mean"])))
    return list(alike.values())


def rank_correlation(pairs: Pairs) -> float | None:
    """Spearman's, of our cells with the published ones; None where there are fewer than three, or all of one side are
    equal."""
    if len(pairs) < 3 or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return None
    from scipy.stats import spearmanr  # slow to load

    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def order(alike: Sequence[Pairs]) -> str:
    """Describe how far the order of methods is the published one; "" if nowhere three methods can be compared.

    The mean rank correlation, and its range and number if there are several.
    """
    ranked = [found for found in map(rank_correlation, alike) if found is not None]
    if not ranked:
        return ""
    spread = f" ({min(ranked):.1f} to {max(ranked):.1f} in {len(ranked)})" if len(ranked) > 1 else ""
    return f"{statistics.fmean(ranked):.2f}{spread}"


def of_tables(of: Derived) -> str:
    """Write a row for each published table: its cells, those run, how many come near, and whether their order is the
    published one.
    """
    found = []
    for name in of.study.tables:
        known = in_percent(of, name)
        if not known:
            continue
        ours = comparable(known)
        lost = sum(one.row["verdict"].endswith(DIVERGED) for one in known)
        away = [distance(one) for one in ours]
        found.append(
            [
                name,
                str(len(known)),
                f"{len(away)}, {lost} {DIVERGED}" if lost else str(len(away)),
                *(str(sum(points <= limit for points in away)) if away else "" for limit in WITHIN),
                f"{statistics.fmean(float(one.row['difference']) for one in ours):+.2f}" if ours else "",
                f"{statistics.fmean(away):.2f}" if away else "",
                order(compared(ours)),
            ]
        )
    near = [f"within {limit}" for limit in WITHIN]
    head = ["table", "published cells", "run", *near, "mean difference", "mean distance", "order of methods"]
    return f"{markdown.table(head, found)}\n" if found else ""


def tables_with_published_numbers(study: Study) -> list[str]:
    """List the tables with published cells; one of means over other tables' cells publishes nothing of its own."""
    return [name for name, spec in study.tables.items() if len(spec.get("published", [name])) == 1]


def distance(one: Compared) -> float:
    """Return the distance of a cell from the published number in points."""
    return abs(float(one.row["difference"]))


def of_far(of: Derived) -> str:
    """Write a row for each published percentage that is further from the run's than the widest of WITHIN."""
    found = []
    for name in tables_with_published_numbers(of.study):
        for one in comparable(in_percent(of, name)):
            if distance(one) > WITHIN[-1]:
                where = cells.title(of.study, {key: one.cell.keys[key] for key in of.study.tables[name]["rows"]})
                numbers = [one.row[column] for column in ("mean", "published", "difference", "seeds")]
                found.append([name, f"{where}, {one.cell.column}", *numbers])
    head = [
        f"more than {WITHIN[-1]} points from the published number",
        "cell",
        "here",
        "published",
        "difference",
        "seeds",
    ]
    return f"{markdown.table(head, found)}\n" if found else ""


def of_unplanned(of: Derived) -> str:
    """Write a row for each reason why published numbers of a table are of no run here, and how many they are."""
    rows = [(row["item"], row["unplanned"]) for row in of.published if row.get("unplanned")]
    found = [[table, str(count), why] for (table, why), count in Counter(rows).items()]
    return (
        f"{markdown.table(['table', 'published numbers that no run here can have', 'why'], found)}\n" if found else ""
    )


def in_words(of: Derived) -> str:
    """Summarise how many published cells are run and how near they come, and the verdicts on the paper's claims.

    A sentence each; "" if it has neither.
    """
    known, lost, away = 0, 0, []
    for name in tables_with_published_numbers(of.study):
        beside = in_percent(of, name)
        known += len(beside)
        lost += sum(one.row["verdict"].endswith(DIVERGED) for one in beside)
        away += [distance(one) for one in comparable(beside)]
    near = ", ".join(f"{sum(points <= limit for points in away)} within {limit}" for limit in WITHIN)
    own = [one.total for one in of.claims if one.claim["by"] == "paper"]
    many = {verdict: sum(one.verdict == verdict for one in own) for verdict in (*verdicts.WORDS, DIVERGED)}
    many["not in this plan"] = sum(not one.planned for one in own)
    many[verdicts.NOT_RUN] = sum(one.verdict == verdicts.NOT_RUN and one.planned > 0 for one in own)
    many["without a number in the finished runs"] = len(own) - sum(many.values())
    flagged = {
        flag: sum(any(one.startswith(flag) for one in total.flags) for total in own)
        for flag in (verdicts.PRELIMINARY, verdicts.OFF_PROTOCOL)
    }
    out = f"Of {known} published percentages {len(away)} are run" + (
        f": {near} points of the published ones." if away else "."
    )
    out += f" {'A run' if lost == 1 else 'Runs'} of {lost} more {DIVERGED}." if lost else ""
    counts = ", ".join(f"{count} {words}" for words, count in many.items() if count)
    flags = ", ".join(f"{count} {flag}" for flag, count in flagged.items() if count)
    of_claims = f"The paper's {len(own)} {'claim' if len(own) == 1 else 'claims'}: {counts}{f'; of these {flags}' if flags else ''}."
    said = [out if known else "", of_claims if own else ""]
    return " ".join(filter(None, said))


def of_claims(of: Derived) -> str:
    """Write a row for each claim: in how many cells and seeds it holds."""
    found = [claim_line(one) for one in of.claims]
    return f"#### Claims\n\n{markdown.table(CLAIM_HEAD, found)}\n{RULE}\n\n" if found else ""


RULE = (
    "A verdict counts the tests, one a cell and seed, in which a claim holds: supported (all; of a claim about most settings "
    "more than half), mostly (at least 2/3), mixed, mostly not (under 1/3), contradicted (none). Preliminary: fewer tests "
    "than planned. Off-protocol: not the paper's runs. Differences are means over those that have one, of the first named minus what it is compared with, or of the last place minus the "
    "first."
)
CLAIM_HEAD = ["claim", "by", "tests finished (planned)", "mean difference", "verdict"]


def claim_line(of: claims.Tested) -> list[str]:
    """Write a claim in the columns of CLAIM_HEAD: `5, 3 ties (15)`; with the precisions if runs of different ones are
    compared.
    """
    total = of.total
    counted, verdict = "", "not in this plan"
    if total.planned:
        ties = f", {total.ties} ties" if total.ties else ""
        counted = f"{total.of}{ties} ({total.planned})"
        verdict = f"{total.told}{f', {total.precision}' if ' against ' in total.precision else ''}"
    difference = claims.amount(total.difference, of.tests[0].statistic, signed=True) if total.difference else ""
    return [of.claim["claim"], of.claim["by"], counted, difference, verdict]


def of_costs(records: Iterable[Record]) -> str:
    """Write a row for each experiment: its runs, what one took on a CPU, and what the open ones would take.

    An open run is taken to cost the mean of finished ones of the same method, network and data; the row says how many
    have none.
    """
    experiments: dict[str, dict[RunRecord, Record]] = {}
    for record in records:
        experiments.setdefault(record.experiment, {}).setdefault(record.run, record)
    found = []
    for experiment, of in experiments.items():
        took: dict[tuple[str, str, str], list[float]] = {}
        made = {run: run.provenance for run, record in of.items() if record.done}
        for run, how in made.items():
            if all(hardware.machines(how).values()):  # each with its threads: all were CPUs
                took.setdefault(kind(of[run]), []).append(how["train_seconds"] / 3600)
        each = [hours for hours_of in took.values() for hours in hours_of]
        still = [record for record in of.values() if not record.done]
        known = [statistics.fmean(took[kind(record)]) for record in still if kind(record) in took]
        found.append(
            [
                experiment,
                str(len(of)),
                str(len(of) - len(still)),
                f"{statistics.fmean(each):.2f}" if each else "",
                f"{sum(known):.0f} ({len(known)} runs)" if known else "",
                str(len(still) - len(known)),
                hardware.places(made.values()),
            ]
        )
    head = [
        "experiment",
        "runs planned",
        "finished",
        "hours of one on a CPU",
        "hours of open ones like these",
        "open ones unlike",
        "hardware",
    ]
    return f"{markdown.table(head, found)}\n"


def kind(record: Record) -> tuple[str, str, str]:
    """Return what decides a run's time: its method, network and data."""
    return record.method, record.model, record.used


def text(of: Derived) -> str:
    """Write the whole page, under the label of the paper's own method."""
    parts = (of_tables(of), of_unplanned(of), of_far(of), of_claims(of), of_costs(of.study.records))
    return f"### {of.study.heading}\n\n{notice(of.study)}" + "".join(parts)


def notice(study: Study) -> str:
    """Write the config's notice on all its numbers, and how its finished runs differ from the paper's, a paragraph
    each.
    """
    changes = study.changes([record for record in study.records if record.done] or list(study.records))
    told = [study.notice, f"Its runs: {changes}." if study.notice and changes else ""]
    return "".join(f"**{words}**\n\n" for words in told if words)


write = functools.partial(markdown.write, "vs-published.md", text)
