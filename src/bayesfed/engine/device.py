"""Device and precision of a run, and the lease that gives each job a GPU of its own, or a share of one."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch

from bayesfed.engine.federation import Compute
from bayesfed.errors import InputError

PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LEASE_POLL = 0.5  # seconds between looks for a free device
ROOM = 8 * 1024  # MiB that must be free on a GPU before a job joins others there
ROOM_SECONDS = 5  # for nvidia-smi to say so


def choose_device(wanted: str) -> str:
    """ "cpu" or "cuda" for `auto`, `cpu` or `cuda`; raises InputError where there is no GPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable GPU; use --device auto or cpu")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def gains_by_bf16(cpuinfo: str | None = None) -> bool:
    """Whether a processor computes networks faster in bfloat16 than in fp32, by the text of /proc/cpuinfo.

    It does with AMX, and on AMD with AVX512-BF16. Intel's AVX512-BF16 without AMX is slower than its fp32.
    """
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text()
        except OSError:
            return False
    words = set(cpuinfo.split())
    return "amx_bf16" in words or {"AuthenticAMD", "avx512_bf16"} <= words


def choose_precision(wanted: str, device: str) -> str:
    """The precision for `auto`, by what the device is: bf16 on a CPU that gains by it, else fp32.

    Raises InputError for tf32 on a CPU.
    """
    if wanted == "tf32" and device == "cpu":
        raise InputError("--precision tf32: only GPUs compute in TF32; use auto, fp32 or bf16 on a CPU")
    if wanted != "auto":
        return wanted
    return "bf16" if device == "cpu" and gains_by_bf16() else "fp32"


def compute(device: str, precision: str) -> Compute:
    """The device and the precision as the engine needs them; sets torch to repeat itself on a GPU.

    fp32 on a GPU is plain fp32; tf32 rounds the inputs of products and convolutions to 10 bits of mantissa. cuDNN
    takes deterministic algorithms and none by a timing. On a CPU the process keeps its memory.
    """
    if device == "cpu":
        keep_memory()
    products = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cudnn.conv.fp32_precision = products  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = products
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return Compute(torch.device(device), torch.float32, PRECISIONS[precision])


def keep_memory() -> None:
    """Have glibc keep freed memory for the next step, which asks for the same again.

    Given back, the pages of a step's large tensors are mapped and cleared anew at every step. Nothing where the C
    library has no such switch.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that every glibc takes
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


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
def lease(device: str, visible: list[str] | None = None, folder: Path | None = None, slots: int = 1) -> Iterator[str]:
    """Hold a slot of one of the visible GPUs for this process, waiting for one, and make that GPU the only visible one.

    A kernel lock per device and slot on the node's own disk; a process that dies gives its lock back. A job takes the
    GPU with the fewest jobs, so none shares while another GPU is idle, and joins others only where there is room: that
    is what is free at that moment, and a job that has just begun may not have taken its part yet.

    Nothing is locked for `--device cpu`, nor where one device with one slot is visible, for then there is nothing to
    choose. Call it before anything asks torch for a GPU: from then on a process sees what the environment said at that
    moment. Yields the leased entry of CUDA_VISIBLE_DEVICES, or "".
    """
    if device != "cpu":
        # CUDA numbers by speed, but nvidia-smi by bus. And clients' streams would share eight queues.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if visible is None:
        visible = visible_devices() if device != "cpu" else []
    if len(visible) * slots < 2:
        yield ""
        return
    folder = folder or Path(tempfile.gettempdir()) / f"bayesfed-leases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as opened:

        def lock(name: str) -> TextIO:
            return opened.enter_context((folder / f"{name}.lock").open("w"))

        turn = lock("turn")
        locks = {name: [lock(f"gpu-{name.replace('/', '_')}-{slot}") for slot in range(slots)] for name in visible}
        while not (held := take_slot(locks, turn)):
            time.sleep(LEASE_POLL)
        if len(visible) > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = held
        yield held


def take_slot(locks: dict[str, list[TextIO]], turn: TextIO) -> str:
    """Lock a slot of the GPU that has the fewest jobs; gives its name, or "" where none has a slot and room."""
    fcntl.flock(turn, fcntl.LOCK_EX)  # one process looks at a time: to look is to lock, and would pass for a job
    held = ""
    try:
        free = {name: [slot for slot in slots if locked(slot)] for name, slots in locks.items()}
        for name in sorted(free, key=lambda name: -len(free[name])):
            if free[name] and (len(free[name]) == len(locks[name]) or has_room(name)):
                held = name
                free[name].pop(0)
                break
        for slot in (slot for slots in free.values() for slot in slots):
            fcntl.flock(slot, fcntl.LOCK_UN)
    finally:
        fcntl.flock(turn, fcntl.LOCK_UN)
    return held


def locked(file: TextIO) -> bool:
    """Lock a file, where no other process holds it; gives whether."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_room(name: str) -> bool:
    """Whether a GPU has the memory free that a further job needs, without starting CUDA; yes where nothing tells."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", name]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ROOM_SECONDS).stdout
        return int(told) >= ROOM
    except (OSError, subprocess.SubprocessError, ValueError):
        return True


def visible_devices() -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES, or the numbers of all NVIDIA devices, without starting CUDA."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    # Counted from 0, as CUDA does: a container may hold /dev/nvidia2 alone, and that is its device 0.
    return [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
