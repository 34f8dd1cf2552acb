"""The cost of a round: multiply-adds against torch's own count, passes of predictors, and seconds apart."""

import functools
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.playing import convolutions, federation, play
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bayesfed import methods
from bayesfed.engine import checkpoint
from bayesfed.engine.cost import MultiplyAdds, Seconds, Stopwatch
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.node import Batch, Learner, Node, Phase

Make = Callable[..., dict[str, Any]]


def addmm(bias: list[int], one: list[int], other: list[int], **_: object) -> int:
    """The operations of a product (n, m) by (m, p), which torch's counter does not know with an activation behind it."""
    return 2 * one[0] * one[1] * other[1]


def counted(progress: Progress, whose: str) -> float:
    """The multiply-adds of the last round."""
    (found,) = (
        row.value
        for row in progress.history
        if (row.round, row.model, row.metric) == (progress.round, "computation", f"multiply_adds_{whose}")
    )
    return found


@pytest.fixture
def flops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch counts in every step of a client, or of the server."""
    found: list[int] = []
    train = Phase.train

    def counting(self: Phase, c: Learner, batch: Batch) -> None:
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._addmm_activation: addmm}) as counter:
            train(self, c, batch)
        found.append(counter.get_total_flops())

    monkeypatch.setattr(Phase, "train", counting)
    return found


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", convolutions("fedavg")),
        ("fedavg", {"local_epochs": 0, "local_batches": 3}),
        ("scaffold", {"models": {"global": "mlp"}}),
        ("hbfl", convolutions("hbfl")),
        ("pfedbayes", {"models": {"global": "pfedbayes_mlp"}}),
        ("fedppd", {}),
        ("fedavg", {"models": {"global": "resnet20_gn"}, "partition": {"alpha": 100.0, "clients": 2}}),
    ],
)
def test_multiply_adds_are_what_torch_counts(
    name: str, changes: dict[str, Any], flops: list[int], mapping: Make, data_dir: Path
) -> None:
    of = federation(mapping(name, **{"batch_size": 25} | changes), data_dir)
    assert all(
        one.training_operations for own in of.networks for one in own.values()
    )  # counted here, and not in a step
    progress = play(of, 1)
    assert counted(progress, "clients") == sum(flops) / 2 > 0
    assert counted(progress, "server") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"local_epochs": 0, "local_batches": 2, "batch_order": "fixed"},
        {"models": {"global": "normalised"}, "batch_size": 24, "participation": 0.25},
    ],
)
@pytest.mark.usefixtures("modules")
def test_images_are_those_of_the_mini_batches(
    changes: dict[str, Any], mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fixed order a round goes on where the last one was; batch normalisation leaves a last single image out."""
    sizes: list[int] = []
    train = Phase.train

    def watched(self: Phase, c: Learner, batch: Batch) -> None:
        sizes.append(len(batch.y))
        train(self, c, batch)

    monkeypatch.setattr(Phase, "train", watched)
    of = federation(mapping("fedavg", **{"batch_size": 32} | changes), data_dir)
    if "participation" in changes:
        shard = of.shards[of.participants(1)[0]]
        shard.train = shard.train[: 24 + 1]
    progress = begin(of)
    for _ in range(3 if "local_batches" in changes else 1):
        sizes.clear()
        trainer = Trainer(of, "eager")
        progress = trainer.play(progress)
        (network,) = {own["global"] for own in of.networks}
        assert counted(progress, "clients") == network.training_operations * sum(sizes) > 0
        assert trainer.samples == sum(sizes)


def test_the_server_counts_apart(flops: list[int], mapping: Make, data_dir: Path) -> None:
    progress = play(federation(mapping("fedbe"), data_dir), 2)
    whole = counted(progress, "clients") + counted(progress, "server")
    assert whole == pytest.approx(sum(flops) / 2 / 2, rel=0.05)  # of the two rounds alike
    assert counted(progress, "server") > 0


def test_steps_of_one_function_are_counted_apart(mapping: Make, data_dir: Path) -> None:
    def step(c: Learner, batch: Batch, draws: int) -> None:
        for _ in range(draws):
            c.model(c["theta"], batch.x)

    of = federation(mapping("fedavg"), data_dir)
    counts = MultiplyAdds(of)
    node = of.node(0, 1)
    node.state = {"theta": node.initial()}
    watched = counts.watched(node, [Phase(functools.partial(step, draws=draws), batches=1) for draws in (1, 10)])
    x, y = of.shards[0].train_images.plain(torch.arange(8)), torch.zeros(8, dtype=torch.int64)
    with torch.no_grad():
        for phase in watched:
            phase.train(node.learner(), Batch(x, y))
    one, ten = (counts.by_image[phase.key] for phase in watched)
    assert ten == 10 * one > 0


