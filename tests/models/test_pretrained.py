"""Pretrained weights: whose file it is, what of it a network takes, and what a run and a plan say of it."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

import bayesfed
from bayesfed import cli, models
from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.models import pretrained as weights
from bayesfed.plan import plan
from bayesfed.runs import run_file

Make = Callable[..., dict[str, Any]]


def tiny(classes: int, channels: int, size: int) -> nn.Module:
    """A convolution, batch normalisation, and a head."""
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return nn.Sequential(nn.Conv2d(channels, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), pooled, nn.Linear(48, classes))


HEAD = ("4.weight", "4.bias")


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.NETWORKS, "tiny", tiny)
    models.built.cache_clear()


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Its state, with statistics that are not those of a new one."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value + 7
        for name, value in module.state_dict().items()
    }


def store(folder: Path, tensors: Mapping[str, Tensor], end: str = ".pth", name: str = "tiny") -> str:
    """Write a file of weights under the name that its content gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"scratch{end}"
    torch.save(dict(tensors), scratch) if end == ".pth" else save_file(dict(tensors), scratch)
    return scratch.rename(folder / f"{name}-{files.sha256(scratch)[:8]}{end}").name


@pytest.mark.parametrize("end", [".pth", ".safetensors"])
def test_a_network_starts_from_a_file_but_for_its_head(end: str, tmp_path: Path) -> None:
    pretrained = tensors_of(tiny(1000, 1, 32))
    path = weights.find(tmp_path, store(tmp_path, pretrained, end))
    of, plain = (models.build("tiny", 10, 1, 32, file) for file in (path, None))
    for seed in (0, 1):
        started, scratch = (
            dict(each.module(torch.from_numpy(each.initial(np.random.default_rng(seed))), {}).named_parameters())
            for each in (of, plain)
        )
        assert all(torch.equal(started[name], scratch[name]) for name in HEAD)
        rest = [name for name in started if name not in HEAD]
        assert all(torch.equal(started[name], pretrained[name]) for name in rest)
        assert not any(torch.equal(scratch[name], pretrained[name]) for name in rest)
    assert of.statistics.keys() == plain.statistics.keys() == {f"1.{key}" for key in ("running_mean", "running_var", "num_batches_tracked")}  # fmt: skip
    assert all(torch.equal(value, pretrained[name]) for name, value in of.statistics.items())


def test_torchvisions_resnet_with_another_head(tmp_path: Path) -> None:
    """Under torchvision's own names; an older file has no counts of mini-batches."""
    from torchvision.models import resnet18  # which takes a second

    pretrained = {k: v for k, v in tensors_of(resnet18()).items() if not k.endswith("num_batches_tracked")}
    path = weights.find(tmp_path, store(tmp_path, pretrained, name="resnet18"))
    of = models.build("resnet18", 100, 3, 32, path)
    found = of.module(torch.from_numpy(of.initial(np.random.default_rng(0))), of.statistics).state_dict()
    assert found["fc.weight"].shape == (100, 512)
    assert not found["fc.bias"].any()
    same = {name for name, value in pretrained.items() if torch.equal(found[name], value)}
    assert pretrained.keys() - same == {"fc.weight", "fc.bias"}


def test_a_head_of_as_many_classes_is_taken(tmp_path: Path) -> None:
    pretrained = tensors_of(tiny(10, 1, 32))
    of = models.build("tiny", 10, 1, 32, weights.find(tmp_path, store(tmp_path, pretrained)))
    theta = of.initial(np.random.default_rng(0))
    np.testing.assert_array_equal(theta[-490:-10], pretrained["4.weight"].flatten().numpy())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny.pth", "ends in 8 or more digits of its SHA-256, like resnet18-f37072fd.pth"),
        ("tiny-0123456.pth", "ends in 8 or more digits"),
        ("folder/tiny-01234567.pth", "ends in 8 or more digits"),
        ("tiny-01234567.pt", "ends in 8 or more digits"),
        (3, "found 3"),
    ],
)
def test_names_without_a_checksum(name: object, message: str, mapping: Make) -> None:
    with pytest.raises(InputError, match=r"weights\.global: expected a file's name") as error:
        run_file.resolve(mapping(dataset="digits", models={"global": "tiny"}, weights={"global": name}))
    assert message in str(error.value)


