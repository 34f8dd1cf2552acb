"""All that follows from a study, each part computed once, when it is first asked for."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from bayesfed.results import cells, claims, per_run, published_numbers
from bayesfed.results.study import Study, studies


class Derived:
    """A study, and what its tables, its comparison with the published numbers, its claims and its runs are."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def published(self) -> published_numbers.Published:
        """The published numbers of the paper."""
        return published_numbers.read_published(self.study.published)

    @cached_property
    def rows(self) -> Mapping[str, Sequence[cells.Row]]:
        """The rows of each table."""
        return {name: cells.rows(self.study, table) for name, table in self.study.tables.items()}

    @cached_property
    def compared(self) -> Mapping[str, Sequence[published_numbers.Compared]]:
        """The cells of each table, each with its row of the comparison with the published numbers."""
        published = self.published  # read even without tables, so that a file that is gone is missed
        return {
            name: published_numbers.compare(self.study, name, self.study.tables[name], rows, published)
            for name, rows in self.rows.items()
        }

    @cached_property
    def claims(self) -> Sequence[claims.Tested]:
        """The paper's claims, each tested in all its cells."""
        return [claims.tested(self.study, claim) for claim in self.study.spec.get("claims", [])]

    @cached_property
    def runs(self) -> Sequence[per_run.OfRun]:
        """The finished runs, each once."""
        return list(per_run.by_run(self.study))

    @cached_property
    def clients(self) -> per_run.Rows:
        """The rows of clients.csv."""
        return per_run.clients(self.study, self.runs)


def load(plan: Path) -> list[Derived]:
    """Load the studies of a plan; arguments and errors as in `study.studies`."""
    return [Derived(study) for study in studies(plan)]
