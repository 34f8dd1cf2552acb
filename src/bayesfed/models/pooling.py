"""Max-pooling, and its gradient, which goes to the first of a window's largest values.

PyTorch's own takes window by window. On a CPU that is slow in bf16, and where a window's channels fill no vector register:
whole-tensor operations on the corners of all windows of 2x2 do the same in less time, to the bit. In fp32 they do where no
gradient is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Integers as wide as a number: a comparison is fast where its result is as wide as what it compares.
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

# Where corners may be faster than PyTorch's own pooling.
CORNERS = {"cpu"}

pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default


def by_corners(x: Tensor, size: int, gradient: bool) -> bool:
    """Whether operations on corners are faster for x (N, C, H, W), with the gradient's share or without."""
    fast = x.dtype == torch.bfloat16 or not gradient
    return x.device.type in CORNERS and size == 2 and fast and x.is_contiguous(memory_format=torch.channels_last)


def pool(x: Tensor, size: int) -> Tensor:
    """The maxima (N, C, H // size, W // size) of x (N, C, H, W) over windows of that size; no gradient is wanted."""
    if not by_corners(x, size, gradient=False):
        return F.max_pool2d(x, size)
    upper, lower = (torch.maximum(left, right) for left, right in corners(x))
    return torch.maximum(upper, lower)


def pool_and_places(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The maxima of x (N, C, H, W), and what `unpool` needs: PyTorch's indices, or for each window of 2x2 whether the left
    one is larger above, below, and whether the upper of these two is: integers 0 or 1 (3, N, C, H // 2, W // 2)."""
    if not by_corners(x, size, gradient=True):
        return F.max_pool2d(x, size, return_indices=True)
    n, c, h, w = x.shape
    places = torch.empty(3, n, h // 2, w // 2, c, dtype=BITS[x.itemsize]).permute(0, 1, 4, 2, 3)
    rows = []
    for (left, right), place in zip(corners(x), places, strict=False):
        rows.append(torch.maximum(left, right))
        torch.eq(bits(rows[-1]), bits(left), out=place)
    upper, lower = rows
    y = torch.maximum(upper, lower)
    torch.eq(bits(y), bits(upper), out=places[2])
    return y, places


def unpool(g: Tensor, places: Tensor, size: int, shape: Sequence[int]) -> Tensor:
    """The gradient of x of that shape (N, C, H, W) from that of its maxima, in channels-last memory."""
    out = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
    if places.dim() == 4:
        return pool_backward(
            g, out, [size, size], [size, size], [0, 0], [1, 1], False, places
        )  # `out` for its shape alone
    *_, h, w = shape
    out[:, :, h // 2 * 2 :] = 0
    out[:, :, :, w // 2 * 2 :] = 0
    upper = bits(g) * places[2]  # 0 or g, so that the difference is g or 0
    for part, place, (left, right) in zip((upper, bits(g) - upper), places, corners(bits(out)), strict=False):
        torch.mul(part, place, out=left)
        torch.sub(part, left, out=right)
    return out


def corners(x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The four corners (N, C, H // 2, W // 2) of all windows of x (N, C, H, W), as views: those above, left and right, and
    those below."""
    *_, h, w = x.shape
    x = x[:, :, : h // 2 * 2, : w // 2 * 2]
    upper, lower = x[:, :, ::2], x[:, :, 1::2]
    return (upper[..., ::2], upper[..., 1::2]), (lower[..., ::2], lower[..., 1::2])


def bits(x: Tensor) -> Tensor:
    """The numbers' bits as integers."""
    return x.view(BITS[x.itemsize])