def test_a_step_that_varies_over_the_rounds_is_counted_in_each(mapping: Make, data_dir: Path) -> None:
    """By the numbers that it is made with, as arguments or in its closure, and by the shapes of the client's state."""
    of = federation(mapping("fedavg"), data_dir)
    node, counts = of.node(0, 1), MultiplyAdds(of)

    def made(draws: int, members: int = 1, closed: bool = False) -> Hashable:
        node.state = {"theta": torch.zeros(members, 3)}
        step = (lambda c, batch: draws) if closed else functools.partial(FedAvg.step, draws)
        (phase,) = counts.watched(node, [Phase(step, batches=1)])
        return phase.key

    assert made(1) == made(1)
    assert made(1, closed=True) == made(1, closed=True)
    assert len({made(1), made(2), made(1, members=2), made(1, closed=True), made(2, closed=True)}) == 5


def test_passes_outside_of_steps_count_too(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def passing(part: str, times: int) -> None:
        old = getattr(FedAvg, part)

        def new(self: FedAvg, node: Node, *given: Any) -> Any:
            theta = node.state.get("theta", given and isinstance(given[0], dict) and given[0]["theta"])
            for _ in range(times):
                node.model(theta, of.shards[0].train_images.plain(torch.arange(8)))
            return old(self, node, *given)

        monkeypatch.setattr(FedAvg, part, new)

    run = mapping("fedavg")
    of = federation(run, data_dir)
    plain, (operations,) = play(of, 1), {own["global"].operations for own in of.networks}
    for part, times in {"start": 1, "finish": 2, "aggregate": 5}.items():
        passing(part, times)
    more = play(federation(run, data_dir), 1)
    assert counted(more, "clients") - counted(plain, "clients") == 3 * 8 * operations * of.clients
    assert counted(more, "server") == 5 * 8 * operations


@pytest.mark.parametrize("executor", ["eager", "threads", "graphs"])
def test_replayed_steps_count_as_those_that_are_done(executor: str, mapping: Make, data_dir: Path) -> None:
    run = mapping("hbfl", local_epochs=2)
    found = [
        counted(play(federation(run, data_dir, torch.float32), 2, executor=one), "clients")
        for one in ("eager", executor)
    ]
    assert found[0] == found[1] > 0


def predictions(of: Federation, progress: Progress) -> dict[str, tuple[int, float]]:
    """By predictor of the server: the passes that it says it takes, and the multiply-adds for an image."""
    server = of.node(SERVER, progress.round)
    server.state = progress.server
    found = {one.name: one for one in (of.method.server_predictors(server) if server.predicts else ())}
    passed = {}
    images = of.shards[0].test_images.plain(torch.arange(8))
    for name, one in found.items():
        before = of.passes.multiply_adds
        with torch.no_grad():
            one.log_probabilities(images)
        passed[name] = one.passes, (of.passes.multiply_adds - before) / len(images)
    return passed


@pytest.mark.parametrize("name", [one for one in methods.ours() if one not in ("bnfed", "fedavg_temperature")])
def test_a_predictor_says_how_many_passes_it_takes(name: str, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping(name), data_dir)
    for predictor, (said, done) in predictions(of, play(of, 2)).items():
        assert done in {said * one.operations for one in of.networks[0].values()}, predictor


def test_passes_are_in_the_last_round_alone(mapping: Make, data_dir: Path) -> None:
    history = play(federation(mapping("hbfl"), data_dir), 2).history
    found = {(row.round, row.client, row.model): row.value for row in history if row.metric == "passes"}
    assert found == {
        (2, "global", "global"): 1,
        (2, "global", "global_sampled"): 10,
        (2, "mean", "local"): 1,
        (2, "mean", "meme"): 1,
        (2, "mean", "meme_sampled"): 10,
    }


def test_clients_side_by_side_share_their_time() -> None:
    """Two clients of 4 s at once, of which each tests for 1 s."""
    watch = Stopwatch(torch.device("cpu"), moments=[0.0, 4.0, 5.0, 5.5, 7.5])
    watch.clients = [(0.0, 4.0), (0.0, 4.0)]
    watch.tests = [(3.0, 4.0), (3.0, 4.0)]
    assert watch.seconds(10.0) == Seconds(clients=3.0, server=3.0, testing=4.0)


def test_the_parts_of_the_time_are_the_whole(mapping: Make, data_dir: Path) -> None:
    trainer = Trainer(of := federation(mapping("fedbe"), data_dir), "eager")
    header = checkpoint.Header("k", "fp32", "eager")
    progress = begin(of)
    for _ in range(2):
        progress = trainer.play(progress)
        header.add(
            {}, 100.0, 60.0, 1, replace(trainer.seconds, testing=100 - trainer.seconds.clients - trainer.seconds.server)
        )
    assert header.apart.keys() == {"clients", "server", "testing"}
    assert sum(header.apart.values()) == pytest.approx(header.seconds)
    assert header.cpu_seconds == 120
    header.sessions.insert(0, {"by": {"code": "earlier"}, "rounds": 1, "seconds": 1.0})
    assert header.cpu_seconds is None
    assert all(value > 0 for value in header.apart.values())


def test_epoch_tests_are_testing(mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = federation(mapping("fedavg"), data_dir)
    of.method.evaluate_each_epoch = lambda: True  # type: ignore[method-assign]
    seen: list[Tensor] = []
    timed = Stopwatch.timed
    monkeypatch.setattr(Stopwatch, "timed", lambda self, test: seen.append(test) or timed(self, test))
    play(of, 1)
    assert len(seen) == 4
