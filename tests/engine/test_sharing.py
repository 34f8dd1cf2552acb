"""How jobs share a GPU's memory."""

import pytest

from bayesfed.engine import sharing

GIB = 2**30


@pytest.mark.parametrize(
    ("gib", "lanes"),
    [(8, (10, 3, 1, 1)), (12, (16, 6, 3, 2)), (24, (16, 16, 10, 6)), (141, (16, 16, 16, 16))],
)
def test_lanes_by_memory_and_slots(gib: int, lanes: tuple[int, ...]) -> None:
    assert tuple(sharing.lanes(gib * GIB, slots) for slots in (1, 2, 3, 4)) == lanes


@pytest.mark.parametrize("gib", [3, 8, 12, 16, 24, 40, 80, 141])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8])
def test_the_jobs_of_a_gpu_fit_into_it(gib: int, slots: int) -> None:
    total = gib * GIB
    jobs = sharing.jobs(total, slots)
    assert 1 <= jobs <= slots
    assert jobs * sharing.memory(total, slots) <= total
    # And no slot is closed that would fit.
    assert jobs == slots or (jobs + 1) * sharing.memory(total, slots) > total


def test_a_gpu_too_small_for_any_job_is_tried() -> None:
    assert sharing.lanes(2 * GIB, 3) == sharing.jobs(2 * GIB, 3) == 1
