"""The networks of the papers, by name, and those of a user's own (`bayesfed.parts`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

from bayesfed import parts
from bayesfed.errors import InputError
from bayesfed.models.network import Conv, Linear, Network

__all__ = ["CONVOLUTIONS", "NETWORKS", "Network", "build", "check"]

# As `models.global`, this word means that the server holds the convolutions alone (multi-task learning).
CONVOLUTIONS = "convolutions"

# Layers for a number of classes. MLP, LeNet5 and CNN2 as in the public code of FML; the widths of CNN1's two
# fully connected layers are printed nowhere, 400-120-C is our reading.
NETWORKS: dict[str, Callable[[int], tuple[Conv | Linear, ...]]] = {
    "mlp": lambda classes: (Linear(200), Linear(200), Linear(classes)),
    "lenet5": lambda classes: (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(84), Linear(classes)),
    "cnn1": lambda classes: (Conv(6, 5, 2), Conv(16, 5, 2), Linear(120), Linear(classes)),
    "cnn2": lambda classes: (Conv(32, 3, 2), Conv(64, 3, 2), Conv(64, 3), Linear(64), Linear(classes)),
}


def fault(name: str, builder: Any) -> str:
    """What keeps this from being a network; "" where nothing does."""
    if name == CONVOLUTIONS:
        return "this word means that only convolutions are shared; take another name"
    return "" if callable(builder) else "expected a function that builds the network"


registry = parts.Modules("networks", "model", lambda: NETWORKS, "NETWORKS", fault)


def check(name: object, key: str) -> str:
    """`name` if a network has it; raises InputError that names the run file's `key` otherwise."""
    registry.part(name, key)
    return str(name)


def build(name: str, classes: int, channels: int, size: int) -> Network:
    """The network `name` for images of channels x size x size and that many classes; one object for each request.

    Raises InputError for an unknown name, images too small for the network, and what its builder raises.
    """
    part = registry.part(name, "model")
    return built(name, part.origin, part.value(), (classes, channels, size))


@cache
def built(name: str, origin: str, builder: Callable[..., Any], images: tuple[int, int, int]) -> Network:
    """What a builder gives for images of (classes, channels, size), of which it takes all, or the classes alone."""
    with parts.one_line(origin):
        layers = builder(*images[: len(signature(builder).parameters)])
    if not isinstance(layers, tuple) or not all(isinstance(layer, Conv | Linear) for layer in layers):
        raise InputError(
            f"{origin}: network '{name}': expected a tuple of Conv and Linear, found {type(layers).__name__}"
        )
    return Network(name, layers, *images[1:])
