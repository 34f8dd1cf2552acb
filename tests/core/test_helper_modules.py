"""Modules that own plugins import from beside their folder: they are in no key, and that is told wherever it matters."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import bayesfed
from bayesfed import cli
from bayesfed.core import helper_modules, plugins
from bayesfed.core.errors import InputError, RunStopped
from bayesfed.data.fetch import fetch
from bayesfed.engine import session
from bayesfed.engine.training import Place
from bayesfed.runs import run_file
from bayesfed.runs.callbacks import RoundDone
from bayesfed.runs.spec import Run

METHOD = """
import sys
from pathlib import Path

from bayesfed.methods.fedavg import FedAvg

{top}


class Mine(FedAvg):
    name, label, revision = "mine", "Mine", 1

    def finish(self, c):
        {inside}
        return {{"theta": c["theta"] * {factor}}}


METHOD = Mine
"""
LIB = 'sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))'
RUN = {
    "dataset": "digits", "partition": {"alpha": 1.0, "clients": 2}, "method": {"name": "mine"}, "models": {"global": "softmax"},
    "rounds": 1, "local_epochs": 1, "batch_size": 32, "seed": 0, "plugins": "own",
}  # fmt: skip
TRAIN = ["train", "run.yaml", "--out", "out", "--device", "cpu", "--precision", "fp32"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with helpers in the folder of own plugins, in a package there, and beside it; modules are forgotten after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in {
        "own/methods/": "", "own/lib/factor.py": "ONE = 1.0\n", "own/lib/many/__init__.py": "", "own/lib/many/inner.py": "from . import deep\nONE = deep.ONE\n",
        "own/lib/many/deep.py": "ONE = 1.0\n", "own/lib/bare/one.py": "ONE = 1.0\n", "beside.py": "import json\nimport numpy\nONE = 1.0\n",
    }.items():  # fmt: skip
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            Path(name).write_text(text)
    Path("own/methods").mkdir(exist_ok=True)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    fetch("digits", Path("data"))
    yield
    plugins.use(None)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)) or name == "bare":
            del sys.modules[name]


def write(top: str = "", inside: str = "pass", factor: str = "1", name: str = "mine") -> None:
    text = METHOD.format(top=top, inside=inside, factor=factor).replace('"mine"', f'"{name}"')
    Path(f"own/methods/{name}.py").write_text(text)


CASES = {
    "at the top": (f"{LIB}\nimport factor", "pass", "factor.ONE", ["own/lib/factor.py"]),
    "in a function": (LIB, "from factor import ONE", "ONE", ["own/lib/factor.py"]),
    "in a function that knows the way": ("", f"{LIB}; import factor", "factor.ONE", ["own/lib/factor.py"]),
    "a package": (
        f"{LIB}\nfrom many import inner", "pass", "inner.ONE",
        ["own/lib/many/__init__.py", "own/lib/many/deep.py", "own/lib/many/inner.py"],
    ),
    "a folder": (f"{LIB}\nimport bare.one", "pass", "bare.one.ONE", ["own/lib/bare/one.py"]),
    "beside": ("sys.path.insert(0, '.')\nimport beside", "pass", "beside.ONE", ["beside.py"]),
    "by its name": (f"{LIB}\nimport importlib", "one = importlib.import_module('factor').ONE", "one", ["own/lib/factor.py"]),
    "none": ("import numpy as np\nimport json", "import torch.linalg", "1", []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_helpers_are_told_and_kept_with_the_results(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line that names the files, once; in provenance.json by what they held."""
    top, inside, factor, named = CASES[case]
    write(top, inside, factor)
    assert cli.main(TRAIN) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bayesfed: ")]
    assert lines == ([f"bayesfed: {', '.join(named)}: imported by plugins of your own, and in no run's key; put it into a package "
                      "folder with its plugin, or a change of it is not noticed (docs/guides/your-method.md)"] if named else [])  # fmt: skip
    kept = json.loads(Path("out/provenance.json").read_text()).get("helpers", {})
    assert sorted(map(helper_modules.shown, kept)) == named


