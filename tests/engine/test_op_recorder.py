"""Steps that are recorded and replayed on a CPU do what they do as they are, to the last bit."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.playing import federation, play, tensors
from torch import Tensor

from bayesfed import methods
from bayesfed.engine.executors import cpu_worker
from bayesfed.engine.executors.cpu_worker import CpuWorker
from bayesfed.engine.executors.op_recorder import OpRecorder
from bayesfed.engine.executors.threads import ThreadExecutor
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.methods.fedavg import FedAvg
from bayesfed.methods.node import Batch, Learner, Node, Phase

Make = Callable[..., dict[str, Any]]
LIMIT = 2**20


def recorded(step: Callable[[], object], limit: int = LIMIT) -> OpRecorder:
    with OpRecorder(limit) as found:
        step()
    return found


def on_workers(of: Federation, rounds: int) -> tuple[Progress, list[CpuWorker]]:
    """Rounds on one thread, and the workers with what they have recorded."""
    trainer, progress = Trainer(of, "threads"), begin(of)
    for _ in range(rounds):
        progress = trainer.play(progress)
    assert isinstance(trainer.executor, ThreadExecutor)
    return progress, trainer.executor.workers


def assert_equal(found: Progress, expected: Progress) -> None:
    for name, tensor in tensors(expected).items():
        assert torch.equal(tensors(found)[name], tensor), name
    assert found.history == expected.history


def test_a_replay_does_what_the_step_does() -> None:
    def step(state: dict[str, Tensor], generator: torch.Generator) -> None:
        theta = state["theta"].detach().requires_grad_()
        noise = torch.randn(6, generator=generator) + torch.full((), 0.5)
        loss = (
            F.log_softmax((theta * noise).view(2, 3) @ state["x"], -1).std()
            + torch.stack([theta.sum(), theta[0]]).sum()
            + torch.where(theta > 2, 0, theta).square().sum()
        )
        (g,) = torch.autograd.grad(loss, theta)
        state["theta"].sub_(0.1 * g)
        torch.add(state["t"], 1, out=state["t"])
        state["half"].copy_(theta.to(torch.bfloat16))

    def fresh() -> tuple[dict[str, Tensor], torch.Generator]:
        state = {"theta": torch.arange(6.0), "x": torch.arange(12.0).view(3, 4).sin(), "t": torch.zeros(())}
        return state | {"half": torch.zeros(6, dtype=torch.bfloat16)}, torch.Generator().manual_seed(3)

    (plain, generator), (found, other) = fresh(), fresh()
    noted = recorded(lambda: step(found, other))
    assert noted.whole
    assert not noted.calls
    for _ in range(3):
        noted.replay()
    for _ in range(4):
        step(plain, generator)
    for name, tensor in plain.items():
        assert torch.equal(found[name], tensor), name


X = torch.linspace(-1, 1, 128 * 1024).view(8, 16, 32, 32)


@pytest.mark.parametrize(
    "step",
    [
        lambda: X.sum().item(),
        lambda: X[X > 0],
        lambda: X * torch.rand(()),
        lambda: X * torch.tensor(2.0),
        lambda: X.clone().unsqueeze_(0),
        lambda: F.conv2d(X, X[:, :, :3, :3]),
        lambda: X + 1 + 1 + 1 + 1 + 1,
    ],
    ids=["value", "mask", "global generator", "constant", "view in place", "convolution", "memory"],
)
def test_what_cannot_be_replayed_is_not_recorded(step: Callable[[], object]) -> None:
    noted = recorded(step)
    assert not noted.whole
    assert not noted.replays


def test_results_that_are_not_needed_together_share_memory() -> None:
    x, y = torch.linspace(0, 1, 1000), torch.zeros(1000)

    def step() -> None:
        one = x + 1
        two, three = one * 2, one.view(10, 100).sum(1)
        four = two.exp() + 1
        y.copy_((four - 3).view(10, 100).sub_(three[:, None]).flatten())

    noted = recorded(step)
    step()
    expected = y.clone()
    y.zero_()
    noted.replay()
    assert torch.equal(y, expected)
    assert noted.size == 2 * 4000 + 40  # two of them at once, and the ten sums


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("name", [*sorted(methods.ours()), "toy", "toy_phases", "toy_message", "toy_server"])
def test_every_step_of_a_small_network_is_recorded_and_changes_no_bit(
    name: str, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_worker, "MEMORY", 2**30)
    of = federation(mapping(name, local_epochs=2), data_dir, torch.float32)
    found, workers = on_workers(of, 2)
    steps = [step for worker in workers for buffers in worker.buffers.values() for step in buffers.steps.values()]
    assert steps
    assert all(steps)
    assert_equal(found, play(of, 2))


@pytest.mark.usefixtures("modules")
def test_the_steps_of_a_module_are_recorded_when_it_is_new(mapping: Make, data_dir: Any) -> None:
    """Whose multiply-adds are counted by a pass that must not be in a step."""
    of = federation(mapping(models={"global": "smooth"}), data_dir, torch.float32)
    _, workers = on_workers(of, 1)
    steps = [step for worker in workers for buffers in worker.buffers.values() for step in buffers.steps.values()]
    assert steps
    assert all(steps)


def test_a_worker_takes_no_more_memory_than_it_may(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping(models={"global": "mlp"}), data_dir, torch.float32)
    monkeypatch.setattr(cpu_worker, "MEMORY", 1000)
    found, workers = on_workers(of, 2)
    assert not any(step for worker in workers for buffers in worker.buffers.values() for step in buffers.steps.values())
    assert_equal(found, play(of, 2))


def test_steps_made_anew_in_each_round_are_not_all_kept(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that they hold: a round's anchor, or its node."""
    step = FedAvg.step
    anew = lambda self, c: [Phase(lambda learner, batch: step(self, learner, batch), epochs=1)]  # noqa: E731
    monkeypatch.setattr(FedAvg, "phases", anew)
    of = federation(mapping(models={"global": "mlp"}, rounds=8), data_dir, torch.float32)
    found, workers = on_workers(of, 8)
    steps = [{key[0] for key in buffers.steps} for one in workers for buffers in one.buffers.values()]
    assert max(map(len, steps)) == cpu_worker.STEPS
    assert_equal(found, play(of, 8))


