"""Per-FedAvg with its Hessian against loops on an ordinary module, in float64, and what either form of it needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.networks import normalised
from helpers.playing import batches, federation, play, tensors
from torch import Tensor, nn

from bayesfed import models
from bayesfed.core.errors import InputError
from bayesfed.engine.executors import EXECUTORS, cpu_worker
from bayesfed.engine.executors.threads import ThreadExecutor
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import Trainer, begin
from bayesfed.methods.node import Batch

Make = Callable[..., dict[str, Any]]
ORDERS = ["hf", "exact"]
BATCHES = {"local_epochs": 0, "local_batches": 2, "batch_size": 16, "batch_order": "fixed"}
ALPHA, BETA, DELTA = 0.1, 0.3, 0.02  # so large a delta that a difference of gradients is no derivative


def method(order: str) -> dict[str, Any]:
    return {"name": "perfedavg", "lr": ALPHA, "beta": BETA, "order": order, "delta": DELTA}


class Oracle:
    """The loss of an ordinary module as a function of one vector, and its first and second derivatives."""

    def __init__(self, of: Federation) -> None:
        theta = of.node(0, 0).initial()
        self.module = of.networks[0]["global"].module(theta, {}).double()
        self.shapes = {name: tuple(one.shape) for name, one in self.module.named_parameters()}

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = theta.split([torch.Size(shape).numel() for shape in self.shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        return F.cross_entropy(torch.func.functional_call(self.module, named, x), y)

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.functional.jacobian(lambda theta: self.loss(theta, x, y), theta)

    def product(self, order: str, theta: Tensor, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if order == "exact":
            return torch.autograd.functional.hvp(lambda theta: self.loss(theta, x, y), theta, v)[1]
        ahead, behind = (self.gradient(theta + far * v, x, y) for far in (DELTA, -DELTA))
        return (ahead - behind) / (2 * DELTA)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("network", ["lenet5", "mlp"])
def test_a_step_is_three_mini_batches(order: str, network: str, mapping: Make, data_dir: Path) -> None:
    """Two steps of each of four clients, in each of two rounds; the first mini-batch of a round adapts."""
    of = federation(mapping(method(order), models={"global": network}, **BATCHES), data_dir)
    oracle, w0 = Oracle(of), play(of, 0).server["w"]
    n = torch.tensor([float(len(of.shards[k].train)) for k in range(4)], dtype=torch.float64)
    curvatures = []
    for round in (1, 2):
        phis, ws = [], []
        for k in range(4):
            first, *rest = batches(of, k, round, 7)
            w = w0.clone()
            phis.append(w - ALPHA * oracle.gradient(w, *first))
            for one, two, three in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
                v = oracle.gradient(w - ALPHA * oracle.gradient(w, *one), *two)
                curved = ALPHA * oracle.product(order, w, v, *three)
                curvatures.append(float(curved.norm() / v.norm()))
                w = w - BETA * (v - curved)
            ws.append(w)
        w0 = sum(n[k] / n.sum() * ws[k] for k in range(4))
    assert min(curvatures) > 1e-3  # or the Hessian would not be seen
    found = play(of, 2)
    torch.testing.assert_close(found.server["w"], w0, rtol=1e-9, atol=1e-11)
    for k in range(4):
        torch.testing.assert_close(found.clients[k]["phi"], phis[k], rtol=1e-9, atol=1e-11)


def test_a_small_difference_of_gradients_is_the_derivative(mapping: Make, data_dir: Path) -> None:
    """Of a smooth network, as delta squared; where a ReLU turns off, a difference may be anything."""

    def sent(one: dict[str, Any]) -> Tensor:
        return play(federation(mapping(one, models={"global": "softmax"}, **BATCHES), data_dir), 1).server["w"]

    exact = sent(method("exact"))
    far = [float((sent(method("hf") | {"delta": delta}) - exact).norm()) for delta in (1e-3, 1e-4)]
    assert far[1] < 0.02 * far[0]


@pytest.mark.parametrize("order", ORDERS)
def test_less_than_three_lead_nowhere(order: str, mapping: Make, data_dir: Path) -> None:
    of = federation(mapping(method(order)), data_dir)
    c = of.node(0, 1, 1)
    c.state = of.method.init_client(c) | of.method.start(c, play(of, 0).server)
    start, sent = c["w"].clone(), []
    (_, step) = of.method.phases(c)
    for x, y in batches(of, 0, 1, 6):
        step.step(c, Batch(x, y))
        sent.append(of.method.finish(c)["w"])
    assert [torch.equal(w, start) for w in sent] == [True, True, False, False, False, False]
    assert torch.equal(sent[2], sent[4])
    assert not torch.equal(sent[2], sent[5])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("models", "cast"),
    [("lenet5", torch.float64), ("pfedbayes_mlp", torch.float32), ("pfedbayes_mlp", torch.bfloat16)],
)
def test_every_executor_is_eager_to_rounding(
    order: str, models: str, cast: torch.dtype, mapping: Make, data_dir: Path
) -> None:
    """Uneven shards and stragglers; recorded steps for the network without convolutions."""
    changes = {"partition": {"alpha": 0.3, "clients": 4}, "stragglers": 0.5, "local_epochs": 3, "batch_size": 24}
    changes |= {} if models == "lenet5" else {"images": {"prepare": "none"}}
    of = federation(mapping(method(order), models={"global": models}, **changes), data_dir, cast)
    eager = tensors(play(of, 2))
    for executor in EXECUTORS.keys() - {"eager", "stacked"}:  # tests/engine/test_stacked.py has that
        found = tensors(play(of, 2, executor=executor))
        for name, tensor in eager.items():
            far = (found[name] - tensor).double().norm() / tensor.double().norm()
            assert far <= (1e-9 if cast == torch.float64 else 1e-4), f"{executor}: {name}"


@pytest.mark.parametrize("order", ORDERS)
def test_steps_are_recorded(order: str, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_worker, "MEMORY", 2**30)
    of = federation(mapping(method(order), models={"global": "mlp"}, local_epochs=3), data_dir, torch.float32)
    trainer, progress = Trainer(of, "threads"), begin(of)
    for _ in range(2):
        progress = trainer.play(progress)
    assert isinstance(trainer.executor, ThreadExecutor)
    recorded = [
        step for one in trainer.executor.workers for buffers in one.buffers.values() for step in buffers.steps.values()
    ]
    assert recorded
    assert all(recorded)
    expected = tensors(play(of, 2))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(progress).items())


@pytest.mark.parametrize("order", ORDERS)
def test_bf16_does_not_round_the_hessian_away(order: str, mapping: Make, data_dir: Path) -> None:
    """By delta's default: as of a run in float64, but for images that are bf16."""
    one = method(order) | {"delta": 1e-3}
    exact, bf16 = (
        federation(mapping(one, models={"global": "softmax"}, local_epochs=4), data_dir, cast)
        for cast in (torch.float64, torch.bfloat16)
    )
    moved = play(exact, 1).server["w"] - play(exact, 0).server["w"]
    off = play(bf16, 1).server["w"] - play(bf16, 0).server["w"] - moved
    assert float(off.norm() / moved.norm()) < 2e-2


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("order", ORDERS)
def test_batch_normalisation_has_a_hessian(order: str, mapping: Make, data_dir: Path) -> None:
    """The statistics of the mini-batch belong to the function that is differentiated."""
    of = federation(mapping(method(order), models={"global": "normalised"}, **BATCHES), data_dir)
    module, start = normalised(10, 1, 16).double().train(), play(of, 0).server["w"]
    module(torch.zeros(2, 1, 16, 16, dtype=torch.float64))
    names = [name for name, _ in module.named_parameters()]
    oracle = Oracle(of)
    oracle.module, oracle.shapes = module, {name: tuple(one.shape) for name, one in module.named_parameters()}
    assert names == list(oracle.shapes)
    _, one, two, three = batches(of, 0, 1, 7)[:4]
    v = oracle.gradient(start - ALPHA * oracle.gradient(start, *one), *two)
    w = start - BETA * (v - ALPHA * oracle.product(order, start, v, *three))
    c = of.node(0, 1)
    c.state = of.method.start(c, play(of, 0).server) | of.statistics(0, own=False)
    for x, y in (one, two, three):
        of.method.phases(c)[1].step(c, Batch(x, y))
    torch.testing.assert_close(c["w"], w, rtol=1e-9, atol=1e-11)


