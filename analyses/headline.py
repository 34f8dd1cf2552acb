"""README's headline: one line a claim, from the stored tables of the papers' config."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analyses.markdown import table
from bayesfed.results import csv_file, verdicts
from bayesfed.results.formatting import unique
from bayesfed.results.paired import signed

TABLES = Path(__file__).parents[1] / "results" / "paper" / "tables"
SPREADS = {"mean": "sd", "published": "published_sd"}
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


def of_fedppd(dataset: str, says: str) -> Line:
    """FedPPD against all its baselines, on one dataset."""
    claim = {"claim": "Table 1, FedPPD is above every baseline", "method": "FedPPD", "dataset": dataset}
    return Line(says, "fedppd", claim, "table1", {"dataset": dataset}, ("FedAvg", "FedAvg+SWAG", "FedBE"))


def of_hbfl(alpha: str) -> Line:
    """HBFL against FML on CIFAR-10."""
    claim = {"method": "HBFL", "than": "FML", "metric": "global_accuracy_best", "experiment": "heterogeneous"}
    where = {"dataset": "CIFAR10", "alpha": alpha}
    says = f"HBFL's global model is above FML's, CIFAR-10, α = {alpha}, best round; its loss is eq. 4.1 scaled by T/n_k"
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
    of_fedppd("MNIST", "FedPPD, with a larger network, is above every baseline, MNIST, last round"),
    of_fedppd("CIFAR10", "FedPPD, with 2.3 times the weights, is above every baseline, CIFAR-10, last round"),
    of_table_1("pFedBayes' personalised models are above those of four personalised methods, MNIST, best of rounds 700 to 800 (numbers: medium shards)",
               "personal", ("Per-FedAvg", "pFedMe", "HeurFedAMP", "pFedGP")),
    of_table_1("pFedBayes has the best global model, MNIST, best of rounds 700 to 800 (numbers: medium shards)", "global", ("FedAvg", "FedProx", "BNFed", "pFedMe")),
)  # fmt: skip


def rows(paper: str, name: str, where: Row) -> Iterator[Row]:
    """Return the rows of a stored table with these values."""
    for row in csv_file.read(TABLES / paper / f"{name}.csv"):
        if all(row[column] == value for column, value in where.items()):
            yield row


def judged(line: Line) -> tuple[str, float]:
    """Return the verdict with its count and flags, and the mean difference in points over the tests that have one.

    Raises ValueError where the rows are those of more than one claim.
    """
    tests = [row for row in rows(line.paper, "claims", line.claim) if row["dataset"] != "all"]
    if len(claims := {row["claim"] for row in tests}) != 1:
        raise ValueError(f"{line.says}: it is {len(claims)} claims of {line.paper}, and should be one")
    tested = sum(int(row["of"]) for row in tests)
    held = sum(int(row["holds"] or 0) for row in tests)
    part = tested < sum(int(row["planned"]) for row in tests)
    apart = any(verdicts.OFF_PROTOCOL in row["flags"] for row in tests)
    flags = [verdicts.PRELIMINARY] * part + [verdicts.OFF_PROTOCOL] * apart
    flags += ["a side diverged in some"] * any("diverged" in row["flags"] for row in tests)
    flags += sorted({row["precision"] for row in tests if " against " in row["precision"]})
    apart_by = [(int(row["of"]), float(row["difference"])) for row in tests if row["difference"]]
    mean = sum(of * difference for of, difference in apart_by) / max(sum(of for of, _ in apart_by), 1)
    return verdicts.told(f"**{verdicts.word(held, tested)}**", held, tested, flags), mean


def shown(cells: list[Row], column: str, methods: tuple[str, ...]) -> list[Row]:
    """Return the row of the first method, and that of the best of the others; none without both."""
    found = {row["method"]: row for row in cells if row[column]}
    known = [found[name] for name in methods[1:] if name in found]
    return [found[methods[0]], max(known, key=lambda row: float(row[column]))] if methods[0] in found and known else []


def pair(both: list[Row], column: str) -> str:
    """Return the first method's number beside the other's, and the difference; "" without both."""
    if not both:
        return ""
    first, other = (float(row[column]) for row in both)
    spreads = [row[SPREADS[column]] for row in both]
    one, two = (f"{row[column]}{' ± ' * bool(sd)}{sd}" for row, sd in zip(both, spreads, strict=True))
    return f"{one} vs {two} ({both[1]['method']}): {signed(first - other, 2)}"


def table_of_claims() -> str:
    """Return the headline table; seeds are those of both methods where they differ."""
    told = []
    for line in LINES:
        verdict, mean = judged(line)
        cells = list(rows(line.paper, f"{line.table}.compare", line.cells))
        methods = (line.claim["method"], *line.others)
        both = [] if line.mean else shown(cells, "mean", methods)
        here = f"mean difference {signed(mean, 2)}" if line.mean else pair(both, "mean")
        published = line.published or pair(shown(cells, "published", methods), "published")
        own = both or [row for row in cells if row["method"] == methods[0]]
        seeds = [row["seeds"] for row in own if row["seeds"] != "0"]
        ends = unique(seeds) if both else unique([min(seeds, key=int), max(seeds, key=int)] if seeds else [])
        told.append([line.says, here, published, (" vs " if both else " to ").join(ends), verdict])
    return table(["claim", "here, %", "published, %", "seeds", "verdict"], told)
