"""A run that goes on where a finished one has ended that is the same with fewer rounds, as if that had never stopped."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bayesfed.core import files
from bayesfed.core.errors import InputError
from bayesfed.engine import checkpoint
from bayesfed.engine.checkpoint import Header
from bayesfed.engine.evaluation import DETAILED_EVERY
from bayesfed.engine.federation import Federation
from bayesfed.engine.rounds import LABELLED, Progress
from bayesfed.methods.node import GLOBAL, SAMPLED
from bayesfed.runs import run_folder
from bayesfed.runs.run_folder import Row
from bayesfed.runs.spec import Run
from bayesfed.runs.summary import COMMUNICATION, COMPUTATION, LAST, PASSES

OF_ROUND = ("server", COMMUNICATION, COMPUTATION)  # models of rows that every round has


@dataclass(frozen=True)
class Shorter:
    """A finished run with fewer rounds: its folder, its last checkpoint and that one's header."""

    folder: Path
    progress: Progress
    header: Header


def find(run: Run, out: Path, stored: Path, header: Header, on: str) -> Shorter | None:
    """Return the longest finished run from which a run can go on, beside its folder; None where there is none.

    `stored`: where the run's own checkpoint will be. Its rounds must be the first of this run to the bit: no schedule and
    no method looked at their number, and device, precision and executor are those of `header`.
    """
    if run.schedule.milestones or run.schedule.cosine or run.active:  # which labels nothing after the last round
        return None
    found = [one for folder in finished_beside(out) if (one := shorter(run, folder, stored)) and fits(one, header, on)]
    return max(found, key=lambda one: one.progress.round, default=None)


def finished_beside(out: Path) -> Iterator[Path]:
    """Yield the folders of finished runs in the folder that a run's is in."""
    for summary in sorted(out.absolute().parent.glob(f"*/{run_folder.SUMMARY}")):
        yield summary.parent


def shorter(run: Run, folder: Path, stored: Path) -> Shorter | None:
    """Return a finished run, if it is the same with fewer rounds and its last checkpoint is there and whole."""
    try:
        rounds = files.read_yaml(folder / "run.yaml")["rounds"]
        if not 0 < rounds < run.budget.rounds:
            return None
        key = replace(run, budget=replace(run.budget, rounds=rounds)).key
        if run_folder.finished(folder)["key"] != key:
            return None
        named = stored.parent / f"{folder.name}{stored.suffix}"
        for path in (folder / checkpoint.FILE, named, *checkpoint.of_workflow(folder)):
            if checkpoint.key_of(path) == key:
                return Shorter(folder, *checkpoint.load_one(path, torch.device("cpu")))
    except (InputError, LookupError, TypeError, OSError):  # whatever else lies there
        pass
    return None


def fits(one: Shorter, header: Header, on: str) -> bool:
    """Return whether its rounds are what they would be in a run with more, computed as `header` says."""
    then = one.header
    return (
        one.progress.diverged is None
        and not then.rounds_asked
        and (then.precision, then.executor) == (header.precision, header.executor)
        and {session["by"]["device"] for session in then.sessions} == {on}
    )


def go_on(one: Shorter, federation: Federation, header: Header) -> tuple[Progress, Header]:
    """Return progress and header of the longer run after the rounds of the shorter."""
    run, progress = federation.run, one.progress
    progress.server = {name: tensor.to(federation.compute.device) for name, tensor in progress.server.items()}
    # A run that has ended by `patience` ends there, however many rounds it may have.
    last = progress.round if progress.over(run.budget) else run.budget.rounds
    progress = replace(progress, history=list(history_of(progress.history, federation, last)))
    begun = {"key": one.header.key, "rounds": progress.round}
    return progress, dataclasses.replace(one.header, key=run.key, run=header.run, begun=begun)


def history_of(history: Sequence[Row], federation: Federation, last: int) -> Iterator[Row]:
    """Yield what would have been measured in these rounds of a run whose last round is `last`.

    The last rounds of a run measure more than others. `measures` says what is left out.
    """
    had = history[-1].round
    for number, of_round in itertools.groupby(history, key=lambda row: row.round):
        rows = list(of_round)
        if number <= had - LAST or number == last:
            yield from rows
            continue
        participants = set(federation.participants(number))
        # In the last round alone, clients' averages over samples see the full test set, for detection without accuracy.
        on_all = {(row.client, row.model) for row in rows if row.metric == "test_accuracy"}
        rows = [row for row in rows if not row.metric.startswith("test_") or (row.client, row.model) in on_all]
        rows = [row for row in rows if measures(row, federation, participants)]
        yield from rows if number % DETAILED_EVERY == 0 else participants_first(rows, participants)


def measures(row: Row, federation: Federation, participants: set[int]) -> bool:
    """Return whether a round that is not the last measures this, as `Evaluation` has it."""
    if row.metric == PASSES or row.metric.startswith("reliability_"):
        return False
    if row.model in OF_ROUND or row.metric == LABELLED or row.round % DETAILED_EVERY == 0:
        return True
    if on_shard(row):
        return row.round > federation.run.budget.rounds - LAST or int(row.client) in participants
    if row.model.endswith(SAMPLED):
        return False
    every = federation.run.budget.clients_on_test == "round"
    of_test = row.metric == "test_accuracy" and (row.client == "global" or every)
    return of_test or row.metric in ("shard_accuracy", "epoch_shard_accuracy") or row.metric.startswith("validation_")


def on_shard(row: Row) -> bool:
    """Return whether a row is of the server's model on a client's shard."""
    return (row.model, row.metric) == (GLOBAL, "shard_accuracy")


def participants_first(rows: Sequence[Row], participants: set[int]) -> list[Row]:
    """Return the rows with those of the server's model on shards in the order of a late round: who took part first."""
    places = [place for place, row in enumerate(rows) if on_shard(row)]
    ordered = sorted((rows[place] for place in places), key=lambda row: int(row.client) not in participants)
    moved: Mapping[int, Row] = dict(zip(places, ordered, strict=True))
    return [moved.get(place, row) for place, row in enumerate(rows)]
