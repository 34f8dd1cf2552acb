"""A disk that is full or may not be written to, and memory that runs out: one line, nothing lost, and a rerun succeeds."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from bayesfed import cli, models
from bayesfed.core.errors import InputError, in_a_line
from bayesfed.data import prepare
from bayesfed.engine import checkpoint, rounds, training

Make = Callable[..., dict[str, Any]]
FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # a full disk, no inodes left, a disk that is read only


class Disk:
    """Counts what is written under a folder, opening, renaming and checkpoints, and fails at the one with this number."""

    def __init__(self, root: Path, at: int, code: int) -> None:
        self.root, self.at, self.code, self.count = root, at, code, 0

    def used(self, path: Any) -> None:
        if not isinstance(path, str | os.PathLike) or not Path(path).absolute().is_relative_to(self.root):
            return
        self.count += 1
        if self.count == self.at:
            raise OSError(self.code, os.strerror(self.code), str(path))

    @property
    def failed(self) -> bool:
        return self.count >= self.at


@contextmanager
def failing(root: Path, at: int, code: int) -> Iterator[Disk]:
    disk = Disk(root, at, code)
    plain_open, replace, save_file = io.open, os.replace, checkpoint.save_file

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            disk.used(file)
        return plain_open(file, mode, *args, **kwargs)

    def replaced(source: Any, target: Any) -> None:
        disk.used(target)
        replace(source, target)

    def saved(tensors: Any, path: Any, metadata: Any) -> None:
        disk.used(path)
        save_file(tensors, path, metadata)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        patch.setattr(os, "replace", replaced)
        patch.setattr(checkpoint, "save_file", saved)
        yield disk


def quick_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", 1e9)


def digest(folder: Path) -> dict[str, bytes]:
    """What a run leaves that must not depend on its faults."""
    return {name: (folder / name).read_bytes() for name in ("metrics.csv", "run.yaml")}


def test_a_write_that_fails_anywhere_in_a_run_loses_nothing(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By each fault in turn."""
    quick_checkpoints(monkeypatch)
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg", rounds=2)))

    def train(out: Path) -> int:
        return cli.main(["train", str(runfile), "--out", str(out), "--data", str(data_dir)])

    assert train(tmp_path / "whole") == 0
    wanted = digest(tmp_path / "whole")
    tried = 0
    for at in range(1, 100):
        out, fault = tmp_path / f"out{at}", FAULTS[at % len(FAULTS)]
        capsys.readouterr()
        with failing(out, at, fault) as disk:
            code = train(out)
        if not disk.failed:
            assert code == 0
            break
        tried += 1
        lines = capsys.readouterr().err.splitlines()
        assert code == 1
        assert os.strerror(fault) in lines[-1]
        assert "start the same command again" in lines[-1]
        assert not any("Traceback" in line for line in lines)
        assert not [path for path in out.rglob(".*") if path.is_file() and path.name != ".lock"]
        assert not (out / "summary.json").exists()
        assert train(out) == 0
        assert digest(out) == wanted
    assert tried >= 9  # the lock, the log, two checkpoints, the record's files


