"""A convolution with its max-pooling and ReLU, and its gradient, as each device is fastest with it.

On an x86 CPU a pass that is to be differentiated runs on tensors in oneDNN's own order of memory (PyTorch calls them
mkldnn tensors): its pooling is faster than PyTorch's, and gives the same bits. But that pooling, and that ReLU, take NaN
for the least of numbers. So what is not differentiated, evaluation above all, runs on PyTorch's tensors, where a network
that has diverged says so. On a GPU all passes run cuDNN's convolution with bias and ReLU in one call, which lets NaN
through.
"""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor

# What autograd itself calls.
convolution_backward = torch.ops.aten.convolution_backward.default
relu_backward = torch.ops.aten.threshold_backward.default
pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default
onednn_pool = torch.ops.aten.mkldnn_max_pool2d.default
onednn_pool_backward = torch.ops.aten.mkldnn_max_pool2d_backward.default

ONEDNN = set[torch.dtype]()  # what it computes in here
if torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64"):
    ONEDNN |= {torch.float32} | ({torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set())
OWN_WAYS = {"cpu"}  # devices with ways of their own: oneDNN's order of memory, and maxima over corners
# In bf16 oneDNN has, in its own order of memory, a fast gradient of weights only for so many output channels and multiples
# of them. For others (LeNet5's six) it takes six times as long as in channels-last order, copies there not counted.
CHANNELS = 16
CUDNN = {torch.float32, torch.bfloat16}  # what its one call computes in
REFUSED = set[tuple[object, ...]]()  # images and weights that it has no way for
CONVOLUTION = [1, 1], [0, 0], [1, 1], False, [0, 0], 1  # stride 1, no padding, no dilation, not transposed, one group


def for_onednn(x: Tensor) -> bool:
    """Return whether a pass over images x that is to be differentiated is faster in oneDNN's order of memory."""
    return x.device.type in OWN_WAYS and x.dtype in ONEDNN


def in_one_call(x: Tensor) -> bool:
    """Return whether a pass over images x is faster with cuDNN's convolution, bias and ReLU in one."""
    return x.device.type == "cuda" and x.dtype in CUDNN


def with_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ReLU(x * weight + bias), in cuDNN's one call where it has one for such images and weights."""
    what = x.dtype, x.shape, x.stride(), weight.shape
    if what not in REFUSED:
        try:
            return torch.cudnn_convolution_relu(x, weight, bias, [1, 1], [0, 0], [1, 1], 1)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            REFUSED.add(what)
    return F.conv2d(x, weight, bias).relu_()


def dense(x: Tensor) -> Tensor:
    """Return x in PyTorch's order of memory."""
    return x.to_dense() if x.is_mkldnn else x


def windows(size: int) -> tuple[list[int], list[int], list[int], list[int], bool]:
    """Return kernel, stride, padding, dilation and whether to round up, for windows of `size` x `size` side by side."""
    return [size, size], [size, size], [0, 0], [1, 1], False


def maxima(x: Tensor, size: int) -> Tensor:
    """Return the maxima (N, C, H // size, W // size) of x (N, C, H, W) over windows of that size; no gradient is
    wanted.
    """
    if x.device.type not in OWN_WAYS or size != 2 or not x.is_contiguous(memory_format=torch.channels_last):
        return F.max_pool2d(x, size)
    *_, h, w = x.shape
    x = x[:, :, : h // 2 * 2, : w // 2 * 2]
    upper, lower = (torch.maximum(row[..., ::2], row[..., 1::2]) for row in (x[:, :, ::2], x[:, :, 1::2]))
    return torch.maximum(upper, lower)


def forward(x: Tensor, weight: Tensor, bias: Tensor, pool: int, kept: list[Tensor] | None) -> Tensor:
    """Compute ReLU(max-pooling(x * weight + bias)) of x (N, C, H, W) and weights (out, C, k, k), over windows of
    `pool` x `pool`.

    What `backward` needs is appended to `kept`: what tells where the maxima are (PyTorch's indices, or oneDNN's result and
    input), the input and the weight.
    """
    keep = [x, weight]
    if one_call := in_one_call(x):
        x = with_relu(x, weight, bias)
    else:
        x = F.conv2d(x, weight.to_mkldnn(), bias.to_mkldnn()) if x.is_mkldnn else F.conv2d(x, weight, bias)
    # The maxima before ReLU, where it is still to come: the same values from a quarter of the work.
    if pool > 1 and kept is None:
        x = maxima(x, pool)
    elif pool > 1 and x.is_mkldnn:
        with torch.enable_grad():  # else oneDNN does not note where the maxima are
            y = onednn_pool(x.requires_grad_(), *windows(pool)).detach()
        keep, x = [y, x.detach(), *keep], y
    elif pool > 1:
        x, places = F.max_pool2d(x, pool, return_indices=True)
        keep = [places, *keep]
    if kept is not None:
        kept += keep
    return x if one_call else x.relu_()


def backward(
    g: Tensor, x: Tensor, weight: Tensor, pool: int, kept: list[Tensor], to_input: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the gradients of input x (where asked for), and of weight and bias, from that of the maxima, g.

    `kept` ends with what `forward` kept before x and weight, which is taken off.
    """
    if x.is_mkldnn:
        g = unpooled(g, x, weight, pool, kept)
        if slow := x.dtype == torch.bfloat16 and len(weight) % CHANNELS != 0:
            g, x = (dense(tensor).contiguous(memory_format=torch.channels_last) for tensor in (g, x))
        g_x, g_weight, g_bias = convolution_backward(g, x, weight, [len(weight)], *CONVOLUTION, [to_input, True, True])
        return g_x.to_mkldnn() if slow and to_input else g_x, (g_weight, g_bias)
    g_bias = g.sum((0, 2, 3))  # behind the pooling: a quarter of the values
    g = unpooled(g, x, weight, pool, kept)
    g_x, g_weight, _ = convolution_backward(g, x, weight, None, *CONVOLUTION, [to_input, True, False])
    return g_x, (g_weight, g_bias)


def backward_by_image(
    g: Tensor, x: Tensor, weight: Tensor, pool: int, kept: list[Tensor], to_input: bool
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Do as `backward`; return, behind the gradients of weight and bias, the sums over the images of the squares of
    what each has in them.
    """
    g = unpooled(g, x, weight, pool, kept)
    g_x = convolution_backward(g, x, weight, None, *CONVOLUTION, [True, False, False])[0] if to_input else g
    g, x, size = dense(g), dense(x), weight.shape[2]
    patches = (
        x.unfold(2, size, 1).unfold(3, size, 1).permute(0, 1, 4, 5, 2, 3)
    )  # behind what is summed over: the places
    products = torch.bmm(g.flatten(2), patches.flatten(4).flatten(1, 3).mT)
    weights, biases = products.view(len(x), *weight.shape), g.sum((2, 3))
    return g_x, (weights.sum(0), biases.sum(0)), (weights.square().sum(0), biases.square().sum(0))


def unpooled(g: Tensor, x: Tensor, weight: Tensor, pool: int, kept: list[Tensor]) -> Tensor:
    """Return the gradient of what is pooled from that of the maxima, g; takes off what `kept` has of them."""
    if pool == 1:
        return g
    if x.is_mkldnn:
        z, y = kept.pop(), kept.pop()
        found: Tensor = onednn_pool_backward(g, y, z, *windows(pool))
        return found
    places = kept.pop()
    shape = [len(x), len(weight), x.shape[2] - weight.shape[2] + 1, x.shape[3] - weight.shape[3] + 1]
    last = places.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    like = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=layout)
    found = pool_backward(g, like, *windows(pool), places)  # `like` for its shape and its order of memory alone
    return found
