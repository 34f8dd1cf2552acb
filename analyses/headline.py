"""README's headline: one line a claim, from the stored tables of the papers' config."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analyses.markdown import table
from bayesfed.results import csv_file, verdicts
from bayesfed.results.paired import signed

TABLES = Path(__file__).parents[1] / "results" / "paper" / "tables"
Row = Mapping[str, str]


@dataclass(frozen=True)
class Line:
    """A claim: its words here, the rows of `claims.csv` that test it, and the cells of a table that show it."""

    says: str
    paper: str
    claim: Row
    table: str
    cells: Row
    others: tuple[str, ...]
    """Methods that the first one is compared with; of several the best is shown."""
    published: str = ""
    """The published statement, for a cell without a published number."""
    mean: bool = False
    """Show the mean difference over all tests, for a claim about a grid."""


def of_first_round(says: str, method: str) -> Line:
    """FOLA in one of its forms against FedAvg, after one round."""
    claim = {"method": method, "than": "FedAvg", "metric": "global_accuracy_last", "experiment": "first_round"}
    return Line(says, "fola", claim, "first_round", {"method": method}, (), "higher, no numbers", mean=True)


def of_table_1(says: str, metric: str, others: tuple[str, ...]) -> Line:
    """pFedBayes on MNIST; the cells shown are those of medium shards."""
    metric = f"{metric}_accuracy_of_700_to_800"
    claim = {
        "method": "pFedBayes",
        "metric": metric,
        "experiment": "personalisation",
        "dataset": "MNIST",
        "by": "paper",
    }
    return Line(says, "pfedbayes", claim, "table1", {"dataset": "MNIST", "size": "medium", "metric": metric}, others)


def of_hbfl(alpha: str) -> Line:
    """HBFL against FML on CIFAR-10."""
    claim = {"method": "HBFL", "than": "FML", "metric": "global_accuracy_best", "experiment": "heterogeneous"}
    where = {"dataset": "CIFAR10", "alpha": alpha}
    says = f"HBFL's global model is above FML's, CIFAR-10, α = {alpha}, best round"
    return Line(says, "hbfl", claim | where, "table1", where, ("FML",))


LINES = (
    of_hbfl("100"),
    of_hbfl("0.05"),
    Line(
        "FOLA's full Laplace is above all other curvatures in round 3, two clients, MNIST",
        "fola",
        {"method": "Full Laplace", "metric": "global_accuracy_in_round_3", "experiment": "two_clients"},
        "two_clients",
        {"metric": "global_accuracy_in_round_3"},
        ("Identity", "Diagonal Fisher", "Eigenvalues"),
        "nearly 90, others lower",
    ),
    of_first_round("FOLA with its public code is above FedAvg after one round, MNIST", "FOLA"),
    of_first_round("FOLA with its published equations is above FedAvg after one round, MNIST", "FOLA as published"),
    Line(
        "FedPPD is above every baseline, MNIST and CIFAR-10, last round (numbers: CIFAR-10)",
        "fedppd",
        {"method": "FedPPD", "metric": "global_accuracy_last", "experiment": "non_iid", "by": "paper"},
        "table1",
        {"dataset": "CIFAR10"},
        ("FedAvg", "FedAvg+SWAG", "FedBE"),
    ),
    of_table_1("pFedBayes has the best personalised models, MNIST, best of rounds 700 to 800 (numbers: medium shards)", "personal",
               ("Per-FedAvg", "pFedMe", "HeurFedAMP", "pFedGP")),
    of_table_1("pFedBayes has the best global model, MNIST, best of rounds 700 to 800 (numbers: medium shards)", "global", ("FedAvg", "FedProx", "BNFed", "pFedMe")),
)  # fmt: skip


def rows(paper: str, name: str, where: Row) -> Iterator[Row]:
    """Return the rows of a stored table with these values."""
    for row in csv_file.read(TABLES / paper / f"{name}.csv"):
        if all(row[column] == value for column, value in where.items()):
            yield row


def judged(line: Line) -> tuple[str, float]:
    """Return the verdict with its count and flags, and the mean difference in points, over the tests of a claim."""
    tests = [row for row in rows(line.paper, "claims", line.claim) if row["dataset"] != "all"]
    tested = sum(int(row["of"]) for row in tests)
    held = sum(int(row["holds"] or 0) for row in tests)
    part = tested < sum(int(row["planned"]) for row in tests)
    apart = any(verdicts.OFF_PROTOCOL in row["flags"] for row in tests)
    flags = [verdicts.PRELIMINARY] * part + [verdicts.OFF_PROTOCOL] * apart
    flags += sorted({row["precision"] for row in tests if " against " in row["precision"]})
    mean = sum(int(row["of"]) * float(row["difference"]) for row in tests if row["difference"]) / max(tested, 1)
    return verdicts.told(f"**{verdicts.word(held, tested)}**", held, tested, flags), mean


def pair(cells: list[Row], column: str, first: str, others: tuple[str, ...]) -> str:
    """Return the first method's number beside the best of the others', and the difference; "" without both."""
    found = {row["method"]: float(row[column]) for row in cells if row[column]}
    known = [name for name in others if name in found]
    if first not in found or not known:
        return ""
    best = max(known, key=found.__getitem__)
    return f"{found[first]:.2f} vs {found[best]:.2f} ({best}): {signed(found[first] - found[best], 2)}"


def table_of_claims() -> str:
    """Return the headline table."""
    shown = []
    for line in LINES:
        told, mean = judged(line)
        cells = list(rows(line.paper, f"{line.table}.compare", line.cells))
        here = f"mean difference {signed(mean, 2)}"
        if not line.mean:
            here = pair(cells, "mean", line.claim["method"], line.others)
        published = line.published or pair(cells, "published", line.claim["method"], line.others)
        seeds = sorted({int(row["seeds"]) for row in cells if row["method"] == line.claim["method"]} - {0})
        shown.append([line.says, here, published, " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))), told])
    return table(["claim", "here, %", "published, %", "seeds", "verdict"], shown)
