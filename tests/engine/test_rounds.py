"""Who is trained, tested and kept in a round."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.playing import federation, play, tensors

from bayesfed.core.errors import InputError
from bayesfed.data import partition
from bayesfed.engine import checkpoint, outside
from bayesfed.engine.divergence import Divergence, divergence, finiteness
from bayesfed.engine.evaluation import DETAILED_CLIENTS, DETAILED_EVERY, Evaluation
from bayesfed.engine.executors import EXECUTORS
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Progress
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.method import Method, Update
from bayesfed.methods.node import Batch, Learner, Node, Phase
from bayesfed.methods.predictors import Predictor, softmax_of
from bayesfed.runs import run_file

Make = Callable[..., dict[str, Any]]
MANY = {"alpha": 100.0, "clients": 45, "min_train": 1, "min_test": 0}


def test_the_tensor_that_diverged_is_the_same_in_any_order() -> None:
    """A checkpoint gives tensors back in another order than they came."""
    state = {"phi": torch.tensor([math.nan]), "mu.m": torch.tensor([math.inf]), "t": torch.tensor(3)}
    found = finiteness(state)
    assert list(found) == list(finiteness(dict(reversed(state.items())))) == ["mu.m", "phi"]
    assert divergence(4, {("0", name): flag for name, flag in found.items()}) == Divergence(4, "0", "mu.m")


def test_of_many_clients_some_are_tested_on_the_full_set(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg", partition=MANY, rounds=1), data_dir, torch.float32)
    history = play(of, 1).history
    tested = [int(row.client) for row in history if row.metric == "test_accuracy" and row.client != "global"]
    assert tested == list(range(0, 45, 3))
    assert len(tested) <= DETAILED_CLIENTS
    own = {int(row.client) for row in history if row.metric == "shard_accuracy"}
    assert own == {k for k in range(45) if len(of.shards[k].test)}


def test_the_full_set_is_due_every_tenth_round_and_in_the_last(mapping: Make, data_dir: Path) -> None:
    of = federation(mapping("fedavg", rounds=13), data_dir, torch.float32)
    of.method.phases = lambda c: []  # type: ignore[method-assign]
    history = play(of, 13).history
    rounds = {row.round for row in history if row.metric == "test_accuracy" and row.client != "global"}
    assert rounds == {DETAILED_EVERY, 13}
    assert {row.round for row in history if row.metric == "shard_accuracy"} == set(range(1, 14))


def test_clients_that_take_no_part_stay_as_they_are(mapping: Make, data_dir: Path) -> None:
    local = {"global": "lenet5", "local": ["lenet5"] * 45}
    of = federation(mapping("fml", partition=MANY, models=local, participation=0.2), data_dir, torch.float32)
    first = play(of, 1)
    assert set(first.clients) == set(of.participants(1))
    before = {name: tensor.clone() for name, tensor in tensors(first).items()}
    second = play(of, 1, first)
    assert set(second.clients) == set(of.participants(1)) | set(of.participants(2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(first).items())
    for client in set(of.participants(1)) - set(of.participants(2)):
        assert second.clients[client] is first.clients[client]
    for client in set(of.participants(1)) & set(of.participants(2)):
        assert not torch.equal(second.clients[client]["phi"], first.clients[client]["phi"])


def on_shards(progress: Progress) -> dict[int, dict[int, float]]:
    """By round: the accuracy of the server's model on the shard of each client."""
    found: dict[int, dict[int, float]] = {}
    for row in progress.history:
        if (row.model, row.metric) == ("global", "shard_accuracy"):
            found.setdefault(row.round, {})[int(row.client)] = row.value
    return found


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("method", ["fedavg", "hbfl", "toy"])
def test_the_servers_model_is_tested_on_every_shard(method: str, mapping: Make, data_dir: Path) -> None:
    """Each round on the shards of those who took part, in the last five on all; together they make the full test set."""
    of = federation(mapping(method, participation=0.5, rounds=7), data_dir)
    progress = play(of, 7)
    found = on_shards(progress)
    assert [sorted(found[round]) for round in (1, 2)] == [of.participants(1), of.participants(2)]
    assert [sorted(found[round]) for round in range(3, 8)] == 5 * [[0, 1, 2, 3]]
    server = of.node(-1, 7)
    server.state = progress.server
    predictor = of.method.server_predictors(server)[0]
    for k, value in found[7].items():
        shard = of.shards[k]
        predicted = of.predict(predictor, shard.test_images, shard.test).argmax(-1)
        assert value == (predicted == shard.test_images.labels[shard.test]).double().mean().item()
    (whole,) = (r.value for r in progress.history if (r.round, r.model, r.metric) == (7, "global", "test_accuracy"))
    sizes = [len(of.shards[k].test) for k in range(4)]
    assert sum(sizes[k] * found[7][k] for k in range(4)) / sum(sizes) == pytest.approx(whole)


