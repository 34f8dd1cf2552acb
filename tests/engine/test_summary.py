"""Which rounds the numbers of a summary are of, and why one has none."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.playing import federation, play

from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress
from bayesfed.runs.run_folder import Row
from bayesfed.runs.summary import not_given, summarise

Make = Callable[..., dict[str, Any]]
Json = dict[str, Any]


def summary(of: Federation, progress: Progress) -> Json:
    """The summary of a run, as its file has it."""
    images = [len(of.shards[k].test) for k in range(of.clients)]
    return json.loads(json.dumps(summarise(progress.history, images, progress.round)))  # type: ignore[no-any-return]


def finished(run: Json, data_dir: Path) -> Json:
    """The summary of a run after all its rounds."""
    of = federation(run, data_dir)
    return summary(of, play(of, run["rounds"]))


def on_shards(progress: Progress) -> list[tuple[int, str]]:
    """The rounds and clients in which the server's model was tested on a client's shard."""
    return [(r.round, r.client) for r in progress.history if (r.model, r.metric) == ("global", "shard_accuracy")]


def test_the_last_five_on_shards_are_those_of_shorter_runs(mapping: Make, data_dir: Path) -> None:
    """One of four clients takes part in a round: the last round of a run tests all of them."""
    run = mapping(participation=0.25, rounds=12)
    found = finished(run, data_dir)["global_on_shards"]
    shorter = [finished(run | {"rounds": n}, data_dir)["global_on_shards"]["accuracy_last"] for n in range(8, 13)]
    assert found["accuracy_last5"] == pytest.approx([sum(values) / 5 for values in zip(*shorter, strict=True)])
    assert "rounds" not in found


@pytest.mark.parametrize("rounds", [3, 9])
def test_a_client_has_the_rounds_in_which_it_was_tested_last(rounds: int, mapping: Make, data_dir: Path) -> None:
    run = mapping("fml", participation=0.25, rounds=rounds)
    of = federation(run, data_dir)
    found = summary(of, play(of, rounds))["clients"]
    tails: list[list[int]] = [[] for _ in range(4)]
    for round in range(1, rounds + 1):
        for k in of.participants(round):
            tails[k] = [*tails[k], round][-5:]
    assert found["rounds"] == {"last": [tail[-1] if tail else None for tail in tails], "last5": tails}
    assert found["missing"] == {str(k): "never took part" for k in range(4) if not tails[k]}


def test_where_all_take_part_nothing_is_told_of_rounds(mapping: Make, data_dir: Path) -> None:
    found = finished(mapping("hbfl", rounds=3), data_dir)
    assert not any("rounds" in found[block] for block in ("global", "clients", "global_on_shards"))


def test_a_client_that_cannot_train_is_tested_in_the_last_rounds(mapping: Make, data_dir: Path) -> None:
    """It takes part in no round, whatever the participation."""
    of = federation(mapping(rounds=7), data_dir)
    of.participants = lambda round: [0, 1, 2]  # type: ignore[method-assign]
    progress = play(of, 7)
    assert [round for round, client in on_shards(progress) if client == "3"] == [3, 4, 5, 6, 7]
    assert "rounds" not in summary(of, progress)["global_on_shards"]


def test_the_servers_model_on_datasets_of_their_own(mapping: Make, data_dir: Path) -> None:
    """Where there is no full test set, too; what is drawn for those who take part is as without the others."""
    tasks = {"dataset": ["few", "few"], "partition": {"scheme": "whole", "clients": 2}}
    of = federation(mapping(**tasks, participation=0.5, rounds=4), data_dir)
    progress = play(of, 4)
    first = [str(of.participants(round)[0]) for round in (1, 2, 3)]
    assert on_shards(progress)[:6:2] == [(round, client) for round, client in zip((1, 2, 3), first, strict=True)]
    assert sorted(on_shards(progress)) == [(round, client) for round in (1, 2, 3, 4) for client in "01"]


def test_a_run_that_ends_early_says_what_it_has() -> None:
    """Three of a hundred rounds, in which client 0 was tested in the first and the third."""
    history = [Row(at, "0", "local", "shard_accuracy", value) for at, value in ((1, 0.2), (3, 0.4))]
    history += [Row(at, "0", "global", "shard_accuracy", 0.5) for at in (1, 2, 3)]
    history += [Row(2, "global", "global", "test_accuracy", 0.1)]
    found = summarise(history, [5, 5], 3)
    assert found["clients"]["rounds"] == {"last": [3, None], "last5": [[1, 3], []]}
    assert "rounds" not in found["global_on_shards"]
    assert found["global"]["rounds"] == {"last": 2, "last5": [2]}


@pytest.mark.parametrize(
    ("metric", "value", "accuracy", "why"),
    [
        ("auroc_mistakes", math.nan, 1.0, "no mistakes"),
        ("auroc_mistakes_sd", math.nan, 1.0, "no mistakes"),
        ("auroc_mistakes", math.nan, 0.0, "only mistakes"),
        ("auroc_mistakes", math.nan, 0.5, "not a number"),
        ("auroc_foreign_svhn", math.nan, 0.5, "no OOD images"),
        ("fpr95_mistakes", math.nan, 1.0, "no mistakes"),
        ("fpr95_foreign_svhn", math.nan, 0.5, "no OOD images"),
        ("nll", math.inf, 0.5, "infinite"),
        ("nll", math.nan, 1.0, "not a number"),
    ],
)
def test_a_metric_that_is_no_number_says_why(metric: str, value: float, accuracy: float, why: str) -> None:
    history = [Row(1, "global", "global", f"test_{name}", one) for name, one in (("accuracy", accuracy), ("ece", 0.1))]
    plain = summarise(history, [5], 1)["uncertainty"]["global"]
    found = summarise([*history, Row(1, "global", "global", f"test_{metric}", value)], [5], 1)["uncertainty"]["global"]
    assert found == {**plain, metric: None, "missing": {metric: why}}


def test_a_model_without_mistakes(mapping: Make, data_dir: Path) -> None:
    """Its detection of them is asked for; that of foreign images is a number beside it."""
    of = federation(mapping(tasks={"mistakes": True, "foreign": ["few-parity"]}, rounds=1), data_dir)
    test = of.shards[-1].test_images
    sure = of.method.server_predictors

    def knowing(server: Any) -> list[Any]:
        (one,) = sure(server)
        test.labels.copy_(of.predict(one, test, of.shards[-1].test).argmax(-1))
        return [one]

    of.method.server_predictors = knowing  # type: ignore[method-assign]
    found = summary(of, play(of, 1))["uncertainty"]["global"]
    assert (found["accuracy"], found["auroc_mistakes"], found["auroc_mistakes_sd"]) == (1.0, None, None)
    assert found["missing"] == dict.fromkeys(("auroc_mistakes", "auroc_mistakes_sd", "fpr95_mistakes"), "no mistakes")
    assert 0 <= found["auroc_foreign_few-parity"] <= 1


def test_metrics_give_the_numbers_of_their_summary(mapping: Make, data_dir: Path) -> None:
    """To six digits, fields that an older record lacks left out; whatever is otherwise is named."""
    of = federation(mapping("hbfl", rounds=2, validation=0.2), data_dir)
    progress = play(of, 2)
    found = {"rounds": 2, "diverged": None} | summary(of, progress)
    text = "round,client,model,metric,value\n"
    text += "".join(f"{r.round},{r.client},{r.model},{r.metric},{r.value:.6g}\n" for r in progress.history)
    assert not_given(found, text) == []
    older = {name: value for name, value in found.items() if name not in ("test_images", "bytes", "passes")}
    assert not_given(older | {"global": {"accuracy_last": found["global"]["accuracy_last"]}}, text) == []
    assert not_given(found | {"rounds": 3}, text) == ["rounds"]
    assert not_given(found | {"diverged": {"round": 2}, "rounds": 3}, text) == []
    forged = json.loads(json.dumps(found))
    forged["global"]["accuracy_best"] *= 1.0001
    forged["clients"]["accuracy_last"][2] = None
    forged["uncertainty"]["another"] = {"accuracy": 0.9}
    forged["bytes"]["up"] += 1000
    forged["global_on_shards"]["accuracy_last"].pop()
    forged["validation"]["best_round"] += 1
    assert sorted(not_given(forged, text)) == [
        "bytes.up", "clients.accuracy_last", "global.accuracy_best", "global_on_shards.accuracy_last",
        "uncertainty.another.accuracy", "validation.best_round",
    ]  # fmt: skip
