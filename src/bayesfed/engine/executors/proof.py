"""Recordings that prove themselves: now and then a step is done beside its replay, and must give the same.

A number that a step takes from Python is recorded as it was, and so is which way a branch went. Where either has changed
since, by a counter, a hook, the round or the client, the step does otherwise than its replay. A step that cannot be recorded
is done twice in the same way: what it draws by itself, or keeps between steps, shows then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from bayesfed.core import reachable
from bayesfed.core.errors import InputError
from bayesfed.engine.federation import Federation
from bayesfed.engine.outside import kept
from bayesfed.engine.repeat import chosen, differing
from bayesfed.methods.node import Node, Phase, State

EVERY = 2048  # replays, one of which is proved
CLIENTS = 64  # so many are proved when they first come; in a federation of thousands not all


class Stream(Protocol):
    """A generator, or several."""

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> object: ...


class Proofs:
    """The proofs of the steps that clients take at one place, one client after another.

    Proved are the first replay for each client that is new here, and one in EVERY; and for the client that opens a round the
    first at its start and after each hook: in the first round here, the second, the fourth and so on, and in the last of the
    run.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.clients: set[int] = set()
        self.node: Node  # who is here
        self.round = self.rounds = 0  # the last one, and how many there have been
        self.closely = False  # of who is here, all that follows a hook
        self.trying = False  # the next replay
        self.replays = 0

    def arrive(self, node: Node, *others: Node) -> None:
        """Note that a client has begun its round here, and others with it."""
        opens = node.round != self.round
        self.rounds += opens
        self.node, self.round = node, node.round
        self.closely = opens and chosen(self.rounds, node.round == self.federation.rounds)
        new = {one.client for one in (node, *others)} - self.clients if len(self.clients) < CLIENTS else set()
        self.clients |= new
        self.trying = self.closely or bool(new)

    def hooked(self) -> None:
        """Note that a hook may have run."""
        self.trying = self.closely

    def due(self) -> bool:
        """Count a replay, and return whether it is to be proved."""
        self.replays += 1
        if not self.trying and self.replays % EVERY:
            return False
        self.trying = False
        return True

    def prove(self, phase: Phase, state: State, generator: Stream, replay: Callable[[], None],
              step: Callable[[], None], rounding: float | None = None) -> None:  # fmt: skip
        """Replay a step on a state, and do it from the same state. Raises InputError where that gives another state, or
        changes what Python holds. What the replay gave stays: a run that is resumed proves other steps. `rounding`: see
        `differing`."""
        before, seed = {name: tensor.clone() for name, tensor in state.items()}, generator.get_state()
        replay()
        replayed, drawn = {name: tensor.clone() for name, tensor in state.items()}, generator.get_state()
        for name, tensor in before.items():
            state[name].copy_(tensor)
        generator.set_state(seed)
        # What can be reached from the method is looked at after each round; a step made in a round is gone by then.
        made = {} if getattr(phase.step, "__self__", None) is self.federation.method else {"self": phase.step}
        held = reachable.held(made)
        step()
        method, node = self.federation.method.name, self.node
        if path := reachable.held(made).changed(held):
            raise kept(method, "a step", path)
        if other := differing(replayed, state, before, rounding):
            self.federation.look()
            raise InputError(
                f"method '{method}': {phase.step_name} gave another '{other}' when it was done "
                f"again (round {node.round}, client {node.client}); a step is recorded once: put a number or a flag that "
                "changes into a tensor of the state, in start or in a hook, and draw by c.noise"
            )
        for name, tensor in replayed.items():
            state[name].copy_(tensor)
        generator.set_state(drawn)
