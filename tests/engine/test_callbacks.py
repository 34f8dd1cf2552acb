"""Functions that are called after every round: what they are told, how they stop a run, and those of the docs."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import bayesfed
from bayesfed import cli
from bayesfed.core import plugins
from bayesfed.core.errors import InputError, RunStopped
from bayesfed.engine import checkpoint
from bayesfed.runs import run_file
from bayesfed.runs.callbacks import RoundDone

Make = Callable[..., dict[str, Any]]
GUIDE = (Path(__file__).parents[2] / "docs/guides/follow-a-run.md").read_text(encoding="utf-8")
EXAMPLES = dict(
    re.findall(r"<!-- (?:not run: )?a callback for (\w+)[:;] .*? -->\n```python\n(.*?)```", GUIDE, re.DOTALL)
)
MINE = "from bayesfed.methods.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    name = label = 'mine'\n\nMETHOD = Mine\n"
STOPPING = """
def stopping(done):
    with open("seen.txt", "a") as seen:
        seen.write(f"{done.round} of {done.rounds} in {done.folder}\\n")
    return "stop" if done.round == 2 else None

def failing(done):
    return 1 / 0

CALLBACKS = {"stopping": stopping, "failing": failing, "number": 3}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of own plugins, from where commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own/callbacks").mkdir(parents=True)
    yield tmp_path / "own"
    plugins.use(None)


