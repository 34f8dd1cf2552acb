"""Device and precision of a run, and the lease that gives each job a GPU of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bayesfed.engine.federation import Compute
from bayesfed.errors import InputError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEASE_POLL = 0.5  # seconds between looks for a free device


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
    """ "fp32" or "bf16" for `auto`, by the device's capabilities: bf16 on a CPU that has units for it, else fp32."""
    if wanted != "auto":
        return wanted
    return "bf16" if device == "cpu" and has_bf16() else "fp32"


def compute(device: str, precision: str) -> Compute:
    """The device and the precision as the engine needs them; sets torch to repeat itself on a GPU.

    fp32 on a GPU is plain fp32, not TF32; cuDNN takes deterministic algorithms and none by a timing.
    """
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return Compute(torch.device(device), torch.float32, PRECISIONS[precision])


def hardware(device: str) -> str:
    """The name of the processor or GPU, for provenance."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine


@contextlib.contextmanager
def lease(device: str, visible: list[str] | None = None, folder: Path | None = None) -> Iterator[str]:
    """Hold one of the visible GPUs for this process, waiting for a free one, and make it the only visible one.

    A kernel lock per device on the node's own disk; a process that dies gives its lock back. Nothing is locked
    for `--device cpu`, nor where only one device is visible, for then there is nothing to choose. Call it before
    anything asks torch for a GPU: from then on a process sees what CUDA_VISIBLE_DEVICES said at that moment. Yields the leased entry of CUDA_VISIBLE_DEVICES, or "".
    """
    if visible is None:
        visible = visible_devices() if device != "cpu" else []
    if len(visible) < 2:
        yield ""
        return
    folder = folder or Path(tempfile.gettempdir()) / f"bayesfed-leases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    files = [(name, (folder / f"gpu-{name.replace('/', '_')}.lock").open("w")) for name in visible]
    try:
        held = ""
        while not held:
            for name, file in files:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held = name
                    break
            else:
                time.sleep(LEASE_POLL)
        os.environ["CUDA_VISIBLE_DEVICES"] = held
        yield held
    finally:
        for _, file in files:
            file.close()


def visible_devices() -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES, or the numbers of all NVIDIA devices, without starting CUDA."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
