"""Rounds of a run on a few made-up images, without any test: for what does not depend on the data, as sizes and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from bayesfed.data.augment import Features
from bayesfed.engine.cost import MultiplyAdds
from bayesfed.engine.device import Compute
from bayesfed.engine.evaluation import Evaluation, Reading
from bayesfed.engine.executors import Job, run_plainly
from bayesfed.engine.federation import SERVER, Federation, Shard
from bayesfed.engine.outside import Watch
from bayesfed.engine.rounds import Progress, Round, begin
from bayesfed.methods.node import Node
from bayesfed.runs.spec import Run

IMAGES = 8  # of each client, and of the server


class Untested(Evaluation):
    """The tests of a round that has none."""

    def epoch_test(self, client: int) -> Callable[[Node], None] | None:
        """Return no test."""
        return None

    def of_client(self, c: Node) -> list[Reading]:
        """Measure nothing."""
        return []


def made_up(run: Run, able: Sequence[bool] = ()) -> Federation:
    """Return a run's federation with IMAGES random images for each client, but none for those that are not `able`."""
    of, generator = Federation(run, [], None, Compute(torch.device("cpu"))), np.random.default_rng(0)
    for source in run.sources:
        values = generator.normal(size=(IMAGES, *source.seen_shape)).astype(np.float32)
        images = Features(values, np.arange(IMAGES) % source.classes, torch.device("cpu"), torch.float32)
        of.splits.append((images, images))
    every, none = torch.arange(IMAGES), torch.arange(0)
    for k in (*range(of.clients), SERVER):
        held, _ = of.splits[max(k, 0) if run.multi_task else 0]
        of.shards[k] = Shard(held, none if k >= 0 and able and not able[k] else every, held, every)
    of.whole, of.n = dict(of.shards), of.count()
    return of


@dataclass
class Played:
    """A round that was played: the progress after it, the bytes by way and client, and the clients that took part."""

    progress: Progress
    sent: dict[str, dict[int, int]]
    nodes: Sequence[Node]


def play(of: Federation, progress: Progress) -> Played:
    """Play a round, one client after another."""
    now = Round(of, progress, Watch(of), False, MultiplyAdds(of))
    now.evaluation = Untested(of, now.number, now.participants)
    jobs, visits = [now.begin(k) for k in now.participants], []
    for job in jobs:
        run_plainly(of, job)
        visits.append(now.end(job))
    now.aggregate([visit.update for visit in visits])
    run_plainly(of, Job(now.server, of.method.server_phases(now.server)))
    kept = progress.clients | {visit.update.client: visit.kept for visit in visits}
    return Played(Progress(now.number, now.server.state, kept), now.bytes, [job.node for job in jobs])


def bytes_of(run: Run, rounds: int, able: Sequence[bool]) -> dict[str, list[int]]:
    """Return the bytes that travel in each of a run's first rounds, by their way.

    A client's first and second round are played, and the run's last (SWAG's sends more). All others count as the second.
    """
    of = made_up(replace(run, active=None), able)
    progress, found = begin(of), dict[str, list[int]](down=[], up=[])
    seen: set[int] = set()
    known: dict[tuple[int, bool], dict[str, int]] = {}  # by client, and whether it has taken part before: bytes by way
    for number in range(1, rounds + 1):
        visits = {k: (k, k in seen) for k in of.participants(number)}
        seen.update(visits)
        if known.keys() >= set(visits.values()) and number < rounds:
            progress = replace(progress, round=number)
        else:
            played = play(of, progress)
            progress = played.progress
            known |= {visit: {way: each[k] for way, each in played.sent.items()} for k, visit in visits.items()}
        for way, counts in found.items():
            counts.append(sum(known[visit][way] for visit in visits.values()))
    return found


def predictor_names(run: Run) -> frozenset[str] | None:
    """Return the names of the predictors of a run's server and clients in the last round.

    None where a method, which may be one of a user's own, does not take images that are made up.
    """
    of = made_up(replace(run, budget=replace(run.budget, rounds=1), active=None, weights=()))
    try:
        played = play(of, begin(of))
        server = of.node(SERVER, 1)
        server.state = played.progress.server
        found = list(of.method.server_predictors(server)) if server.predicts else []
        found += of.method.client_predictors(played.nodes[0])
    except Exception:  # whatever the method raises
        return None
    return frozenset(one.name for one in found)
