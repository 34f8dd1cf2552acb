"""The public names: what `import bayesfed as bf` gives, and that a run by them is the run of a run file."""

import ast
import importlib
import linecache
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bayesfed as bf
from bayesfed import cli
from bayesfed.core import files, plugins
from bayesfed.data.schemes import SCHEMES
from bayesfed.runs import run_file

FILE: Mapping[str, Any] = {
    "dataset": "digits",
    "partition": {"alpha": 0.05, "clients": 10},
    "method": {"name": "hbfl", "temperature": 1e-3},
    "models": {"global": "mlp"},
    "rounds": 20,
    "local_epochs": 5,
    "batch_size": 128,
    "seed": 0,
}


def run(**changes: Any) -> bf.Run:
    given: dict[str, Any] = {
        "dataset": "digits", "partition": bf.Dirichlet(alpha=0.05, clients=10), "method": bf.methods.HBFL(temperature=1e-3),
        "model": "mlp", "rounds": 20, "seed": 0,
    }  # fmt: skip
    return bf.Run(**given | changes)


def define(text: str, **known: Any) -> Any:
    """What a notebook's cell defines last."""
    name = f"<cell {abs(hash(text))}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    around = {"__name__": "__main__", "bf": bf, **known}
    exec(compile(text, name, "exec"), around)
    return list(around.values())[-1]


CELL = """from bayesfed.methods.fedavg import FedAvg
@bf.register
class Mine(FedAvg):
    name, label, revision = "mine", "Mine", 1
    {inside}
"""


def test_every_public_name_is_there_and_loads_when_it_is_asked_for() -> None:
    assert {*bf.__all__} <= {*dir(bf)}
    for name in bf.__all__:
        assert getattr(bf, name) is not None
    with pytest.raises(AttributeError, match="module 'bayesfed' has no attribute 'nothing'"):
        bf.nothing  # noqa: B018
    code = "import sys, bayesfed; dir(bayesfed); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pandas", "yaml"} & {*loaded}


def test_types_are_those_of_the_public_names() -> None:
    """mypy reads names in a block that never runs."""
    block = next(one for one in ast.parse(Path(bf.__file__).read_text()).body if isinstance(one, ast.If))
    named = {alias.name: one.module for one in block.body if isinstance(one, ast.ImportFrom) for alias in one.names}
    assert sorted(named) == bf.__all__
    for name, module in named.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(bf, name)
    assert (Path(bf.__file__).parent / "py.typed").exists()


def test_a_typed_user_s_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.delitem(sys.modules, "typed_example", raising=False)
    assert importlib.import_module("typed_example").main(tmp_path) > 0.5


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, {}),
        ({"method": {"name": "hbfl", "temperature": 1e-3}, "partition": {"alpha": 0.05, "clients": 10}}, {}),
        ({"rounds": np.int64(3), "batch_size": 32, "participation": 0.5}, {"rounds": 3, "batch_size": 32, "participation": 0.5}),
        ({"local_batches": 7}, {"local_batches": 7, "local_epochs": 0}),
        (
            {"model": {"global": "mlp", "local": ["mlp"] * 5 + ["lenet5"] * 5}},
            {"models": {"global": "mlp", "local": ["mlp"] * 5 + ["lenet5"] * 5}},
        ),
        (
            {"partition": bf.IID(clients=4, images_each=np.int64(50), server=0)},
            {"partition": {"scheme": "iid", "clients": 4, "images_each": 50, "server": 0, "min_test": 0}},
        ),
    ],
)  # fmt: skip
def test_a_run_is_that_of_its_run_file(changes: dict[str, Any], same: dict[str, Any], tmp_path: Path) -> None:
    expected = run_file.resolve({**FILE, **same})
    assert (run(**changes).key, run(**changes).folder) == (expected.key, expected.folder)
    files.write_yaml(tmp_path / "run.yaml", run(**changes).to_dict())
    assert run_file.load(tmp_path / "run.yaml").key == expected.key