@pytest.mark.parametrize("command", ["partition", "fetch", "plan"])
def test_a_write_that_fails_anywhere_in_other_commands_loses_nothing(
    command: str, mapping: Make, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first writes, one in the middle, and the last ones."""
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg", seed=77)))
    config = Path(__file__).parents[2] / "config/test.yaml"

    def call(at: int) -> int:
        to = tmp_path / f"to{at}"
        if command == "fetch":
            return cli.main(["fetch", "digits", "--data", str(to)])
        if command == "partition":
            to.mkdir(exist_ok=True)
            link = to / "few"
            if not link.exists():
                link.symlink_to(data_dir / "few")
            return cli.main(["partition", str(runfile), "--data", str(to)])
        return cli.main(["plan", str(config), "--out", str(to)])

    with failing(tmp_path / "to0", 0, errno.ENOSPC) as whole:
        assert call(0) == 0
    assert whole.count > 1
    for at in {1, 2, whole.count // 2, whole.count - 1, whole.count} - {0}:
        with failing(tmp_path / f"to{at}", at, errno.ENOSPC):
            code = call(at)
        printed = capsys.readouterr()
        assert (code, "No space left on device" in printed.err) == (1, True), printed
        assert "Traceback" not in printed.err
        assert call(at) == 0


def test_memory_that_runs_out_is_told_of_and_the_run_goes_on(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_checkpoints(monkeypatch)
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg", rounds=2)))
    command = ["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)]
    play = rounds.Trainer.play

    def hungry(self: rounds.Trainer, progress: rounds.Progress) -> rounds.Progress:
        if progress.round == 1:
            torch.empty(2**50)
        return play(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(rounds.Trainer, "play", hungry)
        assert cli.main(command) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("bayesfed: memory ran out (")
    assert checkpoint.found(tmp_path / "out" / checkpoint.FILE)
    assert cli.main(command) == 0
    assert "round 1 of 2 done" in (tmp_path / "out/run.log").read_text()


def test_a_finished_run_and_a_sound_dataset_need_no_disk_to_write_to(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg")))
    command = ["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)]
    assert cli.main(command) == 0

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(fcntl, "flock", read_only)
    assert cli.main(command) == 0
    assert cli.main(["fetch", "few", "--data", str(data_dir)]) == 0


@pytest.mark.parametrize("fault", [MemoryError(), OSError(errno.EIO, "Input/output error"), RuntimeError("a GPU's")])
def test_finished_rounds_are_kept_when_a_machine_fails_before_a_checkpoint(
    fault: Exception, mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg", rounds=3)))
    command = ["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)]
    play = rounds.Trainer.play

    def failing_with(error: Exception) -> Callable[..., rounds.Progress]:
        def played(self: rounds.Trainer, progress: rounds.Progress) -> rounds.Progress:
            if progress.round == 2:
                raise error
            return play(self, progress)

        return played

    with monkeypatch.context() as patch:
        patch.setattr(
            rounds.Trainer, "play", failing_with(InputError("a mistake of the user's, whose mending makes another run"))
        )
        assert cli.main(command) == 2
        assert not checkpoint.found(tmp_path / "out" / checkpoint.FILE)
        patch.setattr(rounds.Trainer, "play", failing_with(fault))
        with suppress(RuntimeError):  # ours, as far as the command can know, which wants its traceback
            assert cli.main(command) == 1
    assert cli.main(command) == 0
    assert "round 2 of 3 done" in (tmp_path / "out/run.log").read_text()


def test_a_gpu_that_takes_no_further_process_is_told_of_in_a_line(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As NVIDIA's MPS refuses a job too many, in words of an H200's."""
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg")))
    told = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be reported later."

    def refused(*_: object) -> None:
        raise torch.AcceleratorError(told)

    monkeypatch.setattr(training, "assemble", refused)
    assert cli.main(["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)]) == 1
    assert re.fullmatch(
        r"bayesfed: the GPU takes no further process \(CUDA error: [^\n]*\); [^\n]*with fewer jobs at once\n",
        capsys.readouterr().err,
    )


def test_a_commands_own_last_line_stays_as_it_is() -> None:
    """Also where it quotes a run whose memory ran out."""
    ended = SystemExit("bayesfed: 3 finished, 1 failed (one: memory ran out (CUDA out of memory)), 5 still open")
    assert in_a_line(ended) is None


@pytest.mark.parametrize("where", ["preparation", "network"])
def test_memory_that_runs_out_before_training_is_told_of_once(
    where: str, mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    runfile = tmp_path / "run.yaml"
    if where == "preparation":
        monkeypatch.setitem(prepare.PREPARATIONS, "resize", lambda images, side: torch.empty(2**50))
        runfile.write_text(yaml.safe_dump(mapping("fedavg", images={"prepare": {"resize": 16}})))
    else:
        monkeypatch.setitem(models.NETWORKS, "huge", lambda classes, channels, size: nn.Linear(2**40, classes))
        runfile.write_text(yaml.safe_dump(mapping("fedavg", models={"global": "huge"})))
    assert cli.main(["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)]) == 1
    assert re.fullmatch(r"bayesfed: memory ran out \([^\n]*\n", capsys.readouterr().err)


def test_an_error_of_ours_keeps_its_traceback(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg")))
    monkeypatch.setattr(rounds.Trainer, "play", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)])


@pytest.mark.parametrize(
    "command",
    [
        ["train", "run.yaml/x", "--out", "out"],
        ["train", "run.yaml/x", "--runs", "out"],
        ["train", "run.yaml", "--out", "out", "--data", "a_file"],
        ["plan", "config.yaml", "--out", "a_file"],
        ["tables", "plan.json", "--out", "a_file"],
        ["partition", "run.yaml", "--overview", "a_file/x"],
    ],
)
def test_a_file_where_a_folder_is_needed_is_a_mistake_of_the_call(
    command: list[str], mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    root = Path(__file__).parents[2]
    if "plan.json" in command:
        assert cli.main(["plan", str(root / "config/test.yaml"), "--out", str(tmp_path / "plan")]) == 0
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").symlink_to(root / "config/test.yaml")
    Path("config").symlink_to(root / "config")
    Path("plan.json").symlink_to("plan/plan.json")
    Path("data").symlink_to(data_dir)
    Path("a_file").touch()
    Path("run.yaml").write_text(yaml.safe_dump(mapping("fedavg")))
    capsys.readouterr()
    assert cli.main(command) == 2
    file = "run.yaml" if "run.yaml/x" in command else "a_file"
    assert f"{file}: this is a file, and a folder is needed; give another path" in capsys.readouterr().err


def test_what_is_no_plan_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("# A page", "3", "{}"):
        (tmp_path / "README.md").write_text(text)
        assert cli.main(["tables", str(tmp_path / "README.md"), "--out", str(tmp_path / "out")]) == 2
        told = f"bayesfed: {tmp_path}/README.md is no plan; give results/<config>/plan/plan.json, as `bayesfed plan` makes it\n"
        assert capsys.readouterr().err == told


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_locks_is_named(
    code: int, mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As some that come over a network: nothing is trained there, since two processes could not keep apart."""
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg")))
    command = ["train", str(runfile), "--out", str(tmp_path / "out"), "--data", str(data_dir)]

    def refused(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        assert cli.main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bayesfed: {tmp_path / 'out/.lock'}: cannot be locked here ({os.strerror(code)})")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
    assert cli.main(command) == 0


def test_a_clock_that_goes_back_changes_nothing(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour in every look at it; what is measured is measured by a clock that cannot."""
    runfile = tmp_path / "run.yaml"
    runfile.write_text(yaml.safe_dump(mapping("fedavg", rounds=3)))
    now = [2e9]

    def back() -> float:
        now[0] -= 3600
        return now[0]

    for out in ("right", "back"):
        if out == "back":
            monkeypatch.setattr(time, "time", back)
        assert cli.main(["train", str(runfile), "--out", str(tmp_path / out), "--data", str(data_dir)]) == 0
    assert digest(tmp_path / "back") == digest(tmp_path / "right")
    assert 0 < json.loads((tmp_path / "back/summary.json").read_text())["train_seconds"] < 3600


def test_a_library_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain installation has what training needs alone."""
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("BAYESFED_MIRROR", raising=False)
    assert cli.main(["fetch", "mnist", "--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "bayesfed: this command needs 'pooch'; it comes with `make setup`, or bayesfed[all]\n"
    )