def test_where_every_client_has_a_dataset_of_its_own(mapping: Make, data_dir: Path) -> None:
    """The server's whole network is tested on each client's test set, since none is all of them; without one there is
    nothing to test."""
    tasks = {"dataset": ["few", "few"], "partition": {"scheme": "whole", "clients": 2}}
    of = federation(mapping("fedavg", **tasks, rounds=1), data_dir)
    progress = play(of, 1)
    server = of.node(SERVER, 1)
    server.state = progress.server
    (predictor,) = of.method.server_predictors(server)
    shard = of.shards[0]
    right = of.predict(predictor, shard.test_images, shard.test).argmax(-1) == shard.test_images.labels[shard.test]
    assert on_shards(progress) == {1: dict.fromkeys((0, 1), right.double().mean().item())}
    assert not [row for row in progress.history if row.client == "global" and row.metric.startswith("test_")]
    shared = {"dataset": ["few", "few-parity"], "models": {"global": "convolutions", "local": ["lenet5", "cnn1"]}}
    assert on_shards(play(federation(mapping("fml", **(tasks | shared), rounds=1), data_dir), 1)) == {}


def test_a_step_that_puts_a_tensor_in_another_ones_place_is_told_how(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: FedAvg, c: Learner, batch: Batch) -> None:
        c["theta"] = c["theta"] - 1

    monkeypatch.setattr(FedAvg, "step", step)
    with pytest.raises(InputError, match=r"changes its tensors in place: c\['theta'\]\.copy_"):
        play(federation(mapping("fedavg"), data_dir), 1)


