"""Runs that diverge: which tensors are not finite after a round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.methods.node import State


@dataclass(frozen=True)
class Divergence:
    """The place of the first value of a run that is not finite, held or predicted; `client` is a number from 0 or
    "server".
    """

    round: int
    client: str
    tensor: str

    def __str__(self) -> str:
        who = self.client if self.client == "server" else f"client {self.client}"
        return f"diverged in round {self.round}: {who}'s {self.tensor} is not finite"


def finiteness(state: State) -> State:
    """For each tensor of numbers that can be other than finite, whether all of them are: a tensor () on its device."""
    # Sorted, since a checkpoint gives tensors back in another order: the first that is not is named. What is not finite
    # minus itself is NaN: two quick passes, where `isfinite` takes ten times as long.
    numbers = {name: tensor for name, tensor in sorted(state.items()) if tensor.is_floating_point()}
    return {name: (tensor - tensor).sum() == 0 for name, tensor in numbers.items()}


def divergence(round_number: int, finite: dict[tuple[str, str], Tensor]) -> Divergence | None:
    """Return the first tensor (owner, name) that is not finite, if there is one."""
    flags = torch.stack(list(finite.values())).tolist() if finite else []
    broken = [where for where, flag in zip(finite, flags, strict=True) if not flag]
    return Divergence(round_number, *broken[0]) if broken else None
