"""Leases of GPUs, as far as a machine without one can tell: a script plays nvidia-smi."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.children import child

from bayesfed import cli
from bayesfed.engine import gpu_lease, gpu_sharing

Tell = Callable[[str], None]
FOUR = ["0", "1", "2", "3"]
GIB = 2**30
TOTAL = 24 * 1024  # MiB of the GPUs that the script plays
ASKED = "--query-gpu=memory.total,memory.free --format=csv,noheader,nounits -i $4"
# What `nvidia-smi -L` says of two GPUs.
LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-aaaa-bbbb-cccc-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-aaaa-bbbb-cccc-000000000000)"""
FIRST, SECOND = "GPU-11111111-aaaa-bbbb-cccc-000000000000", "GPU-22222222-aaaa-bbbb-cccc-000000000000"


def free(mib: int) -> str:
    """A script in which every GPU has so many MiB free."""
    return f'[ "$*" = "{ASKED}" ] && echo {TOTAL}, {mib}'


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a lease sets goes with its test; and waiting jobs look often."""
    monkeypatch.setattr(gpu_lease, "POLL", 0.01)
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    """The folder of the locks."""
    return tmp_path / "leases"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """There is no nvidia-smi, until this function makes one of a shell text, in which $4 is the GPU."""
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    monkeypatch.setenv("PATH", str(script.parent))

    def tell(text: str) -> None:
        new = script.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{text}\n")
        new.chmod(0o755)
        new.replace(script)

    return tell


class Jobs:
    """Jobs that hold a lease until they are told to end."""

    def __init__(self, visible: list[str], folder: Path, slots: int) -> None:
        self.request = ("cuda", visible, folder, slots)
        self.running = contextlib.ExitStack()

    def start(self) -> str:
        """Start one; gives its device."""
        return self.running.enter_context(gpu_lease.lease(*self.request))

    def start_waiting(self) -> Callable[[], str]:
        """Start a short one that must wait; gives a function that gives its device once there is one for it."""
        got: list[str] = []

        def job() -> None:
            with gpu_lease.lease(*self.request) as held:
                got.append(held)

        thread = threading.Thread(target=job, daemon=True)
        thread.start()

        def done() -> str:
            thread.join(timeout=10)
            return got[0]

        time.sleep(0.2)
        assert got == []
        return done


@pytest.fixture
def start_jobs(leases: Path) -> Iterator[Callable[[list[str], int], Jobs]]:
    """A function that gives jobs on such devices with so many slots; all end with the test."""
    with contextlib.ExitStack() as ending:

        def start(visible: list[str], slots: int) -> Jobs:
            jobs = Jobs(visible, leases, slots)
            ending.enter_context(jobs.running)
            return jobs

        yield start


StartJobs = Callable[[list[str], int], Jobs]


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for wanted, found in (
        ("2, GPU-ab-1", ["2", "GPU-ab-1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,0", ["1"]),  # CUDA stops reading there
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
        assert gpu_lease.visible_devices() == found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert gpu_lease.visible_devices() == []


def test_without_a_gpu_nothing_is_leased(leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for device, visible in (("cuda", []), ("auto", []), ("cpu", None)):
        with gpu_lease.lease(device, visible, leases, 3) as held:
            assert held == ""
    assert not leases.exists()


def test_a_single_gpu_has_one_job_at_a_time(start_jobs: StartJobs) -> None:
    jobs = start_jobs(["0"], 1)
    assert jobs.start() == "0"
    second = jobs.start_waiting()
    jobs.running.close()
    assert second() == "0"


def test_cuda_counts_devices_as_nvidia_smi_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has queues for many streams, fewer where jobs share a GPU; but what the user set stands, and nothing is set for
    the CPU."""
    names = ("CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with gpu_lease.lease("cpu"):
        assert not set(names) & set(os.environ)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with gpu_lease.lease("auto"):
        assert [os.environ[name] for name in names] == ["PCI_BUS_ID", "32"]
    for slots, wanted in ((2, "16"), (5, "16"), (6, "8"), (100, "1")):
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
        with gpu_lease.lease("auto", slots=slots):
            assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == wanted
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    with gpu_lease.lease("auto"):
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


@pytest.mark.parametrize("visible", [["0", "1"], ["GPU-ab-1", "GPU-ab-2"]])
def test_each_job_holds_a_device_of_its_own(start_jobs: StartJobs, visible: list[str]) -> None:
    jobs = start_jobs(visible, 1)
    assert [jobs.start(), jobs.start()] == visible
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible[1]
    third = jobs.start_waiting()
    jobs.running.close()
    assert third() in visible


def test_jobs_share_only_when_no_device_is_idle(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    nvidia_smi(free(TOTAL))
    first, later = start_jobs(FOUR, 3), start_jobs(FOUR, 3)
    assert [first.start() for _ in FOUR] == FOUR
    assert [later.start() for _ in FOUR[:2]] == FOUR[:2]
    first.running.close()  # one job each is left on the first two
    assert [later.start() for _ in range(2)] == FOUR[2:]
    assert sorted(later.start() for _ in range(8)) == sorted(FOUR * 2)
    thirteenth = later.start_waiting()
    later.running.close()
    assert thirteenth() in FOUR  # whichever was free when it looked


def test_jobs_that_start_at_once_hold_a_device_each(leases: Path, nvidia_smi: Tell) -> None:
    nvidia_smi(free(TOTAL))
    held: list[str] = []
    together, all_hold = threading.Barrier(4), threading.Barrier(4)

    def job() -> None:
        together.wait(timeout=10)
        with gpu_lease.lease("cuda", FOUR, leases, 3) as name:
            held.append(name)
            all_hold.wait(timeout=10)

    threads = [threading.Thread(target=job, daemon=True) for _ in FOUR]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(held) == FOUR


def test_one_device_holds_no_more_jobs_than_slots(
    start_jobs: StartJobs, nvidia_smi: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi(free(TOTAL))
    jobs = start_jobs(["0"], 2)
    assert [jobs.start(), jobs.start()] == ["0", "0"]
    third = jobs.start_waiting()
    jobs.running.close()
    assert third() == "0"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ  # nothing to choose


def test_a_job_joins_others_where_what_it_takes_is_free(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    needed = -(-gpu_sharing.memory(TOTAL * 2**20, 3) // 2**20)
    nvidia_smi(f'[ "$*" = "{ASKED}" ] || exit 1\n[ $4 = 1 ] && echo {TOTAL}, {needed} || echo {TOTAL}, {needed - 1}')
    jobs = start_jobs(["0", "1"], 3)
    assert [jobs.start() for _ in range(4)] == ["0", "1", "1", "1"]
    fifth = jobs.start_waiting()
    nvidia_smi(free(needed))
    assert fifth() == "0"


def test_jobs_that_start_at_once_fit_into_a_small_gpu(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    """None has taken its part yet, so all is free; but 8 GiB hold three of four jobs."""
    nvidia_smi(f'[ "$*" = "{ASKED}" ] && echo 8192, 8192')
    jobs = start_jobs(["0"], 4)
    assert [jobs.start() for _ in range(3)] == ["0"] * 3
    fourth = jobs.start_waiting()
    jobs.running.close()
    assert fourth() == "0"


def test_one_gpu_is_one_lock_whoever_names_it(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    nvidia_smi(f"[ $1 = -L ] && echo '{LISTED}'")
    first = start_jobs(["0"], 1)
    assert first.start() == "0"
    assert start_jobs([FIRST, SECOND], 1).start() == SECOND
    waiting = [start_jobs([name], 1).start_waiting() for name in (FIRST, FIRST[:9], "0")]
    first.running.close()
    assert [job() for job in waiting] == [FIRST, FIRST[:9], "0"]


def test_a_name_that_may_be_two_is_itself(nvidia_smi: Tell) -> None:
    assert gpu_lease.identities(["0", "GPU-1"]) == {"0": "0", "GPU-1": "GPU-1"}  # nothing tells
    nvidia_smi(f"[ $1 = -L ] && echo '{LISTED}'")
    assert gpu_lease.identities(["1", "2", "GPU-1", "GPU-"]) == {
        "1": SECOND, "2": "2", "GPU-1": FIRST, "GPU-": "GPU-",
    }  # fmt: skip


def test_an_idle_device_needs_no_room(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    """Else a small GPU would never have a job. But one whose first job has gone is not idle while its second runs."""
    nvidia_smi(free(TOTAL))
    first, second = start_jobs(["0"], 2), start_jobs(["0"], 2)
    assert [first.start(), second.start()] == ["0", "0"]
    nvidia_smi(free(1000))
    first.running.close()
    third = first.start_waiting()
    second.running.close()
    assert third() == "0"


@pytest.mark.parametrize("text", [None, "exit 9", "echo '[N/A], [N/A]'", "echo 24", "exec sleep 60"])
def test_what_is_not_known_is_room(
    start_jobs: StartJobs, nvidia_smi: Tell, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(gpu_lease, "TOLD_SECONDS", 0.3)
    if text:
        monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], os.defpath]))  # for `sleep`
        nvidia_smi(text)
    jobs = start_jobs(["0"], 2)
    assert [jobs.start(), jobs.start()] == ["0", "0"]


@pytest.mark.parametrize(("visible", "slots"), [(["0", "1"], 1), (["0"], 2)])
def test_a_killed_job_gives_its_slot_back(
    start_jobs: StartJobs, leases: Path, nvidia_smi: Tell, visible: list[str], slots: int
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from bayesfed.engine import gpu_lease as lease\n"
        "with lease.lease('cuda', sys.argv[3:], Path(sys.argv[1]), int(sys.argv[2])) as held:\n"
        "    print(held, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(leases), str(slots), *visible]
    with child(command, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline().strip() == "0"
        jobs = start_jobs(visible, slots)
        assert jobs.start() == visible[-1]
        third = jobs.start_waiting()
        job.kill()
        job.communicate()
        assert third() == "0"


@pytest.mark.parametrize("slots", ["0", "-1"])
def test_refuses_less_than_one_slot(slots: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "run.yaml", "--out", str(tmp_path / "out"), "--gpu-slots", slots]) == 2
    assert capsys.readouterr().err == f"bayesfed: --gpu-slots {slots}: it is too small; give 1 or more\n"