def test_testing_on_shards_changes_no_training(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = mapping("hbfl", rounds=2)
    with_it = tensors(play(federation(run, data_dir), 2))
    monkeypatch.setattr(Evaluation, "on_shards", lambda *_: [])
    without = tensors(play(federation(run, data_dir), 2))
    assert all(torch.equal(tensor, without[name]) for name, tensor in with_it.items())


@pytest.mark.parametrize("given", [None, [1.0], {"drift": 0.5}, {"drift": torch.zeros(2)}])
def test_what_aggregate_gives_is_checked(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch, given: object
) -> None:
    monkeypatch.setattr(FedAvg, "aggregate", lambda self, server, updates: given)
    with pytest.raises(
        InputError, match=r"method 'fedavg': aggregate gave .*; expected a mapping of names to scalar tensors"
    ):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


@pytest.mark.parametrize("part", ["init_server", "init_client", "message", "start", "finish"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "gave None; expected a dict of names to tensors"),
        ({"mu": torch.ones(1), "theta": 0.5}, "gave 'theta' as a float; expected a tensor"),
    ],
)
def test_what_a_methods_parts_give_is_checked(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch, part: str, given: object, message: str
) -> None:
    monkeypatch.setattr(FedAvg, part, lambda *_: given)
    with pytest.raises(InputError, match=f"method 'fedavg': {part} {message}"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


def test_a_message_is_not_changed_in_place(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the server's own tensors, which other clients have, too."""
    monkeypatch.setattr(FedAvg, "start", lambda self, c, message: {"theta": message["theta"].add_(1)})
    with pytest.raises(InputError, match=r"start changes 'theta' of its message in place, .*; clone it first"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


def test_a_client_does_not_train_the_servers_tensors(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = mapping("fedavg", rounds=1)
    cloned = tensors(play(federation(run, data_dir), 1))
    start = FedAvg.start
    monkeypatch.setattr(
        FedAvg, "start", lambda self, c, message: start(self, c, message) | {"theta": message["theta"][:]}
    )
    same = tensors(play(federation(run, data_dir), 1, executor="eager"))
    assert all(torch.equal(tensor, same[name]) for name, tensor in cloned.items())


@pytest.mark.parametrize("executor", ["eager", "threads"])
def test_a_step_that_asks_for_what_a_node_knows_is_refused(
    executor: str, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "step", lambda self, c, batch: c["theta"].mul_(c.round))
    with pytest.raises(InputError, match="a step does not see `round`, since it may be recorded once"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1, executor=executor)
    monkeypatch.setattr(FedAvg, "step", lambda self, c, batch: batch.labels)
    with pytest.raises(AttributeError, match="labels"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1, executor=executor)


@pytest.mark.parametrize("part", ["server_predictors", "client_predictors"])
def test_predictors_are_checked(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(FedAvg, part, lambda *_: None)
    with pytest.raises(InputError, match=rf"method 'fedavg': {part} gave None; expected a list of predictors"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


def test_one_of_the_servers_predictors_stands_for_the_method(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "server_predictors", lambda self, c: [softmax_of("mine", c.model, c["theta"])])
    with pytest.raises(
        InputError, match="server_predictors gave 'mine'; name the one that stands for the method 'global'"
    ):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


def named(name: str, sets: tuple[str, ...] = ("test", "shard")) -> Callable[..., list[Predictor]]:
    """Clients' predictors of that name."""
    return lambda self, c: [Predictor(name, lambda x: c.model(c["theta"], x).log_softmax(-1), sets)]


@pytest.mark.parametrize(
    ("part", "gives", "words"),
    [
        ("phases", lambda self, c: None, "phases gave None; expected a list of phases"),
        ("server_phases", lambda self, c: None, "server_phases gave None; expected a list of phases"),
        ("phases", lambda self, c: c.local(self.step), "phases gave Phase.*; expected a list of phases"),
        ("phases", lambda self, c: [Phase(self.step, epochs=1, batch_size=8)],
         "phases gave one with batch_size 8; a client's phase may have its own with counted=False and epochs"),
        ("client_predictors", named("tiny", ("tst",)), r"predictor 'tiny' has the sets \('tst',\); expected some of shard, test"),
        ("client_predictors", named("tiny_sampled", ("test",)),
         r"client's predictor 'tiny_sampled' has the sets \('test',\); clients are compared on their own test images: give \('shard',\)"),
        ("init_server", Method.init_server, "start asks for 'theta', and the message has nothing; .* which `init_server` begins"),
        ("predictive", "globl", "its `predictive` is 'globl'; did you mean 'global'?"),
        ("client_predictors", named('a, "b"'), "names a predictor or what is logged; expected a text without commas"),
        ("client_predictors", lambda self, c: 2 * named("tiny")(self, c), "gave two predictors named 'tiny'; rename one"),
        ("client_predictors", lambda self, c: [Predictor("logits", lambda x: c.model(c["theta"], x))],
         "predictor 'logits' gives no log probabilities, their exponentials do not add up to 1; take log_softmax"),
        ("client_predictors", lambda self, c: [Predictor("wide", lambda x: torch.zeros(len(x), 11).log_softmax(-1))],
         r"predictor 'wide' gave a tensor \(\d+, 11\) for \d+ images of 10 classes; expected log probabilities \(\d+, 10\)"),
        ("aggregate", lambda self, server, updates: {"a,b": torch.zeros(())}, "'a,b' names a predictor or what is logged"),
        ("aggregate", lambda self, server, updates: server.state.update(theta=1.0) or {}, "aggregate gave 'theta' as a float; expected a tensor"),
        ("finish", lambda self, c: setattr(self, "m", 1) or {"theta": c["theta"]},
         "a round changed self.m, which no checkpoint keeps, and clients .* share; put it into a tensor of the state"),
    ],
)  # fmt: skip
def test_what_a_method_must_not_do(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch, part: str, gives: Any, words: str
) -> None:
    monkeypatch.setattr(FedAvg, "message", Method.message)  # all that the server has
    monkeypatch.setattr(FedAvg, part, gives)
    with pytest.raises(InputError, match=f"method 'fedavg': .*{words}"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


def test_a_method_that_predicts_nothing_is_refused(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("server_predictors", "client_predictors"):
        monkeypatch.setattr(FedAvg, part, lambda *_: [])
    with pytest.raises(InputError, match="neither its server nor its clients predict anything"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


@pytest.mark.parametrize(
    ("owner", "draw"),
    [("torch", lambda: torch.rand(1)), ("numpy", lambda: np.random.rand()), ("Python", random.random)],
)
def test_drawing_from_a_generator_of_the_process_is_refused(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch, owner: str, draw: Callable[[], object]
) -> None:
    """No seed of a run sets it, and clients side by side would take each other's numbers."""
    monkeypatch.setattr(outside, "users_own", lambda method: True)
    step = FedAvg.step

    def drawing(self: FedAvg, c: Learner, batch: Batch) -> None:
        draw()
        step(self, c, batch)

    monkeypatch.setattr(FedAvg, "step", drawing)
    with pytest.raises(InputError, match=f"method 'fedavg': a round drew from {owner}'s own generator, which no seed"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_step_that_returns_its_result_is_refused(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Which it would train without, silently."""
    monkeypatch.setattr(FedAvg, "step", lambda self, c, batch: {"theta": c["theta"] - 0.1})
    with pytest.raises(InputError, match="returned a dict; a step works in place"):
        play(federation(mapping("fedavg", rounds=1), data_dir), 1, executor=executor)


def test_a_servers_tensor_may_have_two_names(
    mapping: Make, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint holds each of them."""
    aggregate = FedAvg.aggregate

    def kept(self: FedAvg, server: Node, updates: Sequence[Update]) -> Any:
        logged = aggregate(self, server, updates)
        server["best"] = server["theta"]
        server["head"], server["tail"] = server["theta"].tensor_split(2)
        return logged

    monkeypatch.setattr(FedAvg, "aggregate", kept)
    progress, path = play(federation(mapping("fedavg"), data_dir), 1), tmp_path / "one.safetensors"
    checkpoint.save(path, progress, checkpoint.Header("abc", "fp32", "threads"))
    found, _ = checkpoint.load(path, "abc", torch.device("cpu"))
    assert torch.equal(found.server["best"], progress.server["theta"])
    assert torch.equal(torch.cat([found.server["head"], found.server["tail"]]), progress.server["theta"])


def test_who_has_a_single_image_takes_no_part_where_batches_are_normalised(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("fedavg"), data_dir)
    of.shards[1].train = of.shards[1].train[:1]
    assert 1 in of.participants(1)
    monkeypatch.setattr(Federation, "batchwise", lambda self, client: True)
    assert of.participants(1) == [0, 2, 3]


def test_a_module_seeds_no_gpu(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generators are those of the process, which a round must leave as they are."""

    def seeded(*_: object) -> None:
        raise AssertionError("a GPU was seeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded)
    models = {"global": "lenet5", "local": ["pfedbayes_vgg"] * 4}
    play(federation(mapping("fml", models=models, images={"prepare": "resize"}), data_dir), 1)


def test_a_clients_predictor_cannot_be_named_as_the_servers(
    mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "client_predictors", lambda self, c: [softmax_of("global", c.model, c["theta"])])
    with pytest.raises(InputError, match="method 'fedavg': a client's predictor is named 'global'"):
        play(federation(mapping("fedavg"), data_dir), 1)


@pytest.mark.parametrize(
    ("part", "given", "said"),
    [
        ("aggregate", lambda self, server, updates: {"test_norm": server["theta"].norm()}, "aggregate logs 'test_norm'"),
        ("aggregate", lambda self, server, updates: {"passes": server["theta"].norm()}, "aggregate logs 'passes'"),
        ("client_predictors", lambda self, c: [softmax_of("server", c.model, c["theta"])], "predictor is named 'server'"),
    ],
)  # fmt: skip
def test_names_of_metrics_are_taken(
    part: str, given: Any, said: str, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, part, given)
    with pytest.raises(InputError, match=f"method 'fedavg': (a )?{said}.*; rename it"):
        play(federation(mapping("fedavg"), data_dir), 1)


@pytest.mark.usefixtures("unwatched")
def test_a_round_of_mini_batches(mapping: Make, data_dir: Path) -> None:
    """Every client takes as many, whatever it holds; passes over its images follow one another."""
    changes = {"local_epochs": 0, "local_batches": 9, "partition": {"alpha": 0.3, "clients": 4}}
    of = federation(mapping(**changes), data_dir)
    steps: dict[float, list[int]] = {}
    of.method.step = lambda c, batch: steps.setdefault(float(c.n), []).append(len(batch.y))  # type: ignore[method-assign]
    play(of, 1)
    assert set(steps) == {float(len(of.shards[k].train)) for k in range(4)}
    for n, sizes in steps.items():
        full, tail = divmod(int(n), 32)
        epoch = [32] * full + [tail] * bool(tail)
        assert sizes == (epoch * 9)[:9]


def test_clients_on_the_full_test_set_every_round(mapping: Make, data_dir: Path) -> None:
    """And FOLA's LA, their mean weighted by the images they trained on."""
    of = federation(mapping("fola", clients_on_test="round"), data_dir)
    history = play(of, 2).history
    n = [len(of.shards[k].train) for k in range(4)]
    for round in (1, 2):
        rows = {row.client: row.value for row in history if row.round == round and row.metric == "test_accuracy"}
        assert set(rows) == {"0", "1", "2", "3", "mean", "global"}
        assert rows["mean"] == pytest.approx(sum(n[k] * rows[str(k)] for k in range(4)) / sum(n), abs=1e-12)
    plain = play(federation(mapping("fola"), data_dir), 2).history
    assert not [row for row in plain if row.client == "mean" and row.metric != "passes"]
    assert [row for row in history if row.client == "global"] == [row for row in plain if row.client == "global"]


SHARDS = {
    "scheme": "shards", "clients": 4, "shards": 8, "shards_each": 2, "share": 0.5, "least": 1, "server": 60, "min_test": 0,
}  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "fedbe"])
def test_a_partition_may_name_the_servers_images(method: str, mapping: Make, data_dir: Path) -> None:
    """All of them, for every method alike, whether it needs some or not."""
    of = federation(mapping(method, partition=SHARDS), data_dir)
    stored = partition.load("few", of.run.partition, 0, data_dir)
    assert of.shards[-1].train.tolist() == stored.server_indices.tolist()
    assert [of.shards[k].train.tolist() for k in range(4)] == [stored.train(k).tolist() for k in range(4)]
    assert len(stored.server_indices) == 60
    assert {row.round for row in play(of, 1).history} == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server_images": 5}, "server_images: 5, but the partition sets aside 60 images; leave it out"),
        ({"method": {"name": "fedbe", "server_set": 61}}, "partition.server: 60 images, but method 'fedbe' needs 61"),
    ],
)
def test_images_that_the_partition_does_not_set_aside(changes: dict[str, Any], message: str, mapping: Make) -> None:
    with pytest.raises(InputError, match=message):
        run_file.resolve(mapping(dataset="digits", partition=SHARDS) | changes)
