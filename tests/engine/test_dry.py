"""Rounds on made-up images: bytes of records that have none, and names of predictors, which `test_tasks` compares."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import bayesfed
from bayesfed import cli, methods
from bayesfed.engine import dry
from bayesfed.results.run_records import RunRecord
from bayesfed.runs import run_file, run_folder

Make = Callable[..., dict[str, Any]]
SHORT = {"rounds": 2, "local_epochs": 0, "local_batches": 1}  # bytes follow from tensors and participation alone
PART = {"partition": {"alpha": 0.3, "clients": 9, "min_train": 0, "min_test": 0}, "participation": 0.5}


def forget_bytes(folder: Path) -> Mapping[str, int]:
    """Make a record one of an earlier version, without bytes; gives what they were."""
    summary = run_folder.finished(folder)
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(line for line in lines if ",communication," not in line))
    sent: Mapping[str, int] = summary.pop("bytes")
    run_folder.seal(folder, summary)
    return sent


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", PART),
        ("scaffold", PART),
        ("hbfl", {}),
        ("fedswag", {}),
        ("fedbe", {"server_images": 40}),
        ("pfedgp", {}),
        ("heurfedamp", {}),
        ("fola_errors", {}),
        ("bnfed", {}),
        ("fedavg", SHORT | {"models": {"global": "resnet20_gn"}, "partition": {"alpha": 100.0, "clients": 2}}),
    ],
)
def test_bytes_without_training_are_those_of_the_trained_run(
    name: str | dict[str, Any],
    changes: dict[str, Any],
    mapping: Make,
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bayesfed.train(mapping(name, **({"rounds": 5} | changes)), out := tmp_path / "out", data=data_dir)
    by_round = RunRecord(out).sent
    sent = forget_bytes(out)
    sealed = {path: path.read_bytes() for path in out.iterdir()}
    assert cli.main(["count-bytes", str(out), "--data", str(data_dir)]) == 0
    assert f"{sent['down'] / 1e6:g} MB down, {sent['up'] / 1e6:g} MB up, computed later" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in sealed} == sealed
    later = json.loads((out / "bytes.json").read_text())
    assert {way: sum(later[way]) for way in ("down", "up")} == sent
    assert later["how"].startswith("computed later")
    found = RunRecord(out).sent
    # Text of metrics.csv has six digits.
    assert all(found[way] == pytest.approx(by_round[way], rel=1e-5) for way in ("down", "up"))


def test_what_cannot_be_counted_is_told(
    mapping: Make, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bayesfed.train(mapping("fedprox"), edited := tmp_path / "edited", data=data_dir)
    bayesfed.train(mapping(), plain := tmp_path / "plain", data=data_dir)
    forget_bytes(edited)
    asked = (edited / "run.yaml").read_text()
    (edited / "run.yaml").write_text(asked.replace("name: fedprox", "name: fedprox, mu: 3"))
    command = ["count-bytes", str(edited), str(plain), "--data", str(data_dir)]
    assert cli.main(command) == 2
    told = capsys.readouterr()
    assert "plain: bytes are in its record" in told.out
    assert "edited" in told.err
    assert "1 of 2 could not be counted" in told.err
    assert not (edited / "bytes.json").exists()
    (plain / "bytes.json").write_text(json.dumps({"key": "x", "down": [1], "up": [1]}))
    assert RunRecord(plain).sent_later == {}


def test_a_method_that_refuses_made_up_images_has_unknown_names(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise ValueError("not mine")

    run = run_file.resolve(mapping(), data_dir)
    monkeypatch.setattr(methods.get("fedavg"), "finish", refuse)
    assert dry.predictor_names(run) is None
