"""A network as a pure function of one flat parameter vector, so that a paper's theta and mu are vectors in code too.

Its gradient is written out, layer by layer, in place of autograd's: fewer and smaller passes over memory. Where a GPU's
convolutions are faster channels last, the weights of a vector are put into that order all at once, and the gradient back.
On a CPU the activations of a few images lie in columns, an image in each, where a product is faster so; for convolutions
see `convolution`.

Longer than 350 lines: the passes forward, back and with squares share one layout of memory, chosen for speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesfed.core.errors import UnfitImages
from bayesfed.models import convolution
from bayesfed.models.convolution import relu_backward

# Up to so many images, a layer of a CPU that is given an image a row gives activations with an image a column.
# By MKL's x W^T in fp32: for 32 images 1.0 to 2 times as fast so, for 100 up to 1.4 times as slow.
FEW = 32


@dataclass(frozen=True)
class Conv:
    """A convolution with stride 1 and no padding; `pool` 2 adds a 2x2 max-pooling behind it."""

    out: int
    kernel: int
    pool: int = 1


@dataclass(frozen=True)
class Linear:
    """A fully connected layer; the first one flattens what it gets."""

    out: int


@dataclass(frozen=True)
class Chain:
    """Convolutions, then fully connected layers, and how they start: as PyTorch's do, or by Xavier's (Glorot's) uniform
    draw with zero biases."""

    layers: tuple[Conv | Linear, ...]
    initial: Literal["torch", "xavier"] = "torch"


class Pass(torch.autograd.Function):
    """A network's logits, whose gradient it computes itself; or autograd, where that is differentiated again."""

    @staticmethod
    def forward(ctx: Any, network: Network, theta: Tensor, images: Tensor) -> Tensor:
        kept: list[Tensor] = []
        logits = network.forward(theta.detach(), images, kept)
        ctx.network, ctx.theta, ctx.images = network, theta, images
        ctx.save_for_backward(*kept)
        return logits

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        if torch.is_grad_enabled():  # by create_graph: what is computed here is differentiated in turn
            return None, *again_differentiable(ctx, g)
        (g_theta,), g_images = ctx.network.backward(g, list(ctx.saved_tensors), ctx.needs_input_grad[2])
        return None, g_theta.to(ctx.theta.dtype), None if g_images is None else g_images.view(ctx.images.shape)


def again_differentiable(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of theta and the images, where they are wanted, from that at the logits g, as autograd
    computes them.
    """
    given, _ = (ctx.theta, ctx.images), ctx.saved_tensors  # to ask for these is an error where theta has moved since
    wanted = [tensor for tensor in given if tensor.requires_grad]
    found = iter(torch.autograd.grad(ctx.network.plain(*given), wanted, g, create_graph=True))
    of_theta, of_images = (next(found) if tensor.requires_grad else None for tensor in given)
    return of_theta, of_images


def gradient(logits: Tensor, theta: Tensor, g: Tensor) -> Tensor | None:
    """Return the gradient of theta from that at the logits g, without autograd's engine, where the logits are just
    what a network gives for theta; else None.
    """
    found = straight_back(logits, theta, g)
    return None if found is None else found[0]


def with_squares(logits: Tensor, theta: Tensor, g: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return `gradient`, and the sum over the images of the squares of what each has in it, (parameters,) both."""
    found = straight_back(logits, theta, g, squared=True)
    return None if found is None else (found[0], found[1])


def last_inputs(logits: Tensor, theta: Tensor) -> Tensor | None:
    """Return what the last layer was given (batch, width), where the logits are just what a network gives for theta."""
    made = logits.grad_fn
    return made.saved_tensors[-2] if getattr(made, "theta", None) is theta else None  # type: ignore[union-attr]


def gradient_below(logits: Tensor, theta: Tensor, g: Tensor) -> Tensor:
    """Return the gradient (P - d,) of all parameters before the last layer's d, from that at its inputs, g (batch, width),
    where there are `last_inputs`.
    """
    found = straight_back(logits, theta, g, below=True)
    assert found is not None  # as there are last inputs
    return found[0][: -sum(logits.grad_fn.network.sizes[-2:])]  # type: ignore[union-attr]


def straight_back(
    logits: Tensor, theta: Tensor, g: Tensor, squared: bool = False, below: bool = False
) -> list[Tensor] | None:
    """Return what `Network.backward` gives of theta, in its dtype; None where there is something else before the
    logits.
    """
    made = logits.grad_fn
    if getattr(made, "theta", None) is not theta or made.needs_input_grad[2]:  # type: ignore[union-attr]
        return None
    found, _ = made.network.backward(g.detach(), list(made.saved_tensors), False, squared, below)  # type: ignore[union-attr]
    return [vector.to(theta.dtype) for vector in found]


class Network:
    """A chain of convolutions, then fully connected layers, with ReLU between all of them.

    `network(theta, images)` gives logits of shape (batch, classes). `theta` holds every weight and bias, layer
    by layer, as one vector of `parameters` entries; the first `convolution_parameters` of them belong to the
    convolutions. `operations` are the multiply-adds for one image, `training_operations` with the way back to the
    parameters. Computation runs in the dtype of the images, except
    the last layer's forward pass, which runs in fp32 at least: see `at_least_fp32`.
    """

    def __init__(self, name: str, chain: Chain, shape: tuple[int, ...]) -> None:
        """Lay out the parameters for examples of a shape, (C, H, W) for images.

        Raises UnfitImages when the images are too small for the layers, or no images.
        """
        self.name = name
        self.chain = chain
        self.layers = layers = chain.layers
        self.shapes: list[tuple[int, ...]] = []
        self.convolution_parameters = 0
        self.operations = 0
        self.channel_shapes: list[tuple[int, ...]] = []  # with the channels of the layer's input apart
        width, sides = shape[0], list(shape[1:])
        flat = False
        for depth, layer in enumerate(layers):
            if isinstance(layer, Conv):
                if len(sides) != 2:
                    raise UnfitImages(
                        f"model '{name}': its convolutions take (channels, height, width), and not the shape {shape}"
                    )
                self.shapes += [(layer.out, width, layer.kernel, layer.kernel), (layer.out,)]
                self.channel_shapes += [self.shapes[-2], (layer.out, 1)]
                sides = [side - layer.kernel + 1 for side in sides]
                self.operations += math.prod(self.shapes[-2]) * math.prod(max(side, 0) for side in sides)
                sides = [side // layer.pool for side in sides]
                if min(sides) < 1:
                    raise UnfitImages(
                        f"model '{name}' does not fit images of {shape[1]}x{shape[2]}: its convolutions need at least "
                        f"{smallest_size(layers)}x{smallest_size(layers)}"
                    )
                self.convolution_parameters = sum(math.prod(shape) for shape in self.shapes)
            else:
                self.channel_shapes += [(layer.out, width, 1 if flat else math.prod(sides)), (layer.out, 1)]
                if not flat:
                    width, flat, self.flattened = width * math.prod(sides), True, sides
                self.shapes += [(layer.out, width), (layer.out,)]
                self.operations += layer.out * width
            width = layer.out
            if not depth:
                self.training_operations = -self.operations  # whose way back does not go on to the images
        self.training_operations += 3 * self.operations
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.parameters = sum(self.sizes)
        self.orders: dict[torch.device, tuple[Tensor, Tensor]] = {}

    # What a module may have, and a chain has not: see `ModuleNetwork`.
    statistics: ClassVar[dict[str, Tensor]] = {}
    constants: ClassVar[Set[str]] = frozenset()
    batchwise: ClassVar[bool] = False
    random: ClassVar[bool] = False  # whether it draws in training
    scaling: ClassVar[np.ndarray] = np.zeros(0, dtype=bool)

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Draw PyTorch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases; or
        Xavier's, U(-b, b) with b = sqrt(6 / (fan_in + fan_out)) for weights, and 0 for biases.

        Drawn on the host in float32, shape (parameters,), so that every device starts from the same values.
        """
        parts = []
        for weight, bias in zip(self.shapes[::2], self.shapes[1::2], strict=True):
            fan_in, fan_out = math.prod(weight[1:]), weight[0] * math.prod(weight[2:])
            if self.chain.initial == "xavier":
                bounds = math.sqrt(6 / (fan_in + fan_out)), 0.0
            else:
                bounds = (1 / math.sqrt(fan_in),) * 2
            for bound, shape in zip(bounds, (weight, bias), strict=True):
                parts.append(generator.uniform(-bound, bound, math.prod(shape)))
        return np.concatenate(parts).astype(np.float32)

    def __call__(self, theta: Tensor, images: Tensor) -> Tensor:
        """Return logits (batch, classes) of images (batch, C, H, W), or others, under `theta` (parameters,).

        They can be differentiated with respect to both. A second derivative (`create_graph`) costs another pass.
        """
        if torch.is_grad_enabled() and (theta.requires_grad or images.requires_grad):
            return Pass.apply(self, theta, images)  # type: ignore[no-any-return, no-untyped-call]
        return self.forward(theta, images)

    def logits(self, theta: Tensor, images: Tensor, statistics: Mapping[str, Tensor],
               generator: torch.Generator, dropout: bool = False) -> Tensor:  # fmt: skip
        """Return `network(theta, images)`; a chain has no statistics and draws nothing."""
        return self(theta, images)

    def module(self, theta: Tensor, statistics: Mapping[str, Tensor]) -> nn.Module:
        """Return an ordinary module with these parameters, on the host in fp32; a chain has no statistics."""
        modules: list[nn.Module] = []
        for depth, (layer, shape) in enumerate(zip(self.layers, self.shapes[::2], strict=True)):
            modules += [nn.ReLU()] if depth else []
            if isinstance(layer, Conv):
                modules += [nn.Conv2d(shape[1], layer.out, layer.kernel)]
                modules += [nn.MaxPool2d(layer.pool)] if layer.pool > 1 else []
            else:
                first = not depth or isinstance(self.layers[depth - 1], Conv)
                modules += [nn.Flatten()] if first else []
                modules += [nn.Linear(shape[1], layer.out)]
        made = nn.Sequential(*modules).eval()
        torch.nn.utils.vector_to_parameters(theta.detach().float().cpu().clone(), made.parameters())
        return made

    def layout_for(self, images: Tensor) -> torch.memory_format | None:
        """Return the order of memory for its convolutions' images; None where there are none, or what comes is as
        good.
        """
        return layout_for(images.device, images.dtype) if self.convolution_parameters else None

    def order(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return where in theta the entries of the vector in channels-last order come from, and the way back:
        (parameters,).
        """
        if device not in self.orders:
            order = []
            for part, shape in zip(torch.arange(self.parameters).split(self.sizes), self.channel_shapes, strict=True):
                order.append(part.view(shape).movedim(1, -1).flatten())
            there = torch.cat(order).int()
            self.orders[device] = there.to(device), there.argsort().int().to(device)
        return self.orders[device]

    def parts(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Return every weight and bias of a vector (parameters,), layer by layer, as views."""
        parts = torch.split_with_sizes(vector, self.sizes)
        return tuple(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))

    def forward(self, theta: Tensor, images: Tensor, kept: list[Tensor] | None = None) -> Tensor:
        """Return the logits.

        What `backward` needs is appended to `kept`: for each layer where the maxima are that its pooling took, its
        input and its weight.
        """
        layout = self.layout_for(images)
        if gathered := layout is torch.channels_last:
            theta = theta.index_select(0, self.order(theta.device)[0])
        head = theta[-sum(self.sizes[-2:]) :]
        parts = iter(self.parts(theta.to(images.dtype)))
        x, last = images, len(self.layers) - 1
        if layout is torch.contiguous_format:
            x = channels_first(x)
        if self.convolution_parameters and kept is not None and convolution.for_onednn(x):
            x = x.to_mkldnn()
        for depth, layer in enumerate(self.layers):
            weight, bias = next(parts), next(parts)
            if isinstance(layer, Conv):
                if gathered:
                    out, channels, *sides = weight.shape
                    weight = weight.view(out, *sides, channels).permute(0, 3, 1, 2)
                x = convolution.forward(x, weight, bias, layer.pool, kept)
            else:
                if x.dim() > 2:
                    x = x.permute(0, 2, 3, 1).flatten(1) if gathered else flattened(convolution.dense(x))
                if kept is not None:
                    kept += [x, weight]
                if depth < last:
                    x = torch._addmm_activation(
                        bias, x, weight.t(), out=columns_for(x, layer.out)
                    )  # ReLU in the same kernel
                else:
                    wide = at_least_fp32(x.dtype)
                    weight, bias = head.to(wide).split_with_sizes(self.sizes[-2:])
                    x = torch.addmm(bias, x.to(wide), weight.view(self.shapes[-2]).t())
        return x

    def plain(self, theta: Tensor, images: Tensor) -> Tensor:
        """Compute the logits by operations that autograd differentiates any number of times, and that a CPU's steps
        can be recorded with.
        """
        dtype, wide, last = images.dtype, at_least_fp32(images.dtype), len(self.layers) - 1
        x, parts = images, self.parts(theta.to(dtype))
        head = (parts if wide == dtype else self.parts(theta.to(wide)))[-2:]
        for depth, (layer, weight, bias) in enumerate(zip(self.layers, parts[::2], parts[1::2], strict=True)):
            if isinstance(layer, Conv):
                x = F.max_pool2d(F.conv2d(x, weight, bias), layer.pool)
            elif depth < last:
                x = F.linear(x.flatten(1), weight, bias)
            else:
                return F.linear(x.flatten(1).to(wide), *head)
            x = x * (x > 0)  # ReLU's second derivative would be a vector of zeros
        raise AssertionError("a chain ends with a fully connected layer")

    def last_inputs(self, theta: Tensor, images: Tensor) -> Tensor:
        """Return what the last layer is given (batch, width)."""
        kept: list[Tensor] = []
        self.forward(theta, images, kept)
        return kept[-2]

    def backward(
        self, g: Tensor, kept: list[Tensor], to_images: bool, squared: bool = False, below: bool = False
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the gradients of theta and, where asked for, of the images, from those of the logits g (batch,
        classes); in the images' dtype. `squared`: behind theta's, the sum over the images of the squares of what each
        has in it. `below`: g is that of the last layer's inputs, whose own gradient is left undefined.
        """
        gathered, onednn = self.layout_for(kept[-1]) is torch.channels_last, kept[0].is_mkldnn
        g = g.to(kept[-1].dtype)
        found = [g.new_empty(self.parameters) for _ in range(1 + squared)]
        parts = [self.parts(vector) for vector in found]
        convolved: list[list[tuple[Tensor, Tensor]]] = []  # of weight and bias, from the last layer to the first
        for depth in reversed(range(len(self.layers))):
            layer = self.layers[depth]
            weight, x = kept.pop(), kept.pop()
            to_input = depth > 0 or to_images
            if isinstance(layer, Conv):
                back = convolution.backward_by_image if squared else convolution.backward
                g, *pairs = back(g, x, weight, layer.pool, kept, to_input)
                convolved.append([(w.permute(0, 2, 3, 1) if gathered else w, bias) for w, bias in pairs])
            elif not below or depth < len(self.layers) - 1:
                # What an image has in a weight's gradient is a product, and so is its square.
                factors = [(g, x), (g.square(), x.square())] if squared else [(g, x)]
                for to, (up, down) in zip(parts, factors, strict=True):
                    torch.mm(up.t(), down, out=to[2 * depth])
                    torch.sum(up, 0, out=to[2 * depth + 1])
                g = torch.mm(g, weight, out=torch.empty_like(x)) if to_input else g
            if depth:
                g = relu_backward(g, x, 0)
                if isinstance(layer, Linear) and isinstance(self.layers[depth - 1], Conv):
                    g = self.unflattened(g, gathered)
                    g = g.to_mkldnn() if onednn else g
        for vector, *layers in zip(found, *reversed(convolved), strict=True):
            if layers:
                own = vector[: self.convolution_parameters]
                torch.cat([part.flatten() for pair in layers for part in pair], out=own)
        if gathered:
            found = [vector.index_select(0, self.order(vector.device)[1]) for vector in found]
        return found, convolution.dense(g) if to_images else None

    def unflattened(self, x: Tensor, gathered: bool) -> Tensor:
        """Return what the first fully connected layer is given, as the images (batch, C, H, W) that it came from."""
        if gathered:
            return x.view(len(x), *self.flattened, -1).permute(0, 3, 1, 2)
        return x.view(len(x), -1, *self.flattened)


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a network's last layer computes logits, if all before it computes in `dtype`.

    Training may move the logits of all classes alike, and on clients that lack most classes Adam does, by hundreds. The
    softmax does not see that; but near 200 bf16 has whole numbers alone, and what tells classes apart would be rounded off.
    """
    # Not torch.promote_types: that is an operator, which a step cannot be recorded with.
    return dtype if dtype.itemsize >= 4 else torch.float32


def layout_for(device: torch.device, dtype: torch.dtype) -> torch.memory_format | None:
    """Return the order of memory in which convolutions of images are fastest on a GPU; None on a CPU: see
    `convolution`.
    """
    return gpu_layout(dtype) if device.type == "cuda" else None


def channels_first(images: Tensor) -> Tensor:
    """Put images in that order of memory; grey ones, which are contiguous in either, by their strides too, lest they
    are taken for the other.
    """
    return images.flatten(1).view(images.shape)


def gpu_layout(dtype: torch.dtype) -> torch.memory_format:
    """Return the order of memory in which a GPU's convolutions are fastest, by what they compute in.

    Tensor cores, which plain fp32 has none of, want channels last; in plain fp32 cuDNN copies most such images to the other
    order and back. A step of CNN2 on an H200, channels last and first: 615 and 536 us in fp32, 421 and 449 in TF32, 347 and
    599 in bf16 (`benchmarks.gpu speed`).
    """
    on_tensor_cores = dtype == torch.bfloat16 or torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return torch.channels_last if on_tensor_cores else torch.contiguous_format


def in_columns(x: Tensor) -> bool:
    """Return whether products with x are faster where each image is a column of memory: not in bf16, nor on a GPU."""
    return x.device.type == "cpu" and x.dtype != torch.bfloat16


def flattened(x: Tensor) -> Tensor:
    """Flatten examples (batch, ...), as images to (batch, C H W): a view where that is possible, else a copy, in columns
    where that is faster.
    """
    return x.movedim(0, -1).flatten(0, -2).t() if in_columns(x) else x.flatten(1)


def columns_for(x: Tensor, width: int) -> Tensor | None:
    """Return memory (batch, width) for what a layer makes of x (batch, features): in columns where that is faster,
    else None.
    """
    if in_columns(x) and (len(x) <= FEW or x.stride(0) == 1):
        return x.new_empty(width, len(x)).t()
    return None


def smallest_size(layers: tuple[Conv | Linear, ...]) -> int:
    """Return the smallest image side that leaves the last convolution at least one pixel."""
    side = 1
    for layer in reversed(layers):
        if isinstance(layer, Conv):
            side = side * layer.pool + layer.kernel - 1
    return side
