"""What a call of `bayesfed compare` plans: its methods and grounds, what is missing, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.comparing import finish, history

from bayesfed import cli
from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.plan import compared
from bayesfed.plan.asked import Asked
from bayesfed.plan.compared import Request

PROJECT = Path(__file__).parents[2]
RUN = {
    "partition": {"clients": 3},
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 50,
    "validation": 0.1,
    "images": {"prepare": "none"},
}
PAPER = {
    "paper": "comparison",
    "title": "Ours",
    "reference": "our own",
    "run": RUN,
    "settings": {"0.1": "harsh"},
    "methods": {"FedAvg": {"name": "fedavg"}, "FedProx": {"name": "fedprox"}, "FedProx, plain": {"name": "fedprox", "mu": 0}, "BNFed": {"name": "bnfed"}},
    "given": [{"where": {"dataset": "digits", "method": "FedAvg"}, "methods": {"FedAvg": {"lr": 0.02}}}],
    "experiments": {
        "search": {
            "axes": {"dataset": ["digits"], "models.global": ["mlp200"]},
            "cases": [{"partition.alpha": 0.1, "method": "FedAvg", "method.lr": lr} for lr in (0.01, 0.02)],
        },
        "digits-harsh": {
            "seeds": 2,
            "axes": {
                "dataset": ["digits"], "models.global": ["mlp200"], "partition.alpha": [0.1], "method": ["FedAvg", "FedProx"],
            },
        },
    },
}  # fmt: skip

EXPERIMENTS: Any = PAPER["experiments"]
MNIST = EXPERIMENTS["digits-harsh"]["axes"] | {"dataset": ["mnist"]}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a small comparison, whose records of digits-harsh are FedAvg's alone."""
    (tmp_path / "config/papers").mkdir(parents=True)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").touch()
    (tmp_path / "config/papers/comparison.yaml").write_text(yaml.safe_dump(PAPER, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    for cell in cells(Request(methods=("fedprox",), seeds=2)):
        if cell["experiment"] == "digits-harsh" and cell["method"] == "FedAvg":
            finish(compared.STORED / cell["folder"], history(0.8))
    yield tmp_path
    plugins.use(None)


def cells(request: Request) -> list[Any]:
    made, _ = compared.planning.make(request.config({"digits-harsh": ["FedAvg", *request.asked]}, searches=True))
    return list(made["cells"])


def test_what_is_stored_is_not_trained_again() -> None:
    planned = compared.plan(Request(methods=("fedprox",), seeds=2, grounds=("digits-harsh",)))
    assert planned.missing == [("digits-harsh", ["FedProx"], [0, 1])]
    assert len(planned.own) == 2
    config = yaml.safe_load(planned.write_config().read_text())
    ground = PAPER["experiments"]["digits-harsh"]
    assert config["experiments"] == {
        "search": {"skip": True},
        "digits-harsh": {"axes": {**ground["axes"], "method": ["FedProx"]}, "seeds": [0, 1]},
    }
    assert "methods" not in config or config["methods"] == {}
    for folder in planned.own:
        finish(compared.OWN / folder, history(0.7))
    assert planned.missing == []
    assert compared.plan(Request(methods=("fedavg",), seeds=2, grounds=("digits-harsh",))).missing == []


def test_of_each_method_only_the_seeds_that_it_lacks_are_trained() -> None:
    """And of seeds that no method has none."""
    request = Request(methods=("fedavg", "fedprox"), seeds=3, grounds=("digits-harsh",))
    planned = compared.plan(request)
    assert planned.stored == {"digits-harsh": [0, 1]}
    assert planned.missing == [("digits-harsh", ["FedProx"], [0, 1])]
    own = Request(methods=("fedavg",), seeds=3, dataset="digits", model="mlp", rounds=2, clients=3)
    for cell in compared.plan(own).cells:
        if cell["method"] == "FedAvg" and cell["experiment"] in own.every and int(cell["seed"]) < 2:
            finish(compared.OWN / cell["folder"], history(0.8))
    planned = compared.plan(own)
    name = "digits-alpha0.1-mlp"
    assert sorted(planned.missing) == [(name, ["FedAvg"], [2]), (name, ["FedProx", "FedProx, plain"], [0, 1, 2])]
    config = yaml.safe_load(planned.write_config().read_text())
    made, _ = compared.planning.make(config)
    lacking = {cell["folder"] for cell in planned.lacking}
    assert len(lacking) == 7
    assert {run["folder"] for run in made["runs"]} == lacking


def test_a_method_is_as_the_comparison_has_it_unless_options_are_given() -> None:
    asked = Request(methods=("fedavg", "fedavg:lr=0.5,momentum=0", "fedlap")).asked
    assert asked == {
        "FedAvg": {},
        "FedAvg lr=0.5 momentum=0": {"name": "fedavg", "lr": 0.5, "momentum": 0},
        "FedLap": {"name": "fedlap"},
    }
    # The comparison's own settings stay: how many images the server gets, which no search is about.
    paper = {**PAPER, "methods": {"FedBE": {"name": "fedbe", "server_set": 2000}}}
    found = Request(methods=("fedbe:lr=0.1",), paper=paper).asked
    assert found == {"FedBE lr=0.1": {"name": "fedbe", "server_set": 2000, "lr": 0.1}}
    # Of one label: each by its own name where another has it.
    own = Request(methods=("feddyn:lr=0.1", "own_feddyn:lr=0.1"), plugins=str(PROJECT / "examples/own_plugins"))
    plugins.use(own.plugins)
    assert own.asked == {
        "FedDyn lr=0.1": {"name": "feddyn", "lr": 0.1},
        "own_feddyn lr=0.1": {"name": "own_feddyn", "lr": 0.1},
    }
    planned = compared.plan(Request(methods=("fedavg:lr=0.5",), seeds=1, grounds=("digits-harsh",)))
    assert planned.missing == [("digits-harsh", ["FedAvg lr=0.5"], [0])]
    folders = {cell["method"]: cell["folder"] for cell in planned.cells if cell["experiment"] == "digits-harsh"}
    assert folders["FedAvg lr=0.5"] != folders["FedAvg"]


def test_a_method_of_ones_own_beside_all_others() -> None:
    request = Request(
        methods=("own_feddyn",), seeds=1, grounds=("digits-harsh",), plugins=str(PROJECT / "examples/own_plugins")
    )
    planned = compared.plan(request)
    assert planned.missing == [("digits-harsh", ["FedDyn"], [0])]
    stored = [cell for cell in planned.cells if cell["method"] == "FedAvg" and cell["experiment"] == "digits-harsh"]
    assert len(stored) == 1
    assert all(compared.finished(cell["folder"]) for cell in stored)  # plugins change no key of other methods


def test_plugins_are_named_where_a_missing_run_takes_them(project: Path) -> None:
    """Once the runs of one's own method are finished, those of others are still trained."""
    request = Request(
        methods=("own_feddyn", "fedprox"),
        seeds=1,
        grounds=("digits-harsh",),
        plugins=str(PROJECT / "examples/own_plugins"),
    )
    planned = compared.plan(request)
    assert yaml.safe_load(planned.write_config().read_text())["plugins"] == request.plugins
    for cell in planned.lacking:
        if cell["method"] == "FedDyn":
            finish(compared.OWN / cell["folder"], history(0.8))
    assert planned.missing == [("digits-harsh", ["FedProx"], [0])]
    config = yaml.safe_load(planned.write_config().read_text())
    assert "plugins" not in config
    made, _ = compared.planning.make(config)
    assert {cell["folder"] for cell in made["cells"]} == {cell["folder"] for cell in planned.lacking}


def test_a_ground_of_ones_own_has_all_methods_that_can_run_there() -> None:
    request = Request(methods=("fedavg",), seeds=1, dataset="digits", alpha=0.5, clients=4, model="mlp", rounds=3)
    planned = compared.plan(request)
    assert planned.missing == [("digits-alpha0.5-mlp", ["FedAvg", "FedProx", "FedProx, plain"], [0])]
    (why,) = request.refused.values()
    assert "BNFed" in why
    shown = [cell for cell in planned.cells if cell["experiment"] == "digits-alpha0.5-mlp"]
    assert {(cell["rounds"], cell["clients"], cell["alpha"], cell["model"]) for cell in shown} == {(3, 4, "0.5", "mlp")}
    assert Request(methods=(), dataset="digits").own_ground[0] == "digits-alpha0.1-mlp200"


def test_a_ground_of_ones_own_may_have_few_methods() -> None:
    own = {"seeds": 1, "dataset": "digits", "alpha": 0.5, "clients": 4, "model": "mlp", "rounds": 3}
    few = Request(methods=("fedprox:mu=0.5",), against=("fedprox",), **own)  # type: ignore[arg-type]
    assert compared.plan(few).missing == [("digits-alpha0.5-mlp", ["FedAvg", "FedProx", "FedProx mu=0.5"], [0])]
    alone = Request(methods=("fedprox:mu=0.5",), against=("fedavg",), **own)  # type: ignore[arg-type]
    assert compared.plan(alone).missing == [("digits-alpha0.5-mlp", ["FedAvg", "FedProx mu=0.5"], [0])]
    with pytest.raises(
        InputError, match=r"--against fedporx: not a method of the comparison; did you mean 'fedprox'\?"
    ):
        compared.plan(Request(methods=("fedavg",), against=("fedporx",), **own))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="BNFed matches the neurons"):
        compared.plan(Request(methods=("fedavg",), against=("bnfed",), **own))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--against: it is of a ground of your own; give --dataset, too"):
        compared.check(Request(methods=("fedavg",), grounds=("digits-harsh",), against=("fedprox",)))


def test_a_dataset_may_be_named_like_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ground is none."""
    monkeypatch.setattr(compared.catalogue, "described", lambda name: None)
    request = Request(methods=(), dataset="search_logs", model="mlp")
    assert request.own_ground[0] == "own-search_logs-alpha0.1-mlp"


def test_values_to_choose_from_are_a_search_on_the_dataset_at_the_harsh_alpha() -> None:
    text = "fedprox:lr=1e-3/0.1,mu=0.5"
    assert Asked.read(text).options == {"mu": 0.5}
    tried = {text: Asked.read(text).configurations}
    assert tried[text] == [{"lr": 0.001}, {"lr": 0.1}]
    planned = compared.plan_search(Request(methods=(text,), grounds=("digits-harsh",), tried=tried))
    assert [(cell["axes"], cell["seed"], cell["alpha"], cell["dataset"]) for cell in planned.cells] == [
        ({"lr": 0.001}, 100, "0.1", "digits"), ({"lr": 0.1}, 100, "0.1", "digits"),
    ]  # fmt: skip
    finish(compared.STORED / planned.cells[0]["folder"], history(0.8))  # as one of the comparison's searches may be
    config = yaml.safe_load(planned.write_config().read_text())
    assert config["experiments"][compared.CALLED]["cases"] == [
        {"method": "FedProx lr=1e-3/0.1 mu=0.5", "method.lr": 0.1}
    ]
    assert "digits-harsh" not in {name for name, change in config["experiments"].items() if "skip" not in change}
    chosen = Request(methods=(text,), grounds=("digits-harsh",), tried=tried, chosen={text: {"lr": 0.1}}, seeds=1)
    assert chosen.asked == {"FedProx mu=0.5 lr=0.1": {"name": "fedprox", "mu": 0.5, "lr": 0.1}}
    of_search = [cell for cell in compared.plan(chosen).cells if cell["experiment"] == compared.CALLED]
    assert [cell["folder"] for cell in of_search] == [cell["folder"] for cell in planned.cells]


def test_a_search_on_a_ground_of_ones_own_is_at_its_alpha() -> None:
    text = "fml:lr=0.1/0.3"
    own = Request(
        methods=(text,), dataset="digits", alpha=0.5, clients=4, model="mlp", rounds=3, tried={text: [{"lr": 0.1}]}
    )
    (cell,) = compared.plan_search(own).cells
    assert (cell["alpha"], cell["clients"], cell["rounds"], cell["model"], cell["seed"]) == ("0.5", 4, 3, "mlp", 100)


def test_options_are_chosen_on_one_dataset() -> None:
    paper = {**PAPER, "experiments": {**EXPERIMENTS, "mnist-harsh": {**EXPERIMENTS["digits-harsh"], "axes": MNIST}}}
    text = "fedprox:lr=0.1/0.3"
    both = Request(methods=(text,), grounds=("digits-harsh", "mnist-harsh"), tried={text: [{"lr": 0.1}]}, paper=paper)
    with pytest.raises(InputError, match="options are chosen on one dataset, these have digits, mnist; split the call"):
        compared.plan_search(both)


def test_a_ground_of_ones_own_takes_any_partition() -> None:
    asked = "iid:images_each=50,server=0"
    request = Request(methods=("fedavg",), seeds=1, dataset="digits", partition=asked, clients=3, model="mlp")
    planned = compared.plan(request)
    shown = [cell for cell in planned.cells if cell["experiment"] == "digits-iid-mlp"]
    assert {(cell["alpha"], cell["clients"]) for cell in shown} == {(None, 3)}
    assert all("iid" in cell["folder"] for cell in shown)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fedavg", "--ground", "digits-hash"], "--ground digits-hash: it is not there, or its searches are not finished; valid: digits-harsh"),
        (["fedavg"], "--ground mnist-harsh: it is not there, or its searches are not finished"),
        (["fedawg", "--ground", "digits-harsh"], "method.name: no method is named 'fedawg'; did you mean 'fedavg'?"),
        (["fedavg:lr", "--ground", "digits-harsh"], "fedavg:lr: expected options like `name:lr=0.1,momentum=0`, found 'lr'"),
        (["fedavg:lr=0.1,lr=0.3", "--ground", "digits-harsh"], "fedavg:lr=0.1,lr=0.3: the option 'lr' occurs twice; keep one"),
        (["fedavg:lr=0.1/", "--ground", "digits-harsh"], "fedavg:lr=0.1/: a value of 'lr' is missing; write lr=A, or lr=A/B"),
        (["fedavg:lr=", "--ground", "digits-harsh"], "fedavg:lr=: a value of 'lr' is missing; write lr=A, or lr=A/B"),
        (["fedavg:name=fedprox", "--ground", "digits-harsh"], "fedavg:name=fedprox: 'name' is no option; the method's name comes"),
        (["fedavg:lr=0.1/{", "--ground", "digits-harsh"], "fedavg:lr=0.1/{: '{' is no value; give a number or a word"),
        (["fedavg:lr=2026-13-45", "--ground", "digits-harsh"], "fedavg:lr=2026-13-45: '2026-13-45' is no value; give a number or a word"),
        (["fedavg:x=!!int a", "--ground", "digits-harsh"], "fedavg:x=!!int a: '!!int a' is no value; give a number or a word"),
        (["fedavg:x=!!timestamp a", "--ground", "digits-harsh"], "fedavg:x=!!timestamp a: '!!timestamp a' is no value"),
        (["fedavg:lrr=0.1/0.2", "--ground", "digits-harsh"], "method.lrr: unknown key; did you mean 'method.lr'?"),
        (["fedavg:lf=1", "--ground", "digits-harsh"], "method.lf: unknown key"),
        (["fedavg", "--ground", "digits-harsh", "--seeds", "0"], "seeds: 0 is out of range; it must be at least 1"),
        (["fedavg", "--ground", "digits-harsh", "--dataset", "digits"], "--dataset: it is of a ground of your own"),
        (["fedavg", "--ground", "digits-harsh", "--alpha", "0.1"], "--alpha: it is of a ground of your own; give --dataset, too"),
        (["fedavg", "--ground", "digits-harsh", "--partition", "iid"], "--partition: it is of a ground of your own; give --dataset, too"),
        (["fedavg", "--dataset", "digits", "--partition", "idd"], "did you mean 'iid'?"),
        (["fedavg", "--dataset", "digits", "--partition", "given"], "given deals by the array `clients` of the data"),
        (["fedavg", "--dataset", "digits", "--partition", "iid:images_each=5/9"], "--partition iid:images_each=5/9: only a method's options"),
        (["fedavg", "--ground", "digits-harsh", "--rounds", "3"], "--rounds: it is of a ground of your own; give --dataset, too"),
        (["fedavg", "--dataset", "mnist"], "--model: give the network for mnist"),
        (["fedavg", "--dataset", "minst"], "no dataset is named 'minst'; did you mean 'mnist'?"),
        (["fedavg", "--dataset", "digits", "--partition", "dirichlet_class_shared:clients=4", "--clients", "8"],
         "--clients: --partition dirichlet_class_shared:clients=4 gives it too; keep one"),
        (["bnfed", "--dataset", "digits", "--model", "mlp"], "BNFed matches the neurons of one hidden layer"),
        (["fedavg", "--ground", "digits-harsh", "--plugins", "nowhere"], "plugins: there is no folder 'nowhere'"),
    ],
)  # fmt: skip
def test_a_wrong_call_gets_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert told in said
    assert "\n" not in said


def test_a_ground_without_records_is_refused(project: Path) -> None:
    for path in (project / compared.STORED).rglob("summary.json"):
        path.unlink()
    with pytest.raises(InputError, match=r"no finished run of digits-harsh here; take a ground that has some"):
        compared.plan(Request(methods=("fedprox",), grounds=("digits-harsh",)))


def test_it_runs_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["compare", "fedavg"]) == 2
    assert "config/papers" in capsys.readouterr().err
