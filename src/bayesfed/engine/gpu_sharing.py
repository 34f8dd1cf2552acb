"""The share of a GPU that a training job takes, so that several fit beside each other.

All sizes are in bytes. The two estimates are for networks and batches of the papers' size, and hold what ten workers took of
an H200, 8.2 GiB for FedAvg with CNN2 everywhere and 7.3 for HBFL with mixed networks, in fp32; in TF32 7.8 and 7.9, in bf16
6.2 and 5.9.
"""

from __future__ import annotations

WORKERS = 16  # clients that a job trains at once, at most
WORKER = (
    9 * 2**30 // 10
)  # 0.9 GiB: a worker's chunk of images, activations of training and of evaluation, recorded steps
# Between host and GPU, for a job's streams to share: the most that CUDA gives a process, which has 8 unless it asks; and the
# most of a job beside others, and of all together. Under MPS an H200 took five jobs that asked for 16, and refused most of
# eight that asked for 32.
QUEUES, SHARED_QUEUES, ALL_QUEUES = 32, 16, 80
RESERVE = 3 * 2**30 // 2  # 1.5 GiB of a job beside its workers: CUDA's context, libraries, and all images


def workers(total: int, slots: int = 1) -> int:
    """Return how many workers a job has on a GPU with `total` bytes that it may share with slots - 1 others; at least
    one.
    """
    return max(1, min(WORKERS, (total // slots - RESERVE) // WORKER))


def queues(slots: int) -> int:
    """Return how many queues to the GPU each of so many jobs asks for, a power of two: under MPS all jobs' are one
    server's, which refuses a job ("device busy", "out of memory") when they are gone.
    """
    return QUEUES if slots == 1 else 2 ** (max(1, min(SHARED_QUEUES, ALL_QUEUES // slots)).bit_length() - 1)


def memory(total: int, slots: int = 1) -> int:
    """Return the bytes that such a job takes once it trains: no more than its part of the GPU, unless that is too
    small for any job.
    """
    return RESERVE + workers(total, slots) * WORKER


def jobs(total: int, slots: int) -> int:
    """Return how many of the slots the GPU has memory for; at least one."""
    return max(1, min(slots, total // memory(total, slots)))
