"""Write what commands have measured into the pages: `python -m analyses.pages`.

Some pages are written whole (`WHOLE`); others hold a block between two markers (`BLOCKS`).
"""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from analyses import benchmark_pages, headline, reference
from analyses.fola import first_round
from analyses.hbfl import finished_runs
from analyses.hbfl import sampled_partitions as measured
from analyses.markdown import listed, pivot, table
from bayesfed.plan import plan
from bayesfed.results import csv_file, gains
from bayesfed.results.grounds import COLUMNS, PLAIN, SIDES
from bayesfed.results.run_records import RunRecord
from bayesfed.results.searches import is_search
from bayesfed.results.summary_page import APART, CLAIMS, LEGEND

ROOT = Path(__file__).parents[1]
DOCS, OF_HBFL = ROOT / "docs", ROOT / "analyses" / "hbfl"
RUNS = ROOT / "results"
BEGIN, END = "<!-- {}: written by `python -m analyses.pages` -->\n", "<!-- end -->\n"
WRITTEN = "<!-- Written by `python -m analyses.pages`; do not edit. -->\n\n"
SEARCHED = ("global model, %", "change", "HBFL over FML with it", "clients, best, %")
TITLE = "\n**"  # how the title of a table begins on a summary page


def of_paper(paper: str, name: str, config: str = "paper") -> str:
    """Return a paper's page of that name, as the workflow has left it among the tables of a config."""
    return (RUNS / config / "tables" / paper / f"{name}.md").read_text()


def first_table(paper: str) -> str:
    """Return a paper's runs in numbers, and the first of its tables that has one."""
    said, *tables = of_paper(paper, "summary").split(TITLE)
    return said.partition(f"\n{LEGEND}")[0] + TITLE + tables[0] + "\n" if tables else said


def all_tables(paper: str) -> str:
    """Return a paper's summary page, then how far they agree with the published numbers, its claims and costs."""
    summary = of_paper(paper, "summary").partition(f"{TITLE}{CLAIMS}")[0]
    return f"{summary}\n" + of_paper(paper, "vs-published").partition("\n\n")[2]


def newer(paper: str, config: str) -> str:
    """Return the summary of a newer paper, below a heading of the page's own."""
    return of_paper(paper, "summary", config).partition("\n\n")[2]


def assumptions() -> str:
    """Return the search for what decides HBFL's and FML's numbers: what each assumption changes, seed by seed, then
    the other tables.
    """
    _, first, *others = of_paper("hbfl", "summary", "hbfl-readings").partition(LEGEND)[2].split(TITLE)
    out = "**One assumption changed, 40 rounds, mean of the last five; what it changes, in points**\n\n"
    cells = []
    for seed, methods in finished_runs.searched().items():
        reached = {name: RunRecord(folder).summary or {} for name, folder in methods.items()}
        model = {name: 100 * of["global"]["accuracy_last5"] for name, of in reached.items()}
        clients = {name: 100 * of["clients"]["mean"]["accuracy_best"] for name, of in reached.items()}
        for name in reached:
            base = finished_runs.base_of(name)
            told = {"global model, %": f"{model[name]:.2f}", "clients, best, %": f"{clients[name]:.2f}"}
            if name != base in reached:
                told["change"] = f"{model[name] - model[base]:+.2f}"
            if base in ("HBFL", "FML") and {"HBFL", "FML"} <= reached.keys():
                pair = {**model, base: model[name]}
                told["HBFL over FML with it"] = f"{pair['HBFL'] - pair['FML']:+.2f}"
            cells += [(name, f"{seed}: {what}", told.get(what, "")) for what in SEARCHED]
    machines = next(line for line in first.splitlines() if line.startswith("On "))
    under = machines.partition(f" {APART}")[0]
    return f"{out}{pivot('', cells)}{under}\n" + "".join(f"{TITLE}{other}" for other in others)


