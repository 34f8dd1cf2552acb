"""Runs in Python: trained from a mapping, and loaded with networks whose accuracy is the recorded one."""

import copy
import hashlib
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers.playing import convolutions
from safetensors.torch import save
from torch import Tensor, nn

import bayesfed
from bayesfed import cli, methods, models
from bayesfed.core.errors import InputError, RunStopped
from bayesfed.data import partition
from bayesfed.data.schemes import SCHEMES
from bayesfed.engine import halfway
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.node import Node, State
from bayesfed.methods.predictors import Predictor, softmax_of

Make = Callable[..., dict[str, Any]]


def accuracy(model: bayesfed.TrainedModel, images: np.ndarray, labels: np.ndarray) -> float:
    return float((model.log_probabilities(images).argmax(1).numpy() == labels).mean())


def recorded(run: bayesfed.LoadedRun, client: str, model: str, metric: str, round: int | None = None) -> float:
    """A value of metrics.csv; unless a round is named, that of the last one that has it."""
    found = run.metrics.query("client == @client and model == @model and metric == @metric")
    found = found if round is None else found[found["round"] == round]
    return float(found["value"].iloc[-1])


def test_a_model_sees_images_as_its_own_run_does(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """Whatever plugins other runs of the process have in use since, of the same names."""
    runs = []
    for name, body in (("one", "images * 15"), ("two", "255 - images * 15")):
        (tmp_path / name / "preparations").mkdir(parents=True)
        text = f"PREPARATIONS = {{'mine': lambda images, side: ({body}).astype('uint8')}}"
        (tmp_path / name / "preparations/mine.py").write_text(text)
        images = {"prepare": {"mine": 8}}
        asked = mapping("fedavg", models={"global": "mlp"}, images=images, plugins=str(tmp_path / name))
        runs.append(bayesfed.train(asked, tmp_path / f"out-{name}", data=data_dir, precision="fp32"))
    model = runs[0].server["global"]
    images, _ = runs[0].images("test")
    alone = model.prepare(images)
    assert not torch.equal(runs[1].server["global"].prepare(images), alone)
    assert torch.equal(model.prepare(images), alone)


def test_partitions_may_lie_elsewhere(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python and by every command that needs them, beside data that may only be read."""
    monkeypatch.setattr(halfway, "elsewhere", halfway.resume)  # another process would not know these data
    data, shares = tmp_path / "data", tmp_path / "shares"
    shutil.copytree(data_dir, data, ignore=shutil.ignore_patterns("partitions"))
    asked = mapping("fedavg", models={"global": "mlp"})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(asked))
    places = ["--data", str(data), "--partitions", str(shares)]
    assert cli.main(["partition", str(tmp_path / "run.yaml"), *places, "--overview", str(tmp_path / "pictures")]) == 0
    run = bayesfed.train(asked, tmp_path / "out", data=data, partitions=shares, device="cpu", precision="fp32")
    assert cli.main(["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "again"), "--device", "cpu",
                     "--precision", "fp32", *places]) == 0  # fmt: skip
    assert cli.main(["verify", str(tmp_path / "again"), *places]) == 0
    assert (tmp_path / "again" / "metrics.csv").read_bytes() == (tmp_path / "out" / "metrics.csv").read_bytes()
    assert len(run.images("test", 0)[0])
    assert not (data / "partitions").exists()
    with pytest.raises(InputError, match="no partition"):
        partition.load(asked["dataset"], run.run.partition, asked["seed"], data)


def test_results_are_copied_pickled_and_kept_in_sets(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """With the networks that were taken from them, which predict the same."""
    asked = mapping("hbfl", dataset="digits", models={"global": "mlp", "local": "softmax"})  # a bundled dataset
    run = bayesfed.train(asked, tmp_path / "out", data=data_dir, precision="fp32")
    images, _ = run.images("test")
    models = [run.server["global"], run.client(0)["local"]]
    for again in (copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))):
        same = again(run)
        assert same == run
        assert same.metrics.equals(run.metrics)
        for model, of in zip(map(again, models), (same.server["global"], same.client(0)["local"]), strict=True):
            assert torch.equal(model.log_probabilities(images), of.log_probabilities(images))
    assert len({run, copy.deepcopy(run), *models}) == 3


@pytest.mark.parametrize(
    ("method", "kept"),
    [("fedavg", set()), ("hbfl", {"local"}), ("fml", {"local"}), ("independent", {"local"}), ("abavg", set())],
)
def test_accuracy_is_the_recorded_one(
    method: str, kept: set[str], mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """Of the global model on the full test set and on every shard, and of what each client keeps, on its own shard."""
    run = bayesfed.train(mapping(method, **convolutions(method)), tmp_path / "out", data=data_dir, precision="fp32")
    assert run.run.to_dict()["method"]["name"] == run.summary["method"] == method
    assert run.server.keys() == (set() if method == "independent" else {"global"})
    for model in run.server.values():
        assert isinstance(model.network, nn.Sequential)
        assert not model.network.training
        value = accuracy(model, *run.images("test"))
        assert value == pytest.approx(recorded(run, "global", "global", "test_accuracy"), rel=1e-5)
    for k in range(4):
        images, labels = run.images("test", client=k)
        assert (images.shape[1:], images.dtype) == ((1, 8, 8), np.uint8)
        for name, model in run.server.items():
            value = recorded(run, str(k), name, "shard_accuracy")
            assert accuracy(model, images, labels) == pytest.approx(value, rel=1e-5)
        assert run.client(k).keys() == kept
        for name, model in run.client(k).items():
            value = recorded(run, str(k), name, "shard_accuracy")
            assert accuracy(model, images, labels) == pytest.approx(value, rel=1e-5)


def test_bundled_datasets_are_fetched_where_they_are_missing(mapping: Make, tmp_path: Path) -> None:
    """Those of clients, and foreign ones; but what is damaged is told, and left as it is."""
    two = {"dataset": ["digits", "digits-parity"], "partition": {"scheme": "whole", "clients": 2}}
    models = {"global": "convolutions", "local": "lenet5"}
    bayesfed.train(mapping("hbfl", rounds=1, models=models, **two), tmp_path / "two", data=tmp_path / "data")
    tasks = {"foreign": ["digits-turned"]}
    asked = mapping("fedavg", dataset="digits", rounds=1, models={"global": "mlp"}, tasks=tasks)
    run = bayesfed.train(asked, tmp_path / "out", data=tmp_path / "data")
    assert len(list((tmp_path / "data").glob("digits*/dataset.json"))) == 3
    shutil.rmtree(tmp_path / "data")
    assert len(run.images("test")[1]) == 359
    (tmp_path / "data/digits/test.npz").write_bytes(b"")
    with pytest.raises(InputError, match="is truncated or changed"):
        run.images("test")


def test_the_command_fetches_bundled_datasets_too(
    mapping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And names what fetches another one."""
    monkeypatch.chdir(tmp_path)
    small = {"rounds": 1, "models": {"global": "mlp"}, "images": {"prepare": "none"}}
    for name, code in (("digits", 0), ("mnist", 2)):
        Path("run.yaml").write_text(yaml.safe_dump(mapping("fedavg", dataset=name, **small)))
        assert cli.main(["train", "run.yaml", "--out", name]) == code
    assert capsys.readouterr().err.endswith("data/mnist/dataset.json is missing: run `bayesfed fetch mnist`\n")
    assert cli.main(["partition", "digits/run.yaml", "--data", "elsewhere"]) == 0
    assert Path("elsewhere/digits/dataset.json").exists()


def test_networks_of_a_run_that_diverged_are_those_of_its_last_round(
    mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    """FedAvg+SWAG has moments after the last round alone."""
    run = bayesfed.train(mapping({"name": "fedswag", "lr": 1e30}, rounds=3), tmp_path / "out", data=data_dir)
    assert run.summary["diverged"]["round"] < 3
    assert run.server.keys() == {"global"}


def test_a_run_may_be_trained_outside_the_main_thread(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(bayesfed.train, mapping(), tmp_path / "out", data=data_dir).result()
    assert run.summary["rounds"] == 2


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn1", "cnn2"])
def test_a_chain_as_a_module_is_the_same_function(name: str) -> None:
    network = models.build(name, 7, 3, 32)
    theta = torch.from_numpy(network.initial(np.random.default_rng(0)))
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    module = network.module(theta, {})
    with torch.no_grad():
        torch.testing.assert_close(module(images), network(theta, images), rtol=1e-5, atol=1e-6)
    next(module.parameters()).data.fill_(0)
    assert theta[0] != 0  # its parameters are its own


class Normed(nn.Module):
    """A network with batch normalisation, whose statistics are no parameters."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_a_module_comes_back_with_its_statistics(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.NETWORKS, "normed", lambda classes, channels, size: Normed(classes, channels))
    wanted = mapping("hbfl", models={"global": "normed", "local": ["normed", "mlp", "lenet5", "normed"]}, images={})
    run = bayesfed.train(wanted, tmp_path / "out", data=data_dir, precision="fp32")
    network = run.server["global"].network
    assert isinstance(network, Normed)
    assert network.layers[1].running_mean.abs().max() > 0
    value = accuracy(run.server["global"], *run.images("test"))
    assert value == pytest.approx(recorded(run, "global", "global", "test_accuracy"), rel=1e-5)
    for k in (0, 3):
        value = accuracy(run.client(k)["local"], *run.images("test", client=k))
        assert value == pytest.approx(recorded(run, str(k), "local", "shard_accuracy"), rel=1e-5)


class Frozen(nn.Module):
    """Features that are not trained, and a layer that is."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.features = nn.Conv2d(channels, 4, 3).requires_grad_(False)
        self.last = nn.Linear(4 * 6 * 6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.features(x).relu().flatten(1))  # type: ignore[no-any-return]


def test_what_is_not_trained_is_that_of_the_weights_file(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.NETWORKS, "frozen", lambda classes, channels, size: Frozen(classes, channels))
    torch.manual_seed(7)
    given = Frozen(10, 1)

    content = save(given.state_dict())
    name = f"mine-{hashlib.sha256(content).hexdigest()[:8]}.safetensors"
    (tmp_path / name).write_bytes(content)
    wanted = mapping("fedavg", models={"global": "frozen"}, images={"prepare": "none"}, weights={"global": name})
    run = bayesfed.train(wanted, tmp_path / "out", data=data_dir, precision="fp32", weights=tmp_path)
    network = run.server["global"].network
    assert isinstance(network, Frozen)
    assert torch.equal(network.features.weight, given.features.weight)
    value = accuracy(run.server["global"], *run.images("test"))
    assert value == pytest.approx(recorded(run, "global", "global", "test_accuracy"), rel=1e-5)
    elsewhere = bayesfed.load_run(tmp_path / "out", data=data_dir, weights=tmp_path / "nowhere")
    assert len(elsewhere.metrics) == len(run.metrics)
    with pytest.raises(InputError, match=f"weights: there is no file .*nowhere/{name}"):
        elsewhere.server  # noqa: B018


@pytest.mark.parametrize(("method", "kept"), [("pfedbayes", {"personal"}), ("perfedavg", set())])
def test_a_clients_module_comes_back_with_its_statistics(
    method: str, kept: set[str], mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it was left with; Per-FedAvg's model is tested with others, which are gone."""
    monkeypatch.setitem(models.NETWORKS, "normed", lambda classes, channels, size: Normed(classes, channels))
    wanted = mapping(method, models={"global": "normed"}, images={})
    run = bayesfed.train(wanted, tmp_path / "out", data=data_dir, precision="fp32")
    for k in range(4):
        assert run.client(k).keys() == kept
        for name, model in run.client(k).items():
            value = accuracy(model, *run.images("test", client=k))
            assert value == pytest.approx(recorded(run, str(k), name, "shard_accuracy"), rel=1e-5)
    chain = bayesfed.train(mapping(method, rounds=1), tmp_path / "chain", data=data_dir, precision="fp32")
    value = accuracy(chain.client(0)["personal"], *chain.images("test", client=0))
    assert value == pytest.approx(recorded(chain, "0", "personal", "shard_accuracy"), rel=1e-5)


def test_bf16_is_near(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    asked = mapping("fedavg", rounds=1, **convolutions("fedavg"))
    run = bayesfed.train(asked, tmp_path / "out", data=data_dir, precision="bf16")
    assert run.provenance["precision"] == "bf16"
    value = accuracy(run.server["global"], *run.images("test"))
    assert value == pytest.approx(recorded(run, "global", "global", "test_accuracy"), abs=0.1)


def test_multi_task_clients_have_their_own_data(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    shared = {
        "dataset": ["few", "few-parity"],
        "partition": {"scheme": "whole", "clients": 2},
        "models": {"global": "convolutions", "local": ["lenet5", "cnn1"]},
    }
    run = bayesfed.train(mapping("fml", **shared), tmp_path / "out", data=data_dir, precision="fp32")
    assert run.server == {}
    assert set(run.images("test", client=1)[1]) == {0, 1}
    for k in (0, 1):
        value = accuracy(run.client(k)["local"], *run.images("test", client=k))
        assert value == pytest.approx(recorded(run, str(k), "local", "shard_accuracy"), rel=1e-5)


def test_a_runs_images_need_no_foreign_data(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """Its tasks are done: who looks at the run need not have fetched what they were done with."""
    run = bayesfed.train(mapping("fedavg", tasks={"foreign": ["digits-parity"]}), tmp_path / "out", data=data_dir)
    held = tmp_path / "data"
    shutil.copytree(data_dir, held, ignore=shutil.ignore_patterns("digits-parity"))
    again = bayesfed.load_run(run.folder, data=held)
    for mine, theirs in zip(again.images("test", client=0), run.images("test", client=0), strict=True):
        assert np.array_equal(mine, theirs)


class Personal(FedAvg):
    """A client keeps a model that travels, and predicts with what it computes of it and of what it does not keep."""

    name, label, revision = "personal", "Personal", 1

    def init_client(self, c: Node) -> State:
        return {"kept": c.initial()}

    def finish(self, c: Node) -> State:
        c["kept"].copy_(c["theta"])
        return {"theta": c["theta"]}

    def client_predictors(self, c: Node) -> list[Predictor]:
        return [
            softmax_of("personal", c.model, c["kept"]),
            softmax_of("gone", c.model, 2 * c["theta"]),
            softmax_of("computed", c.model, 0.5 * (c["kept"] + c["kept"])),
        ]


def test_a_method_of_ones_own(mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predictors say which of its tensors are networks; what a client did not keep is not there."""
    from bayesfed import methods

    monkeypatch.setitem(methods.ours(), "personal", Personal)
    run = bayesfed.train(mapping("personal", participation=0.5), tmp_path / "out", data=data_dir, precision="fp32")
    absent = {int(k) for k in run.summary["clients"]["missing"]}
    assert absent
    for k in range(4):
        assert run.client(k).keys() == (set() if k in absent else {"personal", "computed"})
        for name, model in run.client(k).items():
            value = recorded(run, str(k), name, "shard_accuracy")
            assert accuracy(model, *run.images("test", client=k)) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (np.zeros((2, 3, 32, 32)), "float64 (2, 3, 32, 32)"),
        (np.zeros((3, 32, 32), np.uint8), "uint8 (3, 32, 32)"),
        (np.zeros((0, 3, 32, 32), np.uint8), "uint8 (0, 3, 32, 32)"),
        (torch.zeros(2, 3, 32, 32), "float32 (2, 3, 32, 32)"),
    ],
)
def test_a_model_takes_images_as_the_dataset_has_them(
    images: Any, found: str, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    model = bayesfed.train(mapping(rounds=1), tmp_path / "out", data=data_dir).server["global"]
    for take in (model.prepare, model.log_probabilities):
        with pytest.raises(InputError) as refused:
            take(images)
        assert str(refused.value) == f"images: expected uint8 (N, C, H, W), at least one, found {found}"


def test_a_run_has_a_folder(mapping: Make, data_dir: Path) -> None:
    with pytest.raises(InputError, match="out: expected the run's folder, found None"):
        bayesfed.train(mapping(), None, data=data_dir)
    with pytest.raises(InputError, match="folder: expected the run's folder, found None"):
        bayesfed.load_run(None)
    with pytest.raises(InputError, match=r"nowhere/run.yaml: there is no such file"):
        bayesfed.train("nowhere/run.yaml", "out", data=data_dir)
    with pytest.raises(InputError, match="out: expected the run's folder, found an empty text"):
        bayesfed.train(mapping(rounds=1), "", data=data_dir)


def test_numbers_of_numpy_are_numbers(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    wanted = mapping(rounds=np.int64(1)) | {"method": {"name": np.str_("fedavg"), "lr": np.float64(0.05)}}
    run = bayesfed.train(wanted, tmp_path / "out", data=data_dir)
    assert (
        run.run.key
        == bayesfed.runs.run_file.resolve(mapping(rounds=1) | {"method": {"name": "fedavg", "lr": 0.05}}).key
    )


def test_a_pool_of_both_splits_is_loaded_as_the_run_had_it(mapping: Make, digits_dir: Path, tmp_path: Path) -> None:
    """Every test image is one client's: so all clients together are the full set, whose accuracy is the recorded one."""
    pooled = mapping("fedavg", dataset="digits", rounds=1) | {
        "partition": {"scheme": "labels5", "clients": 4, "size": "medium"}
    }
    run = bayesfed.train(pooled, tmp_path / "out", data=digits_dir, precision="fp32")
    shards = [run.images("test", client=k) for k in range(4)]
    assert [set(labels) for _, labels in shards] == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}] * 2
    images, labels = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    assert len(run.images("test")[1]) == len(labels) == sum(run.summary["test_images"])
    value = recorded(run, "global", "global", "test_accuracy")
    assert accuracy(run.server["global"], images, labels) == pytest.approx(value, rel=1e-5)
    on_shards = [recorded(run, str(k), "global", "shard_accuracy") for k in range(4)]
    assert np.average(on_shards, weights=run.summary["test_images"]) == pytest.approx(value, rel=1e-5)
    assert len(run.images("train", client=1)[1]) == 70


def test_images_are_the_shards(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """The clients' training images and those of the server are the whole split."""
    run = bayesfed.train(mapping("abavg", rounds=1), tmp_path / "out", data=data_dir)
    every, labels = run.images("train")
    shards = [run.images("train", client=k) for k in range(4)]
    assert sum(len(own) for own, _ in shards) == len(every) - 50
    known = {image.tobytes() for image in every}
    assert all(image.tobytes() in known for own, _ in shards for image in own)
    assert sum(np.bincount(own, minlength=10) for _, own in shards).sum() == len(labels) - 50
    with pytest.raises(InputError, match="split 'validation': expected one of train, test"):
        run.images("validation")
    for nobody in (4, -1, "0"):
        with pytest.raises(InputError, match=f"client {nobody!r}: this run has clients 0 to 3"):
            run.client(nobody)
        with pytest.raises(InputError, match=f"client {nobody!r}: this run has clients 0 to 3"):
            run.images("test", client=nobody)


@pytest.mark.parametrize(
    ("option", "wrong", "right"),
    [
        ("device", "gpu", "cpu"),
        ("device", "cuda:0", "cuda"),
        ("precision", "fp16", "bf16"),
        ("executor", "graph", "graphs"),
    ],
)
def test_options_are_those_of_the_command(
    option: str, wrong: str, right: str, mapping: Make, data_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"--{option} {wrong}: not a choice; did you mean '(fp32|{right})'"):
        bayesfed.train(mapping("fedavg"), tmp_path / "out", data=data_dir, **{option: wrong})


def test_the_checkpoint_is_found(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """Beside the run folders, where the workflow puts it; where it is said to be; and a record alone has none."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(mapping("fedavg", rounds=1, images={})))
    folder = tmp_path / "results/some/runs/few/alpha~0.5/fedavg/seed~0-abc"
    kept = tmp_path / "results/some/checkpoints/few/alpha~0.5/fedavg/seed~0-abc.safetensors"
    command = ["train", str(tmp_path / "run.yaml"), "--out", str(folder), "--data", str(data_dir)]
    assert cli.main([*command, "--checkpoint", str(kept)]) == 0
    theta = next(bayesfed.load_run(folder).server["global"].network.parameters())
    elsewhere = kept.rename(tmp_path / "elsewhere.safetensors")
    record = bayesfed.load_run(folder)
    assert len(record.metrics) > 0
    with pytest.raises(InputError, match=f"no checkpoint at {folder}/checkpoint.safetensors nor {kept}; its networks"):
        record.server  # noqa: B018
    with pytest.raises(InputError, match=f"no checkpoint at {tmp_path}; its networks"):
        bayesfed.load_run(folder, checkpoint=tmp_path).server  # noqa: B018
    again = bayesfed.load_run(folder, checkpoint=elsewhere).server["global"].network
    assert torch.equal(theta, next(again.parameters()))
    other = bayesfed.train(mapping("fedavg", rounds=1, seed=1), tmp_path / "other", data=data_dir)
    with pytest.raises(InputError, match="this checkpoint belongs to run"):
        bayesfed.load_run(folder, checkpoint=other.checkpoint).server  # noqa: B018


def test_a_checkpoint_from_before_the_end_is_refused(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    """The record of the finished run comes, as by git, where a stopped one has left its checkpoint."""
    with pytest.raises(RunStopped):
        bayesfed.train(mapping(rounds=3), tmp_path / "out", data=data_dir, on_round=lambda done: "stop")
    whole = bayesfed.train(mapping(rounds=3), tmp_path / "whole", data=data_dir)
    for name in ("run.yaml", "metrics.csv", "provenance.json", "summary.json"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "out")
    expected = r"out/checkpoint.safetensors: this checkpoint is of round 1, and the run in \S+ ended with round 3; name its own"
    for run in (
        bayesfed.load_run(tmp_path / "out", data=data_dir),
        bayesfed.train(mapping(rounds=3), tmp_path / "out", data=data_dir),
    ):
        with pytest.raises(InputError, match=expected):
            _ = run.server
    named = bayesfed.load_run(tmp_path / "out", data=data_dir, checkpoint=whole.checkpoint)
    images, labels = named.images("test")
    assert accuracy(named.server["global"], images, labels) == pytest.approx(named.summary["global"]["accuracy_last"])


def test_the_same_checks_and_the_same_folder(mapping: Make, data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="roundz: unknown key; did you mean 'rounds'"):
        bayesfed.train(mapping() | {"roundz": 1}, tmp_path / "a", data=data_dir)
    with pytest.raises(InputError, match=r"a: no finished run here \(there is no summary.json\)"):
        bayesfed.load_run(tmp_path / "a")
    run = bayesfed.train(mapping("fedavg", rounds=1), tmp_path / "a", data=data_dir, executor="eager")
    assert run.provenance["executor"] == "eager"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(mapping("fedavg", rounds=1)))
    command = ["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "b"), "--data", str(data_dir)]
    assert cli.main([*command, "--executor", "eager"]) == 0
    assert (tmp_path / "a/metrics.csv").read_bytes() == (tmp_path / "b/metrics.csv").read_bytes()
    again = bayesfed.train(mapping("fedavg", rounds=1), tmp_path / "a", data=data_dir)
    assert again.summary == run.summary
    (tmp_path / "a/metrics.csv").write_text("round,client,model,metric,value\n")
    with pytest.raises(InputError, match="not as the run wrote it"):
        bayesfed.load_run(tmp_path / "a")


def test_a_command_lists_what_a_run_file_can_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours, and those of a user's own; a name each line, with what it is."""
    monkeypatch.chdir(tmp_path)
    Path("mine/networks").mkdir(parents=True)
    Path("mine/networks/nets.py").write_text(
        "import torch\n\n\ndef tiny(classes, channels, size):\n"
        '    """One layer."""\n    return torch.nn.Linear(size, classes)\n\n\nNETWORKS = {"tiny": tiny}\n'
    )
    listed = {}
    for kind in ("methods", "datasets", "models", "partitions"):
        assert cli.main(["list", kind, "--plugins", "mine"]) == 0
        listed[kind] = dict(line.partition(" ")[::2] for line in capsys.readouterr().out.splitlines())
    assert listed["methods"].keys() == methods.ours().keys()
    assert "FOLA (Liu et al. 2023)" in listed["methods"]["fola"]
    assert listed["datasets"]["digits"].strip() == "Digits"
    assert listed["models"]["tiny"].strip() == "One layer."
    assert listed["models"]["cnn2"].strip() == "3x3 convolutions with 32, 64 and 64 maps, 64 hidden units."
    assert listed["partitions"].keys() == SCHEMES.keys()
    assert cli.main(["list", "methods", "--plugins", "nowhere"]) == 2
