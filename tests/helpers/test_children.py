"""Processes that tests start hear signals, and are gone with their test."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers.children import child, finished


def over(pid: int) -> bool:
    """Whether a process is over, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_a_child_has_started_ends_with_the_test() -> None:
    with child(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        started = int(one.stdout.readline())
        assert not over(started)
    limit = time.monotonic() + 10
    while not over(started) and time.monotonic() < limit:
        time.sleep(0.01)
    assert over(started)
    assert over(one.pid)


def test_a_child_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        finished(["sleep", "600"], timeout=0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_child_hears_what_the_tests_ignore(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with child(["sleep", "600"]) as one:
            one.send_signal(number)
            assert one.wait() == -number
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
