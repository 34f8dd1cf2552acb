"""The networks that a node of a finished run has kept, and its state, of which some tensors are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesfed.methods.node import State

if TYPE_CHECKING:
    from bayesfed.engine.loaded import TrainedModel


class Networks(dict[str, "TrainedModel"]):
    """Networks by name, of an owner in words; a name that is not there is told with those that are."""

    def __init__(self, owner: str, found: Mapping[str, TrainedModel]) -> None:
        super().__init__(found)
        self.owner = owner

    def __missing__(self, name: str) -> TrainedModel:
        kept = f"has {', '.join(self)}" if self else "keeps no network between rounds"
        raise KeyError(f"no network '{name}': {self.owner} {kept}")


class Kept(State):
    """The state that a client kept.

    A tensor that it did not keep is one of no device, and so is what is computed from it.
    """

    def __missing__(self, name: str) -> Tensor:
        return torch.empty(0, device="meta")
