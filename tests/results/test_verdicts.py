"""The words of verdicts, and where their limits are."""

import pytest

from bayesfed.results import verdicts


@pytest.mark.parametrize(
    ("holds", "of", "most", "word"),
    [
        (3, 3, False, "supported"),
        (2, 3, False, "mostly"),
        (106, 110, False, "mostly"),
        (19, 54, False, "mixed"),
        (1, 3, False, "mixed"),
        (26, 110, False, "mostly not"),
        (0, 4, False, "contradicted"),
        (0, 0, False, "not run"),
        (3, 5, True, "supported"),
        (2, 4, True, "mixed"),
        (0, 4, True, "contradicted"),
    ],
)
def test_words(holds: int, of: int, most: bool, word: str) -> None:
    assert verdicts.word(holds, of, most) == word


@pytest.mark.parametrize(
    ("of", "planned", "part", "apart", "told"),
    [
        (3, 3, "", "", "mostly 2/3"),
        (3, 4, "", "", "mostly 2/3, preliminary"),
        (3, 3, "in 1 of its 4 cells", "", "mostly 2/3, preliminary (in 1 of its 4 cells)"),
        (3, 4, "", "stand-in data", "mostly 2/3, preliminary, off-protocol (stand-in data)"),
    ],
)
def test_flags(of: int, planned: int, part: str, apart: str, told: str) -> None:
    assert verdicts.told("mostly", 2, of, verdicts.flags(of, planned, part, apart)) == told


def test_nothing_limits_what_was_not_run() -> None:
    assert verdicts.told("not run", 0, 0, verdicts.flags(0, 4, "", "stand-in data")) == "not run"
