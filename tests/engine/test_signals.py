"""Ctrl-C in a session of one's own: `bayesfed.train` stops after the mini-batch, and the process goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bayesfed
from bayesfed.engine import signals
from bayesfed.runs.callbacks import RoundDone

Make = Callable[..., dict[str, Any]]


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_loop_over_runs_that_passes_over_errors(
    number: signal.Signals, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """No next seed is begun, and the stopped one ends with the bits of one that was not stopped."""

    def stop(done: RoundDone) -> None:
        if done.round == 1:
            os.kill(os.getpid(), number)

    def loop() -> None:
        for seed in range(2):
            with contextlib.suppress(Exception):
                bayesfed.train(mapping(rounds=3, seed=seed), tmp_path / str(seed), data=data_dir, on_round=stop)

    with pytest.raises(KeyboardInterrupt, match="stopped by a signal after round 1 of 3; run it again to go on"):
        loop()
    assert not (tmp_path / "1").exists()
    resumed = bayesfed.train(mapping(rounds=3), tmp_path / "0", data=data_dir)
    assert resumed.metrics.equals(bayesfed.train(mapping(rounds=3), tmp_path / "whole", data=data_dir).metrics)


@pytest.mark.usefixtures("signals")
def test_a_slow_callback_does_not_cost_the_process(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the command line may exit where a step goes on after a signal."""
    exits: list[int] = []
    monkeypatch.setattr(signals, "GRACE", 0.1)
    monkeypatch.setattr(os, "_exit", exits.append)

    def slow(done: RoundDone) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)

    with pytest.raises(signals.Stopped, match="after round 1 of 2"):
        bayesfed.train(mapping(), tmp_path / "out", data=data_dir, on_round=slow)
    assert not exits
