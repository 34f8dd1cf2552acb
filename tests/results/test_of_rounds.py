"""Runs of which a client takes part now and then: of which rounds their last numbers are is said wherever they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesfed.report import build
from bayesfed.results import claims_table, summary_page, tables, tails
from bayesfed.results import study as join
from bayesfed.results.statistics import Statistic

LAST, LAST5 = Statistic("last"), Statistic("last5")
# Seven rounds of two clients; the server's model is tested on both in the last five.
OWN: list[list[float | None]] = [
    [0.1, 0.2, None, 0.4, None, None, None],
    [None, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
]
SERVER = [0.1 * round for round in range(1, 8)]
CLAIM = {
    "claim": "above", "by": "us", "kind": "higher", "experiments": ["heterogeneous"], "method": "HBFL", "than": ["FML"],
    "metric": "client_accuracy_last",
}  # fmt: skip


@pytest.fixture
def seldom(lab: Any, stored: Callable[..., None]) -> Any:
    """HBFL with all clients in each round, and FML with some, in a table of each level."""
    whole = [[0.1 * round for round in range(1, 8)]] * 2
    stored(lab.cell("heterogeneous", "HBFL", clients=2), SERVER, whole, on_shards=whole, test_images=[10, 30])
    stored(lab.cell("heterogeneous", "FML", clients=2), SERVER, OWN, on_shards=whole, test_images=[10, 30])
    columns = [{"method": "FML"}, {"method": "HBFL"}]
    common = {"title": "", "experiment": "heterogeneous", "rows": {"setting": ["IID"]}, "columns": columns}
    lab.spec["tables"] = {
        name: {**common, "metric": f"{name}_accuracy_last"}
        for name in ("client", "global_on_shard", "personal", "global")
    }
    lab.spec["tables"]["each"] = {**lab.spec["tables"]["client"], "rows": {"client": [0, 1]}}
    lab.spec["tables"]["best"] = {**lab.spec["tables"]["client"], "metric": "client_accuracy_best"}
    lab.spec["summary"], lab.spec["figures"], lab.spec["claims"] = ["client", "best"], {}, [CLAIM]
    return lab


def test_tables_say_of_which_rounds_they_are(seldom: Any, rows: Callable[..., Any], tmp_path: Path) -> None:
    tables.write(seldom.found, tmp_path)
    (client,) = rows(tmp_path / "hbfl/client.csv")
    told = "last5: each client's up to five last tested rounds, 1 to 7"
    assert client["of_rounds"] == f"last: each client's last tested round, 4 to 7; {told} (FML)"
    assert rows(tmp_path / "hbfl/best.csv")[0]["of_rounds"] == f"{told} (FML)"
    (personal,) = rows(tmp_path / "hbfl/personal.csv")
    words = [
        f"{name}: each client as last tested, in rounds {first} to 7" for name, first in (("last", 4), ("last5", 2))
    ]
    assert personal["of_rounds"] == f"{'; '.join(words)} (FML)"
    assert (personal["FML"], personal["FML last5"]) == ("70.00", "54.00")  # (0.4 + 3 * 0.8) / 4, and of rounds 3 to 7
    first, second = rows(tmp_path / "hbfl/each.csv")
    assert first["of_rounds"] == "last: its last tested round, 4; last5: its last tested rounds, 1, 2, 4 (FML)"
    assert second["of_rounds"] == ""
    for whole in ("global", "global_on_shard"):
        assert "of_rounds" not in rows(tmp_path / f"hbfl/{whole}.csv")[0]


def test_clients_and_comparison_say_so(seldom: Any, rows: Callable[..., Any], tmp_path: Path) -> None:
    tables.write(seldom.found, tmp_path)
    tables.write_comparison(seldom.found, tmp_path)
    found = {(row["method"], row["client"]): row["note"] for row in rows(tmp_path / "hbfl/clients.csv")}
    assert found["FML", "0"] == "last: its last tested round, 4; last5: its last tested rounds, 1, 2, 4"
    assert found["FML", "1"] == ""
    assert found["FML", "mean"].startswith("last: each client's last tested round, 4 to 7; last5: each client's up to")
    assert {found["HBFL", client] for client in ("0", "1", "mean", "global")} == {""}
    fml, hbfl = rows(tmp_path / "hbfl/client.compare.csv")
    assert "last: each client's last tested round, 4 to 7" in fml["note"]
    assert "last tested" not in hbfl["note"]


def test_a_record_of_before_says_so_too(lab: Any, stored: Callable[..., None]) -> None:
    """The server's model was tested on all shards every tenth round alone: its last five were of other rounds."""
    seldom: list[Any] = [*[None] * 4, 0.5, *[None] * 4, 0.8]
    stored(lab.cell("heterogeneous", "FML", clients=1), [0.1] * 10, [[0.1] * 10], on_shards=[seldom])
    (study,) = join.studies(lab.plan)
    on_shard = [record for record in study.records if record.level == "global_on_shard"]
    assert tails.of_rounds(on_shard, LAST, LAST5) == "last5: its last tested rounds, 5, 10"
    assert tails.of_rounds(on_shard, Statistic("last3")) == "last3: its last tested rounds, 5, 10"


def test_claims_glance_and_report_say_so(seldom: Any, rows: Callable[..., Any], tmp_path: Path) -> None:
    claims_table.write(seldom.found, tmp_path)
    told = "last: each client's last tested round, 4 to 7"
    total, *each = rows(tmp_path / "hbfl/claims.csv")
    assert total["of_rounds"] == told
    assert [row["of_rounds"] for row in each] == ["last: its last tested round, 4 to 7", ""]
    shown = summary_page.write(seldom.found, tmp_path)[0].read_text()
    assert "| IID | 60.00‡ | 70.00 |" in shown
    assert f" ‡ {told}." in shown
    assert "| IID | 60.00 / 41.67‡ | 70.00 / 50.00 |" in shown
    assert " ‡ last5: each client's up to five last tested rounds, 1 to 7." in shown
    page = build.write(seldom.plan, tmp_path / "page.html")[0].read_text()
    assert f"measured: client accuracy, last round ({told})" in page.replace("&#39;", "'")
    assert f"<li>{told}; last5: " in page.replace("&#39;", "'")


def test_nothing_is_told_where_every_round_tests_everything(
    seldom: Any, rows: Callable[..., Any], tmp_path: Path
) -> None:
    seldom.cells.pop()
    tables.write(seldom.found, tmp_path)
    claims_table.write(seldom.found, tmp_path)
    for name in (*seldom.spec["tables"], "claims"):
        assert all("of_rounds" not in row for row in rows(tmp_path / f"hbfl/{name}.csv"))
