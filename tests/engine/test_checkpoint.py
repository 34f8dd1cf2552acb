"""Checkpoints: every byte is checked, and the one before the newest is kept until the run is done."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.damage import cuts, flips, put

from bayesfed.core.errors import InputError
from bayesfed.engine import checkpoint
from bayesfed.engine.client_states import ClientStates
from bayesfed.engine.rounds import Progress
from bayesfed.runs.run_folder import Row

RECORD = checkpoint.Header("abc", "fp32", "threads", 1.5, 300)
HOST = torch.device("cpu")


def progress(round: int, entries: int = 3) -> Progress:
    history = [Row(n, "global", "global", "test_accuracy", n / 10) for n in range(1, round + 1)]
    theta = torch.arange(float(entries))
    return Progress(
        round, {"theta": theta}, ClientStates({0: {"phi": theta + 1}}), history, labelled={0: torch.tensor([4, 2])}
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    checkpoint.save(path, progress(2), RECORD)
    found, record = checkpoint.load(path, "abc", HOST)
    assert (found.round, found.history, record) == (2, progress(2).history, RECORD)
    assert torch.equal(found.clients[0]["phi"], progress(2).clients[0]["phi"])
    assert list(found.labelled[0]) == [4, 2]


def test_another_runs_is_not_replaced(tmp_path: Path) -> None:
    """Which came there while this one ran."""
    path = tmp_path / "one.safetensors"
    checkpoint.save(path, progress(2), RECORD)
    other = checkpoint.Header("def", "fp32", "threads", 1.5, 300)
    with pytest.raises(
        InputError, match=r"one\.safetensors: a checkpoint of run abc has come there meanwhile; give each run"
    ):
        checkpoint.save(path, progress(1), other)
    assert checkpoint.load(path, "abc", HOST)[0].round == 2


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / ".one.999999-0a1b2c3d.safetensors").write_bytes(b"half")
    others = {".two.999999-0a1b2c3d.safetensors", ".one.seed1.999999-0a1b2c3d.safetensors", ".one.notes.safetensors"}
    for name in others:
        (tmp_path / name).write_bytes(b"another's")
    checkpoint.save(tmp_path / "one.safetensors", progress(1), RECORD)
    assert {path.name for path in tmp_path.iterdir()} == {"one.safetensors", *others}


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    checkpoint.save(path, progress(1), RECORD)
    whole = path.read_bytes()
    for content in (*flips(whole), *cuts(whole), whole + b"\0"):
        put(path, content)
        with pytest.raises(InputError, match="this checkpoint is damaged"):
            checkpoint.load(path, "abc", HOST)


def test_flipped_bytes_of_a_large_one_are_noticed(tmp_path: Path) -> None:
    """A sample of places all over several pieces of reading."""
    path = tmp_path / "one.safetensors"
    checkpoint.save(path, progress(1, 700_000), RECORD)
    size = path.stat().st_size
    assert size > 5 * checkpoint.PIECE
    for at in [0, 8, size - 1, *random.Random(1).sample(range(size), 20)]:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            for value in (byte ^ 64, byte):
                file.seek(at)
                file.write(bytes([value]))
                file.flush()
                assert whole(path) == (value == byte)


def test_a_checkpoint_is_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "one.safetensors"
    plain.touch()
    checkpoint.save(path, progress(1), RECORD)
    assert path.stat().st_mode == plain.stat().st_mode


def test_what_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    """The file may be whole: its folder, or the disk, is at fault."""
    with pytest.raises(IsADirectoryError):
        checkpoint.load(tmp_path, "abc", HOST)


def whole(path: Path) -> bool:
    try:
        digest, _, own = checkpoint.sealed(path)
    except ValueError:
        return False
    return digest == own


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("damage", [damaged, Path.unlink])
def test_the_one_before_stands_in(
    damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.safetensors"
    for round in (1, 2, 3):
        checkpoint.save(path, progress(round), RECORD)
    damage(path)
    assert checkpoint.found(path)
    assert checkpoint.load(path, "abc", HOST)[0].round == 2
    assert f"going on from the one before, {checkpoint.before(path)}" in capsys.readouterr().err
    damaged(checkpoint.before(path))
    with pytest.raises(InputError, match=r"one\.before\.safetensors: this checkpoint is damaged"):
        checkpoint.load(path, "abc", HOST)


def test_for_another_runs_the_one_before_does_not_stand_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.safetensors"
    for round in (1, 2):
        checkpoint.save(path, progress(round), RECORD)
    with pytest.raises(InputError, match=r"/one\.safetensors: .* belongs to run abc, not to other; give another --out"):
        checkpoint.load(path, "other", HOST)
    assert not capsys.readouterr().err


def test_a_damaged_one_does_not_replace_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.safetensors"
    for round in (1, 2):
        checkpoint.save(path, progress(round), RECORD)
    path.write_bytes(path.read_bytes()[:-3])
    assert checkpoint.load(path, "abc", HOST)[0].round == 1
    checkpoint.save(path, progress(2), RECORD)
    path.unlink()
    assert checkpoint.load(path, "abc", HOST)[0].round == 1


def test_what_cannot_be_read_back_does_not_replace_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.safetensors"
    checkpoint.save(path, progress(1), RECORD)
    sealed = checkpoint.sealed

    def failing(scratch: Path) -> tuple[str, int, str]:
        digest, at, own = sealed(scratch)
        return ("0" * 64, at, own) if digest == own else (digest, at, own)

    monkeypatch.setattr(checkpoint, "sealed", failing)
    with pytest.raises(OSError, match="what was written is not what is read"):
        checkpoint.save(path, progress(2), RECORD)
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["one.safetensors"]
    assert checkpoint.load(path, "abc", HOST)[0].round == 1
