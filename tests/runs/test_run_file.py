"""Run files: what is refused and how, what a key depends on, and where a run lies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayesfed import methods
from bayesfed.core.errors import InputError
from bayesfed.plan import plan
from bayesfed.runs import compatibility, revision, run_file, spec

Make = Callable[..., dict[str, Any]]
MULTI = {
    "dataset": ["digits", "digits-parity"],
    "partition": {"scheme": "whole", "clients": 2},
    "models": {"global": "convolutions", "local": ["lenet5", "cnn1"]},
}


@pytest.fixture
def mapping(mapping: Make) -> Make:
    """Images as the dataset says."""
    return lambda *method, **changes: mapping(*method, **{"images": {}, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "round: unknown key; did you mean 'rounds'?"),
        ({"num_rounds": 3}, "num_rounds: unknown key; give `rounds`"),
        ({"num_clients": 3}, "num_clients: unknown key; give `partition.clients`"),
        ({"fraction_fit": 0.5}, "fraction_fit: unknown key; give `participation`"),
        ({"learning_rate": 0.1}, "learning_rate: unknown key; give `method.lr`"),
        ({"lr": 0.1}, "lr: unknown key; give `method.lr`"),
        ({"optimizer": "adam"}, "optimizer: unknown key; give `method.optimizer`"),
        ({"rounds": 0}, "rounds: 0 is out of range; it must be at least 1"),
        ({"rounds": 10**20}, "rounds: 100000000000000000000 is out of range; it must be at most 2147483647"),
        ({"seed": 10**300}, r"seed: 1000.*\.\.\..*000 is out of range; it must be at least 0 and at most 9223372036854775807"),
        ({"rounds": "ten"}, "rounds: expected a whole number, found 'ten'"),
        ({"rounds": 2.5}, "rounds: expected a whole number, found 2.5"),
        ({"rounds": True}, "rounds: expected a whole number, found True"),
        ({"local_epochs": 0}, "local_epochs: 0 is no round; give 1 or more, or local_batches, the length"),
        ({"local_batches": 3}, "local_batches: set local_epochs or local_batches, not both"),
        ({"local_epochs": 0, "local_batches": 3, "stragglers": 0.5}, "stragglers: stragglers do fewer local_epochs; with local_batches leave it out"),
        ({"stragglers": 1.5}, "stragglers: 1.5 is out of range; it must be at least 0 and at most 1"),
        ({"participation": 0}, "participation: 0.0 is out of range; it must be above 0 and at most 1"),
        ({"label_noise": 1}, "label_noise: 1.0 is out of range; it must be at least 0 and below 1"),
        ({"label_noise": -0.1}, "label_noise: -0.1 is out of range; it must be at least 0 and below 1"),
        ({"label_noise": "0.1"}, "label_noise: expected a number, found '0.1'"),
        ({"dataset": "cifar11"}, "dataset: no dataset is named 'cifar11'; did you mean 'cifar10"),
        ({"dataset": ["digits", "mnist"]}, "dataset: 2 datasets need the partition scheme 'whole'"),
        ({"partition": {"clients": 4}}, r"^partition.alpha is missing; give a number above 0 and at most 1e\+09$"),
        ({"method": {"name": "fedppd"}}, "models.student: FedPPD also trains a student network; add models.student, e.g. fedppd_mnist_student"),
        ({"partition": {"alpha": 0}}, "partition.alpha: 0"),
        ({"partition": {"alpha": -1.0}}, "partition.alpha: -1"),
        ({"partition": {"alpha": 1.0, "client": 3}}, "partition.client: unknown key; did you mean 'clients'?"),
        ({"partition": {"scheme": "dirichlet", "alpha": 1.0}}, "partition.scheme: no partition scheme is named 'dirichlet'"),
        ({"method": {"name": "hbfi"}}, "method.name: no method is named 'hbfi'; did you mean 'hbfl'?"),
        ({"method": {"lr": 0.1}}, "method: expected keys with a `name`"),
        ({"method": {"name": "hbfl", "temprature": 1.0}}, "method.temprature: unknown key; did you mean 'temperature'?"),
        ({"method": {"name": "hbfl", "temperature": "1e-4"}}, "method.temperature: expected a number, found '1e-4' .*write 1.0e-4"),
        ({"method": {"name": "hbfl", "sigma": "rest"}}, "method.sigma: 'rest' is not a choice; did you mean 'reset'?"),
        ({"method": {"name": "fedavg", "lr": 0}}, "method.lr: 0.0 is out of range; it must be above 0"),
        ({"models": {"global": "cnn22"}}, "models.global: no model is named 'cnn22'; did you mean 'cnn2'?"),
        ({"models": {"local": "cnn2"}}, "models: expected keys with a `global`"),
        ({"models": {"global": "cnn2", "local": ["cnn2"] * 4}}, "models.local: clients of FedAvg have no models of their own"),
        ({"method": {"name": "fml"}, "models": {"global": "cnn2", "local": ["cnn2"] * 3}}, "models.local: expected one model for each of 4 clients, found 3"),
        ({"method": {"name": "fml"}, "models": {"global": "cnn2", "locals": []}}, "models.locals: unknown key; did you mean 'local'?"),
        ({"method": {"name": "fml"}, "models": {"global": "cnn2", "local": "cnn3"}}, "models.local: no model is named 'cnn3'"),
        ({"schedule": {"decay": 0.9}}, "schedule.decay: unknown key"),
        ({"schedule": {"round_decay": 1.1}}, "schedule.round_decay: 1.1 is out of range; it must be above 0 and at most 1"),
        ({"schedule": {"milestones": [[0.5, 0.1], [0.5, 0.2]]}}, "schedule.milestones: expected .share of the rounds below 1"),
        ({"schedule": {"milestones": [[0.5, 0.1], [0.2, 1]]}}, "schedule.milestones: expected .share of the rounds below 1, factor above 0. each, in order"),
        ({"schedule": {"milestones": [0.5]}}, r"schedule\.milestones\[0\]: expected a list, found 0\.5"),
        ({"schedule": {"epoch_every": 2}}, "schedule.epoch_every: it says how often epoch_decay holds"),
        ({"schedule": {"epoch_decay": 0.9}, "local_epochs": 0, "local_batches": 3}, "schedule.epoch_decay: local_batches has no epochs"),
        ({"schedule": {"epoch_decay": 0.9}, "method": {"name": "scaffold"}}, "schedule.epoch_decay: SCAFFOLD needs one learning rate a round"),
        ({"models": {"global": "cnn2", "student": "cnn1"}}, "models.student: unknown key"),
        ({"method": {"name": "bnfed"}, "models": {"global": "cnn2"}}, "models.global: BNFed matches the neurons of one hidden layer"),
        ({"method": {"name": "bnfed"}, "models": {"global": "mlp"}}, "models.global: BNFed matches the neurons"),
        ({"method": {"name": "fola_full"}, "models": {"global": "lenet5"}, "images": {"augment": "none"}}, "models.global: fola_full has the Hessian of a softmax regression alone"),
        ({"method": {"name": "fola", "ridge": 3}}, "method.ridge: it is a line between the two clients of a round, and there are 4"),
        ({"method": {"name": "fola", "ridge": 3}, "partition": {"alpha": 1, "clients": 2}, "participation": 0.5}, "method.ridge: it is .* there are 2, of which 0.5 take part"),
        ({"method": {"name": "hbfl", "entropy_weight": 1}}, "method.entropy_weight: 1 is a choice as text; write it in quotes, '1'"),
        ({"method": {"name": "hbfl", "optimizer": "sgd", "decay": "decoupled"}}, "method.decay: decoupled is Adam's"),
        ({"method": {"name": "fola", "ridge": 1}, "partition": {"alpha": 1, "clients": 2}}, "method.ridge: 1, but a line has two ends"),
        ({"method": {"name": "fednova", "optimizer": "adam"}}, "method.optimizer: adam, but FedNova's a_i are those of SGD; take sgd"),
        ({"method": {"name": "fednova", "momentum": 0.9, "optimizer_state": "kept"}}, "method.optimizer_state: kept, but FedNova's a_i begin without momentum"),
        ({"method": {"name": "perfedavg", "adapt": "test"}, "partition": {"alpha": 1, "clients": 4, "min_test": 0}}, "partition.min_test: 0, but with adapt: test a client trains on its test images; set it to 1"),
        ({"method": {"name": "pfedbayes", "loss": "code"}}, "method.loss: the code's KL weight is zeta / local_batches"),
        ({"method": {"name": "independent"}, "active": {"start": 9, "add": 9, "every": 1}}, "active.by: method 'independent' has no global model to judge images; take 'random'"),
        (MULTI | {"method": {"name": "fml"}, "models": {"global": "convolutions", "local": ["lenet5", "cnn1"]}, "server_images": 5}, "server_images: 5 images for the server need clients with a common dataset"),
        ({"method": {"name": "fedavg", "lr": float("inf")}}, "method.lr: expected a finite number, found inf"),
        ({"method": {"name": "pfedbayes", "rho_start": float("nan")}}, "method.rho_start: expected a finite number, found nan"),
        ({"plugins": ""}, "plugins: there is no folder ''"),
        (MULTI, "models.local: clients of FedAvg have no models"),
        (MULTI | {"method": {"name": "fml"}, "models": {"global": "convolutions"}}, "models.local must name each client's model"),
        (MULTI | {"method": {"name": "fml"}, "dataset": ["digits", "digits"], "validation": 0.1}, "validation: clients that hold the same dataset whole would train on each other's"),
        (MULTI | {"method": {"name": "fml"}, "dataset": "digits"}, "dataset: partition 'whole' needs one for each of 2 clients, found 1"),
        (MULTI | {"method": {"name": "fml"}, "models": {"global": "cnn2"}}, "tasks with other classes share only 'convolutions'"),
        (MULTI | {"method": {"name": "fml"}, "models": {"global": "convolutions", "local": ["lenet5", "cnn2"]}}, "same shapes"),
        (MULTI | {"method": {"name": "fml"}, "models": {"global": "convolutions", "local": ["mlp", "mlp"]}}, "same shapes"),
    ],
)  # fmt: skip
def test_refuses_in_one_line(changes: dict[str, Any], message: str, mapping: Make) -> None:
    with pytest.raises(InputError, match=message) as refused:
        run_file.resolve(mapping("fedavg", dataset="digits") | changes)
    assert "\n" not in str(refused.value)


def test_a_config_or_a_papers_file_is_no_run_file() -> None:
    with pytest.raises(
        InputError, match="run file: this is a sweep config; expand it with `bayesfed plan FILE --out DIR`"
    ):
        run_file.resolve({"name": "demo", "papers": ["hbfl"]})
    with pytest.raises(InputError, match="run file: this is a paper's file; name it in a config, `papers: "):
        run_file.load(plan.PAPERS / "hbfl.yaml")


@pytest.mark.parametrize("key", ["dataset", "partition", "method", "models", "rounds", "seed"])
def test_refuses_a_missing_key(key: str, mapping: Make) -> None:
    whole = mapping("fedavg", dataset="digits")
    del whole[key]
    with pytest.raises(InputError, match=f"^{key} is missing; give "):
        run_file.resolve(whole)


def test_a_round_of_mini_batches_needs_no_local_epochs(mapping: Make) -> None:
    whole = mapping("fedavg", dataset="digits", local_epochs=0, local_batches=3)
    short = {key: value for key, value in whole.items() if key != "local_epochs"}
    assert run_file.resolve(short).key == run_file.resolve(whole).key


@pytest.mark.parametrize("method", ["fedavg", "fml"])
def test_more_clients_than_images_are_refused_at_once(method: str, mapping: Make) -> None:
    """Before anything is made for each: lists of a thousand million models would hang."""
    whole = mapping(method, dataset="digits", partition={"alpha": 1.0, "clients": 10**9}, models={"global": "mlp"})
    with pytest.raises(
        InputError, match="clients: 1000000000 clients are more than the 1797 images of dataset 'digits'"
    ):
        run_file.resolve(whole)


@pytest.mark.parametrize(
    ("partition", "start", "message"),
    [
        ({"images_each": 500, "server": 0}, 1, "images_each: 3 clients with 500 images each need 1500; there are 1438"),
        ({"images_each": 10, "server": 1438}, 1, "server: 1438 of 1438 images leave none to the clients"),
        ({"images_each": 10, "server": 0}, 10, "active.start: no client has more than 10 images"),
    ],
)
def test_what_a_dataset_has_too_few_images_for(
    partition: dict[str, int], start: int, message: str, mapping: Make
) -> None:
    whole = mapping("fedavg", dataset="digits", active={"start": start, "add": 1, "every": 1})
    run = run_file.resolve(whole | {"partition": {"scheme": "iid", "clients": 3, "min_test": 0} | partition})
    with pytest.raises(InputError, match=message):
        compatibility.check_counts(run)


def test_refuses_what_is_no_run_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        run_file.load(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="this is a folder; expected a YAML file"):
        run_file.load(tmp_path)
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match="not readable as YAML"):
        run_file.load(tmp_path / "bad.yaml")
    (tmp_path / "text.yaml").write_text("hello")
    with pytest.raises(InputError, match="expected keys and values, found 'hello'"):
        run_file.load(tmp_path / "text.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(InputError, match=r"empty\.yaml: expected keys and values, found an empty file"):
        run_file.load(tmp_path / "empty.yaml")


def test_defaults_written_out_leave_the_key_alone(mapping: Make) -> None:
    run = run_file.resolve(mapping("hbfl", dataset="digits"))
    assert run_file.resolve(run.to_dict()) == run
    assert run_file.resolve(yaml.safe_load(yaml.safe_dump(run.to_dict()))).key == run.key
    assert run_file.resolve(mapping("hbfl", dataset="digits", stragglers=0.0)).key == run.key
    alike = run_file.resolve(mapping("hbfl", dataset="digits", models={"global": "cnn2"}))
    assert alike.local_models == ("cnn2",) * 4
    assert (
        alike.key == run_file.resolve(mapping("hbfl", dataset="digits", models={"global": "cnn2", "local": "cnn2"})).key
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 3}, {"seed": 1}, {"stragglers": 0.5}, {"dataset": "digits-parity"}, {"partition": {"alpha": 2.0, "clients": 4}},
        {"method": {"name": "hbfl", "lr": 0.002}}, {"method": {"name": "fml"}}, {"models": {"global": "cnn2", "local": "mlp"}},
    ],
)  # fmt: skip
def test_whatever_decides_a_result_changes_the_key(changes: dict[str, Any], mapping: Make) -> None:
    whole = mapping("hbfl", dataset="digits")
    assert run_file.resolve(whole | changes).key != run_file.resolve(whole).key


def test_revisions_change_the_key(mapping: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = mapping("hbfl", dataset="digits")
    keys = {run_file.resolve(asked).key}
    monkeypatch.setattr(methods.get("hbfl"), "revision", 99)
    keys.add(run_file.resolve(asked).key)
    monkeypatch.setattr(spec, "ENGINE_REVISION", revision.ENGINE_REVISION + 1)
    keys.add(run_file.resolve(asked).key)
    assert len(keys) == 3


def test_folder_and_partition_file(mapping: Make) -> None:
    run = run_file.resolve(mapping("hbfl", dataset="digits", seed=3, partition={"alpha": 0.05, "clients": 4}))
    assert run.folder == f"digits/dirichlet_class_shared-alpha~0.05-clients~4/hbfl/seed~3-{run.key}"
    assert run.partition_file == "partitions/digits/dirichlet_class_shared-alpha~0.05-clients~4-seed~3.npz"
    multi = run_file.resolve(mapping("hbfl") | MULTI)
    assert multi.folder == f"digits+digits-parity/whole-clients~2/hbfl/seed~0-{multi.key}"
    assert multi.partition_file is None


def test_images_as_a_run_sees_them(mapping: Callable[..., dict[str, Any]]) -> None:
    """Defaults leave keys alone; a native size, another normalisation and no augmentation are other runs."""
    plain = run_file.resolve(mapping(dataset="digits"))
    assert run_file.resolve(mapping(dataset="digits", images={"prepare": "dataset"})).key == plain.key
    keys = {plain.key}
    for seen, side in (({"prepare": {"resize": 28}}, 28), ({"normalise": "half"}, 32), ({"augment": "crop_flip"}, 32)):
        run = run_file.resolve(mapping(dataset="digits", images=seen))
        assert run_file.resolve(run.to_dict()) == run
        assert run.sources[0].side == side
        keys.add(run.key)
    assert len(keys) == 4
    native = {"dataset": "digits", "images": {"prepare": "none"}}
    assert run_file.resolve(mapping(**native, models={"global": "mlp"})).sources[0].side == 8
    with pytest.raises(InputError, match="'lenet5' does not fit images of 8x8: its convolutions need at least 16x16"):
        run_file.resolve(mapping(**native, models={"global": "lenet5"}))
    for wrong, message in (
        ({"prepare": "sharpen"}, "images.prepare: no preparation is named 'sharpen'"),
        ({"prepare": {"resize": 100000}}, "images.prepare.resize: 100000 is out of range; .* at most 1024"),
        ({"normalise": "0.5"}, "images.normalise: '0.5' is not a choice"),
        ({"size": 28}, "images.size: unknown key"),
    ):
        with pytest.raises(InputError, match=message):
            run_file.resolve(mapping(dataset="digits", images=wrong))
