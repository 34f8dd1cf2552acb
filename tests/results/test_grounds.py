"""Values of runs on a ground: each column from the record, what is missing, and what is relative to the baseline."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.comparing import CLIENTS, PROVENANCE, ROUNDS, cell, finish, grounds, history

from bayesfed.results import grounds as of
from bayesfed.results.grounds import COLUMNS, Ground
from bayesfed.results.grounds_of_plan import load
from bayesfed.results.run_records import RunRecord

COLUMN = {column.name: column for column in COLUMNS}


def ground_of(root: Path, **methods: dict[str, object]) -> Ground:
    """A ground of FedAvg, one seed, and others as `finish` stores them, by keywords of `history` and of the record."""
    cells = [cell("g", name, 0) for name in methods]
    for one in cells:
        told = dict(methods[one["method"]])
        own = {key: told.pop(key) for key in ("level", "sampled", "server") if key in told}
        finish(root / one["folder"], history(**own), **told)  # type: ignore[arg-type]
    costs = {one["folder"]: 20 if one["method"] == "Mine" else 10 for one in cells}
    (found,) = load(cells, costs, "FedAvg", lambda folder: RunRecord(root / folder))
    return found


def value(ground: Ground, column: str, side: str = "global", method: str = "Mine") -> object:
    found, why = ground.values(COLUMN[column], side, method)
    return found.get("0", why)


def test_each_column_is_of_the_record(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, FedAvg={"level": 0.8}, Mine={"level": 0.9, "seconds": 3.0, "sampled": True})
    tail = [0.9 * (1 - 0.5**at) for at in range(2, ROUNDS + 1)]
    assert value(ground, "accuracy") == pytest.approx(100 * sum(tail) / 5)
    assert value(ground, "accuracy", "personal") == pytest.approx(100 * (sum(tail) / 5 + 0.01))
    assert value(ground, "worst") == pytest.approx(100 * (sum(tail) / 5 - 0.02))
    assert value(ground, "worst", "personal") == pytest.approx(100 * sum(tail) / 5)
    assert value(ground, "nll") == pytest.approx(0.09)  # of the average over weight samples
    assert value(ground, "ece") == pytest.approx(4.0)
    assert value(ground, "nll", "personal") == pytest.approx(0.05)
    assert value(ground, "ood") == pytest.approx(0.89)
    assert value(ground, "ood", "personal") == pytest.approx(0.45)
    assert value(ground, "megabytes") == 2 * ROUNDS
    assert value(ground, "time") == 3.0
    assert value(ground, "computation") == 2.0
    assert value(ground, "passes") == "not in its record"


def test_a_method_may_name_what_it_predicts_with(tmp_path: Path) -> None:
    named = {"level": 0.9, "sampled": True, "predictive": "global"}
    whole = ground_of(tmp_path / "a", FedAvg={"level": 0.8}, Mine={"level": 0.9, "sampled": True})
    mean = ground_of(tmp_path / "b", FedAvg={"level": 0.8}, Mine=named)
    assert value(mean, "nll") != value(whole, "nll") == pytest.approx(0.09)


def test_counted_work_comes_before_the_plans(tmp_path: Path) -> None:
    counted = {
        "multiply_adds": {"clients": 3, "server": 1},
        "passes": {"global": {"global": 1}, "clients": {"local": 7}},
    }
    ground = ground_of(
        tmp_path, FedAvg={"level": 0.8, "multiply_adds": {"clients": 1, "server": 0}}, Mine={"level": 0.9, **counted}
    )
    assert value(ground, "computation") == 4.0
    assert value(ground, "passes") == 1.0
    assert value(ground, "passes", "personal") == 7.0


def test_bytes_are_counted_to_a_share_of_the_baseline(tmp_path: Path) -> None:
    """FedAvg at 0.8 has 75.5 % over its last five rounds, of which 95 % are 71.7: 0.9 reaches that in round 3, 0.5 never."""
    ground = ground_of(tmp_path, FedAvg={"level": 0.8}, Mine={"level": 0.9}, Worse={"level": 0.5})
    assert ground.target["global"] == pytest.approx(0.95 * 0.8 * sum(1 - 0.5**at for at in range(2, 7)) / 5)
    assert value(ground, "megabytes_to") == 6.0
    assert value(ground, "megabytes_to", method="Worse") == "never reached"


def test_time_is_compared_on_the_same_hardware_alone(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, FedAvg={"level": 0.8}, Mine={"level": 0.9, "provenance": {"hardware": "another"}})
    assert value(ground, "time") == "on other hardware"
    at = {"device": "cpu", "hardware": "another", "threads": 2}
    resumed = {"provenance": {"sessions": [{"by": at}, {"by": PROVENANCE}]}}
    assert (
        value(ground_of(tmp_path / "c", FedAvg={"level": 0.8}, Mine={"level": 0.9} | resumed), "time")
        == "on other hardware"
    )
    ground = ground_of(tmp_path / "b", FedAvg={"level": 0.8}, Mine={"level": 0.9, "provenance": {"threads": 2}})
    assert value(ground, "time") == "by another number of threads"


def test_time_is_the_cores_on_a_cpu_and_the_clocks_on_a_gpu(tmp_path: Path) -> None:
    on_gpu = {"provenance": {"device": "cuda"}}
    for name, more, expected in (("cpu", {}, 3.0), ("gpu", on_gpu, 3.1 / 1.1)):
        ground = ground_of(tmp_path / name, FedAvg={"level": 0.8, **more}, Mine={"level": 0.9, "seconds": 3.0, **more})
        assert value(ground, "time") == pytest.approx(expected)
    before = {"level": 0.9, "cpu_seconds": None}
    assert value(ground_of(tmp_path / "old", FedAvg={"level": 0.8}, Mine=before), "time") == "not in its record"


def test_a_time_with_other_work_beside_it_is_a_guess(tmp_path: Path) -> None:
    busy = {"train_seconds": 9.0}
    ground = ground_of(tmp_path / "a", FedAvg={"level": 0.8}, Mine={"level": 0.9, "seconds": 3.0, **busy})
    assert (value(ground, "time"), ground.rough("Mine"), ground.rough("FedAvg")) == (3.0, True, False)
    ground = ground_of(tmp_path / "b", FedAvg={"level": 0.8, **busy}, Mine={"level": 0.9})
    assert ground.rough("Mine")
    # The baseline's run on the other machine was alone, and nobody's time there is a guess.
    cells = [cell("g", name, seed) for name in ("FedAvg", "Mine") for seed in (0, 1)]
    there = {"provenance": {"hardware": "another"}}
    for one, more in zip(cells, ({}, busy | there, {}, there), strict=True):
        finish(tmp_path / "c" / one["folder"], history(0.8), seconds=1.0, **more)
    costs = {one["folder"]: 1 for one in cells}
    (ground,) = load(cells, costs, "FedAvg", lambda folder: RunRecord(tmp_path / "c" / folder))
    assert (ground.rough("Mine"), ground.rough("FedAvg")) == (True, False)
    cells = [cell("g", name, seed) for name in ("FedAvg", "Mine") for seed in (0, 1)]
    for one, more in zip(cells, ({}, busy, {}, busy), strict=True):
        finish(tmp_path / one["folder"], history(0.8), seconds=1.0 + 2 * bool(more), **more)
    costs = {one["folder"]: 1 for one in cells}
    (ground,) = load(cells, costs, "FedAvg", lambda folder: RunRecord(tmp_path / folder))
    assert ground.values(COLUMN["time"], "global", "Mine") == ({"0": 1.0}, "beside other work")


def test_a_baseline_that_diverged_has_no_time_or_work_to_compare_with(tmp_path: Path) -> None:
    """It stopped early, after a part of both."""
    part = {"level": 0.8, "diverged": {"round": 2}, "multiply_adds": {"clients": 1, "server": 0}}
    ground = ground_of(tmp_path, FedAvg=part, Mine={"level": 0.9, "multiply_adds": {"clients": 9, "server": 0}})
    assert value(ground, "time") == value(ground, "computation") == "no run of the baseline"


def test_of_several_client_models_all_seeds_count_by_the_same(tmp_path: Path) -> None:
    """By the mean over seeds: `meme` is a little better on validation images of seed 0, and much worse on seed 1's."""
    cells = [cell("g", "Mine", seed) for seed in (0, 1)]
    for one, level in zip(cells, (0.9, 0.2), strict=True):
        meme = [replace(row, model="meme") for row in history(level) if row.model == "local"]
        finish(tmp_path / one["folder"], [*history(0.8), *meme])
    local = 100 * statistics.fmean(0.8 * (1 - 0.5**at) for at in range(2, ROUNDS + 1))
    (ground,) = load(cells, {one["folder"]: 1 for one in cells}, "Mine", lambda folder: RunRecord(tmp_path / folder))
    assert ground.client_models == {"Mine": "local"}
    assert ground.values(COLUMN["nll"], "personal", "Mine")[0] == pytest.approx({"0": 0.1, "1": 0.1})
    assert ground.values(COLUMN["accuracy"], "personal", "Mine")[0] == pytest.approx({"0": local + 1, "1": local + 1})
    assert ground.values(COLUMN["worst"], "personal", "Mine")[0] == pytest.approx({"0": local, "1": local})


