"""Choice of device and precision, and leases of GPUs, as far as a CPU can tell."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bayesfed.engine import device


def test_bf16_is_chosen_by_capability_alone() -> None:
    assert device.has_bf16("fpu avx512f avx512_bf16")
    assert device.has_bf16("fpu amx_bf16 amx_tile")
    assert not device.has_bf16("fpu avx2 avx512f")
    assert device.choose_precision("fp32", "cpu") == "fp32"
    assert device.choose_precision("bf16", "cuda") == "bf16"
    assert device.choose_precision("auto", "cuda") == "fp32"


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-ab/1")
    assert device.visible_devices() == ["2", "GPU-ab/1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.visible_devices() == []


def test_nothing_is_leased_without_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for visible in ([], ["0"]):
        with device.lease("cuda", visible, tmp_path / "leases") as held:
            assert held == ""
    assert not (tmp_path / "leases").exists()


def test_each_job_holds_a_device_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(device, "LEASE_POLL", 0.01)
    visible = ["0", "1"]
    with device.lease("cuda", visible, tmp_path) as first, device.lease("cuda", visible, tmp_path) as second:
        assert {first, second} == {"0", "1"}
        got: list[str] = []

        def third() -> None:
            with device.lease("cuda", visible, tmp_path) as held:
                got.append(held)

        thread = threading.Thread(target=third)
        thread.start()
        time.sleep(0.1)
        assert got == []  # it waits
    thread.join(timeout=10)
    assert len(got) == 1


def test_a_killed_job_gives_its_device_back(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from bayesfed.engine import device\n"
        "with device.lease('cuda', ['0', '1'], Path(sys.argv[1])) as held: print(held, flush=True); time.sleep(60)"
    )
    jobs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    held = {job.stdout.readline().strip() for job in jobs if job.stdout}
    assert held == {"0", "1"}
    for job in jobs:
        job.kill()
        job.communicate()
    with device.lease("cuda", ["0", "1"], tmp_path) as again:
        assert again in {"0", "1"}
