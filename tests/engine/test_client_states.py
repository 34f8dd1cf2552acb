"""Client states that are too many for memory: in files beside the checkpoint, exact, whole, and none of them left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bayesfed.core.errors import InputError
from bayesfed.engine import checkpoint, client_states
from bayesfed.engine.client_states import ClientStates
from bayesfed.engine.rounds import Progress
from bayesfed.methods.node import State

HEADER = checkpoint.Header("abc", "fp32", "threads")
HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for two of the states below."""
    monkeypatch.setattr(client_states, "IN_MEMORY", 2 * 3 * 4)


def state(value: float) -> dict[str, torch.Tensor]:
    return {"phi": torch.full((3,), float(value))}


def values(states: ClientStates) -> dict[int, float]:
    return {client: float(states[client]["phi"][0]) for client in states}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_states_beyond_the_bound_are_in_files(tmp_path: Path) -> None:
    few = (ClientStates() | {k: state(k) for k in range(2)}).bounded(tmp_path / "a")
    assert (few.stored, names(tmp_path / "a")) == ({}, set())
    many = (few | {2: state(2)}).bounded(tmp_path / "a")
    assert (many.memory, len(names(tmp_path / "a"))) == ({}, 3)
    assert values(many) == {0: 0, 1: 1, 2: 2}
    assert 3 not in many
    later = many | {1: state(7), 3: state(3)}
    assert values(later) == {0: 0, 1: 7, 2: 2, 3: 3}
    assert len(later) == 4
    assert values(many) == {0: 0, 1: 1, 2: 2}, "a round that is stopped leaves the progress as it was"
    assert later[0]["phi"].dtype == torch.float32


def saved(path: Path, number: int, states: ClientStates) -> ClientStates:
    """Save a checkpoint with these states, as a run does after a round; return what it holds now."""
    states = states.bounded(checkpoint.of_clients(path))
    checkpoint.save(path, Progress(number, {"theta": torch.zeros(2)}, states), HEADER)
    return states


def test_a_checkpoint_and_the_one_before_keep_their_files_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    folder = checkpoint.of_clients(path)
    states = saved(path, 1, ClientStates() | {k: state(k) for k in range(3)})
    for number in (2, 3, 4):
        states = saved(path, number, states | {k: state(10 * number + k) for k in range(3)})
        assert len(names(folder)) == 6
    (folder / ".left-behind").touch()
    states = saved(path, 5, states | {0: state(50)})
    assert values(checkpoint.load(path, "abc", HOST)[0].clients) == {0: 50, 1: 41, 2: 42}
    assert len(names(folder)) == 3
    path.write_bytes(b"damaged")
    found, _ = checkpoint.load(path, "abc", HOST)
    assert (found.round, values(found.clients)) == (4, {0: 40, 1: 41, 2: 42})
    saved(path, 5, found.clients | {k: state(60 + k) for k in range(3)})
    older = checkpoint.before(path)
    checkpoint.delete_older(path, "abc")
    assert not older.exists()
    checkpoint.delete_older(path, "abc")  # as another process does that meets the same finished run
    assert len(names(folder)) == 3
    assert values(checkpoint.load(path, "abc", HOST)[0].clients) == {0: 60, 1: 61, 2: 62}


def test_rounds_without_a_checkpoint_leave_no_files_behind(tmp_path: Path) -> None:
    """But those of the round before, of which a signal may still make the checkpoint, and of both checkpoints."""
    path = tmp_path / "one.pt"
    folder = checkpoint.of_clients(path)
    states = saved(path, 1, ClientStates() | {k: state(k) for k in range(3)})
    states = saved(path, 2, states | {k: state(10 + k) for k in range(3)})
    for number in range(2, 9):
        before, states = states, (states | {k: state(10 * number + k) for k in range(3)}).bounded(folder)
        assert values(before) == {k: 10 * (number - 1) + k for k in range(3)}
        assert len(names(folder)) <= 12
    assert values(checkpoint.load(path, "abc", HOST)[0].clients) == {0: 10, 1: 11, 2: 12}
    path.write_bytes(b"damaged")
    assert values(checkpoint.load(path, "abc", HOST)[0].clients) == {0: 0, 1: 1, 2: 2}


def test_files_of_a_process_that_was_killed_are_gone_before_more_are_written(tmp_path: Path, monkeypatch: Any) -> None:
    """So a disk that it filled takes the next round."""
    folder = checkpoint.of_clients(tmp_path / "one.safetensors")
    (ClientStates() | {k: state(k) for k in range(3)}).bounded(folder)
    found, write = [], client_states.write

    def noting(folder: Path, state: State) -> str:
        found.append(len(names(folder)))
        return write(folder, state)

    monkeypatch.setattr(client_states, "write", noting)
    (ClientStates() | {k: state(10 + k) for k in range(3)}).bounded(folder)
    assert found == [0, 1, 2]


def test_a_checkpoint_at_another_place_has_files_of_its_own(tmp_path: Path) -> None:
    """As where a longer run goes on from a shorter one."""
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    saved(one, 1, ClientStates() | {k: state(k) for k in range(3)})
    found, _ = checkpoint.load(one, "abc", HOST)
    checkpoint.save(two, found, HEADER)
    assert names(checkpoint.of_clients(two)) == names(checkpoint.of_clients(one))
    for path in checkpoint.of_clients(one).iterdir():
        path.unlink()
    assert values(checkpoint.load(two, "abc", HOST)[0].clients) == {0: 0, 1: 1, 2: 2}


def test_checkpoints_side_by_side_have_folders_of_their_own(tmp_path: Path) -> None:
    """Whatever their names end in: each saves and prunes its own."""
    paths = [tmp_path / name for name in ("a.safetensors", "a.pt", "a.seed0", "a.seed1", "b")]
    assert len({checkpoint.of_clients(path) for path in paths}) == len(paths)
    assert [checkpoint.of_clients(checkpoint.before(path)) for path in paths] == list(map(checkpoint.of_clients, paths))
    saved(paths[2], 1, ClientStates() | {k: state(k) for k in range(3)})
    saved(paths[3], 1, ClientStates() | {0: state(5)})
    assert values(checkpoint.load(paths[2], "abc", HOST)[0].clients) == {0: 0, 1: 1, 2: 2}


def test_a_file_that_was_not_written_to_its_end_is_written_again(tmp_path: Path) -> None:
    name = client_states.write(tmp_path, state(1))
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match="is damaged; restore it, or delete the checkpoint to train from the start"):
        client_states.read(tmp_path / name)
    assert client_states.write(tmp_path, state(1)) == name
    assert torch.equal(client_states.read(tmp_path / name)["phi"], state(1)["phi"])


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    saved(path, 1, ClientStates() | {k: state(k) for k in range(3)})
    found, _ = checkpoint.load(path, "abc", HOST)
    first, second, _ = (checkpoint.of_clients(path) / name for name in found.clients.stored.values())
    first.write_bytes(second.read_bytes())
    with pytest.raises(InputError, match=f"{first.name}: this part of a checkpoint is damaged"):
        found.clients[0]
    second.unlink()
    with pytest.raises(InputError, match="1 of 3 files of this checkpoint are missing; copy the folder whole"):
        checkpoint.load(path, "abc", HOST)
    with pytest.raises(InputError, match=f"{second.name}: this part of a checkpoint is missing"):
        found.clients[1]
