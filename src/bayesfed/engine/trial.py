"""Trials in the first round that a process plays: does a method give the same again, and do its steps do anything?

What is kept elsewhere is found by `outside`. A new generator, from the system's own randomness, leaves no trace there:
so functions of a user's own method are called twice, once on a copy of the node. Tests hold ours to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from bayesfed.core.errors import InputError
from bayesfed.engine import method_checks, outside
from bayesfed.engine.executors import Job
from bayesfed.engine.federation import SERVER, Federation
from bayesfed.engine.repeat import differing
from bayesfed.methods.method import Update
from bayesfed.methods.node import RATE, Node, Phase, State

MEMORY = 2**28  # bytes of updates that are copied at most, to be aggregated twice
Given = TypeVar("Given", bound=Mapping[str, Tensor])


class Trial:
    """The trials of a round, with one client and the server."""

    def __init__(self, federation: Federation, client: int = SERVER) -> None:
        """`client`: who is tried."""
        self.federation, self.method = federation, federation.method
        self.tried = {client, SERVER}
        self.own = outside.users_own(self.method)
        self.still: dict[tuple[int, str], bool] = {}  # by node and step: whether it has changed no tensor so far
        self.unheard = False  # whether the server is as it was, whatever clients sent

    def begun(self, job: Job, again: Callable[[], Job]) -> Job:
        """Return the job of a client that has begun, once it was begun again and compared."""
        if job.node.client not in self.tried:
            return job
        if self.own:
            self.compare("start", job.node.state, again().node.state)
        return self.watched(job)

    def twice(self, part: str, node: Node, call: Callable[[Node], Given]) -> Given:
        """Call a part on a node and on a copy of it, compare, and return what it gives."""
        if not self.own or node.client not in self.tried:
            return call(node)
        twin = copy.copy(node)
        twin.state = copied(node.state)
        twin.generator = torch.Generator(node.generator.device)
        twin.generator.set_state(node.generator.get_state())
        before, given = call(twin), call(node)
        for one in (twin, node):
            method_checks.state(self.method, part, dict(one.state))
        self.compare(part, before, given)
        self.compare(part, twin.state, node.state)
        return given

    def aggregate(
        self,
        server: Node,
        updates: Sequence[Update],
        aggregate: Callable[[Node, Sequence[Update]], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor]:
        """Call `aggregate`, and compare it with a second call if that is affordable."""
        small = sum(each.nbytes for update in updates for each in update.values.values()) <= MEMORY

        def call(node: Node) -> Mapping[str, Tensor]:
            sent = updates if node is server else [replace(one, values=copied(one.values)) for one in updates]
            return method_checks.diagnostics(self.method, aggregate(node, sent))

        before = copied(server.state)
        given = self.twice("aggregate", server, call) if small else call(server)
        now = method_checks.state(self.method, "aggregate", server.state)
        sent = any(update.values for update in updates)
        self.unheard = sent and before.keys() == now.keys() and differing(before, now, {}) is None
        return given

    def compare(self, part: str, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
        """Raise InputError where a part gave two results."""
        if name := differing(one, other, {}):
            self.federation.look()
            raise InputError(
                f"method '{self.method.name}': {part} was called again from the same state and gave another '{name}'; draw by "
                "c.noise(like), or from c.generator, and take nothing else that changes"
            )

    def watched(self, job: Job) -> Job:
        """Return the job, which notes at the end of each phase whether its steps have changed a tensor of the
        method's.
        """
        node = job.node
        engines = {RATE, *(name for names in node.statistics.values() for name in names)}
        names = [name for name in node.state if name not in engines]
        before = copied({name: node.state[name] for name in names})

        def noting(phase: Phase) -> Callable[[Node], None]:
            step = node.client, phase.step_name

            def end(c: Node) -> None:
                now = {name: c.state[name] for name in names if name in c.state}
                self.still[step] = self.still.get(step, True) and differing(before, now, {}) is None
                if phase.end:
                    phase.end(c)
                before.update(copied({name: c.state[name] for name in now if name in c.state}))

            return end

        return replace(
            job,
            phases=[replace(one, end=noting(one)) if one.epochs or one.batches else one for one in job.phases],
        )

    def found(self, round_number: int) -> Iterator[str]:
        """Yield what is to be told of the round."""
        if self.unheard and not any(self.still.values()):
            yield (
                f"method '{self.method.name}': aggregate left every tensor of the server as it was in round {round_number}, "
                "whatever clients sent; write to its state, as server['theta'] = ..."
            )
        for (client, step), still in self.still.items():
            whose = "the server" if client == SERVER else f"client {client}"
            if still:
                yield (
                    f"method '{self.method.name}': {step} left every tensor of {whose} as it was in all of round {round_number}; a step "
                    "works in place, as c['theta'].sub_(...)"
                )


def copied(state: Mapping[str, Tensor]) -> State:
    """Return the state with tensors of its own."""
    return {name: tensor.clone() for name, tensor in state.items()}