def test_what_is_no_function_is_refused_before_any_training(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="on_round: 5 is no function; give one of a RoundDone"):
        bayesfed.train(mapping("hbfl"), tmp_path / "out", data=data_dir, on_round=5)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_function_is_told_of_every_round(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    seen: list[RoundDone] = []
    result = bayesfed.train(mapping("hbfl", rounds=3), tmp_path / "out", data=data_dir, on_round=seen.append)
    assert [(one.round, one.rounds, one.last) for one in seen] == [(1, 3, False), (2, 3, False), (3, 3, True)]
    assert all(one.folder == tmp_path / "out" and one.run["rounds"] == 3 and one.seconds > 0 for one in seen)
    assert seen[-1].metrics["global/test_accuracy"] == result.summary["global"]["accuracy_last"]
    rows = result.metrics.query("round == 3 and metric == 'shard_accuracy' and model == 'meme'")
    assert seen[-1].metrics["clients/meme/shard_accuracy"] == pytest.approx(rows["value"].mean(), rel=1e-5)
    assert {way: sum(one.bytes[way] for one in seen) for way in ("down", "up")} == result.summary["bytes"]
    assert not [name for name in seen[-1].metrics if "reliability" in name or "communication" in name]


def test_a_run_that_was_stopped_is_not_finished_and_goes_on(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", mapping(rounds=3)
    with pytest.raises(RunStopped, match="out: stopped by on_round after round 1 of 3; run it again to go on"):
        bayesfed.train(run, out, data=data_dir, on_round=lambda done: "stop")
    assert not (out / "summary.json").exists()
    later: list[int] = []
    result = bayesfed.train(
        run, out, data=data_dir, on_round=lambda done: later.append(done.round) or "stop" * done.last
    )
    assert later == [2, 3]  # after the last round there is nothing to stop
    whole = bayesfed.train(run, tmp_path / "whole", data=data_dir)
    assert result.metrics.equals(whole.metrics)


def test_a_function_that_fails_loses_no_round(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    def failing(done: RoundDone) -> None:
        if done.round == 2:
            raise KeyError("teh")

    with pytest.raises(RunStopped, match="on_round: a function failed after round 2 of 3: KeyError: 'teh'; mend it"):
        bayesfed.train(mapping(rounds=3), tmp_path / "out", data=data_dir, on_round=failing)
    assert checkpoint.load_one(tmp_path / "out" / checkpoint.FILE, torch.device("cpu"))[0].round == 2


def test_a_last_round_at_which_a_function_failed_is_told_again(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """Nothing is trained for it, and the record is that of a run at which none failed."""

    def failing(done: RoundDone) -> None:
        if done.last:
            raise OSError("tracker unreachable")

    for _ in range(2):
        with pytest.raises(
            RunStopped, match="a function failed after round 2 of 2: OSError: tracker unreachable; mend it"
        ):
            bayesfed.train(mapping(), tmp_path / "out", data=data_dir, on_round=failing)
        assert not (tmp_path / "out/summary.json").exists()
    seen: list[RoundDone] = []
    result = bayesfed.train(mapping(), tmp_path / "out", data=data_dir, on_round=seen.append)
    whole = bayesfed.train(mapping(), tmp_path / "whole", data=data_dir, on_round=seen.append)
    again, _, last = seen
    assert (again.round, again.last, again.metrics, again.bytes) == (2, True, last.metrics, last.bytes)
    assert again.seconds == pytest.approx(result.summary["train_seconds"] / 2, rel=0.01)
    assert result.metrics.equals(whole.metrics)


def test_a_function_that_leaves_python_loses_no_round(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="on_round: a function failed after round 1 of 3: SystemExit: 3; mend it"):
        bayesfed.train(mapping(rounds=3), tmp_path / "out", data=data_dir, on_round=lambda done: sys.exit(3))
    assert (tmp_path / "out" / checkpoint.FILE).exists()


def test_a_function_may_return_anything_and_look_at_other_runs(
    own: Path, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """An array, which is no truth value; and the names of other methods, for which no folder of plugins is in use."""
    (own / "methods").mkdir()
    (own / "methods/mine.py").write_text(MINE)
    asked = mapping("fedavg") | {"method": {"name": "mine"}, "plugins": "own"}

    def looking(done: RoundDone) -> object:
        return [bayesfed.list_methods(), torch.zeros(2).numpy()][1]

    assert bayesfed.train(asked, tmp_path / "out", data=data_dir, on_round=looking).summary["method"] == "mine"


EDITING = """
from pathlib import Path

def editing(done):
    if done.round == 1:
        Path("own/methods/mine.py").write_text(Path("own/methods/mine.py").read_text() + "# edited")
        Path("own/datasets/mine/dataset.yaml").write_text("{title: Mine, augment: true}")
        Path("own/callbacks/other.py").write_text("def (")
    Path("seen.txt").write_text(str(done.round))

CALLBACKS = {"editing": editing}
"""


def test_a_run_goes_on_with_the_plugins_that_it_has_read(own: Path, mapping: Make, data_dir: Path) -> None:
    """Whatever is edited while it trains; its record names those."""
    for kind in ("methods", "datasets/mine"):
        (own / kind).mkdir(parents=True)
    for split in ("train", "test"):
        with np.load(data_dir / "few" / f"{split}.npz") as arrays:
            np.savez(own / f"datasets/mine/{split}.npz", images=arrays["images"][:, 0], labels=arrays["labels"])
    (own / "datasets/mine/dataset.yaml").write_text("{title: Mine}")
    (own / "callbacks/mine.py").write_text(EDITING)
    (own / "methods/mine.py").write_text(MINE)
    asked = mapping() | {"dataset": "mine", "method": {"name": "mine"}, "plugins": "own", "on_round": "editing"}
    bayesfed.fetch("mine", data_dir, plugins="own")
    run = run_file.resolve(asked, data_dir)
    read, key = run.own_plugins, run.key
    result = bayesfed.train(asked, "out", data=data_dir)
    assert Path("seen.txt").read_text() == "2"
    assert read.keys() == {"datasets/mine", "methods/mine"}
    assert (result.provenance["plugins"], result.summary["key"]) == (read, key)
    (own / "callbacks/other.py").unlink()
    assert run_file.resolve(asked, data_dir).changed_plugins(read) == [f"the source of {name}" for name in sorted(read)]


def test_a_named_function_may_look_at_other_runs(own: Path, mapping: Make, data_dir: Path) -> None:
    """It is found again after the next round, though no folder of plugins is in use for what it looks at."""
    (own / "callbacks/mine.py").write_text(
        "import bayesfed\n\nCALLBACKS = {'looking': lambda done: None if bayesfed.list_methods() else True}\n"
    )
    asked = mapping(rounds=3) | {"plugins": "own", "on_round": "looking"}
    assert bayesfed.train(asked, "out", data=data_dir).summary["rounds"] == 3


def test_a_record_is_read_without_its_functions(
    own: Path, mapping: Make, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "callbacks/mine.py").write_text("CALLBACKS = {'quiet': lambda done: None}\n")
    bayesfed.train(mapping() | {"plugins": "own", "on_round": "quiet"}, "out", data=data_dir)
    shutil.rmtree("own")
    assert bayesfed.load_run("out", data=data_dir).run.on_round is None
    assert cli.main(["verify", "out", "--data", str(data_dir), "--rounds", "1"]) == 0
    assert "are the recorded ones" in capsys.readouterr().out


def test_a_run_file_names_one_and_its_key_does_not(
    own: Path, mapping: Make, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "callbacks/mine.py").write_text(STOPPING.replace(', "number": 3', ""))
    plain, asked = mapping(rounds=3), mapping(rounds=3) | {"plugins": "own", "on_round": "stopping"}
    assert run_file.resolve(asked, data_dir).key == run_file.resolve(plain, data_dir).key
    Path("run.yaml").write_text(yaml.safe_dump(asked))
    command = ["train", "run.yaml", "--data", str(data_dir), "--device", "cpu", "--out", "out"]
    assert cli.main(command) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "bayesfed: out: stopped by on_round after round 2 of 3; run it again to go on"
    )
    assert cli.main(command) == 0
    assert Path("seen.txt").read_text() == "".join(f"{at} of 3 in out\n" for at in (1, 2, 3))
    assert yaml.safe_load(Path("out/run.yaml").read_text())["on_round"] == "stopping"
    assert "plugins" not in json.loads(Path("out/provenance.json").read_text())
    Path("run.yaml").write_text(yaml.safe_dump(asked | {"on_round": "failing"}))
    assert cli.main([*command[:-1], "other"]) == 1
    expected = (
        r"on_round: own/callbacks/mine.py, line 8 failed after round 1 of 3: ZeroDivisionError: division by zero; mend"
    )
    assert re.search(expected, capsys.readouterr().err)


def test_others_go_on_where_one_run_is_stopped(
    own: Path, mapping: Make, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "callbacks/mine.py").write_text(STOPPING.replace(', "number": 3', ""))
    for seed, more in ((0, {"plugins": "own", "on_round": "stopping"}), (1, {})):
        Path(f"{seed}.yaml").write_text(yaml.safe_dump(mapping(rounds=3, seed=seed) | more))
    with pytest.raises(SystemExit, match=r"1 of 2 runs failed: 0\.yaml"):
        cli.main(["train", "0.yaml", "1.yaml", "--data", str(data_dir), "--device", "cpu", "--runs", "runs"])
    assert "0.yaml: runs/few" in capsys.readouterr().err
    assert len(list(Path("runs").rglob("summary.json"))) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stoping", "on_round: no callback is named 'stoping'; did you mean 'stopping'"),
        (3, "on_round: no callback is named '3'"),
        ("number", r"own/callbacks/mine.py: CALLBACKS 'number': expected a function of a round"),
    ],
)
def test_what_is_no_callback_is_refused(name: object, message: str, own: Path, mapping: Make, data_dir: Path) -> None:
    text = STOPPING if name == "number" else STOPPING.replace(', "number": 3', "")
    (own / "callbacks/mine.py").write_text(text)
    with pytest.raises(InputError, match=message):
        run_file.resolve(mapping() | {"plugins": "own", "on_round": name}, data_dir)


def test_the_example_for_tensorboard_writes_events(own: Path, mapping: Make, data_dir: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (own / "callbacks/tensorboard_.py").write_text(EXAMPLES["TensorBoard"])
    result = bayesfed.train(mapping() | {"plugins": "own", "on_round": "tensorboard"}, "out", data=data_dir)
    events = EventAccumulator("out/tensorboard").Reload()
    found = [(one.step, one.value) for one in events.Scalars("global/test_accuracy")]
    assert found[-1] == (2, pytest.approx(result.summary["global"]["accuracy_last"]))
    assert len(found) == 2


class Fake:
    """A library that notes every call, and gives itself for all else."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, given, named))
            return self

        return call


@pytest.mark.parametrize(("title", "module", "logs"), [("WandB", "wandb", "log"), ("MLflow", "mlflow", "log_metrics")])
def test_the_other_examples_log_every_round(
    title: str, module: str, logs: str, own: Path, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setitem(sys.modules, module, fake)
    (own / f"callbacks/{module}_.py").write_text(EXAMPLES[title])
    bayesfed.train(mapping() | {"plugins": "own", "on_round": module}, "out", data=data_dir)
    calls = [(given[0], named["step"]) for name, given, named in fake.calls if name == logs]
    assert [step for _, step in calls] == [1, 2]
    assert all("global/test_accuracy" in values for values, _ in calls)


def test_the_examples_are_short() -> None:
    assert EXAMPLES.keys() == {"TensorBoard", "WandB", "MLflow"}
    lines = [[line for line in text.splitlines() if line.strip()] for text in EXAMPLES.values()]
    assert max(map(len, lines)) <= 10
