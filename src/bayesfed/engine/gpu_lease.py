"""The lease that gives each training job a GPU of its own, or a share of one, without starting CUDA."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch

from bayesfed.engine import gpu_sharing

POLL = 0.5  # seconds between looks for a free GPU
TOLD_SECONDS = 5  # for nvidia-smi to say something
MIB = 2**20
# CUDA takes the entries of CUDA_VISIBLE_DEVICES up to the first that names nothing, as -1 and NoDevFiles do on purpose.
NAME = re.compile(r"\d+|GPU-[\w-]+")


@contextlib.contextmanager
def lease(device: str, visible: list[str] | None = None, folder: Path | None = None, slots: int = 1) -> Iterator[str]:
    """Hold a slot of one of the visible GPUs for this process, waiting for one, and make that GPU the only visible one.

    A kernel lock per GPU and slot on the node's own disk; a process that dies gives its lock back. A job takes the
    GPU with the fewest jobs, so none shares while another GPU is idle. A GPU has no more slots than jobs of that many
    slots have memory there, so jobs that start together fit; and a job joins others only where that much is free,
    since other people's processes may be there too.

    Nothing is locked for `--device cpu`, nor where no GPU is visible. Call it before anything asks torch for a GPU:
    from then on a process sees what the environment said at that moment. Yields the leased entry of
    CUDA_VISIBLE_DEVICES, or "".
    """
    if device != "cpu":
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # CUDA numbers by speed, but nvidia-smi by bus
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(gpu_sharing.queues(slots)))
    if visible is None:
        visible = visible_devices() if device != "cpu" else []
    if not visible:
        yield ""
        return
    folder = folder or Path(tempfile.gettempdir()) / f"bayesfed-leases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    gpus = identities(visible)
    with contextlib.ExitStack() as opened:

        def lock(name: str) -> TextIO:
            return opened.enter_context((folder / f"{name}.lock").open("w"))

        turn = lock("turn")
        locks = {
            name: [lock(f"gpu-{gpus[name]}-{slot}") for slot in range(usable_slots(gpus[name], slots))]
            for name in visible
        }
        while not (held := take_slot(locks, gpus, slots, turn)):
            time.sleep(POLL)
        if len(visible) > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = held
        yield held


def take_slot(locks: dict[str, list[TextIO]], gpus: dict[str, str], slots: int, turn: TextIO) -> str:
    """Lock a slot of the GPU that has the fewest jobs; return its name, or "" where none has a slot and memory."""
    fcntl.flock(turn, fcntl.LOCK_EX)  # one process looks at a time: to look is to lock, and would pass for a job
    held = ""
    try:
        free = {name: [slot for slot in files if try_lock(slot)] for name, files in locks.items()}
        for name in sorted(free, key=lambda name: len(locks[name]) - len(free[name])):
            if free[name] and (len(free[name]) == len(locks[name]) or has_room(gpus[name], slots)):
                held = name
                free[name].pop(0)
                break
        for slot in (slot for files in free.values() for slot in files):
            fcntl.flock(slot, fcntl.LOCK_UN)
    finally:
        fcntl.flock(turn, fcntl.LOCK_UN)
    return held


def try_lock(file: TextIO) -> bool:
    """Lock a file unless another process holds it; return whether it is locked now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def usable_slots(gpu: str, slots: int) -> int:
    """Return how many of the slots a GPU has memory for; all where nothing tells."""
    if slots == 1:
        return 1
    total, _ = memory(gpu)
    return gpu_sharing.jobs(total, slots) if total else slots


def has_room(gpu: str, slots: int) -> bool:
    """Return whether what a further job will take is free on a GPU; yes where nothing tells."""
    total, free = memory(gpu)
    return not total or free >= gpu_sharing.memory(total, slots)


def memory(gpu: str) -> tuple[int, int]:
    """Return the bytes of a GPU, all and free; zeros if nvidia-smi does not tell."""
    told = nvidia_smi("--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits", "-i", gpu)
    with contextlib.suppress(ValueError):
        total, free = (int(number) * MIB for number in told.split(","))
        return total, free
    return 0, 0


def identities(visible: list[str]) -> dict[str, str]:
    """Map each visible GPU to its UUID, which all processes share, or to its own name if nvidia-smi does not tell."""
    uuids = gpu_uuids()

    def identity(name: str) -> str:
        if name.isdecimal():
            return uuids[int(name)] if int(name) < len(uuids) else name
        # CUDA takes the beginning of a UUID for the whole, if only one begins so.
        found = [one for one in uuids if one.startswith(name)]
        return found[0] if len(found) == 1 else name

    return {name: identity(name) for name in visible}


def gpu_uuids() -> list[str]:
    """Return the UUID of each GPU in nvidia-smi's order; none if nvidia-smi does not tell."""
    return re.findall(r"^GPU .*\(UUID: ([^)]+)\)", nvidia_smi("-L"), re.MULTILINE)


def nvidia_smi(*arguments: str) -> str:
    """Run nvidia-smi and return what it says; nothing if there is none, or it fails or hangs."""
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=TOLD_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def visible_devices() -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES, or the numbers of all NVIDIA devices; none for a torch without CUDA."""
    if not torch.backends.cuda.is_built():
        return []
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        # Counted from 0, as CUDA does: a container may hold /dev/nvidia2 alone, and that is its device 0.
        return [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    names: list[str] = []
    for name in (name.strip() for name in wanted.split(",")):
        if not NAME.fullmatch(name):
            break
        names.append(name)
    return names
