"""Convolution, max-pooling and ReLU with their gradient, in oneDNN's order of memory and in PyTorch's, against autograd."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from bayesfed import models
from bayesfed.models import convolution

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest value


def near(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max() + 1e-6)


def relu_too(x: Tensor, weight: Tensor, bias: Tensor, *rest: object) -> Tensor:
    """In place of cuDNN's one call."""
    return F.conv2d(x, weight, bias).relu()


def refuse(*given: object) -> Tensor:
    """As cuDNN, where it has no way for such images and weights."""
    raise RuntimeError("GET was unable to find an engine to execute this computation")


@contextlib.contextmanager
def cudnn(one_call: Callable[..., Tensor] | None) -> Iterator[None]:
    """As on a GPU with this one call; None: as on a CPU."""
    with contextlib.ExitStack() as changed:
        if one_call:
            changed.enter_context(mock.patch.object(convolution, "in_one_call", return_value=True))
            changed.enter_context(mock.patch.object(torch, "cudnn_convolution_relu", one_call))
            changed.enter_context(mock.patch.object(convolution, "REFUSED", set[object]()))
        yield


@given(
    batch=st.integers(1, 5), channels=st.integers(1, 17), out=st.integers(1, 33), height=st.integers(4, 11),
    width=st.integers(4, 11), kernel=st.sampled_from([1, 3]), pool=st.sampled_from([1, 2]),
    dtype=st.sampled_from(list(TOLERANCE)), seed=st.integers(0, 2**31), one_call=st.sampled_from([None, relu_too, refuse]),
)  # fmt: skip
def test_values_and_gradients_are_autograd_s(
    batch: int, channels: int, out: int, height: int, width: int, kernel: int, pool: int, dtype: torch.dtype, seed: int,
    one_call: Callable[..., Tensor] | None,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, channels, height, width), (out, channels, kernel, kernel), (out,)
    # Whole numbers: sums of them are exact, so in each precision the same value of a window is its first maximum.
    x, weight, bias = (torch.randn(shape, generator=generator).round().double().requires_grad_() for shape in shapes)
    y = F.conv2d(x, weight, bias)
    assume(bool(y.abs().max() <= 256))  # bf16 has all whole numbers up to there
    wanted = (F.max_pool2d(y, pool) if pool > 1 else y).relu()
    g = torch.randn(wanted.shape, generator=generator).to(dtype)
    gradients = torch.autograd.grad(wanted, (x, weight, bias), g.double())

    x, weight, bias = (tensor.detach().to(dtype) for tensor in (x, weight, bias))
    x = x.contiguous(memory_format=torch.channels_last)
    inputs = [x, x.to_mkldnn()] if convolution.for_onednn(x) and not one_call else [x]
    for own in inputs:
        kept: list[Tensor] = []
        with torch.no_grad(), cudnn(one_call):
            found = convolution.forward(own, weight, bias, pool, kept)
            at = (g * (wanted > 0)).to(dtype)
            at = at.to_mkldnn() if own.is_mkldnn else at
            *_, last_x, last_weight = kept
            del kept[-2:]
            g_x, pair = convolution.backward(at, last_x, last_weight, pool, kept, True)
            of_all = g_x, *pair
        assert not kept
        assert near(convolution.dense(found).double(), wanted, TOLERANCE[dtype])
        for one, other in zip(of_all, gradients, strict=True):
            assert near(convolution.dense(one).double(), other, TOLERANCE[dtype])
        with torch.no_grad(), cudnn(one_call):  # evaluation
            assert near(convolution.forward(x, weight, bias, pool, None).double(), wanted, TOLERANCE[dtype])


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(2, 9), st.integers(2, 9)),
    dtype=st.sampled_from(sorted(convolution.ONEDNN, key=str)), seed=st.integers(0, 2**31), ties=st.booleans(),
)  # fmt: skip
def test_onednn_s_maxima_lie_where_pytorch_s_do_to_the_bit(
    shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int, ties: bool
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    x = (x.round() if ties else x).to(dtype).requires_grad_()
    wanted = F.max_pool2d(x, 2)
    g = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(seed + 1)).to(dtype)
    (g_wanted,) = torch.autograd.grad(wanted, x, g)
    own = x.detach().to_mkldnn().requires_grad_()
    y = convolution.onednn_pool(own, *convolution.windows(2)).detach()
    assert torch.equal(y.to_dense(), wanted)
    g_x = convolution.onednn_pool_backward(g.to_mkldnn(), y, own.detach(), *convolution.windows(2))
    assert torch.equal(g_x.to_dense(), g_wanted)
    with torch.no_grad():
        assert torch.equal(convolution.maxima(x.contiguous(memory_format=torch.channels_last), 2), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_is_no_number_comes_through_where_nothing_is_differentiated(dtype: torch.dtype) -> None:
    x = torch.ones(1, 2, 6, 6, dtype=dtype).contiguous(memory_format=torch.channels_last)
    x[0, 1, 0, 1] = torch.nan
    with torch.no_grad():
        y = convolution.forward(x, torch.ones(3, 2, 3, 3, dtype=dtype), torch.zeros(3, dtype=dtype), 2, None)
    assert y[:, :, 0, 0].isnan().all()
    assert not y[:, :, 1, 1].isnan().any()


def test_a_network_that_overflows_says_so_when_it_is_evaluated() -> None:
    """Where training goes on: finite parameters, and convolutions of infinities of both signs."""
    network = models.build("cnn2", 10, 3, 32)
    theta = 1e25 * torch.randn(network.parameters, generator=torch.Generator().manual_seed(0))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert network(theta, images).isnan().any()


@pytest.mark.parametrize("images", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("weights", [torch.channels_last, torch.contiguous_format])
def test_a_gradient_lies_in_memory_as_the_convolution_s_result_did(
    images: torch.memory_format, weights: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool_backward = convolution.pool_backward
    found: list[bool] = []

    def noted(*arguments: Any) -> Tensor:
        g: Tensor = pool_backward(*arguments)
        found.append(g.is_contiguous(memory_format=torch.channels_last))
        return g

    monkeypatch.setattr(convolution, "pool_backward", noted)
    kept: list[Tensor] = []
    with torch.no_grad():
        x = torch.randn(2, 3, 8, 8).contiguous(memory_format=images)
        weight = torch.randn(4, 3, 3, 3).contiguous(memory_format=weights)
        y = convolution.forward(x, weight, torch.zeros(4), 2, kept)
        del kept[-2:]
        convolution.backward(torch.randn(y.shape), x, weight, 2, kept, True)
    assert found == [torch.channels_last in (images, weights)]


def test_float64_and_other_devices_do_without_onednn() -> None:
    assert not convolution.for_onednn(torch.empty(1, dtype=torch.float64))
    assert not convolution.for_onednn(torch.empty(1, device="meta"))


def test_cudnn_is_asked_again_only_for_what_it_has_not_refused_and_memory_is_no_refusal() -> None:
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    with cudnn(mock.Mock(side_effect=refuse)):
        for _ in range(3):
            convolution.with_relu(x, weight, bias)
        assert torch.cudnn_convolution_relu.call_count == 1
        convolution.with_relu(x[:1], weight, bias)
        assert torch.cudnn_convolution_relu.call_count == 2
    with cudnn(mock.Mock(side_effect=torch.OutOfMemoryError)):
        with pytest.raises(torch.OutOfMemoryError):
            convolution.with_relu(x, weight, bias)
        assert not convolution.REFUSED
    assert not convolution.in_one_call(x)