def test_runs_are_shown_as_they_are_written() -> None:
    shown = repr(run())
    assert shown == (
        "Run(dataset='digits', partition=Dirichlet(clients=10, min_train=10, min_test=1, alpha=0.05), "
        "method=HBFL(temperature=0.001), model='mlp', rounds=20, local_epochs=5, batch_size=128, seed=0)"
    )
    names = {"Run": bf.Run, "HBFL": bf.methods.HBFL, "Dirichlet": bf.Dirichlet}
    assert eval(shown, names) == run()
    assert run(seed=1) != run()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: bf.methods.HBFL(temperature=-1), "method.temperature: -1.0 is out of range; it must be above 0"),
        (lambda: bf.methods.HBFL(temprature=1), "method.temprature: unknown key; did you mean 'temperature'"),
        (lambda: bf.Dirichlet(alpha=0, clients=10), "partition.alpha: 0.0 is out of range; it must be above 0"),
        (lambda: run(dataset="digit"), "dataset: no dataset is named 'digit'; did you mean 'digits'"),
        (lambda: run(models={"global": "cnn1"}), "models: `model` has the run's networks; give the block `models` of a run file as `model`"),
        (lambda: run(rounds=0), "rounds: 0 is out of range; it must be at least 1"),
        (lambda: run(model="mpl"), "models.global: no model is named 'mpl'; did you mean 'mlp'"),
        (lambda: run(sed=1), "sed: unknown key; did you mean 'seed'"),
        (lambda: run(clients=4), "clients: unknown key; give `partition.clients`"),
        (lambda: run(data=None), "data: expected a path, found None"),
        (lambda: run(method="hbfl"), "method: expected keys with a `name`, found 'hbfl'; e.g. {name: fedavg}, or bf.methods.FedAvg() in"),
        (lambda: run(method=bf.methods.HBFL), "method: expected keys with a `name`, found <class 'bayesfed.methods.hbfl.HBFL'>; e.g."),
        (lambda: bf.methods.FedAvg(0.1), "method: options go by name, as FedAvg(lr=0.1), found 0.1"),
        (lambda: bf.methods.HBFL({"lr": 0.1}, 2), "method: options go by name, as FedAvg(lr=0.1), found {'lr': 0.1}, 2"),
        (lambda: bf.train(7, "out"), "run: expected a bayesfed.Run, the mapping of a run file, or the path of one, found 7"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_mistakes_are_told_as_in_a_run_file(wrong: Any, said: str) -> None:
    with pytest.raises(bf.InputError) as caught:
        wrong()
    assert str(caught.value).startswith(said)


def test_every_scheme_is_a_public_name() -> None:
    for scheme in SCHEMES.values():
        assert getattr(bf, scheme.__name__) is scheme


def test_every_method_is_a_class_of_the_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    for name in bf.list_methods():
        method = bf.methods.get(name)
        assert getattr(bf.methods, method.__name__) is method
        assert method.__name__ in dir(bf.methods)
        method.describe()
        told = capsys.readouterr().out
        assert bf.list_methods()[name] in told
        assert all(f"\n    {field.name} " in told for field in fields(method.Options))
    with pytest.raises(AttributeError, match="no method's class is named 'Hbfl'; did you mean 'HBFL'"):
        bf.methods.Hbfl  # noqa: B018


def test_a_description_has_defaults_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    bf.methods.HBFL.describe()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["temperature", "default", "0.0001", "a", "number", "above", "0"] in lines
    assert ["sigma", "default", "'reset'", "one", "of", "reset,", "kept,", "sent"] in lines
    assert ["alpha", "default", "0.5", "a", "number", "at", "least", "0", "and", "at", "most", "1"] in lines


def test_lists_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    lists = {
        "methods": bf.list_methods,
        "datasets": bf.list_datasets,
        "models": bf.list_models,
        "partitions": bf.list_partitions,
    }
    for kind, found in lists.items():
        assert cli.main(["list", kind]) == 0
        told = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
        assert {name: " ".join(text) for name, *text in told} == {
            name: " ".join(line.split(maxsplit=0)) for name, line in found().items()
        }
    assert "own_feddyn" in bf.list_methods("examples/own_plugins")
    assert "own_feddyn" not in bf.list_methods()


def test_a_registered_method_enters_the_key_by_its_source() -> None:
    mine = define(CELL.format(inside=""))
    first = run(method=mine(), model="mlp")
    assert bf.methods.Mine is mine
    assert "mine" in bf.list_methods()
    assert run(method=define(CELL.format(inside=""))(), model="mlp").key == first.key
    assert run(method=define(CELL.format(inside="pass"))(), model="mlp").key != first.key
    for stale in (lambda: run(method=mine()), lambda: bf.train(first, "out")):
        with pytest.raises(bf.InputError, match="method: this Mine is not the 'mine' that runs know; write @register"):
            stale()


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("x = SCALE", "it uses 'SCALE', which is a library's no more than its own"),
        ("def step(self, c, batch): helper(c)", "it uses 'helper'"),
        (
            "def step(self, c, batch):\n        global seen\n        seen = 1",
            "it uses 'seen', which is not defined yet",
        ),
        ("def step(self, c, batch): own.f()", "it uses 'own'"),
    ],
)
def test_a_method_is_refused_whose_source_is_not_all(inside: str, said: str) -> None:
    def helper(c: object) -> None:
        pass

    own = importlib.import_module("helpers.slices")  # a module of the user's
    with pytest.raises(bf.InputError) as caught:
        define(CELL.format(inside=inside), SCALE=2.0, helper=helper, own=own)
    assert str(caught.value).startswith(f"class Mine: {said}")
    assert "mine" not in bf.list_methods()


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (
            "def __init__(self, lr=3): self.lr = lr",
            "method 'mine': its `__init__` keeps no options; begin it with super()",
        ),
        ("def unfit(self, ground): return True", "method 'mine': unfit gave True; expected why in words"),
        (
            "def server_images(self): return -5",
            "method 'mine': server_images: -5 is out of range; it must be at least 0",
        ),
        ("def server_images(self): return '5'", "method 'mine': server_images: expected a whole number, found '5'"),
    ],
)
def test_what_a_method_says_of_itself_is_checked(inside: str, said: str) -> None:
    with pytest.raises(bf.InputError) as caught:
        run(method=define(CELL.format(inside=inside))())
    assert str(caught.value).startswith(said)