class Once(torch.autograd.Function):
    """What a user may have written: a gradient, and no second one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()


class Single(nn.Module):
    def __init__(self, classes: int, pixels: int) -> None:
        super().__init__()
        self.head = nn.Linear(pixels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(self.head(x.flatten(1)))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_network_without_a_second_derivative_is_refused(
    executor: str, mapping: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.NETWORKS, "single", lambda classes, channels, size: Single(classes, channels * size**2))
    changes = {"models": {"global": "single"}, **BATCHES}
    of = federation(mapping(method("exact"), **changes), data_dir)
    with pytest.raises(
        InputError, match=r"method\.order: exact, but the network's .* differentiate.*; take hf"
    ) as error:
        play(of, 1, executor=executor)
    assert "\n" not in str(error.value)
    play(federation(mapping(method("hf"), **changes), data_dir), 1, executor=executor)


@pytest.mark.usefixtures("modules")
def test_random_networks_have_no_difference_of_gradients(mapping: Make, data_dir: Path) -> None:
    for name in ("residual", "grouped"):
        changes = {"models": {"global": name}}
        with pytest.raises(InputError, match=r"method\.order: hf, but the network draws random numbers .*; take exact"):
            federation(mapping(method("hf"), **changes), data_dir)
        play(federation(mapping(method("exact"), local_epochs=3, **changes), data_dir), 1)
