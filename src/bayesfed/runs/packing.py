"""The small form of a metric history: `metrics.json.xz` in place of `metrics.csv`, half of what git makes of that.

Every row is one of a few series (client, model, metric), and most rounds have the same series. So each series is written
once with its values by round, and each order of series within a round once. The text comes back byte for byte: the record's
seal is that of `metrics.csv`, whichever form is there.
"""

from __future__ import annotations

import itertools
import json
import lzma
from typing import Any

PACKED = "metrics.json.xz"


def pack(text: str) -> bytes:
    """Return the packed form of the text of `metrics.csv`."""
    header, *rows = text.removesuffix("\n").split("\n")
    values: dict[str, list[str]] = {}
    orders: dict[tuple[str, ...], int] = {}
    rounds = []
    for at, of_round in itertools.groupby(rows, lambda row: row.partition(",")[0]):
        order = []
        for row in of_round:
            names, _, value = row.removeprefix(f"{at},").rpartition(",")
            values.setdefault(names, []).append(value)
            order.append(names)
        rounds.append([at, orders.setdefault(tuple(order), len(orders))])
    number = {names: place for place, names in enumerate(values)}
    content = {
        "header": header,
        "rounds": rounds,
        "orders": [[number[names] for names in order] for order in orders],
        "values": {names: " ".join(of_series) for names, of_series in values.items()},
    }
    return lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME)


def unpack(packed: bytes) -> str:
    """Return the text of `metrics.csv`. Raises ValueError for what `pack` did not make."""
    try:
        content: dict[str, Any] = json.loads(lzma.decompress(packed))
        values = [(names, iter(of_series.split(" "))) for names, of_series in content["values"].items()]
        lines = [content["header"]]
        for at, order in content["rounds"]:
            for names, of_series in map(values.__getitem__, content["orders"][order]):
                lines.append(f"{at},{names},{next(of_series)}")
    except (lzma.LZMAError, LookupError, TypeError, AttributeError, StopIteration):
        raise ValueError("no packed metrics") from None
    return "\n".join(lines) + "\n"
