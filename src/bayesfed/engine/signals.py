"""SIGTERM, SIGINT and SIGHUP: a run stops at the next mini-batch. The command line leaves a longer step after a few
seconds."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from bayesfed.core.errors import words

GRACE = 5.0  # seconds that a step may go on: with a checkpoint behind them, fewer than schedulers wait before they kill
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop, or its time is over; finished rounds are in its checkpoint.

    It is no Exception: a loop over runs that catches those would begin the next one.
    """


class Stop:
    """While it is entered, a signal makes `check` raise Stopped; further signals change nothing, nor does one that is
    ignored, as SIGHUP is under nohup and SIGINT in what a script runs in the background.
    """

    raised = False

    def __enter__(self) -> Stop:
        def note(number: int, frame: FrameType | None) -> None:
            self.raised = True

        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        self.before = {number: signal.signal(number, note) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self.raised:
            raise Stopped


class StopOrLeave(Stop):
    """A Stop of a process that may end.

    Python hears a signal between two of its own steps only, and a decomposition of a large matrix is one step of minutes.
    So the number of each signal also goes, as it comes, to a thread that waits GRACE seconds for the block to end, then
    calls `leave`, which keeps what is finished and says so, and ends the process with exit code 1.
    """

    def __init__(self, leave: Callable[[], str]) -> None:
        self.leave = leave
        self.ended = threading.Event()

    def __enter__(self) -> Stop:
        reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self.watcher = threading.Thread(target=self.watch, args=(reading,), daemon=True)
        self.watcher.start()
        self.woken_before = signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        signal.set_wakeup_fd(self.woken_before)
        super().__exit__(*error)
        os.close(self.writing)  # which ends the watcher's reading
        self.watcher.join()

    def watch(self, reading: int) -> None:
        """Wait for a signal, then for the block's end, but no longer than GRACE."""
        with os.fdopen(reading, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] in SIGNALS:
                    if not self.ended.wait(GRACE):
                        try:
                            print(f"bayesfed: {self.leave()}", file=sys.stderr, flush=True)
                        except BaseException as error:
                            told = f"bayesfed: stopped by a signal; the checkpoint could not be written: {words(error)}"
                            print(told, file=sys.stderr, flush=True)
                        finally:
                            os._exit(1)
                    return
