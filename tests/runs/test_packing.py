"""Packed records: the same bytes again, the same seal, one reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.damage import cuts, flip, put
from hypothesis import given
from hypothesis import strategies as st

from bayesfed import cli
from bayesfed.core.errors import InputError
from bayesfed.runs import run_folder
from bayesfed.runs.packing import PACKED, pack, unpack

HEADER = "round,client,model,metric,value\n"
TEXT = HEADER + "1,0,local,shard_accuracy,0.5\n1,global,global,test_accuracy,0.25\n2,global,global,test_accuracy,nan\n"
CELL = st.text("abc0123._- \"'é", min_size=1, max_size=4)
ROW = st.tuples(st.integers(1, 3), CELL, CELL, CELL, st.floats().map(lambda value: f"{value:.6g}"))


@given(st.lists(ROW))
def test_any_history_comes_back_byte_for_byte(rows: list[tuple[object, ...]]) -> None:
    text = HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows)
    assert unpack(pack(text)) == text


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/one"
    folder.mkdir(parents=True)
    for name in run_folder.SEALED:
        (folder / name).write_text(TEXT)
    run_folder.seal(folder, {"key": "abc"})
    return folder


def test_a_packed_record_is_the_same_record(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run_folder.read_whole(record)
    assert cli.main(["pack", str(record.parents[1])]) == 0
    assert "1 of 1 records packed" in capsys.readouterr().out
    assert (record / PACKED).exists()
    assert not (record / "metrics.csv").exists()
    assert run_folder.read_whole(record) == before
    assert run_folder.metrics(record) == TEXT
    assert cli.main(["pack", str(record)]) == 0
    assert "0 of 1 records packed" in capsys.readouterr().out


def test_every_damage_to_packed_metrics_is_noticed(record: Path) -> None:
    run_folder.pack_record(record)
    path = record / PACKED
    whole = path.read_bytes()
    for content in (*cuts(whole), *(flip(whole, at, 0) for at in range(len(whole)))):
        put(path, content)
        with pytest.raises(InputError, match="not as the run wrote it"):
            run_folder.read(record)
    path.unlink()
    with pytest.raises(InputError, match="missing in a finished run"):
        run_folder.read(record)


def test_an_altered_record_is_not_packed(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record / "metrics.csv").write_text(HEADER)
    assert cli.main(["pack", str(record)]) == 2
    assert (record / "metrics.csv").read_text() == HEADER
    assert cli.main(["pack", str(record / "nothing")]) == 2
    assert "there is no finished run in it" in capsys.readouterr().err
