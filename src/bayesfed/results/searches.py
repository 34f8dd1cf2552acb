"""Searches of the comparison: the configurations of each method on a dataset, scored on validation images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bayesfed.results.formatting import text
from bayesfed.results.whole_run import validation

Cell = Mapping[str, Any]
SEARCH = "search"


def is_search(experiment: str) -> bool:
    """Return whether configurations are chosen in an experiment: in `search`, and in `search_` with a name behind it."""
    return experiment == SEARCH or experiment.startswith(f"{SEARCH}_")


def predictive_nll(summary: Mapping[str, Any], personal: bool) -> float:
    """Return the validation NLL of what a method predicts with (`whole_run.validation`); infinity where it diverged."""
    value = validation(summary, "nll", personal) if summary.get("validation") else ""
    return value if isinstance(value, float) and math.isfinite(value) else math.inf


@dataclass(frozen=True)
class Searched:
    """A method's search on a dataset: its cells, and the summary of each, None for an open run."""

    dataset: str
    method: str
    cells: Sequence[Cell]
    summaries: Sequence[Mapping[str, Any] | None]

    @property
    def finished(self) -> bool:
        """True if all its runs are finished."""
        return all(summary is not None for summary in self.summaries)

    @cached_property
    def scores(self) -> list[float]:
        """The validation NLL of each configuration; infinity for an open run."""
        pairs = zip(self.cells, self.summaries, strict=True)
        return [predictive_nll(summary or {}, cell["personal"]) for cell, summary in pairs]

    @property
    def best(self) -> int:
        """The place of the configuration with the smallest score, the first of several."""
        return min(range(len(self.cells)), key=lambda place: self.scores[place])

    @property
    def settled(self) -> bool:
        """True if it is finished, a score is finite, and the chosen rate has one tried on either side."""
        return self.finished and math.isfinite(min(self.scores)) and self.wider is None

    @property
    def wider(self) -> dict[str, Any] | None:
        """The options to try next: the chosen ones, with the next learning rate beyond all that were tried with them; None
        where the chosen rate is inside, where no rate is chosen among, where no score is finite, and where a run is open.

        Options that are equal to `lr` in all configurations move with it.
        """
        if not self.finished or "lr" not in self.cells[0]["axes"] or math.isinf(min(self.scores)):
            return None
        every, chosen = [cell["axes"] for cell in self.cells], self.cells[self.best]["axes"]
        moved = [axis for axis in chosen if all(axes[axis] == axes["lr"] for axes in every)]
        rates = [axes["lr"] for axes in every if axes == {**chosen, **dict.fromkeys(moved, axes["lr"])}]
        if min(rates) < chosen["lr"] < max(rates):
            return None
        rate = beyond(chosen["lr"], larger=chosen["lr"] == max(rates))
        return {**chosen, **dict.fromkeys(moved, rate)}

    @property
    def rows(self) -> list[list[str]]:
        """A row a configuration: its options, its score, and whether it is chosen."""
        found = []
        for place, (cell, score) in enumerate(zip(self.cells, self.scores, strict=True)):
            options = ", ".join(f"{axis.removeprefix('method.')} {text(value)}" for axis, value in cell["axes"].items())
            said = "open" if self.summaries[place] is None else f"{score:.4f}" if math.isfinite(score) else "diverged"
            found.append([options, said, "yes" if self.finished and place == self.best else ""])
        return found


def beyond(rate: float, *, larger: bool) -> float:
    """Return the nearest of ..., 0.01, 0.03, 0.1, ... that is at least 1.4 times as large, or as small, as a rate."""
    steps = [float(f"{digit}e{power}") for power in range(-9, 9) for digit in (1, 3)]
    return min(s for s in steps if s >= 1.4 * rate) if larger else max(s for s in steps if s <= rate / 1.4)


def load(cells: Iterable[Cell], summary_of: Callable[[str], Mapping[str, Any] | None]) -> list[Searched]:
    """Collect the searches among a plan's cells; summary_of: that of a run's folder, None for an open run."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if is_search(cell["experiment"]):
            found.setdefault((cell["dataset"], cell["method"]), []).append(cell)
    return [
        Searched(dataset, method, of_search, [summary_of(cell["folder"]) for cell in of_search])
        for (dataset, method), of_search in found.items()
    ]