def by_seed() -> str:
    """HBFL and FML where parts of them have been run, as the paper has them and otherwise, run by run, beside the
    published numbers."""
    printed = [row for row in csv_file.read(ROOT / plan.PAPERS / "hbfl.published.csv") if row["item"] == "table1"]
    out = ""
    for name, alpha in itertools.product(("CIFAR-10", "CIFAR-100"), ("0.05", "100")):
        where = f"{name}, {finished_runs.NAMES[alpha]}"
        of_one = [row for row in printed if (row["dataset"], row["alpha"]) == (name.replace("-", ""), alpha)]
        beside = [(row["method"], "published", row["value"]) for row in of_one]
        out += pivot(f"{where}: global model, %", [*finished_runs.by_seed(where), *beside])
    return out


def pairs() -> str:
    """Return how far runs of HBFL, FML and FedAvg are ahead of each other."""
    return listed(finished_runs.pairs(finished_runs.finished(), finished_runs.PAIRS))


def mnist() -> str:
    """Return how far HBFL is ahead of Figure 3's other methods on MNIST."""
    return listed(finished_runs.pairs(finished_runs.on_mnist(), finished_runs.OF_FIGURE_3))


def clients() -> str:
    """Return how far the clients of Tables 2 and 3 are from the published numbers at alpha 0.05."""
    return listed(*map(finished_runs.clients, ("CIFAR-10", "CIFAR-100")))


def columns_of(name: str, heads: dict[str, str]) -> str:
    """Columns of a table beside this file, under other heads; a cell without a number is empty."""
    rows = csv_file.read(OF_HBFL / name)
    return table(list(heads.values()), [[row[column] for column in heads] for row in rows])


def draws() -> str:
    """Tabulate how usual sampled partitions of HBFL are, and which of their properties go together."""
    heads = {"draw": "CIFAR-10, alpha 0.05, ten clients", "largest_percent": "largest client's share of the images, %",
             "draws_with_a_smaller_percent": "of sampled partitions that are below, %", "classes": "classes of an image's client",
             "draws_with_fewer_classes_percent": "of sampled partitions that are below, %", "judged_percent": "clients by the judge, %",
             "draws_with_lower_percent": "of sampled partitions that are below, %"}  # fmt: skip
    found = measured.goes_with()
    names = [heads[measure] for measure in found.index]
    correlations = [
        [name, *(f"{value:+.2f}" for value in row)] for name, row in zip(names, found.to_numpy(), strict=True)
    ]
    return columns_of("sampled_partitions.csv", heads) + table(
        ["correlation over ten sampled partitions, five rounds", *found.columns], correlations
    )


def classes() -> str:
    """Tabulate what global models of HBFL's clients know of their classes."""
    heads = {"method": "method", "dataset": "data", "alpha": "alpha", "rounds": "rounds", "run": "run", "all": "all, %",
             "all_in_balance": "all, classes equal, %", "classes_below_5": "classes below 5 %", "mean_logit": "mean logit",
             "logits_in_bf16": "all, logits in bf16, %", "by_shares": "numbers by clients' shares, correlation",
             "slope": "slope"}  # fmt: skip
    return columns_of("class_bias.csv", heads)


def shards() -> str:
    """Return how well rules of cutting fit what HBFL publishes."""
    heads = {"dataset": "data", "rule": "rule", "sets": "sets of sizes that fit", "chi_square": "chi-square of the likeliest",
             "probability": "probability that a sampled partition fits", "sizes": "the likeliest sizes"}  # fmt: skip
    return columns_of("shard_sizes.csv", heads)


PAPERS = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())["papers"]


def counts(paper: str) -> str:
    """Count the cells of each published table that have a run, and how far these are from the published numbers."""
    page = of_paper(paper, "vs-published")
    return page[page.index("| table |") :].partition("\n\n")[0] + "\n\n"


def paper_tables(paper: str) -> str:
    """Return the page with all tables of a paper."""
    first, _, rest = all_tables(paper).partition("\n")
    title = first.removeprefix("### ")
    return (
        f"# {title}: all tables\n\nFindings: [{title}](../{paper}.md). Terms: [how to read](../how-to-read.md).\n{rest}"
    )