def test_what_a_change_of_a_helper_does_is_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """By a finished run that is asked for again, by verify, and where its networks are loaded."""
    write(f"{LIB}\nimport factor", "pass", "factor.ONE")
    assert cli.main(TRAIN) == 0
    before = run_file.load(Path("run.yaml")).key
    assert cli.main(TRAIN) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "out: done already"
    Path("own/lib/factor.py").write_text("ONE = 0.5\n")
    assert cli.main(TRAIN) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "out: done already, with another own/lib/factor.py than now"
    assert cli.main(["verify", "out", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("otherwise than in the record: helpers\n")
    with pytest.raises(
        InputError, match=r"^out: own/lib/factor\.py has changed since this run was trained; .*`trust=True`"
    ):
        _ = bayesfed.load_run("out").server
    assert run_file.load(Path("run.yaml")).key == before


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_record_names_the_helper_that_trained_it() -> None:
    """Not the one that has taken its place since it was imported, during this run or one before it."""
    write(f"{LIB}\nimport factor", "pass", "factor.ONE")
    for seed in (0, 1):
        Path(f"{seed}.yaml").write_text(yaml.safe_dump(RUN | {"seed": seed, "rounds": 2}))
    then = sha256("own/lib/factor.py")

    def edit(done: RoundDone) -> None:
        Path("own/lib/factor.py").write_text("ONE = 0.5\n")

    def place(run: Run) -> Place:
        return Place(Path(f"out{run.budget.seed}"), Path(f"{run.budget.seed}.safetensors"), Path("data"), on_round=edit)

    assert session.train_all([Path("0.yaml"), Path("1.yaml")], Path("data"), place) == {}
    for out in ("out0", "out1"):
        assert json.loads(Path(out, "provenance.json").read_text())["helpers"] == {"lib/factor.py": then}


def test_no_run_goes_on_with_another_helper() -> None:
    """A stopped one is refused, and one with more rounds begins anew."""
    write(f"{LIB}\nimport factor", "pass", "factor.ONE")
    bayesfed.train(RUN, "runs/one")
    with pytest.raises(RunStopped):
        bayesfed.train(RUN | {"seed": 1, "rounds": 2}, "stopped", on_round=lambda done: "stop")
    then = Path("own/lib/factor.py").read_text()
    Path("own/lib/factor.py").write_text("ONE = 0.5\n")
    expected = (
        r"^stopped/checkpoint.safetensors: own/lib/factor.py has changed since its rounds were trained; put the old one back, "
        r"or delete stopped/checkpoint.safetensors to train from the start$"
    )
    with pytest.raises(InputError, match=expected):
        bayesfed.train(RUN | {"seed": 1, "rounds": 2}, "stopped")
    assert "begun" not in bayesfed.train(RUN | {"rounds": 2}, "runs/two").provenance
    shutil.rmtree("runs/two")
    Path("own/lib/factor.py").write_text(then)
    assert "sessions" not in bayesfed.train(RUN | {"seed": 1, "rounds": 2}, "stopped").provenance
    assert bayesfed.train(RUN | {"rounds": 2}, "runs/two").provenance["begun"]["rounds"] == 1


def test_helpers_of_other_parts_are_none_of_a_runs(capsys: pytest.CaptureFixture[str]) -> None:
    write(f"{LIB}\nimport factor", "pass", "factor.ONE", name="other")
    write()
    assert cli.main(TRAIN) == 0
    assert "factor" not in capsys.readouterr().err
    assert "helpers" not in json.loads(Path("out/provenance.json").read_text())


def test_what_a_package_folder_imports_of_itself_is_in_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    Path("own/methods/whole").mkdir()
    Path("own/methods/mine.py").rename("own/methods/whole/inner.py")
    Path("own/methods/whole/__init__.py").write_text("from .inner import METHOD\nfrom . import inner\n")
    assert cli.main(TRAIN) == 0
    assert "imported by plugins" not in capsys.readouterr().err


def test_helpers_are_told_when_runs_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    write(f"{LIB}\nimport factor", "pass", "factor.ONE")
    spec = {
        "paper": "one", "title": "One", "reference": "none", "run": {"partition": {"clients": 2}, "rounds": 1, "local_epochs": 1, "batch_size": 16},
        "methods": {"Mine": {"name": "mine"}}, "experiments": {"one": {"axes": {"dataset": ["digits"], "partition.alpha": [10], "models.global": ["softmax"], "method": ["Mine"]}}},
    }  # fmt: skip
    Path("own/papers").mkdir()
    Path("own/papers/one.yaml").write_text(yaml.safe_dump(spec))
    Path("config.yaml").write_text(yaml.safe_dump({"name": "one", "papers": ["one"], "plugins": "own", "seeds": [0]}))
    assert cli.main(["plan", "config.yaml", "--out", "plan"]) == 0
    assert capsys.readouterr().err.startswith("bayesfed: own/lib/factor.py: imported by plugins of your own")