def test_a_method_has_the_sides_that_its_record_has(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, FedAvg={"level": 0.8}, Mine={"level": 0.9, "server": False})
    assert ground.methods("global") == ["FedAvg"]
    assert ground.methods("personal") == ["FedAvg", "Mine"]
    assert len(ground.trials["Mine"]["0"].run.client_models) == 1


def test_a_method_whose_clients_predict_nothing_has_no_personal_side(tmp_path: Path) -> None:
    """Its record has a place for each client's accuracy, and none in it; nor has it a mean over them."""
    cells = [cell("g", name, 0) for name in ("FedAvg", "Mine")]
    finish(tmp_path / cells[0]["folder"], history(0.8))
    finish(tmp_path / cells[1]["folder"], [row for row in history(0.9) if row.model == "global"])
    (ground,) = load(cells, {one["folder"]: 1 for one in cells}, "FedAvg", lambda folder: RunRecord(tmp_path / folder))
    assert ground.methods("global") == ["FedAvg", "Mine"]
    assert ground.methods("personal") == ["FedAvg"]


def test_a_diverged_run_says_so(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, FedAvg={"level": 0.8}, Mine={"level": 0.9, "diverged": {"round": 2}})
    assert value(ground, "accuracy") == "diverged"
    assert "Mine" in ground.methods("global")
    assert ground.failing == {"global": {"Mine": 1}, "personal": {"Mine": 1}}


