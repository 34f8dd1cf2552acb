"""The keys of runs that stand somewhere: whoever changes one makes finished runs look like other runs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bayesfed import methods
from bayesfed.core import files
from bayesfed.plan import plan
from bayesfed.runs import run_file
from bayesfed.runs.revision import ENGINE_REVISION

PROJECT = Path(__file__).parents[2]

# Of HBFL, came when runs of the others stood already.
LATER = {
    "HBFL unscaled", "HBFL without noise", "HBFL SGD", "FML Adam", "FML uniform", "FML uniform Adam", "FedProx 0.1", "FedProx 1",
}  # fmt: skip
LATER_EXPERIMENTS = {"falling_rate", "falling_once", "by_adam", "proximal", "student_network"}

# config -> paper -> SHA-256 over the sorted folders of its runs
KEYS = {
    "demo": {"hbfl": "ddd89a1c6dbc156f0dfdf16630a4231d561bb875ad827b54a4d796e81a1dafc9"},
    "paper": {
        "hbfl": "3831288cac1fa18c548d1ad8bb9d99256351bd02068b104207ce2a51d2f79059",
        "fola": "d61d736c7a03ed04614145aae7eba856f84d31a8eafb385f9f096336e4eb1092",
        "fedppd": "dba541e0e7e7478766066a6c982bbb52d27186164f3aa82187956c4e3916ed8f",
        "pfedbayes": "869c6821e07ae0481bf0474d30cc122b5d29e73071a02db53dad5d82e8164c77",
    },
}

# Cells and runs of config/paper.yaml, counted by hand. A seed: 8 + 40 + 8 + 4 + 12 + 3 + 80 + 8 + 40 of HBFL, of which 22
# are shared; 7 + 15 + 2 + 3 + 75 + 15 + 6 of FOLA, of which 3, 1, 1 and 2 are shared, and 66 of its two clients, errors and
# central run in all. Of the searches, the part that the config names: one seed of 5 alphas, 3 lr, 2 epochs, 4 batch sizes,
# 2 methods, of which 10 are Figure 3's at lr 0.1. 18 + 8 + 8 + 8 + 4 + 6 of FedPPD, 1 + 4 shared, without FEMNIST, Table 3,
# and on one seed 9 of the baselines, 3 shared. 72 + 27 + 12 + 5 + 5 + 5 + 10 + 5 + 3 + 4 + 4 + 7 + 4 + 2 of pFedBayes, of
# which 9, 4 and ten times 1 are shared, and 9 + 6 of forms of two methods, 6 shared.
CELLS_AND_RUNS = {
    "hbfl": (3 * 203, 3 * 181),
    "fola": (3 * 189 + 240 + 106, 3 * 180 + 230 + 91),
    "fedppd": (3 * 52 + 9, 3 * 47 + 6),
    "pfedbayes": (3 * 180, 3 * 151),
}

# FOLA's Table II at a reduced budget names methods alone; each has local epochs of its own in the paper.
CHANGES = {
    "fola-reduced": {
        "FedAvg": ["rounds 4 (paper 100)", "local epochs 1 (paper 40)"],
        "SCAFFOLD": ["rounds 4 (paper 100)"],
    }
}


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)


@pytest.fixture
def planned_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Papers' own grids are no config's, and checked in other tests."""
    monkeypatch.setattr(plan, "check_paper", lambda *_: None)


def cells(name: str, paper: str = "") -> list[dict[str, Any]]:
    """The cells that a config plans, or those of one of its papers."""
    config = plan.read_mapping(Path("config", f"{name}.yaml"))
    if paper:
        spec, config["papers"] = plan.read_mapping(plan.PAPERS / f"{paper}.yaml"), [paper]
        for part in ("experiments", "methods"):
            config[part] = {key: value for key, value in config.get(part, {}).items() if key in spec[part]}
    found: list[dict[str, Any]] = plan.make(config)[0]["cells"]
    return found


def folders(of: list[dict[str, Any]]) -> set[str]:
    return {cell["folder"] for cell in of}


