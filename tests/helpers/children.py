"""Processes that tests start. They hear signals whatever the tests were started with, and none outlives its test, nor does
what they have started themselves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def heard() -> Iterator[None]:
    """The signals that stop a run do their usual part, here and in processes started meanwhile.

    Else one that was ignored when the tests began stays so, as SIGHUP is under nohup and SIGINT in the background.
    """
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that leads a session of its own, all of which is killed at the end; `options` are those of Popen."""
    with heard():
        process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def finished(command: Sequence[str], timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that has run to its end, what it printed, and its exit code; `timeout` in seconds."""
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        told = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, *told)
