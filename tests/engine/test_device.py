"""Choice of device and precision, as far as a CPU can tell."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayesfed.core.errors import InputError
from bayesfed.engine import device

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
    assert device.choose_precision("auto", "cpu", ["mlp", "cnn2"]) == precision
    dense = "fp32" if vendor == "GenuineIntel" else precision
    assert device.choose_precision("auto", "cpu", ["mlp", "softmax"]) == dense


def test_precision_of_other_processors_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve bf16 svebf16\nCPU implementer\t: 0x41\n"
    monkeypatch.setattr(Path, "read_text", lambda path: arm)
    assert device.choose_precision("auto", "cpu") == "fp32"

    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert device.choose_precision("auto", "cpu") == "fp32"


@pytest.mark.parametrize(("computes_in_bf16", "precision"), [(True, "bf16"), (False, "fp32")])
def test_precision_follows_the_gpu(computes_in_bf16: bool, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: computes_in_bf16 or including_emulation
    )
    assert device.choose_precision("auto", "cuda") == precision


def test_a_device_is_named() -> None:
    with pytest.raises(
        InputError, match=r"--device: expected text, one of auto, cpu, cuda, found device\(type='cpu'\)"
    ):
        device.choose_device(torch.device("cpu"))  # type: ignore[arg-type]


def test_asked_precision_stands() -> None:
    assert device.choose_precision("fp32", "cpu") == "fp32"
    assert device.choose_precision("bf16", "cuda") == "bf16"
    assert device.choose_precision("tf32", "cuda") == "tf32"
    with pytest.raises(InputError, match="--precision tf32: only GPUs compute in TF32"):
        device.choose_precision("tf32", "cpu")


def test_steps_on_a_cpu_take_no_new_pages() -> None:
    """In a process of its own, since the switch holds for a whole process."""
    code = (
        "import resource, torch; from bayesfed.engine import device; device.configure('cpu', 'fp32')\n"
        "def step(): return [torch.ones(2**18) for _ in range(40)]\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(6): before = faults(); step()\n"
        "print(faults() - before)"
    )
    faults = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert faults < 1000  # a step fills 10240 pages
