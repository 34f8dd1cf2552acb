"""What is read of a run's folder: curves, clients together, and what was measured."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesfed.results import cells, run_records
from bayesfed.results import study as join
from bayesfed.results.records import of_metric
from bayesfed.results.statistics import BEST, Statistic, read_statistic
from bayesfed.runs import run_folder
from bayesfed.runs.run_folder import Row
from bayesfed.runs.summary import summarise


def test_curves_agree_with_the_engines_summary(tmp_path: Path) -> None:
    history = [
        Row(1, "global", "global", "test_accuracy", 0.3),
        Row(1, "0", "meme", "shard_accuracy", 0.5),
        Row(1, "0", "local", "shard_accuracy", 0.55),
        Row(1, "0", "local", "epoch_shard_accuracy", 0.6),
        Row(1, "0", "meme_sampled", "shard_accuracy", 0.9),
        Row(2, "global", "global", "test_accuracy", 0.2),
        Row(2, "0", "local", "shard_accuracy", 0.4),
        Row(2, "0", "global", "shard_accuracy", 0.7),
    ]
    lines = [f"{row.round},{row.client},{row.model},{row.metric},{row.value}" for row in history]
    (tmp_path / "metrics.csv").write_text("\n".join(["round,client,model,metric,value", *lines]))
    summary = summarise(history, test_images=[5], rounds=2)
    for name in ("run.yaml", "provenance.json"):
        (tmp_path / name).touch()
    run_folder.seal(tmp_path, summary)
    read = run_records.RunRecord(tmp_path).curves
    assert read == {"global": {1: 0.3, 2: 0.2}, "0": {1: 0.55, 2: 0.4}, "global on 0": {2: 0.7}}
    assert summary["global_on_shards"]["accuracy_best"] == [0.7]
    # The best is over epochs too, where a run tests after each; what stands beside it is not chosen by any test.
    assert summary["clients"]["accuracy_best"] == [0.6]
    assert summary["clients"]["accuracy_last"] == [0.4]
    assert summary["clients"]["accuracy_last5"] == [pytest.approx(sum(read["0"].values()) / 2)]
    assert max(read["global"].values()) == summary["global"]["accuracy_best"]


def test_a_clients_models_on_the_full_test_set_may_have_any_name() -> None:
    assert run_records.series_of("mean", "personal", "test_accuracy") == "mean"
    assert run_records.series_of("mean", "personal_sampled", "test_accuracy") == ""


def test_all_clients_together_are_weighted_by_their_test_images(lab: Any, stored: Callable[..., None]) -> None:
    """60 of 100 and 3 of 10 images right in round 2; the best round of the sum is not the clients' best rounds."""
    curves = [[0.5, 0.6, 0.1], [0.9, 0.3, 1.0]] + [[]] * 8
    lab.spec["statistics"] = {"middle": {"best_within": [2, 3]}, "late": {"best_within": [7, 8]}}
    stored(lab.cell("heterogeneous", "HBFL"), [0.5], curves, on_shards=curves, test_images=[100, 10] + [0] * 8)
    stored(lab.cell("heterogeneous", "FML"), [0.5], curves, on_shards=curves)
    (study,) = join.studies(lab.plan)
    hbfl, fml = of_metric(study.records, "personal_accuracy_middle", lab.spec["statistics"])[0]
    own = {name: read_statistic(name, value) for name, value in lab.spec["statistics"].items()}
    assert hbfl.curve() == pytest.approx({1: 59 / 110, 2: 63 / 110, 3: 20 / 110})
    assert hbfl.value(own["middle"]) == hbfl.value(BEST) == pytest.approx(63 / 110)
    assert hbfl.value(Statistic("last")) == pytest.approx(20 / 110)
    assert cells.score([hbfl], own["late"]).shown() == "no such rounds"
    assert (fml.missing, fml.value(BEST)) == ("not in its record", None)


def test_who_sits_a_round_out_counts_as_when_last_tested(lab: Any, stored: Callable[..., None]) -> None:
    """Of two clients one takes part in a round: the best round is not that of the better one alone."""
    clients: list[Any] = [[0.5, None, None, 0.7], [None, 0.9, 0.8, None]]
    never: list[Any] = [[]] * 10
    for method, images in (("HBFL", [30, 10] + [0] * 8), ("FML", [30, 10, 5] + [0] * 7)):
        stored(lab.cell("heterogeneous", method), [0.5], clients + never[2:], on_shards=never, test_images=images)
    (study,) = join.studies(lab.plan)
    hbfl, fml = of_metric(study.records, "personal_accuracy_best", {})[0]
    assert hbfl.curve() == pytest.approx({2: 24 / 40, 3: 23 / 40, 4: 29 / 40})
    assert fml.curve() == {}
    assert (fml.missing, fml.value(BEST)) == ("never took part", None)


def test_a_mean_of_curves_is_over_those_with_a_value() -> None:
    assert run_records.mean_of([{1: 0.25, 2: 0.5}, {2: 1.0, 4: 0.5}]) == {1: 0.25, 2: 0.75, 4: 0.5}


def test_the_highest_of_curves_is_of_finite_values() -> None:
    found = run_records.highest_of([{1: math.nan, 2: 0.5, 3: 0.1}, {1: 0.3, 2: 0.4, 4: math.inf}])
    assert found == {1: 0.3, 2: 0.5, 3: 0.1}
    assert run_records.highest_of([{1: math.nan, 2: 0.5}]) == {2: 0.5}


@pytest.mark.parametrize(("diverged", "rounds"), [(None, 5), ({"round": 3, "client": "1", "tensor": "mu"}, 3)])
def test_a_run_that_diverges_ends_there(
    diverged: dict[str, Any] | None, rounds: int, lab: Any, stored: Callable[..., None]
) -> None:
    folder = lab.cell("heterogeneous", "HBFL")
    stored(folder, [0.5] * 5, diverged=diverged)
    assert run_records.RunRecord(folder).rounds == rounds
