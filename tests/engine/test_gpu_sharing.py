"""How jobs share a GPU's memory."""

import json
from pathlib import Path

import pytest

from bayesfed.engine import gpu_sharing

GIB = 2**30
ROWS = Path(__file__).parents[2] / "benchmarks/gpu/rows"  # measured on an H200


@pytest.mark.parametrize(
    ("gib", "workers"),
    [(8, (7, 2, 1, 1)), (12, (11, 5, 2, 1)), (24, (16, 11, 7, 5)), (141, (16, 16, 16, 16))],
)
def test_workers_by_memory_and_slots(gib: int, workers: tuple[int, ...]) -> None:
    assert tuple(gpu_sharing.workers(gib * GIB, slots) for slots in (1, 2, 3, 4)) == workers


@pytest.mark.parametrize("gib", [3, 8, 12, 16, 24, 40, 80, 141])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8])
def test_the_jobs_of_a_gpu_fit_into_it(gib: int, slots: int) -> None:
    total = gib * GIB
    jobs = gpu_sharing.jobs(total, slots)
    assert 1 <= jobs <= slots
    assert jobs * gpu_sharing.memory(total, slots) <= total
    # And no slot is closed that would fit.
    assert jobs == slots or (jobs + 1) * gpu_sharing.memory(total, slots) > total


def test_the_estimate_holds_what_ten_workers_took() -> None:
    rows = [json.loads(line) for line in (ROWS / "smoke.jsonl").read_text().splitlines()]
    took = [row["gpu_mib_of_all"] * 2**20 for row in rows if row["part"] == "rounds"]
    assert 0.5 * GIB < gpu_sharing.RESERVE + 10 * gpu_sharing.WORKER - max(took) < 2.5 * GIB


def test_a_gpu_too_small_for_any_job_is_tried() -> None:
    assert gpu_sharing.workers(2 * GIB, 3) == gpu_sharing.jobs(2 * GIB, 3) == 1
