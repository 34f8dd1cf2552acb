"""A network as a pure function of one flat parameter vector, so that a paper's theta and mu are vectors in code too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from bayesfed.errors import InputError


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


class Network:
    """A chain of convolutions, then fully connected layers, with ReLU between all of them.

    `network(theta, images)` gives logits of shape (batch, classes). `theta` holds every weight and bias, layer
    by layer, as one vector of `parameters` entries; the first `convolution_parameters` of them belong to the
    convolutions. `operations` are the multiply-adds for one image. Computation runs in the dtype of `theta`.
    """

    def __init__(self, name: str, layers: tuple[Conv | Linear, ...], channels: int, size: int) -> None:
        """Lay out the parameters for `channels` x `size` x `size` images.

        Raises InputError when the images are too small for the layers.
        """
        self.name = name
        self.layers = layers
        self.classes = layers[-1].out
        self.shapes: list[tuple[int, ...]] = []
        self.convolution_parameters = 0
        self.operations = 0
        side, width, flat = size, channels, False
        for layer in layers:
            if isinstance(layer, Conv):
                self.shapes += [(layer.out, width, layer.kernel, layer.kernel), (layer.out,)]
                side = side - layer.kernel + 1
                self.operations += math.prod(self.shapes[-2]) * max(side, 0) ** 2
                side //= layer.pool
                if side < 1:
                    raise InputError(
                        f"model '{name}' does not fit images of {size}x{size}: its convolutions need at least "
                        f"{smallest_size(layers)}x{smallest_size(layers)}"
                    )
                self.convolution_parameters = sum(math.prod(shape) for shape in self.shapes)
            else:
                if not flat:
                    width, flat = width * side * side, True
                self.shapes += [(layer.out, width), (layer.out,)]
                self.operations += layer.out * width
            width = layer.out
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.parameters = sum(self.sizes)

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """PyTorch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases.

        Drawn on the host in float32, shape (parameters,), so that every device starts from the same values.
        """
        parts = []
        for weight, bias in zip(self.shapes[::2], self.shapes[1::2], strict=True):
            bound = 1 / math.sqrt(math.prod(weight[1:]))
            parts += [generator.uniform(-bound, bound, math.prod(shape)) for shape in (weight, bias)]
        return np.concatenate(parts).astype(np.float32)

    def __call__(self, theta: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes) of images (batch, channels, size, size) under `theta` (parameters,)."""
        # One split for all layers: its backward pass is one concatenation, where ten slices would cost ten.
        views = iter(theta.split(self.sizes))
        x, last = images, len(self.layers) - 1
        for depth, (layer, shape) in enumerate(zip(self.layers, self.shapes[::2], strict=True)):
            weight, bias = next(views).view(shape), next(views)
            if isinstance(layer, Conv):
                x = F.conv2d(x, weight, bias)
                if layer.pool > 1:
                    x = F.max_pool2d(x, layer.pool)  # before ReLU: the same values from a quarter of the work
            else:
                x = F.linear(x.flatten(1), weight, bias)
            if depth < last:
                x = F.relu(x)
        return x


def smallest_size(layers: tuple[Conv | Linear, ...]) -> int:
    """The smallest image side that leaves the last convolution at least one pixel."""
    side = 1
    for layer in reversed(layers):
        if isinstance(layer, Conv):
            side = side * layer.pool + layer.kernel - 1
    return side