def analysis_tables() -> str:
    """Return the page with the tables that the analysis of HBFL rests on."""
    parts: dict[str, Callable[[], str]] = {
        "Seed by seed": by_seed,
        "Along the rounds": lambda: listed(finished_runs.along()),
        "Swings": lambda: listed(finished_runs.swings()),
        "Lead of one method over another": pairs,
        "Precisions and sigma": lambda: listed(finished_runs.precisions()),
        "The search": assumptions,
        "Class bias": classes,
        "Sampled partitions": draws,
        "Figure 3 on MNIST": mnist,
        "Clients beside the published ones": clients,
        "Hardware and precision": lambda: listed(finished_runs.computed()),
    }
    text = "# HBFL: tables of the analysis\n\nThe findings are in [the analysis](../hbfl-analysis.md).\n\n"
    return text + "".join(f"## {title}\n\n{make()}" for title, make in parts.items())


def processor_time() -> str:
    """Tabulate the core-minutes of the runs of each ground, the dearest methods first, and their sum."""
    every = csv_file.read(RUNS / "comparison" / "tables" / "comparison" / "runs.csv")
    # A run that diverged has no time.
    rows = [row for row in every if row["cpu_seconds"] and not row["experiment"].startswith("search")]
    out = ""
    for ground in dict.fromkeys(row["experiment"] for row in rows):
        minutes: dict[str, list[float]] = {}
        for row in rows:
            if row["experiment"] == ground:
                minutes.setdefault(row["method"], []).append(float(row["cpu_seconds"]) / 60)
        dearest = sorted(minutes.items(), key=lambda one: -sum(one[1]) / len(one[1]))
        whole = sum(map(sum, minutes.values()))
        out += f"{ground}: {whole:.0f} core-minutes for {sum(map(len, minutes.values()))} runs.\n\n"
        cells = [[method, str(len(own)), f"{sum(own) / len(own):.1f}"] for method, own in dearest]
        out += table(["method", "runs", "core-minutes a run"], cells)
    return out


def seeds() -> str:
    """Tabulate how many methods have finished how many seeds on each ground; plain twins and methods on one side count."""
    rows = csv_file.read(COMPARED / "runs.csv")
    found = []
    for ground in dict.fromkeys(row["experiment"] for row in rows if not is_search(row["experiment"])):
        done: dict[str, set[str]] = {}
        for row in rows:
            if row["experiment"] == ground:
                done.setdefault(row["method"], set()).add(row["seed"])
        counts = Counter(len(of) for of in done.values())
        told = ", ".join(
            f"{number}: {count} method{'s' * (count > 1)}" for number, count in sorted(counts.items(), reverse=True)
        )
        found.append([f"`{ground}`", told])
    return table(["ground", "finished seeds"], found)


def choices() -> str:
    """Tabulate the chosen configuration of each method on each dataset, and of how many that were tried; a twin's are its
    method's.
    """
    paper = yaml.safe_load((ROOT / "config/papers/comparison.yaml").read_text(encoding="utf-8"))
    rows = []
    for rule in paper["given"]:
        dataset = rule["where"]["dataset"]
        for method, options in rule.get("methods", {}).items():
            told = ", ".join(f"{name} {value}" for name, value in options.items())
            name = paper["methods"][method.removesuffix(PLAIN)]["name"]
            tried = list((RUNS / "comparison" / "runs" / dataset).glob(f"*/{name}/seed~100-*"))
            rows.append([dataset, method, told, str(len(tried))])
    return table(["dataset", "method", "chosen", "tried"], rows)


