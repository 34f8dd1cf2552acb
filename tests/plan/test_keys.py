"""The keys of runs that stand somewhere: whoever changes one makes finished runs look like other runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bayesfed.plan import plan

PROJECT = Path(__file__).parents[2]

# Came when runs of the others stood already.
LATER = {
    "HBFL unscaled", "HBFL without noise", "HBFL SGD", "FML Adam", "FML uniform", "FML uniform Adam", "FedProx 0.1", "FedProx 1",
}  # fmt: skip
LATER_EXPERIMENTS = {"falling_rate", "falling_once", "by_adam", "proximal"}

# config -> SHA-256 over the sorted folders of its runs for HBFL, and a few of them in clear
KEYS = {
    "demo": (
        "12aff2478f1606bff10b3a82311b49dabc978c525bb3b22451aca5dd37f6a6c8",
        [
            "digits+digits-parity/whole-clients~2/fml/seed~0-7ac24007b33f",
            "digits/dirichlet_class_shared-alpha~0.05-clients~10/abavg/seed~0-ba5b0270edf4",
            "digits/dirichlet_class_shared-alpha~0.05-clients~10/fedprox/seed~0-a16e66a97bf4",
            "digits/dirichlet_class_shared-alpha~0.05-clients~10/hbfl/seed~0-0d102756d30d",
        ],
    ),
    "paper": (
        "3831288cac1fa18c548d1ad8bb9d99256351bd02068b104207ce2a51d2f79059",
        [
            "cifar10+cifar100/whole-clients~2/fml/seed~0-b0830586ada7",
            "cifar10/dirichlet_class_shared-alpha~0.05-clients~10/fml/seed~0-b0b109a18dc4",
            "cifar10/dirichlet_class_shared-alpha~0.05-clients~10/hbfl/seed~0-4d17304f6bba",
            "mnist/dirichlet_class_shared-alpha~0.05-clients~10/fedavg/seed~0-acb4c287151d",
            "cifar10/dirichlet_class_shared-alpha~100-clients~10/hbfl/seed~2-2e54a5e0eee7",
            "cifar100/dirichlet_class_shared-alpha~100-clients~10/fedavg/seed~0-fae0304e3653",
        ],
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_as_they_were(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    spec = plan.read_mapping(plan.PAPERS / "hbfl.yaml")
    config = plan.read_mapping(Path("config", f"{name}.yaml")) | {"papers": ["hbfl"]}
    for part in ("experiments", "methods"):  # of the one paper
        config[part] = {key: value for key, value in config.get(part, {}).items() if key in spec[part]}
    made, _ = plan.make(config)
    cells = [cell for cell in made["cells"] if cell["experiment"] not in LATER_EXPERIMENTS]
    folders = sorted({cell["folder"] for cell in cells if cell["method"] not in LATER})
    digest, some = KEYS[name]
    assert set(some) <= set(folders)
    assert hashlib.sha256("\n".join(folders).encode()).hexdigest() == digest
