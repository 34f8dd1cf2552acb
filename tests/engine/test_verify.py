"""`bayesfed verify`: a record as the code gives it, one that it does not give, and why."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from bayesfed import cli
from bayesfed.core import plugins
from bayesfed.engine import halfway, verify
from bayesfed.engine.device import hardware
from bayesfed.runs import run_folder
from bayesfed.runs.summary import summarise

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def run(mapping: Make, data_dir: Path, tmp_path: Path) -> Path:
    """A finished run of three rounds."""
    path, out = tmp_path / "run.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(mapping("hbfl", rounds=3)))
    assert cli.main(["train", str(path), "--out", str(out), "--data", str(data_dir)]) == 0
    return out


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process is asked for is done in this one, which alone knows the small datasets of tests."""
    if "elsewhere" not in request.fixturenames:
        monkeypatch.setattr(halfway, "elsewhere", halfway.resume)


@pytest.fixture
def elsewhere() -> None:
    """Another process resumes."""


@pytest.fixture
def verified(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `verify` prints and how it ends."""

    def call(*args: str) -> str:
        capsys.readouterr()
        try:
            code: Any = cli.main(["verify", "--data", str(data_dir), *args])
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        return f"{printed.out}{printed.err}{code}"

    return call


def edit(run: Path, name: str, change: Callable[[str], str]) -> None:
    """Change a file of a record, sum it up and seal it again: a forger who knows the format."""
    summary = json.loads((run / run_folder.SUMMARY).read_text())
    (run / name).write_text(change((run / name).read_text()))
    rows = [line.split(",") for line in run_folder.metrics(run).splitlines()[1:]]
    history = [run_folder.Row(int(number), *names, float(value)) for number, *names, value in rows]
    run_folder.seal(run, summary | summarise(history, summary["test_images"], summary["rounds"]))


def other_accuracy(by: float) -> Callable[[str], str]:
    def change(text: str) -> str:
        return re.sub(
            r"^(2,global,global,test_accuracy,)(.*)$", lambda m: f"{m[1]}{float(m[2]) + by:.6g}", text, flags=re.M
        )

    return change


def test_a_record_holds(run: Path, verified: Callable[..., str]) -> None:
    before = {path: path.read_bytes() for path in run.iterdir()}
    assert re.search(
        r"out: rounds 1 to 2 of 3: all \d+ values are the recorded ones\n0$", verified(str(run), "--rounds", "2")
    )
    assert re.search(
        r"rounds 1 to 3 of 3: all \d+ values are the recorded ones\n0$", verified(str(run), "--rounds", "99")
    )
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_rounds_without_a_value_are_gone_through(
    mapping: Make, data_dir: Path, tmp_path: Path, verified: Callable[..., str]
) -> None:
    """The first of these rounds tests nothing, the second, the last, does."""
    floor = {"scheme": "dirichlet_class_floor", "alpha": 100.0, "clients": 4, "min_test": 0}
    path, out = tmp_path / "run.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(mapping("heurfedamp", partition=floor)))
    assert cli.main(["train", str(path), "--out", str(out), "--data", str(data_dir)]) == 0
    assert re.search(r"all [1-9]\d* values are the recorded ones", verified(str(out), "--rounds", "1"))


def test_a_cpus_record_takes_no_gpu(run: Path, verified: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(verify.Process, "lease", lambda self, place: asked.append(place.device))
    verified(str(run))
    verified(str(run), "--device", "auto")
    assert asked == ["cpu", "cpu"]


def test_a_number_that_is_not_the_runs_is_found(run: Path, verified: Callable[..., str]) -> None:
    edit(run, "metrics.csv", other_accuracy(0.001))
    assert "all" in verified(str(run), "--rounds", "1")
    found = verified(str(run))
    assert "others differ by 0.0010 at most (round 2, global, global, test_accuracy); DIFFERENT" in found
    assert found.endswith(f"bayesfed: 1 of 1 runs are not as recorded: {run}")


def test_rounding_explains_little(run: Path, verified: Callable[..., str]) -> None:
    edit(run, "provenance.json", lambda text: re.sub('"hardware": ".*"', '"hardware": "another"', text))
    edit(run, "metrics.csv", other_accuracy(0.001))
    assert verified(str(run), "--rounds", "2").endswith("within rounding; otherwise than in the record: hardware\n0")
    edit(run, "metrics.csv", other_accuracy(0.1))
    found = verified(str(run), "--rounds", "2")
    assert re.search(r"in runs that begin a rounding apart by 0.0\d\d\d; DIFFERENT; otherwise than .*: hardware", found)


def test_it_explains_what_it_does_to_such_a_run(run: Path, verified: Callable[..., str], monkeypatch: Any) -> None:
    """Runs that begin a rounding apart and end far from each other, here by a great rounding, set the bound themselves."""
    edit(run, "provenance.json", lambda text: re.sub('"hardware": ".*"', '"hardware": "another"', text))
    edit(run, "metrics.csv", other_accuracy(0.03))
    monkeypatch.setattr(verify, "moved", lambda unit, twin, theta: theta * (-1) ** twin * 3)
    found = verified(str(run), "--rounds", "2")
    apart = re.search(
        r"differ by 0.0300 at most .* in runs that begin a rounding apart by (\S+); within rounding", found
    )
    assert apart, found
    assert float(apart[1]) >= 0.015
    edit(run, "provenance.json", lambda text: re.sub('"hardware": ".*"', f'"hardware": "{hardware("cpu")}"', text))
    assert verified(str(run), "--rounds", "2").endswith(
        f"test_accuracy); DIFFERENT\nbayesfed: 1 of 1 runs are not as recorded: {run}"
    )


def test_every_kind_of_accuracy_has_a_bound_of_its_own() -> None:
    record = {("1", "global", "global", "test_accuracy"): "0.5", ("1", "0", "local", "shard_accuracy"): "0.3"}
    now = {key: f"{float(value) + 0.04:.6g}" for key, value in record.items()}
    verdict = verify.compare("round 1 of 3", record, now, ("hardware",))
    server, clients = (True, "global", "test_accuracy"), (False, "local", "shard_accuracy")
    assert not verdict.holds
    far, near = verify.Apart(0.03), verify.Apart(0.001)
    assert dataclasses.replace(verdict, twins={server: far, clients: far}).holds
    assert not dataclasses.replace(verdict, twins={server: far, clients: near}).holds
    assert "(round 1, 0, local, shard_accuracy)" in str(
        dataclasses.replace(verdict, twins={server: far, clients: near})
    )
    assert not dataclasses.replace(verdict, twins={server: far, clients: far}, differs=("partition_fingerprint",)).holds


@pytest.mark.parametrize(
    ("metric", "then", "now", "holds"),
    [
        ("test_ece", "0.01", "0.0299", True),
        ("test_ece", "0.01", "0.0301", False),
        ("shard_nll", "4", "4.07", True),
        ("shard_nll", "4", "4.09", False),
        ("test_auroc_mistakes", "0.9", "0.89", True),
        ("test_auroc_mistakes", "0.9", "0.5", False),
        ("test_auroc_foreign_mnist_sd", "0.01", "0.05", False),
        ("test_fpr95_foreign_mnist", "0.4", "0.45", False),
        ("test_aurc", "0.1", "0.13", False),
        ("shard_ece100", "0.1", "0.13", False),
        ("test_mce", "0.3", "0.55", True),
        ("test_mce", "0.3", "0.65", False),
        ("shard_accuracy", "0.5", "nan", False),
        ("shard_accuracy", "nan", "0.5", False),
        ("shard_nll", "2", "inf", False),
        ("shard_nll", "inf", "inf", True),
        ("test_auroc_mistakes", "nan", "nan", True),
    ],
)
def test_every_metric_is_bounded(metric: str, then: str, now: str, holds: bool) -> None:
    """Fractions in their unit, an NLL above 1 relative to itself; what is not finite is the same or wrong."""
    other, beside = ("1", "1", "local", metric), ("1", "0", "local", metric)
    record = {beside: "0.2", other: then, ("1", "global", "global", "test_accuracy"): "0.5"}
    again = record | {other: now, ("1", "global", "global", "test_accuracy"): "0.501"}
    verdict = verify.compare("round 1 of 3", record, again, ("hardware",))
    assert verdict.holds is holds
    assert ("DIFFERENT" in str(verdict)) is not holds


@pytest.mark.parametrize(
    ("change", "holds"),
    [({}, True), ({"server,fisher_mean": "2.05e-06"}, False), ({"server,fisher_mean": "2.01e-06"}, True),
     ({"global,reliability_2_images": "901", "global,reliability_1_images": "99"}, True),
     ({"global,reliability_2_right": "830"}, False), ({"global,reliability_2_right": "859"}, True),
     ({"global,passes": "2"}, False), ({"server,labelled_images": "101"}, False)],
)  # fmt: skip
def test_values_are_bounded_in_their_scale(change: dict[str, str], holds: bool) -> None:
    """What a method logs in its own, bins in all images of their diagram; counts are equal."""
    values = {
        "server,fisher_mean": "2e-06", "global,reliability_1_images": "110", "global,reliability_2_images": "890",
        "global,reliability_2_right": "870", "global,passes": "1", "server,labelled_images": "100", "server,off": "0",
    }  # fmt: skip
    record, now = (
        {("1", "global", *name.split(",")): value for name, value in found.items()}
        for found in (values, values | {"server,off": "-0"} | change)
    )
    assert verify.compare("round 1 of 3", record, now, ("hardware",)).holds is holds


def test_twins_that_have_no_number_bound_nothing() -> None:
    key = ("1", "0", "local", "test_auroc_mistakes")
    found = [verify.apart({key: "0.9"}, {key: now}) for now in ("nan", "0.93")]
    assert verify.widest(found)[False, "local", "test_auroc_mistakes"].far == pytest.approx(0.03)


@pytest.mark.parametrize("packed", [False, True])
def test_a_summary_that_its_metrics_do_not_give_is_found(run: Path, verified: Callable[..., str], packed: bool) -> None:
    summary = json.loads((run / run_folder.SUMMARY).read_text())
    summary["global"]["accuracy_last5"] += 0.2
    summary["clients"]["accuracy_best"][1] += 0.1
    run_folder.seal(run, summary)
    if packed:
        assert run_folder.pack_record(run)
    found = verified(str(run), "--rounds", "1")
    assert re.search(
        r"all \d+ values are the recorded ones; its metrics do not give global.accuracy_last5, clients.accuracy_best of "
        r"summary.json; DIFFERENT\nbayesfed: 1 of 1 runs are not as recorded",
        found,
    ), found


def test_one_run_that_fails_leaves_the_others_to_be_verified(
    run: Path, verified: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, real = tmp_path / "other", verify.verify

    def failing(folder: Path, *args: Any) -> verify.Verdict:
        if folder == other:
            raise ZeroDivisionError("by nothing")
        return real(folder, *args)

    monkeypatch.setattr(verify, "verify", failing)
    found = verified(str(other), str(run), "--rounds", "1")
    assert f"bayesfed: {other}: ZeroDivisionError: by nothing\n" in found
    assert "values are the recorded ones" in found
    assert found.endswith(f"bayesfed: 1 of 2 runs could not be checked: {other}\n2")


def test_counts_are_the_same_on_all_hardware() -> None:
    record = {("1", "global", "communication", "bytes_up"): "1000", ("1", "0", "local", "shard_accuracy"): "0.3"}
    now = record | {("1", "global", "communication", "bytes_up"): "1008"}
    verdict = verify.compare("round 1 of 3", record, now, ("hardware",))
    assert not verdict.holds
    assert "round 1, global, communication, bytes_up is 1008 now, and 1000 in the record; DIFFERENT" in str(verdict)


def test_a_record_without_values_does_not_hold() -> None:
    verdict = verify.compare("round 0 of 3", {}, {}, ())
    assert not verdict.holds
    assert str(verdict) == "round 0 of 3: the record has no values; DIFFERENT"


def test_a_twin_begins_a_rounding_away() -> None:
    theta = np.linspace(1, 3, 1001, dtype=np.float32)
    one, two = (verify.moved(2.0**-8, twin, theta) for twin in (0, 1))
    assert one.dtype == theta.dtype
    np.testing.assert_allclose(abs(one / theta - 1), 2.0**-8, rtol=1e-4)
    assert 400 < (one > theta).sum() < 600
    assert (one != two).any()
    np.testing.assert_array_equal(one, verify.moved(2.0**-8, 0, theta))


def test_other_code_and_versions_are_named(run: Path, verified: Callable[..., str]) -> None:
    edit(run, "provenance.json", lambda text: text.replace(torch.__version__, "0.1").replace('"code": "', '"code": "x'))
    assert verified(str(run)).endswith("recorded ones; otherwise than in the record: code, versions\n0")


def test_first_rounds_are_trained_by_the_executor_of_their_device(
    run: Path, verified: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of an earlier version do not name theirs, and the record has the last one's."""
    found: list[str] = []

    class Noting(verify.Trainer):
        def __init__(self, federation: Any, executor: str) -> None:
            found.append(executor)
            super().__init__(federation, executor)

    monkeypatch.setattr(verify, "Trainer", Noting)

    def went_on(text: str) -> str:
        made = json.loads(text) | {"device": "cuda", "executor": "graphs"}
        by = {
            key: value
            for key, value in json.loads(text).items()
            if key in ("code", "versions", "device", "hardware", "threads")
        }
        return json.dumps(
            made | {"sessions": [{"by": by, "rounds": 1, "seconds": 1.0}, {"by": by | {"device": "cuda"}}]}
        )

    edit(run, "provenance.json", went_on)
    assert "values are the recorded ones" in verified(str(run))
    assert found == ["threads"]


def test_what_only_one_of_the_two_has_is_told(run: Path, verified: Callable[..., str]) -> None:
    edit(run, "metrics.csv", lambda text: re.sub(r"^1,0,local.*\n", "", text, flags=re.M))
    assert re.search(r"all \d+ values are the recorded ones; 1 more are not in the record\n0$", verified(str(run)))
    edit(run, "metrics.csv", lambda text: text.replace("\n1,1,local,", "\n1,1,another,"))
    missing = "round 1, 1, another, shard_accuracy is not measured now; DIFFERENT; 2 more are not in the record"
    assert missing in verified(str(run))


def test_a_partition_that_is_missing_is_made(run: Path, verified: Callable[..., str], data_dir: Path) -> None:
    partition = data_dir / json.loads((run / "provenance.json").read_text())["partition"]
    content = partition.read_bytes()
    partition.unlink()
    assert re.search(
        r"out: round 1 of 3: all \d+ values are the recorded ones\n0$", verified(str(run), "--rounds", "1")
    )
    assert partition.read_bytes() == content


def test_runs_that_could_not_be_checked_are_counted_apart(
    run: Path, verified: Callable[..., str], tmp_path: Path
) -> None:
    nothing = str(tmp_path / "nothing")
    found = verified(str(run), nothing, "--rounds", "1")
    assert re.search(r"out: round 1 of 3: all \d+ values are the recorded ones\n", found)
    assert found.endswith(f"bayesfed: 1 of 2 runs could not be checked: {nothing}\n2")
    found = verified(str(run), "--data", nothing)
    assert re.search(rf"dataset.json is missing: run `bayesfed fetch few .*--data {nothing}`", found)
    assert found.endswith(f"bayesfed: 1 of 1 runs could not be checked: {run}\n2")
    edit(run, "metrics.csv", other_accuracy(0.1))
    assert verified(str(run), nothing, "--rounds", "2").endswith(
        f"bayesfed: 1 of 2 runs are not as recorded: {run}; 1 could not be checked: {nothing}"
    )


def test_what_is_no_record_is_refused(
    run: Path, verified: Callable[..., str], tmp_path: Path, monkeypatch: Any
) -> None:
    assert "no finished run here" in verified(str(tmp_path / "nothing"))
    assert "--rounds 0: it is too small; give 1 or more" in verified(str(run), "--rounds", "0")
    monkeypatch.setattr("bayesfed.runs.spec.ENGINE_REVISION", 99)
    monkeypatch.setattr(verify, "ENGINE_REVISION", 99)
    assert "engine_revision was 1 and is 99" in verified(str(run))
    (run / "metrics.csv").write_text("")
    assert "metrics.csv: not as the run wrote it" in verified(str(run))


KEEPER = """
import torch
from bayesfed.methods.fedavg import FedAvg

if not hasattr(torch, "kept"):
    torch.kept = {}


class Keeper(FedAvg):
    name, label, revision = "keeper", "Keeper", 1

    def aggregate(self, server, updates):
        super().aggregate(server, updates)
        torch.kept[server.round] = True
        server["theta"] = server["theta"] * (1 - 0.1 * len(torch.kept))
        return {}

METHOD = Keeper
"""
NOISY = """
import torch
from bayesfed.methods.base import Predictor
from bayesfed.methods.fedavg import FedAvg

class Noisy(FedAvg):
    name, label, revision = "noisy", "Noisy", 1

    def server_predictors(self, server):
        own = torch.Generator()
        own.seed()
        return [Predictor("global", lambda x: torch.rand(len(x), 10, generator=own).log_softmax(-1))]

METHOD = Noisy
"""


@pytest.fixture
def trained(mapping: Make, digits_dir: Path, tmp_path: Path) -> Callable[[str, str], Path]:
    """A function that trains a method of one's own for three rounds."""

    def train(name: str, source: str) -> Path:
        path, out, own = tmp_path / "run.yaml", tmp_path / "out", tmp_path / "own" / "methods" / f"{name}.py"
        own.parent.mkdir(parents=True)
        own.write_text(source)
        small = {
            "models": {"global": "softmax"},
            "partition": {"alpha": 1.0, "clients": 2},
            "plugins": str(own.parents[1]),
        }
        plugins.use(own.parents[1])
        path.write_text(yaml.safe_dump(mapping(name, rounds=3, dataset="digits", **small)))
        assert cli.main(["train", str(path), "--out", str(out), "--data", str(digits_dir)]) == 0
        return out

    return train


@pytest.mark.usefixtures("elsewhere")
def test_what_is_kept_where_nobody_looks_is_gone_in_another_process(
    trained: Callable[[str, str], Path], verified: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "kept", {}, raising=False)
    out = trained("keeper", KEEPER)
    torch.kept.clear()  # type: ignore[attr-defined]
    found = verified(str(out))
    assert re.search(
        r"all \d+ values are the recorded ones; stopped after round 1 and resumed it gives another server/theta: its method "
        r"keeps something outside its tensors, or draws by itself; DIFFERENT\nbayesfed: 1 of 1 runs are not as recorded",
        found,
    ), found


def test_what_draws_by_itself_is_found(trained: Callable[[str, str], Path], verified: Callable[..., str]) -> None:
    found = verified(str(trained("noisy", NOISY)), "--rounds", "3")
    assert re.search(
        r"stopped after round 1 and resumed it gives another [23], (global|\d), global, (test|shard)_", found
    ), found


@pytest.mark.usefixtures("elsewhere")
def test_another_process_that_cannot_go_on_says_why(run: Path, verified: Callable[..., str]) -> None:
    """It knows no dataset of tests."""
    found = verified(str(run))
    assert re.search("out: another process could not resume it: .*no dataset is named 'few'", found), found