def comparison() -> str:
    """Return the page of the comparison: what follows from its tables, then the tables."""
    text = of_paper("comparison", "comparison", "comparison")
    lines = text.splitlines(keepends=True)
    said = "".join(line for line in lines if line.startswith("- "))
    text = "".join(line for line in lines if not line.startswith("- "))
    first = next(iter(SIDES.values()))
    counts, _, tables = text.partition(f"## {first}")
    return (
        "# All methods on the same data\n\nThe same data, partitions, seeds and rule of choice for each method: "
        "[grounds](../guides/compare.md#grounds), [searches](../guides/compare.md#the-same-care-for-each-method). "
        "A method is missing until it has runs. Configurations of methods for personal models are chosen by the clients' validation "
        "NLL, all others by the server's. FedAvg temperature and ABAVG use 2 000 labelled images of the server, FedBE and "
        "FedPPD+Distill 2 000 unlabelled ones; their clients train without them. "
        "[Your method beside them](../guides/compare.md#your-method-beside-all-others) is one command. `make report CONFIG=comparison` writes "
        "the page with sortable tables, differences between any two methods, charts, and the runs behind each row.\n\n"
        f"{counts}## In words\n\n*None*: the best mean cannot be told from FedAvg's, or from half of the methods, or both are as well "
        f"calibrated as can be told ([how to read](../guides/compare.md#how-to-read-the-tables)).\n\n{said}\n"
        "![Accuracy against megabytes, ECE against predictive accuracy, OOD detection against ECE]"
        f"(../../results/comparison/tables/comparison/comparison.png)\n\n## {first}{tables}\n## Columns\n\n"
        + table(["column", "meaning"], [[one.head, one.words] for one in COLUMNS])
        + "\n## Chosen configurations\n\nBy validation NLL on seed 100, of six or more each ([rules](../guides/compare.md#the-same-care-for-each-method)).\n\n"
        + choices()
        + f"\n## Processor time\n\n{processor_time()}"
    )


COMPARED = RUNS / "comparison" / "tables" / "comparison"


def better_and_worse() -> str:
    """Return the methods that are better than the baseline in anything, and all beside their plain twins."""
    both = gains.tables(csv_file.read(COMPARED / "comparison.csv"), "FedAvg")
    (head, rows), *twins = [(head, rows) for _, head, rows in both]
    helped = [row for row in rows if any("+" in cell for cell in row[1:])]
    under = "The same beside [plain twins](docs/reference/glossary.md), which lack one Bayesian part:"
    return table(head, helped) + "".join(f"{under}\n\n{table(*one)}" for one in twins)


OF_PAPERS: dict[str, dict[str, Callable[[], str]]] = {"fola": {"first-round": first_round.above_fedavg}}
BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"headline": headline.table_of_claims, "gains": better_and_worse},
    DOCS / "assumptions/hbfl.md": {"shards": shards},
    DOCS / "guides/compare.md": {"seeds": seeds},
    DOCS / "reference/run-file.md": {"names": reference.names},
    DOCS / "internals/benchmarks.md": {
        "speed": benchmark_pages.ratios,
        "peers": benchmark_pages.peers,
        "gpu": benchmark_pages.gpu_rounds,
    },
    DOCS / "results/newer.md": {
        "fedlap": partial(newer, "fedlap", "fedlap"),
        "fedgvi": partial(newer, "fedgvi", "further"),
    },
    **{
        DOCS / f"results/{paper}.md": {
            "first": partial(first_table, paper),
            "counts": partial(counts, paper),
            **OF_PAPERS.get(paper, {}),
        }
        for paper in PAPERS
    },
}
WHOLE: dict[Path, Callable[[], str]] = {
    **{DOCS / f"results/tables/{paper}.md": partial(paper_tables, paper) for paper in PAPERS},
    DOCS / "results/tables/hbfl-analysis.md": analysis_tables,
    DOCS / "results/comparison.md": comparison,
    DOCS / "results/tables/benchmarks-cpu.md": lambda: "# Benchmarks on CPUs\n\n" + benchmark_pages.tables_of_speed(),
    DOCS / "results/tables/benchmarks-gpu.md": lambda: "# Benchmarks on a GPU\n\n" + benchmark_pages.gpu_found(),
    DOCS / "reference/methods.md": reference.methods_page,
    DOCS / "reference/contract.md": reference.contract_page,
    DOCS / "reference/cli.md": reference.cli_page,
    DOCS / "reference/paper-file.md": reference.paper_page,
}
PAGES = [*BLOCKS, *WHOLE]


def written(page: Path) -> str:
    """Return a page as the commands would write it now; raises ValueError where it lacks a marker."""
    if page in WHOLE:
        return WRITTEN + WHOLE[page]().rstrip() + "\n"
    text = page.read_text(encoding="utf-8")
    for name, make in BLOCKS[page].items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"{page}: no place for {name}")
        text = before + begin + make() + end + after
    return text


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path), encoding="utf-8")
        print(path.relative_to(ROOT))
