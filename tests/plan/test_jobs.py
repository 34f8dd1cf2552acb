"""Which runs are trained together."""

from bayesfed.papers.spec import ShortRuns
from bayesfed.plan import jobs


def test_jobs_are_long_runs_and_several_short_ones() -> None:
    """The most valuable first; a job of short runs takes no more of them than asked for, nor than minutes of work."""
    runs = [{"folder": str(n), "cost": cost, "priority": n} for n, cost in enumerate([1, 1, 9, 1, 1, 1])]
    assert jobs.group(runs, {"below": 2}) == [["5", "4", "3", "1", "0"], ["2"]]
    assert jobs.group(runs, {"below": 2, "together": 4}) == [["5", "4", "3", "1"], ["2"], ["0"]]
    assert jobs.group(runs, {"below": 0}) == [[str(n)] for n in (5, 4, 3, 2, 1, 0)]
    assert jobs.group([], {}) == []
    many = [{"folder": str(n), "cost": cost, "priority": -n} for n, cost in enumerate([ShortRuns().below, *[1] * 50])]
    assert [len(job) for job in jobs.group(many, {})] == [1, 20, 20, 10]
    dear = [run | {"cost": 0.9 * ShortRuns().below} for run in many]
    assert {len(job) for job in jobs.group(dear, {})} == {6, 3}