def check_keys(name: str, paper: str, of: list[dict[str, Any]]) -> None:
    first = [one for one in of if one["method"] not in LATER and one["experiment"] not in LATER_EXPERIMENTS]
    assert hashlib.sha256("\n".join(sorted(folders(first))).encode()).hexdigest() == KEYS[name][paper]


def stored(name: str) -> set[str]:
    """The folders of a config's finished runs by today's revisions: a raised one gives runs other keys."""
    found, runs = set(), Path("results", name, "runs")
    for path in runs.rglob("provenance.json"):
        made, method = json.loads(path.read_text()), methods.get(path.parts[-3])
        if (made["method_revision"], made["engine_revision"]) == (method.revision, ENGINE_REVISION):
            found.add(path.parent.relative_to(runs).as_posix())
    return found


@pytest.mark.usefixtures("planned_alone")
def test_the_papers_grids_and_keys() -> None:
    """Every experiment, three seeds, the papers' budget and datasets."""
    every = cells("paper")
    papers = {paper: [cell for cell in every if cell["paper"] == paper] for paper in CELLS_AND_RUNS}
    assert {paper: (len(of), len(folders(of))) for paper, of in papers.items()} == CELLS_AND_RUNS
    assert len(every) == sum(map(len, papers.values()))
    assert all(cell["used"] == cell["dataset"] for cell in every)
    assert {(cell["paper"], cell["dataset"], cell["model"], told) for cell in every for told in cell["changes"]} == {
        ("fedppd", "cifar100", "resnet18", "weights global from scratch (paper resnet18-f37072fd.pth)"),
        ("fedppd", "cifar100", "resnet18", "weights student from scratch (paper resnet34-b627a593.pth)"),
        ("fedppd", "mnist", "fedppd_mnist", "our own, on MNIST, with a tenth of the images"),
        (
            "fola",
            "mnist",
            "fola_mlp",
            "one choice of hyperparameters and a few repeats, where the paper has the best of a grid and 30 repeats",
        ),
        (
            "fola",
            "cifar10",
            "fola_cnn",
            "learning rate and local epochs of Table II (alpha 0.01) at every alpha, where the paper searches both at each",
        ),
    }
    for paper, of in papers.items():
        check_keys("paper", paper, of)
    assert stored("paper") <= folders(every)


def test_keys_of_the_demo_are_as_they_were() -> None:
    check_keys("demo", "hbfl", cells("demo", "hbfl"))


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("hbfl-readings", 28 * 3 + 2 * 10),
        ("fola-reduced", 7),
        ("fedppd-reduced", 6 + 2),
        ("pfedbayes-reduced", 25 + 6),
        ("check", 11),
        ("fedlap", 7 * 3 * 3 + 1),
    ],
)
def test_configs_beside_the_papers_are_planned(name: str, runs: int) -> None:
    every = cells(name)
    planned = folders(every)
    assert len(planned) == runs
    assert stored(name) <= planned
    assert CHANGES.get(name, {}).items() <= {cell["method"]: cell["changes"] for cell in every}.items()


@pytest.mark.usefixtures("planned_alone")
def test_fedgvis_grid_has_label_noise() -> None:
    """Table 6 has eight methods here, Table 1 six with three, six with ten and two with one client."""
    every = cells("further", "fedgvi")
    assert len(folders(every)) == 3 * (4 * 8 + 14) + 2  # and two of FedPA of ours
    noisy = Counter(
        (cell["setting"], cell["axes"].get("label_noise")) for cell in every if cell["experiment"] == "fashion"
    )
    shares = {"contamination 0": 0, "contamination 0.1": 0.1, "contamination 0.2": 0.2, "contamination 0.4": 0.4}
    assert noisy == dict.fromkeys(shares.items(), 3 * 8)


@pytest.mark.usefixtures("planned_alone")
def test_stored_runs_of_the_comparison_have_their_keys() -> None:
    """It no longer plans some of them."""
    found, planned = stored("comparison"), folders(cells("comparison"))
    assert found & planned
    for one in found - planned:
        run = files.read_yaml(Path("results", "comparison", "runs", one, "run.yaml"))
        assert run_file.resolve(run).folder == one
