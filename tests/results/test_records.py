"""Values of one run: statistics over its rounds, worked out by hand, and why there is none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers.lab import measure

from bayesfed.results import cells, records
from bayesfed.results import study as join
from bayesfed.results.statistics import BEST, Statistic


def test_statistics_of_early_and_late_rounds_by_hand(lab: Any, stored: Callable[..., None]) -> None:
    # The first tenth of 20 rounds: (0.1 + 0.3) / 2. In the second half changes of +0.1 and -0.1 in turn.
    curve = [0.1, 0.3] + [0.5] * 8 + [0.5, 0.6] * 5
    stored(lab.cell("homogeneous", "HBFL", model="mlp", rounds=20), curve)
    (study,) = join.studies(lab.plan)
    (server,) = [record for record in study.records if record.client == "global"]
    assert server.value(Statistic("first10pct")) == pytest.approx(0.2)
    changes = [0.1, -0.1] * 4 + [0.1]
    mean = sum(changes) / 9
    assert server.value(Statistic("round_std")) == pytest.approx(
        (sum((each - mean) ** 2 for each in changes) / 8) ** 0.5
    )
    assert server.value(Statistic("best")) == 0.6
    assert server.value(Statistic("last3")) == pytest.approx((0.6 + 0.5 + 0.6) / 3)
    assert server.value(Statistic("last5")) == pytest.approx((3 * 0.6 + 2 * 0.5) / 5)


def test_of_clients_that_sit_rounds_out_rounds_are_counted(
    lab: Any, stored: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(lab.cell("homogeneous", "HBFL", model="mlp"), [0.5])
    found = next(r for study in join.studies(lab.plan) for r in study.records if r.level == "global")
    monkeypatch.setattr(records.Record, "curve", lambda self: {round: 0.05 * round for round in (5, 10, 15, 20)})
    short, long = replace(found, rounds=20), replace(found, rounds=100)
    assert short.value(Statistic("first10pct")) is None  # no value in rounds 1 and 2
    assert cells.score([short], Statistic("first10pct")).missing == {"no such rounds": 1}
    assert long.value(Statistic("first10pct")) == pytest.approx((0.25 + 0.5) / 2)
    assert replace(found, rounds=8).value(Statistic("round_std")) == pytest.approx(0, abs=1e-9)
    assert long.value(Statistic("round_std")) is None


def test_runs_that_do_not_test_clients_there_have_no_local_accuracy(lab: Any, stored: Callable[..., None]) -> None:
    stored(lab.cell("heterogeneous", "HBFL", clients_on_test="round"), [0.5])
    stored(lab.cell("heterogeneous", "FML"), [0.5])
    (study,) = join.studies(lab.plan)
    (record,) = [record for record in study.records if record.level == "local"]
    assert (record.method, record.missing) == ("HBFL", "no local model on the full test set")
    assert record.value(BEST) is None


@pytest.mark.parametrize(("rounds", "first"), [(5, [0.1]), (19, [0.1]), (20, [0.1, 0.3]), (29, [0.1, 0.3])])
def test_the_first_tenth_is_whole_rounds_and_one_at_least(
    rounds: int, first: list[float], lab: Any, stored: Callable[..., None]
) -> None:
    stored(lab.cell("heterogeneous", "HBFL", rounds=rounds), [0.1, 0.3, 0.6, *[0.8] * (rounds - 3)])
    (study,) = join.studies(lab.plan)
    (server,) = [record for record in study.records if record.level == "global"]
    assert server.value(Statistic("first10pct")) == pytest.approx(sum(first) / len(first))


@pytest.mark.parametrize(("second_half", "spread"), [([0.5, 0.6, 0.4], 0.3 / 2**0.5), ([0.5, 0.6], None)])
def test_changes_from_round_to_round_are_two_at_least(
    second_half: list[float], spread: float | None, lab: Any, stored: Callable[..., None]
) -> None:
    """Of changes of 0.1 and -0.2 the sample standard deviation is 0.3 / sqrt(2)."""
    rounds = 2 * len(second_half)
    stored(lab.cell("heterogeneous", "HBFL", rounds=rounds), [0.1] * len(second_half) + second_half)
    (study,) = join.studies(lab.plan)
    (server,) = [record for record in study.records if record.level == "global"]
    assert server.value(Statistic("round_std")) == (spread and pytest.approx(spread))


def test_a_bin_of_a_reliability_diagram_has_a_thousandth_of_all_images(lab: Any, stored: Callable[..., None]) -> None:
    """Of 2000 images two: by the middles of four bins, the share of right ones."""
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.5])
    bins = enumerate([(1, 1), (2, 1), (1000, 700), (997, 997)])
    measure(folder, [
        (1, f"reliability_{number}_{what}", value)
        for number, (images, right) in bins for what, value in (("images", images), ("right", right))
    ])  # fmt: skip
    (study,) = join.studies(lab.plan)
    (server,) = [record for record in study.records if record.level == "global"]
    assert server.reliability() == {37.5: 0.5, 62.5: 0.7, 87.5: 1.0}
