"""The progress of a workflow: runs by method, α and seed, as they are finished."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bayesfed.plan import progress
from bayesfed.plan.progress import Progress

CELLS = [
    {"folder": "a", "method": "HBFL plain mean", "used": "digits", "alpha": "0.05", "axes": {"lr": 0.1}, "seed": 0},
    {"folder": "b", "method": "FML", "used": ["digits", "digits-parity"], "alpha": None, "axes": {}, "seed": 1},
    {"folder": "a", "method": "the same run elsewhere", "used": "digits", "alpha": "0.05", "axes": {}, "seed": 0},
    {"folder": "finished", "method": "FedAvg", "used": "digits", "alpha": "1", "axes": {}, "seed": 0},
]


@pytest.fixture
def flow(tmp_path: Path) -> Any:
    """A workflow with two open runs."""
    return SimpleNamespace(open=["a", "b"], plan={"cells": CELLS}, summary=lambda run: str(tmp_path / run))


def finish(flow: Any, run: str) -> None:
    Path(flow.summary(run)).touch()


def test_a_line_for_each_run_that_is_finished(flow: Any) -> None:
    told = Progress(flow)
    assert told.news() == []
    finish(flow, "b")
    assert told.news() == ["1 of 2 runs: FML on digits and digits-parity, seed 1"]
    assert told.news() == []
    finish(flow, "a")
    assert told.news() == [
        "2 of 2 runs: HBFL plain mean on digits, α 0.05, lr 0.1, seed 0",
        "Trained. Now tables, figures and the report",
    ]


def test_it_is_told_on_the_screen(
    flow: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the workflow ends, the runs that came last too."""
    monkeypatch.setattr(progress, "SECONDS", 60)
    told = Progress(flow)
    told.start()
    finish(flow, "a")
    told.end()
    assert capsys.readouterr().err.splitlines() == [
        "2 runs to train",
        "1 of 2 runs: HBFL plain mean on digits, α 0.05, lr 0.1, seed 0",
    ]


def test_without_an_open_run_there_is_nothing_to_watch(flow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flow.open = []
    told = Progress(flow)
    told.start()
    told.end()
    assert capsys.readouterr().err == "No run to train; tables, figures and the report\n"
