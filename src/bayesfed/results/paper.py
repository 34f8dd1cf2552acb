"""A paper in Python: its tables, as they were made of finished runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.core import files
from bayesfed.core.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

PAPERS = Path("config/papers")


@dataclass(frozen=True)
class Paper:
    """A paper by the name of its file; `tables`: the titles of its tables, by name."""

    name: str
    title: str
    tables: dict[str, str]

    def table(self, name: str, results: str | os.PathLike[str] = "results/paper") -> pd.DataFrame:
        """Return a table of the paper, made of the finished runs of a config, whose `results/<config>` is given.

        Cells are in percent; one that was not run is empty. Raises InputError for a table that the paper does not have, or
        that was not made.
        """
        import pandas as pd

        if name not in self.tables:
            raise InputError(
                f"table '{name}': the paper '{self.name}' has none of that name; {nearest(name, self.tables)}"
            )
        path = Path(results) / "tables" / self.name / f"{name}.csv"
        if not path.is_file():
            plan, into = Path(results) / "plan" / "plan.json", Path(results) / "tables"
            raise InputError(f"{path}: this table is not made yet; run `bayesfed tables {plan} --out {into}`")
        return pd.read_csv(path)


def paper(name: str, folder: str | os.PathLike[str] = PAPERS) -> Paper:
    """Return the paper of that name; `folder`: where papers' files are.

    Raises InputError where there is no such file.
    """
    path = Path(folder) / f"{name}.yaml"
    known = sorted(one.stem for one in Path(folder).glob("*.yaml"))
    if name not in known:
        hint = nearest(name, known) if known else "start Python in the project's folder, or give the folder with papers"
        raise InputError(f"{path}: there is no such paper; {hint}")
    content: dict[str, Any] = files.read_yaml(path)
    return Paper(name, content["title"], {key: table["title"] for key, table in content.get("tables", {}).items()})