def test_one_thread_records_at_a_time(mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that meet an operator at once, torch leaves one with an object that is freed."""
    inside, most = list[int](), 0

    class Watched(OpRecorder):
        def __enter__(self) -> OpRecorder:
            nonlocal most
            inside.append(1)
            time.sleep(0.02)  # for the other thread to come
            most = max(most, len(inside))
            return super().__enter__()

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            inside.pop()

    of = federation(mapping(models={"global": "mlp"}), data_dir, torch.float32)
    monkeypatch.setattr(cpu_worker, "OpRecorder", Watched)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, workers = on_workers(of, 1)
    finally:
        torch.set_num_threads(threads)
    assert len(workers) == 2
    assert most == 1


@pytest.mark.usefixtures("toys")
def test_a_hook_that_puts_in_other_tensors_is_followed(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("toy", models={"global": "mlp"}, local_epochs=3), data_dir, torch.float32)

    def step(c: Learner, batch: Batch) -> None:
        of.method.step(c, batch)
        if "offset" in c.state:
            c["theta"].sub_(c["offset"])

    def rebind(c: Node) -> None:
        c["theta"] = 2 * c["theta"]
        c["offset"] = torch.full((), 1e-3 * (c.client + 1))

    monkeypatch.setattr(of.method, "phases", lambda c: [Phase(step, epochs=c.epochs, epoch_end=rebind)])
    assert_equal(on_workers(of, 2)[0], play(of, 2))


@pytest.mark.usefixtures("toys")
def test_a_step_that_gives_a_tensor_other_memory_runs_as_it_is(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("toy", models={"global": "mlp"}), data_dir, torch.float32)

    def step(c: Learner, batch: Batch) -> None:
        of.method.step(c, batch)
        c["theta"].data = 0.9 * c["theta"]

    monkeypatch.setattr(of.method, "phases", lambda c: [Phase(step, epochs=2)])
    assert_equal(on_workers(of, 2)[0], play(of, 2))


def test_noise_drawn_before_the_steps_is_not_drawn_again(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("hbfl", models={"global": "mlp", "local": ["mlp"] * 4}), data_dir, torch.float32)
    start = of.method.start

    def noisy(c: Node, message: dict[str, Tensor]) -> dict[str, Tensor]:
        state = start(c, message)
        state["mu"].add_(c.noise(state["mu"]), alpha=1e-3)
        return state

    monkeypatch.setattr(of.method, "start", noisy)
    assert_equal(on_workers(of, 1)[0], play(of, 1))
