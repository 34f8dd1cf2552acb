"""State outside the named tensors of nodes, where no checkpoint keeps it: found where a round leaves some, and refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from bayesfed.core import reachable
from bayesfed.core.errors import InputError
from bayesfed.engine.federation import Federation
from bayesfed.methods.method import Method
from bayesfed.models.module import ModuleNetwork


class Watch:
    """Holds a run's method, and the modules that are its networks, to keep nothing outside the states of nodes."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.method, self.networks = federation, federation.method, federation.networks
        self.roots: dict[str, object] = {"self": self.method}
        self.roots |= {f"model '{one.name}'": one.build for one in self.modules(*range(federation.clients))}
        self.own = len(self.roots) > 1 or users_own(self.method)
        self.before: reachable.Held | None = None
        self.closely = self.midway = False

    def modules(self, *clients: int) -> list[ModuleNetwork]:
        """Return the networks of clients that are modules."""
        found = [network for client in clients for network in self.networks[client].values()]
        return [network for network in found if isinstance(network, ModuleNetwork)]

    @contextmanager
    def watching(self, what: str, closely: bool = False) -> Iterator[None]:
        """Raise InputError where `what`, in words, is done inside and keeps something, or draws from a generator that the
        process shares: no seed of a run sets it, and for each there is one of its node (`Learner.noise`). `closely`: midway,
        too, and at modules."""
        generators = shared_generators() if self.own else {}
        if self.own or not self.before:  # between rounds a function of the user's may change what both know of
            self.before = reachable.held(self.roots)
        self.closely = self.midway = closely
        self.federation.look = self.look
        yield
        for owner, state in shared_generators().items() if self.own else ():
            if state != generators.get(owner, state):
                raise InputError(
                    f"method '{self.method.name}': {what} drew from {owner}'s own generator, which no seed of a run sets, or "
                    "another thread of this process did; draw by c.noise(like), or from c.generator"
                )
        self.before = self.look(what)
        self.look_at_modules(*range(len(self.networks)))

    def look_midway(self, client: int) -> None:
        """Look when the first client has trained: what is only there within a round is shared all the same."""
        if self.midway:
            self.midway = False
            self.look()
            self.look_at_modules(client)

    def look(self, what: str = "a round") -> reachable.Held:
        """Return what is held by now; raise InputError if that is not what was held before."""
        now = reachable.held(self.roots)
        if self.before and (path := now.changed(self.before)):
            raise kept(self.method.name, what, path)
        return now

    def look_at_modules(self, *clients: int) -> None:
        """Raise InputError where passes through these clients' networks in this thread have left something in a module."""
        for network in set(self.modules(*clients)) if self.closely else ():
            if path := network.kept():
                raise InputError(
                    f"model '{network.name}': a pass changed {path}, which no checkpoint keeps; make it a buffer, and change "
                    "it in place, in training alone"
                )


def users_own(method: Method) -> bool:
    """Return whether a method is a user's own: of ours, which tests hold to it, no generator is looked at, since other
    threads of the process may draw from it.
    """
    return not reachable.foreign(type(method).__module__)


def kept(method: str, what: str, path: str) -> InputError:
    """Return the error for what a method's part has changed."""
    return InputError(
        f"method '{method}': {what} changed {path}, which no checkpoint keeps, and clients and runs side by side share; put it "
        "into a tensor of the state (init_server, init_client or start), and draw by c.noise"
    )


def shared_generators() -> dict[str, object]:
    """Return the states of the generators that a process shares, by owner."""
    of_numpy = np.random.get_state(legacy=False)
    found: dict[str, object] = {
        "Python": random.getstate(),
        "numpy": (of_numpy["state"]["key"].tobytes(), of_numpy["state"]["pos"], of_numpy["has_gauss"]),
        "torch": torch.default_generator.get_state().numpy().tobytes(),
    }
    for place, generator in enumerate(torch.cuda.default_generators if torch.cuda.is_initialized() else ()):
        found[f"torch's cuda:{place}"] = generator.get_state().numpy().tobytes()
    return found
