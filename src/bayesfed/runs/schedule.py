"""The schedule of a run's learning rates, over its rounds and within a round: the block `schedule` of a run file.

It multiplies the learning rates of all clients' optimisers, whatever the method; what the server trains keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bayesfed.core.errors import InputError
from bayesfed.core.options import option
from bayesfed.methods.node import RATE, Node


@dataclass(frozen=True)
class Schedule:
    """Factors of every learning rate; those that are given are multiplied.

    round_decay: once more for every round after the first. milestones: [share of the rounds, factor] each, from which on
    the factor holds instead of the one before: [[0.333, 0.1], [0.667, 0.01]] divides by ten after a third, and by a hundred
    after two. cosine: (1 + cos(pi (r - 1)/R))/2 in round r of R. epoch_decay: once more after every `epoch_every` local
    epochs of a round; the next round begins without.
    Raises InputError for milestones that are no such list.
    """

    round_decay: float = option(1.0, above=0, high=1)
    milestones: tuple[tuple[float, ...], ...] = option(())
    cosine: bool = False
    epoch_decay: float = option(1.0, above=0, high=1)
    epoch_every: int = option(1, low=1)

    def __post_init__(self) -> None:
        pairs = all(len(pair) == 2 and 0 <= pair[0] < 1 and pair[1] > 0 for pair in self.milestones)
        shares = [pair[0] for pair in self.milestones if pair]
        if not pairs or shares != sorted(set(shares)):
            found = [list(pair) for pair in self.milestones]
            raise InputError(
                f"schedule.milestones: expected [share of the rounds below 1, factor above 0] each, in order, found {found}"
            )
        if self.epoch_every != 1 and self.epoch_decay == 1:
            raise InputError("schedule.epoch_every: it says how often epoch_decay holds; give epoch_decay, too")

    @property
    def varies(self) -> bool:
        """True if it changes any learning rate."""
        return self != CONSTANT

    def at(self, round_number: int, rounds: int) -> float:
        """Return the factor with which a round, counted from 1, begins."""
        passed = [factor for share, factor in self.milestones if (round_number - 1) / rounds >= share]
        falling = (1 + math.cos(math.pi * (round_number - 1) / rounds)) / 2 if self.cosine else 1
        return self.round_decay ** (round_number - 1) * (passed[-1] if passed else 1) * falling

    def epoch_end(self) -> Callable[[Node], None] | None:
        """Return what to do at the end of each of a client's local epochs in one round."""
        if self.epoch_decay == 1:
            return None
        epochs = 0

        def decay(c: Node) -> None:
            nonlocal epochs
            epochs += 1
            if epochs % self.epoch_every == 0:
                c[RATE].mul_(self.epoch_decay)

        return decay


CONSTANT = Schedule()
