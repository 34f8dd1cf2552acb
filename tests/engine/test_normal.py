"""Normal numbers that C draws are torch's own, to the last bit, and so is the generator behind them."""

import shutil
from collections.abc import Iterator

import pytest
import torch

from bayesfed.engine.executors import fused, native, normal
from bayesfed.engine.executors.op_recorder import OpRecorder


@pytest.mark.parametrize("count", [16, 31, 624, 625, 10_000, 159_010])
def test_numbers_and_generators_are_torchs(count: int) -> None:
    assert shutil.which("cc"), "this test needs a C compiler"
    draw = normal.drawing()
    assert draw
    found, expected = (torch.Generator().manual_seed(count + 1) for _ in range(2))
    for _ in range(3):
        numbers = torch.empty(count)
        draw(numbers, found)
        assert torch.equal(numbers, torch.randn(count, generator=expected))
        assert torch.equal(torch.rand(7, generator=found), torch.rand(7, generator=expected))
    assert torch.equal(found.get_state(), expected.get_state())


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    for cached in (native.compiled, normal.drawing):
        cached.cache_clear()
    yield
    for cached in (native.compiled, normal.drawing):
        cached.cache_clear()


@pytest.mark.usefixtures("nothing_compiled")
def test_without_a_compiler_torch_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert normal.drawing() is None


@pytest.mark.usefixtures("nothing_compiled")
def test_other_numbers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch is built otherwise."""
    torchs = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, generator: torchs(*size, generator=generator) * 1.0000001)
    assert normal.drawing() is None


@pytest.mark.parametrize("more", [0, 3])
def test_a_recorded_step_draws_what_the_step_draws(more: int) -> None:
    generator, other = (torch.Generator().manual_seed(1) for _ in range(2))
    x = torch.zeros(fused.SHORTEST + more)
    with OpRecorder(2**30) as found:
        x.copy_(torch.randn(x.shape, generator=generator) * 2)
    draws = [call for call in found.replays if call.func is normal.drawing()]  # type: ignore[attr-defined]
    assert len(draws) == 1
    torch.randn(x.shape, generator=other)
    for _ in range(2):
        found.replay()
        assert torch.equal(x, torch.randn(x.shape, generator=other) * 2)
