"""Of which rounds the last numbers of runs are, in words, where these are not the last of their runs."""

from collections.abc import Iterable, Sequence

from bayesfed.results.cells import Record
from bayesfed.results.formatting import unique
from bayesfed.results.statistics import Statistic


def of_rounds(records: Iterable[Record], *asked: Statistic) -> str:
    """Of which rounds the records have each statistic that is a `last` or `last5`, in words, where these are not the last of
    their runs: `last: each client's last tested round, 8 to 40`."""
    records = list(records)
    told = []
    for statistic in {one.name: one for one in asked}.values():
        having = [record for record in records if record.tail(statistic)]
        if not all(record.at_the_end(statistic) for record in having):
            told.append(f"{statistic.name}: {in_tails(having, statistic)}")
    return "; ".join(told)


def in_tails(records: Sequence[Record], statistic: Statistic) -> str:
    """The rounds that records have a statistic of, in words: of one record each, of several from first to last."""
    rounds = unique(str(round) for round in sorted(round for record in records for round in record.tail(statistic)))
    span = " to ".join(unique((rounds[0], rounds[-1])))
    if records[0].level == "personal":
        return f"each client as last tested, in rounds {span}"
    if len(records) == 1:
        return f"its last tested round{'s' * (len(rounds) > 1)}, {', '.join(rounds)}"
    who = "each client's" if len({record.client for record in records}) > 1 else "its"
    return f"{who} {'last tested round' if statistic.name == 'last' else 'up to five last tested rounds'}, {span}"
