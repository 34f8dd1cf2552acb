"""What most tests need: real digits on disk, a small run file, and one thread so that results repeat."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.children import heard
from helpers.networks import modules as modules
from helpers.playing import FEW, FULL_HESSIAN, federation, few_of
from hypothesis import settings

from bayesfed import methods
from bayesfed.core import files, plugins, reachable
from bayesfed.data.fetch import _record, fetch
from bayesfed.data.records import write_npz
from bayesfed.data.sources import SOURCES
from benchmarks.common import few_steps

pytest_plugins = ["helpers.lab"]
torch.set_num_threads(1)
settings.register_profile("short", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("long", deadline=5000, max_examples=2000)
settings.load_profile("short")
LONG = ("tests/workflow/", "test_gpu_calls", "test_notebook", "test_wheel")
TOYS = Path(__file__).parent / "methods" / "toys"
MINE = """
import collections, contextvars, functools, itertools, logging, random, threading, types
from dataclasses import dataclass, replace
import numpy as np
import torch
from bayesfed.methods.base import Predictor
from bayesfed.methods.fedavg import FedAvg
{before}

class Mine(FedAvg):
    name, label, revision = "mine", "Mine", 1
{inside}

METHOD = Mine
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first: what is left to share between processes at the end is short."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """A method that a test registers is gone after it."""
    yield
    if plugins.registered["methods"]:
        plugins.registered["methods"].clear()
        plugins.in_use.found.clear()


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with both digits datasets."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("digits", "digits-parity"):
        fetch(name, folder)
    return folder


@pytest.fixture
def data_dir(digits_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder with `few` and `few-parity`: the first digits of each split, for tests that train a lot."""
    for name in ("digits", "digits-parity"):
        whole = SOURCES[name]
        few = few_of(whole)
        monkeypatch.setitem(SOURCES, few.name, few)
        folder = digits_dir / few.name
        if not (folder / "dataset.json").exists():
            for split, count in (("train", FEW[0]), ("test", FEW[1])):
                with np.load(digits_dir / name / f"{split}.npz") as arrays:
                    write_npz(folder / f"{split}.npz", {key: arrays[key][:count] for key in ("images", "labels")})
            (folder / "dataset.json").write_text(files.sealed_json(_record(few, folder)))
    return digits_dir


@pytest.fixture
def signals() -> Iterator[None]:
    """The signals that stop a run, heard in this process while the test runs."""
    with heard():
        yield


@pytest.fixture
def mapping() -> Callable[..., dict[str, Any]]:
    """A function that gives a small valid run file for a method, with changes.

    Its networks have one hidden layer and take images of 8x8. Images of tests that name their networks are 16x16, but for
    `images={}`.
    """

    def make(method: str | dict[str, Any] = "fedavg", **changes: Any) -> dict[str, Any]:
        method = {"name": method} if isinstance(method, str) else method
        models: dict[str, Any] = {"global": "pfedbayes_mlp"}
        if methods.get(method["name"]).local_models:
            models["local"] = ["mlp200", "softmax", "pfedbayes_mlp", "pfedbayes_mlp"]
        images: dict[str, Any] = {"prepare": {"resize": 16} if "models" in changes else "none"}
        if method["name"] in FULL_HESSIAN:
            models, images = {"global": "softmax"}, {"prepare": "none"}
        models |= dict.fromkeys(methods.get(method["name"]).networks, "softmax")
        method = few_steps(method["name"], server=50) | method
        return {
            "dataset": "few",
            "partition": {"alpha": 1.0, "clients": 4},
            "method": method,
            "models": models,
            "rounds": 2,
            "local_epochs": 1,
            "batch_size": 32,
            "seed": 0,
            "images": images,
        } | changes

    return make


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that note things down from inside a method: nobody looks for what it keeps elsewhere."""
    monkeypatch.setattr(reachable, "held", lambda roots: reachable.Held([], {}, []))


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The registry with the toy methods of the tests, one file each, beside the real ones."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(TOYS)])
    methods.ours.cache_clear()
    yield
    methods.ours.cache_clear()


@pytest.fixture
def of_mine(mapping: Callable[..., dict[str, Any]], data_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A function that gives the federation of a method of one's own, of lines before its class and within it."""

    def make(before: str = "", inside: str = "", helper: str = "", **changes: Any) -> Any:
        folder = tmp_path / "methods" / "mine"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(MINE.format(before=before, inside=inside))
        (folder / "helper.py").write_text(helper)
        plugins.use(tmp_path)
        small = {"models": {"global": "softmax"}, "rounds": 3, "plugins": str(tmp_path)}
        return federation(mapping("mine", **(small | changes)), data_dir, torch.float32)

    yield make
    plugins.use(None)
