"""The linear layers that a module calls, of which the last computes in fp32 at least."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bayesfed.models.network import at_least_fp32


@contextlib.contextmanager
def linear_layers(module: nn.Module) -> Iterator[list[str]]:
    """Collect the names of the linear layers that a pass inside calls, as they are called."""
    called: list[str] = []
    hooks = [
        part.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    yield called
    for hook in hooks:
        hook.remove()


def uncast(device: str, forward: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
    """Run a layer's forward pass on a device without autocast."""

    def wide(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(at_least_fp32(value.dtype)) if floats else value

    with torch.autocast(device, enabled=False):
        return forward(*map(wide, given), **{name: wide(value) for name, value in named.items()})
