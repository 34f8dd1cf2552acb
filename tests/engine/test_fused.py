"""One loop for many operators leaves what they leave one by one, to the last bit."""

import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.playing import federation, play, tensors
from torch import Tensor

from bayesfed.engine.executors import fused, native
from bayesfed.engine.executors.op_recorder import OpRecorder
from bayesfed.engine.executors.threads import ThreadExecutor
from bayesfed.engine.rounds import Trainer, begin

LONG = fused.SHORTEST + 21
# What steps of methods are written with, on vectors x, y, z and a scalar s.
OPERATORS: list[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = [
    lambda x, y, z, s: x + y,
    lambda x, y, z, s: x + s,
    lambda x, y, z, s: x - 0.1,
    lambda x, y, z, s: 1 - x,
    lambda x, y, z, s: torch.add(x, y, alpha=0.3),
    lambda x, y, z, s: torch.sub(x, y, alpha=1 / 3),
    lambda x, y, z, s: s * x * y,
    lambda x, y, z, s: x / y,
    lambda x, y, z, s: 1 / x,
    lambda x, y, z, s: x / 0.7,
    lambda x, y, z, s: torch.addcmul(x, y, z, value=-0.2),
    lambda x, y, z, s: torch.addcmul(x, y, s),
    lambda x, y, z, s: torch.addcdiv(x, y, z, value=-1),
    lambda x, y, z, s: x.square(),
    lambda x, y, z, s: -x,
    lambda x, y, z, s: x.abs().exp(),
    lambda x, y, z, s: x.square().rsqrt(),
    lambda x, y, z, s: torch.zeros_like(x),
    lambda x, y, z, s: x.clone(),
    lambda x, y, z, s: x.to(torch.bfloat16).float(),
    lambda x, y, z, s: x.mul_(y),
    lambda x, y, z, s: y.add_(x, alpha=-0.01),
    lambda x, y, z, s: z.copy_(x),
    lambda x, y, z, s: torch.mul(x, y, out=z),
]


@pytest.fixture(autouse=True)
def a_compiler() -> None:
    assert shutil.which("cc"), "these tests need a C compiler"


def replayed(step: Callable[[], object]) -> OpRecorder:
    with OpRecorder(2**30) as found:
        step()
    assert found.whole
    return found


def loops(found: OpRecorder) -> int:
    return sum(isinstance(call.func, fused.Loop) for call in found.replays)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(12))
def test_a_loop_leaves_what_its_operators_leave(seed: int) -> None:
    """In any order, some of them in place, and with a product between them, which no loop can do."""
    chance = random.Random(seed)
    chosen = [chance.choice(OPERATORS) for _ in range(12)]
    orders = [chance.sample(range(4), 3) for _ in chosen]
    generator = torch.Generator().manual_seed(seed)
    start = [torch.randn(LONG, generator=generator) for _ in range(4)]

    def step(state: list[Tensor], s: Tensor) -> None:
        found = list(state)
        for at, (operator, (i, j, k)) in enumerate(zip(chosen, orders, strict=True)):
            found[i] = operator(found[i], found[j], found[k], s)
            if at == len(chosen) // 2:
                found[j] = found[j].outer(torch.ones(2)).sum(1)
        for old, new in zip(state, found, strict=True):
            old.copy_(new)

    (plain, s), (other, t) = (([tensor.clone() for tensor in start], torch.tensor(0.9)) for _ in range(2))
    recording = replayed(lambda: step(other, t))
    assert loops(recording)
    recording.replay()
    for _ in range(2):
        step(plain, s)
    for one, two in zip(plain, other, strict=True):
        assert fused.same(one, two)


def test_what_touches_other_entries_or_short_vectors_is_no_loop() -> None:
    """Overlapping parts of a vector, other lengths, columns, other types."""
    x, wide = torch.randn(LONG), torch.randn(LONG, 2)
    state = torch.zeros(LONG)
    for step in (
        lambda: state[1:].add_(x[1:]).mul_(2) is state[:-1].add_(x[:-1]),
        lambda: state[:-1].copy_(state[1:] * 2),
        lambda: state[:100].add_(x[:100]).mul_(2),
        lambda: wide[:, 0].add_(x).mul_(2),
        lambda: state.double().add(1).mul(2),
    ):
        found = replayed(step)
        expected = {id(each): each.clone() for each in (x, wide, state)}
        found.replay()
        once = {id(each): each.clone() for each in (x, wide, state)}
        for each in (x, wide, state):
            each.copy_(expected[id(each)])
        step()
        assert all(torch.equal(once[id(each)], each) for each in (x, wide, state))
    assert not loops(found)


def assert_one_by_one() -> None:
    """Operators that could be a loop are none, and are replayed right."""
    x, y = torch.randn(LONG), torch.zeros(LONG)
    found = replayed(lambda: y.copy_((x + 1) * 2))
    assert not loops(found)
    y.zero_()
    found.replay()
    assert torch.equal(y, (x + 1) * 2)


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    native.compiled.cache_clear()
    yield
    native.compiled.cache_clear()


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "true"])
def test_without_a_compiler_operators_stay_what_they_are(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none, it fails, or what it leaves cannot be loaded."""
    monkeypatch.setenv("CC", compiler)
    assert_one_by_one()


@pytest.mark.usefixtures("nothing_compiled")
def test_a_loop_with_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a compiler rounds otherwise."""
    monkeypatch.setitem(fused.WRITTEN, "mul", lambda a, b: f"{a} * {b} * 1.0000001f")
    assert_one_by_one()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["hbfl", "pfedbayes", "bayesadmm", "fedgvi"])
def test_methods_train_the_same_to_the_last_bit(
    name: str,
    dtype: torch.dtype,
    mapping: Callable[..., dict[str, Any]],
    data_dir: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = federation(mapping(name), data_dir, dtype)
    expected = play(of, 1)
    monkeypatch.setattr(fused, "SHORTEST", 100)
    trainer = Trainer(of, "threads")
    found = trainer.play(begin(of))
    assert isinstance(trainer.executor, ThreadExecutor)
    buffers = [each for worker in trainer.executor.workers for each in worker.buffers.values()]
    assert all(step and loops(step.recorder) for each in buffers for step in each.steps.values())
    for part, tensor in tensors(expected).items():
        assert torch.equal(tensors(found)[part], tensor), part