def test_what_a_method_may_use() -> None:
    """Libraries, and names that are only like those of the notebook: of attributes, of variables of its own."""
    inside = (
        "from math import pi\n"
        "    def step(self, c, batch):\n"
        "        theta = torch.zeros(1).helper if np.float64(len('a')) else Literal\n"
        "        return [theta for SCALE in range(2) if SCALE]"
    )
    define(
        CELL.format(inside=inside),
        torch=importlib.import_module("torch"),
        np=np,
        SCALE=2.0,
        helper=1,
        Literal=__import__("typing").Literal,
    )
    assert "mine" in bf.list_methods()


def test_names_do_not_clash_and_sources_are_known() -> None:
    with pytest.raises(bf.InputError, match="class Mine: the method 'hbfl' is there already"):
        define(CELL.format(inside="").replace('"mine"', '"hbfl"'))
    mine = define(CELL.format(inside="").replace("@bf.register\n", ""))
    with pytest.raises(bf.InputError, match="class Mine: its source, which decides the key of its runs, is not found"):
        bf.register(mine)
    with pytest.raises(bf.InputError, match="class Mine: the class has no `label`"):
        define('@bf.register\nclass Mine(bf.Method):\n    name = "mine"\n')


def test_a_method_of_a_notebook_may_have_any_neighbours(tmp_path: Path, digits_dir: Path) -> None:
    """What else the notebook holds may change while it trains: it is no state of the method."""
    seen: list[int] = []
    inside = "def finish(self, c):\n        return super().finish(c)"
    mine = define(CELL.format(inside=inside), seen=seen)
    main = sys.modules["__main__"]
    main.seen = seen  # type: ignore[attr-defined]
    given = run(method=mine(), rounds=2, model="softmax", batch_size=64, local_epochs=1, data=digits_dir)
    result = bf.train(given, tmp_path / "out")
    assert result.provenance["plugins"].keys() == {"methods/mine"}
    assert result.summary["method"] == "mine"
    assert bf.load_run(tmp_path / "out", data=digits_dir).server["global"].name == "global"


def test_another_process_is_told_that_a_notebook_has_the_method(
    tmp_path: Path, digits_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = define(CELL.format(inside=""))
    given = run(method=mine(), rounds=1, model="softmax", batch_size=64, local_epochs=1, data=digits_dir)
    bf.train(given, tmp_path / "out")
    monkeypatch.setitem(plugins.registered, "methods", {})
    plugins.in_use.found.clear()
    found = bf.load_run(tmp_path / "out", data=digits_dir)
    assert found.summary["method"] == "mine"
    with pytest.raises(
        bf.InputError, match="'mine' is the run's own; if a notebook registered it, run the cell with its class"
    ):
        found.server  # noqa: B018


def test_a_run_file_is_a_run(tmp_path: Path, digits_dir: Path) -> None:
    small = {"rounds": 1, "local_epochs": 1, "models": {"global": "softmax"}, "partition": {"alpha": 1.0, "clients": 2}}
    files.write_yaml(tmp_path / "run.yaml", {**FILE, **small, "method": {"name": "fedavg"}})
    first = bf.train(tmp_path / "run.yaml", tmp_path / "out", data=digits_dir)
    again = bf.train(files.read_yaml(tmp_path / "run.yaml"), str(tmp_path / "out"), data=digits_dir)
    assert again.summary == first.summary


def test_a_table_of_a_paper(tmp_path: Path) -> None:
    hbfl = bf.paper("hbfl")
    assert "table1" in hbfl.tables
    table = hbfl.table("table1", results="results/paper")
    assert {"HBFL", "FML"} <= {*table.astype(str).to_numpy().ravel(), *table.columns}
    with pytest.raises(
        bf.InputError, match="table 'tabel1': the paper 'hbfl' has none of that name; did you mean 'table1'"
    ):
        hbfl.table("tabel1")
    with pytest.raises(bf.InputError, match=r"table1.csv: this table is not made yet; run `bayesfed tables "):
        hbfl.table("table1", tmp_path)
    with pytest.raises(bf.InputError, match=r"config/papers/hbf.yaml: there is no such paper; did you mean 'hbfl'"):
        bf.paper("hbf")
