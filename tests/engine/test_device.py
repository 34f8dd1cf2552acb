"""Choice of device and precision, and leases of GPUs, as far as a CPU can tell."""

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

from bayesfed import cli
from bayesfed.engine import device
from bayesfed.errors import InputError

Tell = Callable[[str], None]
FOUR = ["0", "1", "2", "3"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a lease sets goes with its test; and waiting jobs look often."""
    monkeypatch.setattr(device, "LEASE_POLL", 0.01)
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
        return self.running.enter_context(device.lease(*self.request))

    def start_waiting(self) -> Callable[[], str]:
        """Start a short one that must wait; gives a function that gives its device once there is one for it."""
        got: list[str] = []

        def job() -> None:
            with device.lease(*self.request) as held:
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


CPUINFO = """processor\t: 0
vendor_id\t: {vendor}
model name\t: {model}
flags\t\t: fpu vme sse2 avx2 {flags}
"""


@pytest.mark.parametrize(
    ("vendor", "model", "flags", "precision"),
    [
        ("GenuineIntel", "Cascade Lake", "avx512f avx512_vnni", "fp32"),
        ("GenuineIntel", "Cooper Lake", "avx512f avx512_vnni avx512_bf16", "fp32"),
        ("GenuineIntel", "Sapphire Rapids", "avx512f avx512_bf16 amx_bf16 amx_tile amx_int8", "bf16"),
        ("AuthenticAMD", "Zen 3", "", "fp32"),
        ("AuthenticAMD", "Zen 4", "avx512f avx512_bf16 avx512_vnni", "bf16"),
    ],
)
def test_precision_follows_the_processor(
    vendor: str, model: str, flags: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = CPUINFO.format(vendor=vendor, model=model, flags=flags)
    monkeypatch.setattr(Path, "read_text", lambda path: cpuinfo)
    assert device.choose_precision("auto", "cpu") == precision


def test_precision_of_other_processors_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve bf16 svebf16\nCPU implementer\t: 0x41\n"
    monkeypatch.setattr(Path, "read_text", lambda path: arm)
    assert device.choose_precision("auto", "cpu") == "fp32"

    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert device.choose_precision("auto", "cpu") == "fp32"


def test_asked_precision_stands() -> None:
    assert device.choose_precision("fp32", "cpu") == "fp32"
    assert device.choose_precision("bf16", "cuda") == "bf16"
    assert device.choose_precision("auto", "cuda") == "fp32"
    assert device.choose_precision("tf32", "cuda") == "tf32"
    with pytest.raises(InputError, match="--precision tf32: only GPUs compute in TF32"):
        device.choose_precision("tf32", "cpu")


def test_steps_on_a_cpu_take_no_new_pages() -> None:
    """In a process of its own, since the switch holds for a whole process."""
    code = (
        "import resource, torch; from bayesfed.engine import device; device.compute('cpu', 'fp32')\n"
        "def step(): return [torch.ones(2**20) for _ in range(40)]\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(6): before = faults(); step()\n"
        "print(faults() - before)"
    )
    faults = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert faults < 1000  # a step fills 40960 pages


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-ab/1")
    assert device.visible_devices() == ["2", "GPU-ab/1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.visible_devices() == []


def test_nothing_is_leased_without_a_choice(leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for visible, slots in (([], 1), ([], 3), (["0"], 1)):
        with device.lease("cuda", visible, leases, slots) as held:
            assert held == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with device.lease("cpu", None, leases, 3) as held:
        assert held == ""
    assert not leases.exists()


def test_cuda_counts_devices_as_nvidia_smi_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has queues for many streams; but what the user set stands, and nothing is set for the CPU."""
    names = ("CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with device.lease("cpu"):
        assert not set(names) & set(os.environ)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with device.lease("auto"):
        assert [os.environ[name] for name in names] == ["PCI_BUS_ID", "32"]
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    with device.lease("auto"):
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


@pytest.mark.parametrize("visible", [["0", "1"], ["GPU-ab/1", "GPU-ab/2"]])
def test_each_job_holds_a_device_of_its_own(start_jobs: StartJobs, visible: list[str]) -> None:
    jobs = start_jobs(visible, 1)
    assert [jobs.start(), jobs.start()] == visible
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible[1]
    third = jobs.start_waiting()
    jobs.running.close()
    assert third() in visible


def test_jobs_share_only_when_no_device_is_idle(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    nvidia_smi("echo 100000")
    first, later = start_jobs(FOUR, 3), start_jobs(FOUR, 3)
    assert [first.start() for _ in FOUR] == FOUR
    assert [later.start() for _ in FOUR[:2]] == FOUR[:2]
    first.running.close()  # one job each is left on the first two
    assert [later.start() for _ in range(2)] == FOUR[2:]
    assert sorted(later.start() for _ in range(8)) == sorted(FOUR * 2)
    thirteenth = later.start_waiting()
    later.running.close()
    assert thirteenth() == "0"


def test_jobs_that_start_at_once_hold_a_device_each(leases: Path, nvidia_smi: Tell) -> None:
    nvidia_smi("echo 100000")
    held: list[str] = []
    together, all_hold = threading.Barrier(4), threading.Barrier(4)

    def job() -> None:
        together.wait(timeout=10)
        with device.lease("cuda", FOUR, leases, 3) as name:
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
    nvidia_smi("echo 100000")
    jobs = start_jobs(["0"], 2)
    assert [jobs.start(), jobs.start()] == ["0", "0"]
    third = jobs.start_waiting()
    jobs.running.close()
    assert third() == "0"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ  # nothing to choose


def test_a_job_joins_others_where_there_is_room(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    asked = "--query-gpu=memory.free --format=csv,noheader,nounits -i $4"
    free = f"[ $4 = 1 ] && echo {device.ROOM} || echo {device.ROOM - 1}"
    nvidia_smi(f'[ "$*" = "{asked}" ] || exit 1\n{free}')
    jobs = start_jobs(["0", "1"], 3)
    assert [jobs.start() for _ in range(4)] == ["0", "1", "1", "1"]
    fifth = jobs.start_waiting()
    nvidia_smi(f"echo {device.ROOM}")
    assert fifth() == "0"


def test_an_idle_device_needs_no_room(start_jobs: StartJobs, nvidia_smi: Tell) -> None:
    """Else a small GPU would never have a job. But one whose first job has gone is not idle while its second runs."""
    nvidia_smi("echo 100000")
    first, second = start_jobs(["0"], 2), start_jobs(["0"], 2)
    assert [first.start(), second.start()] == ["0", "0"]
    nvidia_smi("echo 1000")
    first.running.close()
    third = first.start_waiting()
    second.running.close()
    assert third() == "0"


@pytest.mark.parametrize("text", [None, "exit 9", "echo '[N/A]'", "exec sleep 60"])
def test_what_is_not_known_is_room(
    start_jobs: StartJobs, nvidia_smi: Tell, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(device, "ROOM_SECONDS", 0.3)
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
        "import sys, time; from pathlib import Path; from bayesfed.engine import device\n"
        "with device.lease('cuda', sys.argv[3:], Path(sys.argv[1]), int(sys.argv[2])) as held:\n"
        "    print(held, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(leases), str(slots), *visible]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    assert capsys.readouterr().err == f"bayesfed: --gpu-slots {slots}: expected 1 or more\n"
