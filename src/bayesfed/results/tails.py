"""Of which rounds the last numbers of runs are, in words, where these are not the last of their runs."""

from collections.abc import Iterable, Sequence

from bayesfed.results.formatting import unique
from bayesfed.results.records import Record
from bayesfed.results.statistics import TAILS, Statistic


def of_rounds(records: Iterable[Record], *asked: Statistic) -> str:
    """Describe the rounds of each statistic that is one of TAILS, if these are not the last of their runs.

    For example `last: each client's last tested round, 8 to 40`.
    """
    records = list(records)
    if all(record.ends_whole for record in records):
        return ""
    told = []
    for statistic in {one.name: one for one in asked if one.name in TAILS}.values():
        having = [(record, tail) for record in records if (tail := record.tail(statistic))]
        if not all(record.at_the_end(tail, statistic) for record, tail in having):
            told.append(f"{statistic.name}: {in_tails(having, statistic)}")
    return "; ".join(told)


def in_tails(having: Sequence[tuple[Record, Sequence[int]]], statistic: Statistic) -> str:
    """Write the rounds that records have a statistic of: of one record each, of several from first to last."""
    records = [record for record, _ in having]
    rounds = unique(map(str, sorted(at for _, tail in having for at in tail)))
    span = " to ".join(unique((rounds[0], rounds[-1])))
    if records[0].level == "personal":
        return f"each client as last tested, in rounds {span}"
    if len(records) == 1:
        return f"its last tested round{'s' * (len(rounds) > 1)}, {', '.join(rounds)}"
    who = "each client's" if len({record.client for record in records}) > 1 else "its"
    which = {"last": "last tested round", "last3": "up to three last tested rounds"}
    return f"{who} {which.get(statistic.name, 'up to five last tested rounds')}, {span}"
