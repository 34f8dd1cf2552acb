"""What follows from a study: each part once, and from the one before it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bayesfed.results import cells, claims, per_run, published_numbers


def test_each_part_is_computed_once(lab: Any, stored: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    stored(lab.cell("heterogeneous", "HBFL"), [0.8], [[0.8]] * 10)
    (one,) = lab.found
    called: Counter[str] = Counter()
    for module, name in ((cells, "rows"), (published_numbers, "compare"), (claims, "tested"), (per_run, "clients")):
        whole = getattr(module, name)

        def counting(*given: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            called[name] += 1
            return whole(*given)

        monkeypatch.setattr(module, name, counting)
    for _ in range(2):
        parts = one.rows, one.compared, one.claims, one.runs, one.clients
    rows, compared, tested, _, (_, clients) = parts
    tables = len(one.study.tables)
    assert called == {"rows": tables, "compare": tables, "tested": len(one.study.spec["claims"]), "clients": 1}
    assert rows.keys() == compared.keys() == one.study.tables.keys()
    shown = [cell for _, of_row in rows["table1"] for cell in of_row]
    assert [found.cell for found in compared["table1"]] == shown
    assert [found.claim for found in tested] == one.study.spec["claims"]
    assert [row["client"] for row in clients] == [*map(str, range(10)), "mean", "global"]
