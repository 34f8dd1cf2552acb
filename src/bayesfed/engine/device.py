"""Device and precision of a run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from bayesfed.engine.federation import Compute
from bayesfed.errors import InputError

PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def choose_device(wanted: str) -> str:
    """ "cpu" or "cuda" for `auto`, `cpu` or `cuda`; raises InputError where there is no GPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable GPU; use --device auto or cpu")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def has_bf16(flags: str | None = None) -> bool:
    """Whether the processor multiplies bfloat16 in hardware; `flags` as in /proc/cpuinfo."""
    if flags is None:
        try:
            flags = Path("/proc/cpuinfo").read_text()
        except OSError:
            return False
    return bool({"avx512_bf16", "amx_bf16"} & set(flags.split()))


def choose_precision(wanted: str, device: str) -> str:
    """The precision for `auto`, by the device's capabilities: bf16 on a CPU that has units for it, else fp32.

    Raises InputError for tf32 on a CPU.
    """
    if wanted == "tf32" and device == "cpu":
        raise InputError("--precision tf32: only GPUs compute in TF32; use auto, fp32 or bf16 on a CPU")
    if wanted != "auto":
        return wanted
    return "bf16" if device == "cpu" and has_bf16() else "fp32"


def compute(device: str, precision: str, slots: int = 1) -> Compute:
    """Device and precision as the engine needs them, and how many jobs share a GPU; sets torch to repeat itself there.

    fp32 on a GPU is plain fp32; tf32 rounds the inputs of products and convolutions to 10 bits of mantissa. cuDNN
    takes deterministic algorithms and none by a timing.
    """
    products = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cudnn.conv.fp32_precision = products  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = products
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return Compute(torch.device(device), torch.float32, PRECISIONS[precision], slots)


def hardware(device: str) -> str:
    """The name of the processor or GPU, for provenance."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine
