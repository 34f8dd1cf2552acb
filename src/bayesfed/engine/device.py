"""Device and precision of a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesfed import models
from bayesfed.core.errors import InputError, nearest

PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@dataclass(frozen=True)
class Compute:
    """Device and precision of a run: states in `dtype`, forward and backward passes in `cast`.

    `slots`: how many jobs may share the GPU, this one included.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    cast: torch.dtype = torch.float32
    slots: int = 1

    def place(self, array: np.ndarray) -> Tensor:
        """Put the array on the device; a GPU fetches it while the host goes on."""
        host = torch.from_numpy(np.ascontiguousarray(array))
        return host.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else host

    def synchronise(self) -> None:
        """Wait until the device has done all that it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def one_of(option: str, wanted: str, choices: Sequence[str]) -> None:
    """Raise InputError if an option is none of its choices."""
    if not isinstance(wanted, str):
        raise InputError(f"--{option}: expected text, one of {', '.join(choices)}, found {wanted!r}")
    if wanted not in choices:
        raise InputError(f"--{option} {wanted}: not a choice; {nearest(wanted, choices)}")


def choose_device(wanted: str) -> str:
    """Choose "cpu" or "cuda" for `auto`, `cpu` or `cuda`; raises InputError for anything else, and where there is no
    GPU.
    """
    one_of("device", wanted, ["auto", "cpu", "cuda"])
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable GPU; use --device auto or cpu")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def gains_by_bf16(dense: bool) -> bool:
    """Return whether a processor computes networks faster in bfloat16 than in fp32, by /proc/cpuinfo. `dense`: whether all
    their layers are fully connected.

    It does on AMD with AVX512-BF16, and with AMX where there are convolutions: of small products AMX has little, and bf16
    costs casts. Intel's AVX512-BF16 without AMX is slower than its fp32.
    """
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return ("amx_bf16" in words and not dense) or {"AuthenticAMD", "avx512_bf16"} <= words


def choose_precision(wanted: str, device: str, networks: Iterable[str] = ()) -> str:
    """Choose the precision for `auto`, by what the device and the networks are: bf16 on a CPU that gains by it, and on a
    GPU that computes in it (NVIDIA's from Ampere on), else fp32.

    Raises InputError for what is no precision, and for tf32 on a CPU.
    """
    one_of("precision", wanted, ["auto", *PRECISIONS])
    if wanted == "tf32" and device == "cpu":
        raise InputError("--precision tf32: only GPUs compute in TF32; use auto, fp32 or bf16 on a CPU")
    if wanted != "auto":
        return wanted
    if device == "cuda":
        gains = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        names = list(networks)
        gains = gains_by_bf16(dense=bool(names) and all(map(models.fully_connected, names)))
    return "bf16" if gains else "fp32"


def configure(device: str, precision: str, slots: int = 1) -> Compute:
    """Set torch to repeat itself on a device, in a precision; return both, and the jobs that share a GPU, for the
    engine.

    fp32 on a GPU is plain fp32; tf32 rounds the inputs of products and convolutions to 10 bits of mantissa. cuDNN
    takes deterministic algorithms and none by a timing. On a CPU the process keeps its memory.
    """
    if device == "cpu":
        keep_memory()
    products = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cudnn.conv.fp32_precision = products  # type: ignore[attr-defined]
    # Alike, or torch has no answer where a module of a user's asks for `cudnn.allow_tf32`.
    torch.backends.cudnn.rnn.fp32_precision = products  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = products
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return Compute(torch.device(device), torch.float32, PRECISIONS[precision], slots)


def keep_memory() -> None:
    """Have glibc keep freed memory for the next step, which asks for the same again.

    Given back, the pages of a step's large tensors are mapped and cleared again at every step. Nothing where the C
    library has no such switch.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that every glibc takes
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def hardware(device: str) -> str:
    """Return the name of the processor or GPU, for provenance."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine
