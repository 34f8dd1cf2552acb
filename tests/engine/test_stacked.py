"""Clients that train stacked: who does, that nothing else is computed for them, and what a GPU is asked to record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.fake_cuda import FakeCuda
from helpers.playing import convolutions, federation, tensors

from bayesfed.engine.executors import StackedExecutor, cuda_worker, stacked, traced
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Progress, Trainer, begin
from bayesfed.models import convolution, network

Make = Callable[..., dict[str, Any]]
FUNCTORCH: Any = torch._C._functorch
UNEVEN = {"partition": {"alpha": 0.3, "clients": 4}, "stragglers": 0.5, "local_epochs": 2, "batch_size": 24}
# Steps of all kinds: drawn noise, Adam, single images, several phases, gradients of gradients, and a state that grows.
METHODS = ["fedavg", "hbfl", "pfedbayes", "fola", "fedcurv", "bayesadmm", "perfedavg", "fedswag", "toy_phases"]
HESSIANS = [{"name": "perfedavg", "order": order} for order in ("hf", "exact")]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No oneDNN, whose memory a graph cannot hold, and stacks of clients however uneven. An operator that vmap would do
    for one client after another is an error."""
    monkeypatch.setattr(convolution, "OWN_WAYS", set[str]())
    monkeypatch.setattr(stacked, "RAGGED", 0.0)
    FUNCTORCH._set_vmap_fallback_enabled(False)
    yield
    FUNCTORCH._set_vmap_fallback_enabled(True)


def play(of: Federation, executor: StackedExecutor | None, rounds: int = 2) -> Progress:
    """So many rounds by an executor, the eager one unless given."""
    trainer, progress = Trainer(of, "eager"), begin(of)
    trainer.executor = executor or trainer.executor
    for _ in range(rounds):
        progress = trainer.play(progress)
    return progress


def apart(found: Progress, expected: Progress) -> float:
    """The largest distance of two tensors, relative to the norm of the expected one."""
    return max(
        float((tensors(found)[name] - tensor).double().norm() / tensor.double().norm().clamp(min=1e-12))
        for name, tensor in tensors(expected).items()
    )


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("method", [*METHODS, *HESSIANS], ids=str)
def test_all_clients_of_equal_networks_train_stacked(method: Any, mapping: Make, data_dir: Any) -> None:
    """None of them by itself, and all as they would one by one; a client that is through is left as it is."""
    of = federation(mapping(method, **UNEVEN), data_dir)
    executor = StackedExecutor(of)
    assert apart(play(of, executor), play(of, None)) < 1e-9
    kinds = [tuple(networks.values()) for networks in of.networks]
    assert {stack.rows for _, stack in executor.stacks} == {kinds.count(kind) for kind in kinds} - {1}
    assert len(executor.workers) == sum(kinds.count(kind) == 1 for kind in kinds)


@pytest.mark.parametrize(
    ("method", "layout"),
    [({"name": "hbfl"}, torch.channels_last), ({"name": "perfedavg", "order": "exact"}, torch.contiguous_format)],
)
def test_convolutions_are_stacked_too(
    method: dict[str, str], layout: torch.memory_format, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a GPU wants images and activations to lie."""
    monkeypatch.setattr(network, "layout_for", lambda device, dtype: layout)
    monkeypatch.setattr(network, "in_columns", lambda x: False)
    of = federation(mapping(method, **UNEVEN, **convolutions(method["name"])), data_dir, torch.float32)
    executor = StackedExecutor(of)
    assert apart(play(of, executor, 1), play(of, None, 1)) < 1e-4
    assert None not in executor.steps.values()


def test_clients_of_about_the_same_size_train_together(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("fedavg", partition={"alpha": 1.0, "clients": 6}), data_dir)
    monkeypatch.setattr(stacked, "RAGGED", 0.75)
    sizes = [40, 90, 75, 74, 60, 100]
    monkeypatch.setattr(StackedExecutor, "images", lambda executor, client: sizes[client])
    assert StackedExecutor(of).units(range(6)) == [[5, 1, 2], [3, 4], [0]]
    assert StackedExecutor(of, together=2).units(range(6)) == [[5, 1], [2, 3], [4], [0]]


@pytest.mark.parametrize("method", ["pfedgp", "fola_full"])
def test_what_cannot_be_stacked_trains_as_on_graphs(method: str, mapping: Make, data_dir: Any) -> None:
    """Steps that draw by image, and those that vmap cannot do."""
    of = federation(mapping(method, **UNEVEN), data_dir)
    executor = StackedExecutor(of)
    assert apart(play(of, executor), play(of, None)) < 1e-9
    assert len(executor.workers) == of.clients
    assert not any(executor.steps.values())


@pytest.mark.usefixtures("toys")
def test_clients_that_train_nothing_are_stacked_too(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = federation(mapping("toy", **UNEVEN), data_dir)
    monkeypatch.setattr(of.method, "phases", lambda c: [])
    assert apart(play(of, StackedExecutor(of), 1), play(of, None, 1)) == 0


def test_a_step_that_draws_past_its_learner_is_not_stacked(of_mine: Callable[..., Federation]) -> None:
    draw = "torch.randn(1, generator=c.generator)"
    of = of_mine("", f"    def step(self, c, batch):\n        c['theta'].add_({draw})")
    executor = StackedExecutor(of)
    assert apart(play(of, executor), play(of, None)) == 0
    assert [*executor.steps.values()] == [None]


def test_stacks_are_as_many_as_there_are_streams(mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds none free trains by itself, and stacked again when one is."""
    monkeypatch.setattr(stacked, "MOST_STACKS", 1)
    of = federation(mapping("fedavg", **UNEVEN), data_dir)
    executor = StackedExecutor(of, together=2)
    assert apart(play(of, executor), play(of, None)) < 1e-9
    assert (len(executor.stacks), len(executor.workers)) == (1, 2)


def test_compiled_steps_are_those_of_the_compiler(
    mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a client by itself. The compiler takes half a minute: here one that changes nothing."""
    compiled = []

    def compiler(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compiler)
    of = federation(mapping("fedavg", **UNEVEN), data_dir)
    executor = StackedExecutor(of, together=1, compiled=True)
    assert apart(play(of, executor), play(of, None)) < 1e-9
    assert [stack.rows for _, stack in executor.stacks] == [1] * 4
    assert compiled == [{"fullgraph": True, "dynamic": False}]
    assert not executor.workers


@pytest.mark.parametrize("name", ["fedavg", "hbfl"])
def test_recorded_stacks_equal_unrecorded_ones(
    name: str, mapping: Make, data_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit; each client's stream is known to the graph."""
    of = federation(mapping(name, **UNEVEN), data_dir, torch.float32)
    unrecorded = play(of, StackedExecutor(of))
    fake = FakeCuda()
    fake.stand_in(monkeypatch)
    for module in (cuda_worker, stacked):
        monkeypatch.setattr(module, "recorder_of", cuda_worker.Recorder)
    assert apart(play(of, StackedExecutor(of)), unrecorded) == 0
    assert fake.recordings


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_that_of_torch(momentum: float) -> None:
    theta, g, buffer = torch.randn(3, 2, 50, dtype=torch.float64).unbind()
    ours, theirs = ([tensor.clone().unbind() for tensor in (theta, buffer)] for _ in range(2))
    options: dict[str, Any] = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.01, "dampening": 0.0}
    moves: list[tuple[Any, Any]] = [(traced.sgd, ours), (torch._fused_sgd_, theirs)]
    for move, (p, b) in moves:
        of_no_effect = {"nesterov": False, "maximize": False, "is_first_step": False}
        move([*p], [*g], [*b] if momentum else [], **options, **of_no_effect)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.stack(one), torch.stack(other))


@pytest.mark.parametrize(("move", "of_torch"), [(traced.adam, torch._fused_adam_), (traced.adamw, torch._fused_adamw_)])
def test_adam_is_that_of_torch(move: Callable[..., None], of_torch: Callable[..., None]) -> None:
    theta, g, m, v = torch.randn(4, 2, 50, dtype=torch.float64).unbind()
    ours, theirs = ([tensor.clone().unbind() for tensor in (theta, m, v.square())] for _ in range(2))
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False}
    for step, (p, first, second) in ((move, ours), (of_torch, theirs)):
        counts = [torch.tensor(float(count)) for count in (1, 7)]
        step([*p], [*g], [*first], [*second], [], counts, **options, maximize=False)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.stack(one), torch.stack(other))


def test_convolution_and_relu_apart_are_both() -> None:
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    found = traced.convolution_relu(x, weight, bias, [1, 1], [0, 0], [1, 1], 1)
    assert torch.equal(found, F.relu(F.conv2d(x, weight, bias)))