def test_searches_are_no_grounds_and_open_runs_no_methods(tmp_path: Path) -> None:
    (ground,) = grounds(tmp_path, {"g": {"FedAvg": [0.8]}})
    cells = [cell("g", "FedAvg", 0), cell("g", "Open", 0), cell("search", "FedAvg", 0)]
    found = load(
        cells, dict.fromkeys((one["folder"] for one in cells), 1), "FedAvg", lambda folder: RunRecord(tmp_path / folder)
    )
    assert [one.name for one in found] == ["g"]
    assert found[0].methods("global") == ground.methods("global") == ["FedAvg"]
    assert [column.name for column in of.shown_columns(found, "global")][-1] == "computation"
    assert found[0].clients == CLIENTS


def test_what_else_an_experiment_varies_is_a_ground_of_its_own() -> None:
    rates = [cell("mine", "FedAvg", 0, axes={"method.lr": rate, "rounds": 5}, folder=str(rate)) for rate in (0.1, 0.2)]
    late = cell("mine", "FedAvg", 0, stragglers="0.5", folder="late")
    found = load([*rates, late], {"0.1": 1, "0.2": 1, "late": 1}, "FedAvg", lambda folder: RunRecord(Path(folder)))
    assert [ground.name for ground in found] == [
        "mine, lr 0.1, rounds 5",
        "mine, lr 0.2, rounds 5",
        "mine, stragglers 0.5",
    ]
    assert [ground.trials["FedAvg"]["0"].run.folder.name for ground in found] == ["0.1", "0.2", "late"]
