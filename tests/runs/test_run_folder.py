"""The record of a run: whole as it was written, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.damage import cuts, flip, put

from bayesfed.core.errors import InputError
from bayesfed.runs import run_folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    for name in run_folder.SEALED:
        (tmp_path / name).write_text(f"{name} holds a line\n")
    run_folder.seal(tmp_path, {"key": "abc", "value": 0.5, "nothing": None})
    return tmp_path


def test_a_record_is_read_as_it_was_written(record: Path, tmp_path: Path) -> None:
    summary = run_folder.read(record)
    assert summary is not None
    assert (summary["key"], summary["value"], summary["nothing"]) == ("abc", 0.5, None)
    before = (record / "summary.json").read_bytes()
    run_folder.seal(record, summary)
    assert (record / "summary.json").read_bytes() == before
    assert run_folder.read(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("name", ["summary.json", *run_folder.SEALED])
def test_every_flipped_bit_and_every_cut_is_noticed(record: Path, name: str) -> None:
    """All of them, one after another; and a file that is gone."""
    path = record / name
    whole = path.read_bytes()
    for content in (*cuts(whole), *(flip(whole, at, bit) for at in range(len(whole)) for bit in range(8))):
        put(path, content)
        with pytest.raises(InputError, match=rf"{name}: not as the run wrote it.*delete the folder.s summary.json"):
            run_folder.read(record)
    path.write_bytes(whole)
    assert run_folder.read(record)
    if name != "summary.json":
        path.unlink()
        with pytest.raises(InputError, match=rf"{name}: missing in a finished run"):
            run_folder.read(record)


def test_numbers_that_are_no_json_are_not_written(record: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_folder.seal(record, {"value": float("nan")})
