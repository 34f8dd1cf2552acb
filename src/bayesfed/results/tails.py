"""Of which rounds the last numbers of runs are, in words, where these are not the last of their runs."""

from collections.abc import Iterable, Sequence

from bayesfed.results.formatting import unique
from bayesfed.results.records import Record
from bayesfed.results.statistics import Statistic


def of_rounds(records: Iterable[Record], *asked: Statistic) -> str:
    """Say of which rounds the records have each statistic that is a `last` or `last5`, where these are not the last of their
    runs: `last: each client's last tested round, 8 to 40`."""
    records = list(records)
    told = []
    for statistic in {one.name: one for one in asked}.values():
        having = [record for record in records if record.tail(statistic)]
        if not all(record.at_the_end(statistic) for record in having):
            told.append(f"{statistic.name}: {in_tails(having, statistic)}")
    return "; ".join(told)


def in_tails(records: Sequence[Record], statistic: Statistic) -> str:
    """Write the rounds that records have a statistic of: of one record each, of several from first to last."""
    rounds = unique(map(str, sorted(at for record in records for at in record.tail(statistic))))
    span = " to ".join(unique((rounds[0], rounds[-1])))
    if records[0].level == "personal":
        return f"each client as last tested, in rounds {span}"
    if len(records) == 1:
        return f"its last tested round{'s' * (len(rounds) > 1)}, {', '.join(rounds)}"
    who = "each client's" if len({record.client for record in records}) > 1 else "its"
    return f"{who} {'last tested round' if statistic.name == 'last' else 'up to five last tested rounds'}, {span}"
