"""Plugins of a user's own: files in a folder, found by name through the command line, and told by their source."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.own_data import refused

import bayesfed
from bayesfed import cli
from bayesfed.core import files, plugins
from bayesfed.core.errors import InputError
from bayesfed.plan import plan
from bayesfed.runs import run_file

METHOD = '''
"""SignSGD: the server goes a step of `lr` along the sign of the clients' mean change."""

from dataclasses import dataclass

import torch

from bayesfed.methods.fedavg import FedAvg


class Sign(FedAvg):
    name, label, revision = "sign", "Sign", 1

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        step: float = 0.01

    def aggregate(self, server, updates):
        change = sum(update.q * (update["theta"] - server["theta"]) for update in updates)
        server["theta"] = server["theta"] + self.options.step * torch.sign(change).to(server["theta"].dtype)
        return {}


METHOD = Sign
'''
IDLE = """
from bayesfed.methods.base import Method


class Idle(Method):
    name, label, revision = "idle", "Idle", 1

    def stepp(self, c, batch):
        pass


METHOD = Idle
"""
NETWORK = """
from bayesfed.models.network import Conv, Linear

NETWORKS = {"tiny": lambda classes, channels, size: (Conv(4, 5, 2), Linear(classes))}
"""
PREPARATION = """
def halved(images, side):
    return images[:, :, ::2, ::2]


PREPARATIONS = {"halved": halved}
"""
PAPER = {
    "paper": "mine",
    "title": "A paper of my own",
    "reference": "none",
    "run": {"partition": {"scheme": "dirichlet_class_shared", "clients": 3}, "rounds": 1, "local_epochs": 1, "batch_size": 16},
    "settings": {"10": "IID"},
    "methods": {"Sign": {"name": "sign"}, "FedAvg": {"name": "fedavg"}},
    "experiments": {"one": {"axes": {"dataset": ["drawn"], "partition.alpha": [10], "models.global": ["tiny"], "method": ["Sign", "FedAvg"]}}},
    "tables": {
        "table1": {
            "title": "Accuracy", "experiment": "one", "metric": "global_accuracy_best",
            "rows": {"dataset": ["drawn"], "setting": ["IID"]}, "columns": [{"method": "Sign"}, {"method": "FedAvg"}],
        }
    },
    "figures": {},
}  # fmt: skip

Put = Callable[[str, Any], Path]


def drawn(count: int, seed: int, *shape: int, classes: int = 5) -> dict[str, np.ndarray]:
    """Noise of some brightness for each class."""
    random, labels = np.random.default_rng(seed), np.arange(count) % classes
    images = random.integers(0, 100, (count, *(shape or (28, 28)))) + 30 * labels.reshape(
        -1, *[1] * len(shape or (28, 28))
    )
    return {"images": images.astype(np.uint8), "labels": labels}


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Work in a folder with one plugin of each kind in `my_plugins`; a function that writes there another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BAYESFED_MIRROR", raising=False)

    def write(name: str, content: Any) -> Path:
        path = Path("my_plugins", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            np.savez_compressed(path, **content)
        else:
            path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    write("methods/sign.py", METHOD)
    write("networks/tiny.py", NETWORK)
    write("preparations/halved.py", PREPARATION)
    write("papers/mine.yaml", PAPER)
    write("datasets/drawn/dataset.yaml", {"title": "Drawn", "prepare": {"halved": 14}})
    write("datasets/drawn/train.npz", drawn(60, 0))
    write("datasets/drawn/test.npz", drawn(30, 1))
    Path("config.yaml").write_text(
        yaml.safe_dump({"name": "tiny", "papers": ["mine"], "plugins": "my_plugins", "seeds": [0]})
    )
    yield write
    plugins.use(None)


def run(**changes: Any) -> dict[str, Any]:
    """A run file of own plugins."""
    return {
        "dataset": "drawn", "partition": {"alpha": 10.0, "clients": 3}, "method": {"name": "sign"}, "models": {"global": "tiny"},
        "rounds": 1, "local_epochs": 1, "batch_size": 16, "seed": 0, "plugins": "my_plugins",
    } | changes  # fmt: skip


def key(**changes: Any) -> str:
    return run_file.resolve(run(**changes)).key


def planned(capsys: pytest.CaptureFixture[str]) -> str:
    return refused(capsys, "plan", "config.yaml", "--out", "plan")


def test_from_files_to_a_table(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned, fetched, trained with the run file alone, tabled and set beside print, of which there is none."""
    assert cli.main(["plan", "config.yaml", "--out", "plan"]) == 0
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    made = json.loads(Path("plan/plan.json").read_text())
    digests = {}
    for one in made["runs"]:
        assert cli.main(["train", one["runfile"], "--out", f"runs/{one['folder']}", "--device", "cpu"]) == 0
        provenance = json.loads(Path("runs", one["folder"], "provenance.json").read_text())
        assert run_file.load(Path("runs", one["folder"], "run.yaml")).key == provenance["key"] == one["key"]
        digests[one["method"]] = provenance["plugins"]
    assert digests["sign"].keys() == {"methods/sign", "networks/tiny", "datasets/drawn", "preparations/halved"}
    assert digests["fedavg"].keys() == digests["sign"].keys() - {"methods/sign"}
    assert digests["sign"]["methods/sign"] == files.sha256(Path("my_plugins/methods/sign.py"))
    for command in ("tables", "published"):
        assert cli.main([command, "plan/plan.json", "--out", "tables"]) == 0
    with Path("tables/mine/table1.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert all(float(row[label]) > 0 for label in ("Sign", "FedAvg"))
    with Path("tables/mine/table1.compare.csv").open() as file:
        assert {row["verdict"] for row in csv.DictReader(file)} == {"not published"}


def test_the_method_in_the_docs_trains(put: Put) -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "your-method.md").read_text()
    put("methods/mine.py", text.split("```python\n")[1].split("```")[0])
    Path("run.yaml").write_text(yaml.safe_dump(run(method={"name": "mine"})))
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) == 0
    assert json.loads(Path("out/summary.json").read_text())["global"]["accuracy_best"] > 0


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("methods/sign.py", "0.01", "0.02", {"sign"}),
        ("networks/tiny.py", "Conv(4", "Conv(6", {"sign", "fedavg"}),
        ("preparations/halved.py", "::2, ::2", "1::2, ::2", {"sign", "fedavg"}),
        ("datasets/drawn/dataset.yaml", "title: Drawn", "augment: true\ntitle: Drawn", {"sign", "fedavg"}),
        ("datasets/drawn/dataset.yaml", "title: Drawn", "title: Other words", set()),
    ],
)
def test_a_changed_source_is_another_run(put: Put, name: str, old: str, new: str, changes: set[str]) -> None:
    """Of those that use it alone. An edit within the same second, to the same length, is seen as well."""
    before = {method: key(method={"name": method}) for method in ("sign", "fedavg")}
    put("methods/other.py", METHOD.replace('"sign"', '"other"'))
    put(name, Path("my_plugins", name).read_text().replace(old, new))
    assert {method for method in before if key(method={"name": method}) != before[method]} == changes


def test_the_preparation_of_ood_images_is_in_the_key(put: Put) -> None:
    ood = {
        "dataset": "digits",
        "method": {"name": "fedavg"},
        "models": {"global": "mlp"},
        "tasks": {"foreign": ["drawn"]},
    }
    before = key(**ood)
    assert "preparations/halved" in run_file.resolve(run(**ood)).own_plugins
    put("preparations/halved.py", PREPARATION.replace("::2, ::2", "1::2, ::2"))
    assert key(**ood) != before


def test_changed_images_are_another_run(put: Put) -> None:
    before = key()
    images = drawn(60, 0)
    put("datasets/drawn/train.npz", {name: array[::-1] for name, array in images.items()})
    assert key() == before  # the same records in another order
    images["images"][7, 3, 3] += 1
    put("datasets/drawn/train.npz", images)
    assert key() != before


def test_a_run_of_own_plugins_in_python(put: Put) -> None:
    """Its network gives the recorded accuracy; another folder of plugins between is no matter; a changed source is."""
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    done = bayesfed.train(run(plugins=Path("my_plugins")), "out", device="cpu", precision="fp32")
    plugins.use(None)
    images, labels = done.images("test")
    assert images.shape == (30, 1, 28, 28)
    found = float((done.server["global"].log_probabilities(images).argmax(1).numpy() == labels).mean())
    metrics = done.metrics.query("client == 'global' and metric == 'test_accuracy'")
    assert found == pytest.approx(float(metrics["value"].iloc[-1]), rel=1e-5)
    put("networks/tiny.py", NETWORK.replace("Conv(4", "Conv(5"))
    with pytest.raises(InputError, match="out: the source of networks/tiny has changed since this run was trained"):
        _ = bayesfed.load_run("out").server


TWO = """
from bayesfed.models.network import Conv, Linear

NETWORKS = {
    "tiny": lambda classes, channels, size: (Conv(4, 5, 2), Linear(classes)),
    "small": lambda classes, channels, size: (Linear(9), Linear(classes)),
}
"""


def test_a_file_of_two_networks_counts_as_a_whole_unless_it_is_trusted(
    put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edit of one of them makes the other's run no other; of the run's own one, trust does not help."""
    put("networks/tiny.py", TWO)
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    done = bayesfed.train(run(), "out", device="cpu", precision="fp32")
    (images, _), (own, _) = done.images("test"), done.images("train", 0)
    before = done.server["global"].log_probabilities(images)
    put("networks/tiny.py", TWO.replace("Linear(9)", "Linear(8)"))
    with pytest.raises(
        InputError,
        match=r"^out: the source of networks/tiny has changed .*; put the old one back, or, where all that the run uses is as it was "
        r"\(a file counts as a whole, other plugins in it too\), load it with `trust=True`$",
    ):
        _ = bayesfed.load_run("out").server
    trusted = bayesfed.load_run("out", trust=True)
    assert (trusted.server["global"].log_probabilities(images) == before).all()
    assert (trusted.images("train", 0)[0] == own).all()
    assert cli.main(["verify", "out"]) == 2
    assert "now: the source of networks/tiny has changed\n" in capsys.readouterr().err
    put("networks/tiny.py", TWO.replace("Conv(4", "Conv(5"))
    with pytest.raises(
        InputError, match=r"^out: model 'tiny' has \d+ parameters now, and \d+ were trained; put the old"
    ):
        _ = bayesfed.load_run("out", trust=True).server


def test_a_method_beside_another_in_its_file_is_trusted_alike(put: Put) -> None:
    both = METHOD.replace("METHOD = Sign", "")
    other = "class Other(Sign):\n    name = 'other'\n\n\nMETHOD = {'sign': Sign, 'other': Other}\n"
    put("methods/sign.py", both + other)
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    bayesfed.train(run(), "out", device="cpu")
    put("methods/sign.py", both + other.replace("'other'\n", "'other'\n    by_epochs = True\n", 1))
    with pytest.raises(InputError, match="the source of methods/sign has changed"):
        _ = bayesfed.load_run("out").server
    assert bayesfed.load_run("out", trust=True).server.keys() == {"global"}


def test_a_runs_records_need_no_parts(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook lies in another folder than its runs, and plugins move."""
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    bayesfed.train(run(plugins="my_plugins"), "out", device="cpu")
    Path("my_plugins").rename("moved")
    monkeypatch.chdir(put("notebooks/one", "").parent)
    there = Path("../..").resolve()
    done = bayesfed.load_run(there / "out", data=there / "data")
    assert len(done.metrics)
    assert done.summary["method"] == "sign"
    with pytest.raises(InputError, match="plugins: there is no folder 'my_plugins'; it is looked for from"):
        _ = done.server
    assert bayesfed.load_run(there / "out", data=there / "data", plugins=there / "moved").server.keys() == {"global"}


def test_networks_that_are_not_there_are_told(put: Put) -> None:
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    done = bayesfed.train(run(plugins="my_plugins"), "out", device="cpu")
    with pytest.raises(KeyError, match="no network 'globl': the server of this run of sign has global"):
        _ = done.server["globl"]
    with pytest.raises(
        KeyError, match="no network 'local': client 0 of this run of sign keeps no network between rounds"
    ):
        _ = done.client(0)["local"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('server["theta"] = server["theta"] + ', 'server["theta"] = server["theta"][:3] + 0 * ',
         r"method 'sign': the server's 'theta' has the shape \(3,\); expected \("),
        ('server["theta"] = server["theta"]', 'server["theta"] = server["thta"]',
         r"my_plugins/methods/sign.py, line 20: LookupError: no 'thta' in the state, which has theta"),
    ],
)  # fmt: skip
def test_mistakes_in_a_round_are_named(
    old: str, new: str, message: str, put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    sign = METHOD.replace("torch.sign(change)", "torch.sign(change)[:3]") if "[:3]" in new else METHOD
    put("methods/sign.py", sign.replace(old, new))
    Path("run.yaml").write_text(yaml.safe_dump(run()))
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) in (1, 2)
    assert re.search(message, capsys.readouterr().err)


def test_a_folder_of_another_kind_is_refused(put: Put) -> None:
    put("empty/methodes/sign.py", METHOD)
    with pytest.raises(
        InputError, match="plugins: my_plugins/empty has none of the folders methods, networks, datasets, prep"
    ):
        plugins.use("my_plugins/empty")
    plugins.use(None)
    with pytest.raises(
        InputError,
        match=r"no method is named 'sign'; .*\(one of your own is in `methods/` of the folder that `plugins` names\)",
    ):
        run_file.resolve(run(dataset="digits") | {"plugins": None})


def test_a_package_folder_is_one_plugin(put: Put) -> None:
    put("methods/both/__init__.py", "from .inner import METHOD")
    put("methods/both/inner.py", METHOD.replace('"sign"', '"both"'))
    before = key(method={"name": "both"})
    put("methods/both/inner.py", METHOD.replace('"sign"', '"both"').replace("0.01", "0.02"))
    assert key(method={"name": "both"}) != before
    assert run_file.resolve(run(method={"name": "both"})).options.step == 0.02


def test_a_package_is_a_library_s_where_it_is_installed_as_a_link(tmp_path: Path) -> None:
    """As uv and flit can install."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/package.py").touch()
    (tmp_path / "site-packages").symlink_to(tmp_path / "kept")
    assert plugins.is_library(tmp_path / "site-packages/package.py")
    assert not plugins.is_library(tmp_path / "kept/package.py")


def test_the_place_of_the_plugins_is_no_part_of_the_key(put: Put) -> None:
    before = key()
    Path("my_plugins").rename("elsewhere")
    assert key(plugins="elsewhere") == before


def test_a_finished_run_of_another_source_is_told(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text(yaml.safe_dump(run()))
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) == 0
    put("methods/sign.py", METHOD.replace("0.01", "0.02"))
    again = ("train", "run.yaml", "--out", "out", "--device", "cpu")
    assert re.search(r"holds run \w+, not \w+ \(method.step: 0.01 there, 0.02 here\)", refused(capsys, *again))
    put("methods/sign.py", f"{METHOD}# A remark.\n")
    assert "the same run file, but its data, its plugins or a revision of the code are others" in refused(
        capsys, *again
    )


def test_a_plugin_that_changes_between_plan_and_training_is_told(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    """What is trained must be what its folder is named after."""
    assert cli.main(["plan", "config.yaml", "--out", "plan"]) == 0
    one = next(one for one in json.loads(Path("plan/plan.json").read_text())["runs"] if one["method"] == "sign")
    put("methods/sign.py", METHOD.replace("0.01", "0.02"))
    message = refused(capsys, "train", one["runfile"], "--out", f"runs/{one['folder']}", "--device", "cpu")
    assert f"the name is that of run {one['key']}" in message
    assert message.endswith("a plugin, a dataset or the run file itself has changed since: plan again")


def test_a_plan_is_made_anew_for_a_changed_part(put: Put) -> None:
    """What tells, reads plugins and imports none of them, nor torch."""
    config = plan.read_mapping(Path("config.yaml"))
    seen = {plan.content_hash(config)}
    for name in (
        "methods/sign.py",
        "networks/tiny.py",
        "preparations/halved.py",
        "datasets/drawn/dataset.yaml",
        "papers/mine.yaml",
    ):
        put(name, Path("my_plugins", name).read_text() + "\n# a comment\n")
        seen.add(plan.content_hash(config))
    put("datasets/drawn/test.npz", drawn(30, 2))
    seen.add(plan.content_hash(config))
    assert len(seen) == 7
    code = "import sys; from bayesfed.plan import plan; plan.content_hash({'papers': ['mine'], 'plugins': 'my_plugins'}); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_linked_folders_among_plugins_are_seen(put: Put) -> None:
    Path("realm").mkdir()
    for kind, name in (("methods", "pack"), ("datasets", "far")):
        Path("my_plugins", kind, name).symlink_to(Path("realm", name).resolve())
    put("../realm/pack/__init__.py", METHOD.replace('"sign"', '"pack"'))
    put("../realm/far/dataset.yaml", {"title": "Far"})
    Path("realm/pack/round").symlink_to(Path("my_plugins").resolve())
    config = plan.read_mapping(Path("config.yaml"))
    assert run_file.resolve(run(method={"name": "pack"})).options.step == 0.01
    seen = {plan.content_hash(config)}
    put("../realm/pack/__init__.py", METHOD.replace('"sign"', '"pack"').replace("0.01", "0.02"))
    assert run_file.resolve(run(method={"name": "pack"})).options.step == 0.02
    seen.add(plan.content_hash(config))
    put("../realm/far/dataset.yaml", {"title": "Further"})
    seen.add(plan.content_hash(config))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("methods/broken.py", "import torch\n\n1 / 0\n", "methods/broken.py, line 3: ZeroDivisionError: division by zero"),
        ("methods/broken.py", "def f(:\n", "methods/broken.py, line 1: SyntaxError: invalid syntax"),
        ("methods/broken.py", "import nowhere\n", "methods/broken.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("methods/broken.py", "raise SystemExit(0)\n", "methods/broken.py, line 1: SystemExit: 0"),
        ("methods/empty.py", "", "methods/empty.py: the module has no METHOD"),
        ("methods/wrong.py", "METHOD = 3", "methods/wrong.py: METHOD: expected a class derived from bayesfed.methods.base.Method"),
        ("methods/half.py", METHOD.replace("FedAvg)", "Method)").replace("methods.fedavg import FedAvg", "methods.base import Method\nfrom bayesfed.methods.fedavg import FedAvg").replace(', revision = "sign", "Sign", 1', ' = "half", "Half"'), "methods/half.py: METHOD: the class has no `revision`"),
        ("methods/plain.py", METHOD.replace('"sign"', '"plain"') + "\nSign.Options = type('Options', (), {'lr': 0.1})\n", "methods/plain.py: METHOD: its Options are no dataclass; write @dataclass(frozen=True) above the class"),
        ("methods/hint.py", METHOD.replace('"sign"', '"hint"') + "\n@dataclass(frozen=True)\nclass Options:\n    sizes: list[int] = (1,)\n\nSign.Options = Options\n", "methods/hint.py: METHOD: its option 'sizes' has the type list[int], which no run file can give; take int, float"),
        ("methods/comma.py", METHOD.replace('"sign"', '"comma"') + "\nSign.networks = ('student')\n", "methods/comma.py: METHOD: its `networks`: expected a list, found 'student'; a tuple of one has a comma: ('student',)"),
        ("methods/words.py", METHOD.replace('"sign"', '"words"') + "\nSign.logs = ('flips',)\n", "methods/words.py: METHOD: its `logs`: expected keys and values, found ('flips',)"),
        ("methods/free.py", METHOD.replace('"sign"', '"free"') + "\nSign.free = ('theta')\n", "methods/free.py: METHOD: its `free`: expected a list, found 'theta'; a tuple of one has a comma: ('theta',)"),
        ("methods/label.py", METHOD.replace('"sign"', '"label"') + "\nSign.label = None\n", "methods/label.py: METHOD: its `label`: expected text, found None"),
        ("methods/first.py", METHOD.replace('"sign"', '"first"') + "\nSign.revision = '1'\n", "methods/first.py: METHOD: its `revision`: expected a whole number, found '1'"),
        ("methods/yes.py", METHOD.replace('"sign"', '"yes"') + "\nSign.personal = 'yes'\n", "methods/yes.py: METHOD: its `personal`: expected true or false, found 'yes'"),
        ("methods/most.py", METHOD.replace('"sign"', '"most"') + "\nSign.predictive = 1\n", "methods/most.py: METHOD: its `predictive`: expected text, found 1"),
        ("methods/aside.py", METHOD.replace('"sign"', '"aside"') + "\nSign.server_images = -5\n", "methods/aside.py: METHOD: its `server_images` is -5; expected a function"),
        ("methods/made.py", METHOD.replace('"sign"', '"made"') + "\nSign.__init__ = lambda self: None\n", "methods/made.py: METHOD: its `__init__` takes (self); expected (self, options)"),
        ("methods/mute.py", METHOD.replace('"sign"', '"mute"').replace("(FedAvg)", "(Method)", 1).replace("methods.fedavg import FedAvg", "methods.base import Method\nfrom bayesfed.methods.fedavg import FedAvg").replace("def aggregate", "step, finish = FedAvg.step, FedAvg.finish\n\n    def agregate"), "methods/mute.py: METHOD: it has `agregate`, which nothing calls; is `aggregate` meant? Else name it otherwise"),
        ("methods/own.py", METHOD.replace('"sign"', '"own"').replace("class Sign(FedAvg):", "class Base(FedAvg):\n    @dataclass(frozen=True)\n    class Options(FedAvg.Options):\n        more: float = 1.0\n\n    def __init__(self, options):\n        super().__init__(options)\n\n\nclass Sign(Base):"), "methods/own.py: METHOD: its Options lack `more` of Base.Options; write `class Options(Base.Options):`"),
        ("methods/personal.py", METHOD.replace('"sign"', '"personal"') + "\nSign.persoanl = True\n", "methods/personal.py: METHOD: it has `persoanl`, which nothing calls; is `personal` meant?"),
        ("methods/deaf.py", METHOD.replace('"sign"', '"deaf"') + "\nSign.step, Sign.steps = (lambda self, c, batch: None), ()\nSign.init_clients = None\n", "methods/deaf.py: METHOD: it has `init_clients`, which nothing calls; is `init_client` meant?"),
        ("methods/low.py", METHOD.replace('"sign"', '"low"').replace("step: float = 0.01", "step: float = option(-1.0, above=0)").replace("import torch\n", "import torch\n\nfrom bayesfed.core.options import option\n"), "methods/low.py: METHOD: its default of step: -1.0 is out of range; it must be above 0"),
        ("methods/idle.py", IDLE, "methods/idle.py: METHOD: it has `stepp`, which nothing calls; is `step` meant?"),
        ("methods/idle.py", IDLE.replace("stepp", "learn"), "methods/idle.py: METHOD: the class defines neither `step` nor `phases`"),
        ("methods/mine.py", METHOD.replace('"sign"', '"fedavg"'), "methods/mine.py: the method 'fedavg' is there already (bayesfed); rename yours"),
        ("methods/twice.py", METHOD, "methods/twice.py: the method 'sign' is there already (my_plugins/methods/sign.py); rename yours"),
        ("methods/path.py", METHOD.replace('"sign"', '"../up"'), "methods/path.py: '../up' is no name"),
        ("networks/mine.py", "NETWORKS = {'cnn2': len}", "networks/mine.py: the model 'cnn2' is there already (bayesfed)"),
        ("networks/mine.py", "NETWORKS = {'convolutions': len}", "networks/mine.py: NETWORKS 'convolutions': this word means"),
        ("networks/mine.py", "NETWORKS = {3: len}", "networks/mine.py: '3' is no name; it has letters"),
        ("networks/mine.py", "NETWORKS = {'one': 1}", "networks/mine.py: NETWORKS 'one': expected a function"),
        ("networks/mine.py", "from torch import nn\nNETWORKS = {'one': nn.Flatten()}", "expected a function that builds the network, found one that is built"),
        ("networks/tiny.py", "from torch import nn\nNETWORKS = {'tiny': lambda classes, channels, size: (nn.Flatten(), nn.Linear(784, classes))}", "model 'tiny': expected a torch.nn.Module, or a tuple of layers of bayesfed.models.network (Conv, Linear), found (Flatten("),
        ("networks/tiny.py", "NETWORKS = {'tiny': lambda classes, channels, size: 1 / 0}", "model 'tiny', built for images of 1x14x14: ZeroDivisionError: division by zero ("),
        ("preparations/mine.py", "PREPARATIONS = {'pad': len}", "preparations/mine.py: the preparation 'pad' is there already"),
        ("preparations/halved.py", "PREPARATIONS = {'halved': lambda images, side: images}", "preparations/halved.py: preparation 'halved': expected uint8 (1, 1, 14, 14), found uint8 (1, 1, 28, 28)"),
        ("preparations/halved.py", "def halved(images, side):\n    return images[side:, 9, 9, 9, 9]\n\nPREPARATIONS = {'halved': halved}", "preparations/halved.py, line 2: IndexError: too many indices"),
        ("datasets/mnist/dataset.yaml", "title: Mine", "my_plugins/datasets/mnist: the dataset 'mnist' is there already (bayesfed)"),
        ("papers/mine.yaml", PAPER | {"methods": {"Sign": {"name": "sing"}, "FedAvg": {"name": "fedavg"}}}, "method.name: no method is named 'sing'; did you mean 'sign'?"),
    ],
)  # fmt: skip
def test_a_faulty_part_is_told_in_one_line(
    put: Put, capsys: pytest.CaptureFixture[str], name: str, content: Any, message: str
) -> None:
    put(name, content)
    assert message in planned(capsys)


def test_only_shapes_that_do_not_fit_are_put_down_to_the_images(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    for body, blamed in (("1 / 0", False), ("torch.nn.Linear(3, classes)", True)):
        put("networks/tiny.py", f"import torch\n\nNETWORKS = {{'tiny': lambda classes, channels, size: {body}}}")
        assert ("`images: {prepare: resize}`" in planned(capsys)) is blamed


HEAD = "nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes), {})"
FIXED = """
class Fixed(nn.Module):
    def forward(self, x):
        return x[:, :] if len(x) != 16 else x.view(4, -1)

"""


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("nn.Softmax(-1)", "model 'tiny': in evaluation its outputs are probabilities, none below 0 and of sum 1 for each image; "
         "give logits: leave the softmax at its end out"),
        ("Fixed()", "model 'tiny', built for images of 1x14x14: for a batch of 16 in evaluation, expected logits of shape (images, 5)"),
        ("nn.LogSoftmax(-1)", ""),
        ("nn.Sigmoid()", ""),
    ],
)  # fmt: skip
def test_what_a_network_gives_is_looked_at_when_runs_are_planned(
    put: Put, capsys: pytest.CaptureFixture[str], then: str, message: str
) -> None:
    """Of batches of the run's size too."""
    networks = f"NETWORKS = {{'tiny': lambda classes, channels, size: {HEAD.format(then)}}}"
    put("networks/tiny.py", f"from torch import nn\n{FIXED}{networks}")
    if message:
        assert message in planned(capsys)
    else:
        assert cli.main(["plan", "config.yaml", "--out", "plan"]) == 0


def test_features_may_be_probabilities(put: Put) -> None:
    """Of a method whose networks give no logits."""
    put(
        "networks/tiny.py",
        f"from torch import nn\nNETWORKS = {{'tiny': lambda classes, channels, size: {HEAD.format('nn.Softmax(-1)')}}}",
    )
    assert key(method={"name": "pfedgp"})
    with pytest.raises(InputError, match="its outputs are probabilities"):
        key(method={"name": "fedavg"})


def test_a_link_to_nowhere_is_told_in_one_line(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_plugins/methods/gone.py").symlink_to("nowhere")
    assert re.search(r"methods/gone\.py: this is a link to .*/nowhere, and a Python file is needed", planned(capsys))


SUM = "        change = sum("  # where the method of these tests begins to aggregate


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{}['nope']", "KeyError: 'nope'"),
        ("assert not updates", "AssertionError"),
        ("torch.ones(2) @ torch.ones(3)", "RuntimeError: inconsistent tensor size"),
        ("open('nowhere')", "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere'"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("where", ["--out", "--runs"])
def test_a_mistake_in_ones_own_method_ends_with_its_line(
    where: str, line: str, told: str, put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the traceback."""
    put("methods/sign.py", METHOD.replace(SUM, f"        {line}\n{SUM}"))
    Path("run.yaml").write_text(yaml.safe_dump(run()))
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    command = ["train", "run.yaml", where, "out", "--device", "cpu"]
    if where == "--out":
        assert cli.main(command) == 1
    else:
        with pytest.raises(SystemExit, match=r"1 of 1 runs failed: run\.yaml"):
            cli.main(command)
    err = capsys.readouterr().err
    assert "Traceback" in err
    of = "run.yaml: " if where == "--runs" else ""
    assert err.splitlines()[-1].startswith(f"bayesfed: {of}my_plugins/methods/sign.py, line 19: {told}")


def test_a_method_that_takes_other_arguments_is_told_before_training(
    put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    put("methods/sign.py", METHOD.replace("aggregate(self, server, updates)", "aggregate(self, updates)"))
    Path("run.yaml").write_text(yaml.safe_dump(run()))
    assert cli.main(["fetch", "drawn", "--plugins", "my_plugins"]) == 0
    capsys.readouterr()
    assert cli.main(["train", "run.yaml", "--out", "out", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "bayesfed: method 'sign': aggregate takes (updates) beside self; expected (server, updates)"
    )


def test_a_fault_inside_a_network_names_its_line(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    """Not one of torch, which calls it and is called by it."""
    layer = "class Bad(nn.Module):\n    def forward(self, x):\n        return nn.Linear(3, 4)(x)\n"
    put("networks/tiny.py", f"from torch import nn\n{layer}NETWORKS = {{'tiny': lambda *_: nn.Sequential(Bad())}}\n")
    assert re.search(r"shapes cannot be multiplied .*networks/tiny\.py, line 4\)", planned(capsys))


def test_memory_that_runs_out_in_a_part_is_not_the_parts_fault(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    put(
        "preparations/halved.py",
        "def halved(images, side):\n    raise MemoryError\n\nPREPARATIONS = {'halved': halved}",
    )
    assert cli.main(["plan", "config.yaml", "--out", "plan"]) == 1
    told = capsys.readouterr().err
    assert "memory ran out" in told
    assert "halved" not in told


def test_own_papers_and_folders_are_looked_for(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    Path("config/papers").mkdir(parents=True)
    Path("config/papers/mine.yaml").write_text("{}")
    assert "my_plugins/papers/mine.yaml: the paper 'mine' is there already (config/papers); rename yours" in planned(
        capsys
    )
    Path("my_plugins").rename("elsewhere")
    assert "plugins: there is no folder 'my_plugins'" in planned(capsys)
    assert "there is no folder 'nowhere'" in refused(capsys, "fetch", "drawn", "--plugins", "nowhere")
    assert "no dataset is named 'drawn'" in refused(capsys, "fetch", "drawn")


def test_a_run_without_parts_knows_none(put: Put) -> None:
    assert key()
    with pytest.raises(InputError, match=r"method\.name: no method is named 'sign'"):
        key(plugins=None, dataset="digits", models={"global": "mlp"})


def test_a_file_that_has_another_name_inside_is_named(put: Put) -> None:
    put("methods/mine.py", METHOD.replace('"sign"', '"other"'))
    with pytest.raises(InputError, match=r"no method is named 'mine'; .* \(my_plugins/methods/mine\.py has 'other'\)"):
        key(method={"name": "mine"})


def test_an_installed_package_has_parts(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By entry points; its source is that of the whole package. What is not asked for is not imported."""
    place = tmp_path / "site"
    for name in ("methods/sign.py", "networks/tiny.py", "preparations/halved.py"):
        target = place / "mypack" / Path(name).name
        target.parent.mkdir(parents=True, exist_ok=True)
        Path("my_plugins", name).rename(target)
    Path("my_plugins/datasets/drawn").rename(place / "mypack" / "drawn")
    (place / "mypack" / "__init__.py").write_text("")
    (place / "mypack" / "broken.py").write_text("1 / 0")
    groups = {"methods": ["sign = mypack.sign", "bad = mypack.broken", "wrong = mypack.tiny"], "networks": ["tiny = mypack.tiny"],
              "preparations": ["halved = mypack.halved"], "datasets": ["drawn = mypack.drawn"]}  # fmt: skip
    (place / "mypack-1.0.dist-info").mkdir()
    (place / "mypack-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mypack\nVersion: 1.0\n")
    (place / "mypack-1.0.dist-info" / "entry_points.txt").write_text(
        "".join(f"[bayesfed.{group}]\n" + "\n".join(lines) + "\n" for group, lines in groups.items())
    )
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(plugins, "in_use", plugins.InUse())
    before = run_file.resolve(run(plugins=None))
    assert before.own_plugins["methods/sign"] == before.own_plugins["networks/tiny"] == plugins.digest(place / "mypack")
    with pytest.raises(InputError, match=r"mypack.broken: ZeroDivisionError: division by zero"):
        key(plugins=None, method={"name": "bad"})
    with pytest.raises(InputError, match=r"entry point 'wrong' \(mypack.tiny\): the module has no METHOD"):
        key(plugins=None, method={"name": "wrong"})
    assert cli.main(["fetch", "drawn"]) == 0
    state, old = plugins.state(None), before.key
    (place / "mypack" / "helper.py").write_text("")
    assert plugins.state(None) != state
    assert run_file.resolve(run(plugins=None)).key != old
    plugins.use(None)
