"""The factors of a run's learning rates."""

import math

import pytest

from bayesfed.runs.schedule import Schedule


def test_cosine_falls_from_1_over_the_rounds() -> None:
    """(1 + cos(pi (r - 1)/R))/2, times the others."""
    found = [Schedule(cosine=True).at(round, 4) for round in (1, 2, 3, 4)]
    assert found == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert Schedule(cosine=True, round_decay=0.5).at(3, 4) == pytest.approx(0.5 * 0.25)
    assert Schedule(cosine=True).varies