def test_files_that_are_missing_or_others(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*resnet18-f37072fd\.pth; put it there .*--weights"):
        weights.find(tmp_path, "resnet18-f37072fd.pth")
    name = store(tmp_path, tensors_of(tiny(10, 1, 32)))
    (tmp_path / name).rename(tmp_path / "tiny-01234567.pth")
    with pytest.raises(InputError, match=r"tiny-01234567\.pth is damaged or another file: its SHA-256 begins with"):
        weights.find(tmp_path, "tiny-01234567.pth")


class Other:
    """What no file of tensors holds."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Other(), "is no file of tensors"),
        ({"weight": 1}, "is no file of tensors by name"),
        (tensors_of(tiny(10, 3, 32)), "are another network's: '0.weight' does not fit"),
        (tensors_of(tiny(10, 1, 32)) | {"5.weight": torch.ones(2)}, "are another network's: '5.weight' does not fit"),
        ({}, "are another network's"),
    ],
)
def test_files_of_something_else(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x-01234567.pth")
    with pytest.raises(InputError, match=f"model 'tiny', built for images of 1x32x32: .*{message}"):
        models.build("tiny", 10, 1, 32, tmp_path / "x-01234567.pth")
    for name, other in (("x.safetensors", b"no tensors"), ("empty.pth", b""), ("text.pth", b"a,b\n1,2\n")):
        (tmp_path / name).write_bytes(other)
        with pytest.raises(InputError, match=f"weights: .*{name} is no file of tensors"):
            models.build("tiny", 10, 1, 32, tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": {"globl": "x-01234567.pth"}}, "weights.globl: unknown key; did you mean 'global'?"),
        ({"weights": "x-01234567.pth"}, "weights: expected keys and values"),
        (
            {"weights": {"global": "x-01234567.pth"}, "models": {"global": "lenet5"}},
            "weights.global: 'lenet5' is no torch.nn.Module",
        ),
    ],
)
def test_wrong_blocks(changes: dict[str, Any], message: str, mapping: Make) -> None:
    with pytest.raises(InputError) as error:
        run_file.resolve(mapping(**{"dataset": "digits", "models": {"global": "tiny"}, **changes}))
    assert message in str(error.value)


def test_a_run_says_what_it_started_from(
    mapping: Make, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its key, its files and its result; without the file it is refused, and can still be loaded."""
    pretrained = tensors_of(tiny(1000, 1, 32))
    name = store(tmp_path / "mine", pretrained)
    plain = mapping("fedppd", models={"global": "tiny", "student": "tiny"}, rounds=1)
    asked = plain | {"weights": {"student": name}}
    assert run_file.resolve(asked).key != run_file.resolve(plain).key
    assert run_file.resolve(run_file.resolve(asked).to_dict()) == run_file.resolve(asked)

    def train(run: Mapping[str, Any], out: str, *options: str) -> int:
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
        return cli.main(["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / out), "--data", str(data_dir), *options])  # fmt: skip

    assert train(asked, "without", "--weights", str(tmp_path)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"there is no file {tmp_path / name}" in line
    assert train(asked, "with", "--weights", str(tmp_path / "mine")) == train(plain, "scratch") == 0
    told = [json.loads((tmp_path / out / "provenance.json").read_text())["weights"] for out in ("with", "scratch")]
    assert told == [{"global": "from scratch", "student": name}, dict.fromkeys(("global", "student"), "from scratch")]
    again = ["verify", str(tmp_path / "with"), "--data", str(data_dir), "--weights"]
    assert cli.main([*again, str(tmp_path / "mine")]) == 0
    assert cli.main([*again, str(tmp_path)]) == 2
    assert f"there is no file {tmp_path / name}" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "mine")
    assert len(bayesfed.load_run(tmp_path / "with", data=data_dir).images("train", client=0)[1])
    with_it, scratch = (
        bayesfed.load_run(tmp_path / out, data=data_dir).server["global"].network.state_dict()
        for out in ("with", "scratch")
    )
    near = {out: float((state["0.weight"] - pretrained["0.weight"]).norm()) for out, state in (("with", with_it), ("scratch", scratch))}  # fmt: skip
    assert near["with"] < 0.5 * near["scratch"]


PAPER = """
paper: small
title: A small paper
reference: nobody, 2026
run: {partition: {scheme: dirichlet_class_shared, clients: 3}, rounds: 2, local_epochs: 1, batch_size: 64}
methods: {FedAvg: {name: fedavg}}
given:
  - {where: {models.global: tiny}, run: {weights: {global: FILE, student: FILE}}}
experiments:
  first: {cases: [{dataset: digits, models.global: tiny}, {dataset: digits, models.global: lenet5}], axes: {partition.alpha: [1], method: [FedAvg]}}
tables: {}
figures: {}
"""


def test_a_paper_that_is_pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder of weights its cells are the paper's; without one they are trained from scratch, and say so."""
    monkeypatch.chdir(tmp_path)
    name = store(tmp_path / "mine", tensors_of(tiny(1000, 1, 32)))
    plan.PAPERS.mkdir(parents=True)
    (plan.PAPERS / "small.yaml").write_text(PAPER.replace("FILE", name))
    config = {"name": "tiny", "papers": ["small"], "seeds": [0]}

    def made(**changes: Any) -> tuple[list[list[str]], list[dict[str, str]]]:
        planned, runs = plan.make(config | changes)
        return [cell["changes"] for cell in planned["cells"]], [dict(run.weights) for run in runs]

    assert made(weights="mine") == ([[], []], [{"global": name}, {}])
    assert made() == ([[f"weights global from scratch (paper {name})"], []], [{}, {}])
    with pytest.raises(InputError, match="there is no file elsewhere/tiny-"):
        made(weights="elsewhere")
    with pytest.raises(InputError, match=r"there is no file weights/other-01234567\.pth"):
        made(run={"weights": {"global": "other-01234567.pth"}}, experiments={"first": {"cases": [{"dataset": "digits", "models.global": "tiny"}]}})  # fmt: skip
