"""Max-pooling by whole-tensor operations against PyTorch's, to the bit."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bayesfed.models import pooling

DTYPES = [torch.bfloat16, torch.float32, torch.float64]


def images(shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int, ties: bool, last: bool) -> Tensor:
    """Random numbers, whole ones where windows are to have ties."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    x = (x.round() if ties else x).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 17), st.integers(2, 9), st.integers(2, 9)),
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([2, 3]),
    seed=st.integers(0, 2**31),
    ties=st.booleans(),
    last=st.booleans(),
)
def test_maxima_and_gradient_are_those_of_pytorch(
    shape: tuple[int, int, int, int], dtype: torch.dtype, size: int, seed: int, ties: bool, last: bool
) -> None:
    size = min(size, *shape[2:])
    x = images(shape, dtype, seed, ties, last)
    wanted = F.max_pool2d(x.requires_grad_(), size)
    g = images(wanted.shape, dtype, seed + 1, False, last)
    (g_wanted,) = torch.autograd.grad(wanted, x, g)
    with torch.no_grad():
        y, places = pooling.pool_and_places(x, size)
        assert torch.equal(pooling.pool(x, size), wanted)
        assert torch.equal(y, wanted)
        assert torch.equal(pooling.unpool(g, places, size, x.shape), g_wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gradient", [True, False])
def test_both_ways_are_taken(dtype: torch.dtype, gradient: bool) -> None:
    x = images((2, 3, 6, 6), dtype, 0, ties=False, last=True)
    assert pooling.by_corners(x, 2, gradient) == (dtype == torch.bfloat16 or not gradient)
    assert not pooling.by_corners(x, 3, gradient)
    assert not pooling.by_corners(x.contiguous(), 2, gradient)


def test_what_is_no_number_comes_through() -> None:
    x = images((1, 3, 4, 4), torch.bfloat16, 0, ties=False, last=True)
    x[0, 1, 0, 1] = torch.nan
    for y in (pooling.pool(x, 2), pooling.pool_and_places(x, 2)[0]):
        assert torch.equal(y.isnan(), F.max_pool2d(x, 2).isnan())
