"""What a training job takes of a GPU, so that several that share one fit beside each other.

All sizes are in bytes. The two estimates are for networks and batches of the papers' size, and hold what ten lanes took of an
H200, 9.6 GiB for FedAvg with CNN2 everywhere and 8.5 for HBFL with mixed networks, in fp32; in TF32 7.8 and 7.9, in bf16 6.2 and 6.0.
"""

from __future__ import annotations

LANES = 16  # clients that a job trains at once, at most
LANE = 9 * 2**30 // 10  # 0.9 GiB: a lane's chunk of images, activations of training and of evaluation, recorded steps
# Between host and GPU: the most that CUDA gives a process, which has 8 unless it asks, for its clients' streams to share; and what
# all jobs under MPS ask for. There an H200 took five jobs of 16, three of 32 by what its logs say, and refused eight others.
QUEUES, ALL_QUEUES = 32, 64
RESERVE = 3 * 2**30 // 2  # 1.5 GiB of a job beside its lanes: CUDA's context, libraries, and all images


def lanes(total: int, slots: int = 1) -> int:
    """How many lanes a job has on a GPU with `total` bytes that it may share with slots - 1 others; at least one."""
    return max(1, min(LANES, (total // slots - RESERVE) // LANE))


def queues(slots: int, under_mps: bool) -> int:
    """How many queues to the GPU each of so many jobs asks for: the most, unless all are one server's. MPS refuses a job
    ("device busy", "out of memory") when its queues are gone."""
    return max(1, min(QUEUES, ALL_QUEUES // slots)) if under_mps else QUEUES


def memory(total: int, slots: int = 1) -> int:
    """What such a job takes once it trains: no more than its part of the GPU, unless that is too small for any job."""
    return RESERVE + lanes(total, slots) * LANE


def jobs(total: int, slots: int) -> int:
    """How many of the slots the GPU has memory for; at least one."""
    return max(1, min(slots, total // memory(total, slots)))
