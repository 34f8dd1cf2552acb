"""Puts what commands have measured into the pages, between their markers: `python -m analyses.pages`.

README.md shows each paper's first table and the few figures of speed that matter, docs/results.md all tables that have a run
and how far they agree with print, docs/hbfl.md why HBFL's do not, docs/readings.md what the printed numbers themselves
settle, docs/speed.md all tables of the benchmarks, docs/gpu.md what the calls for a GPU found.
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from analyses.hbfl import finished_runs
from analyses.hbfl import sampled_partitions as measured
from bayesfed.plan import plan
from bayesfed.results.markdown import table as markdown
from bayesfed.results.run_records import RunRecord
from bayesfed.results.summary_page import APART, CLAIMS, LEGEND

ROOT = Path(__file__).parents[1]
BENCHMARKS, OF_HBFL = ROOT / "benchmarks", ROOT / "analyses" / "hbfl"
PAGE_NAMES = ("README.md", "docs/results.md", "docs/hbfl.md", "docs/readings.md", "docs/speed.md", "docs/gpu.md")
README, RESULTS, HBFL, READINGS, SPEED, GPU = (ROOT / name for name in PAGE_NAMES)
RUNS = ROOT / "results"
BEGIN, END = "<!-- {} written by `python -m analyses.pages` -->\n", "<!-- end -->\n"
DEVICES = ("cuda", "cpu")
SEARCHED = ("global model, %", "change", "HBFL over FML with it", "clients, best, %")
TITLE = "\n**"  # how the title of a table begins at a glance


def read(name: str) -> list[dict[str, str]]:
    """Return a benchmark's rows on all devices; none where it has not been run."""
    files = [BENCHMARKS / f"{name}-{device}.csv" for device in DEVICES]
    return [row for file in files if file.exists() for row in csv.DictReader(file.read_text().splitlines())]


def table(head: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table and an empty line."""
    return markdown(head, [[str(cell) for cell in row] for row in rows]) + "\n"


def where(row: dict[str, str]) -> str:
    """Return the hardware of a row."""
    return f"{row['hardware']}, {row['threads'] + ' threads, ' if row['threads'] else ''}torch {row['torch']}"


def tables(head: list[str], rows: list[dict[str, str]], cells: Callable[[dict[str, str]], list[Any]]) -> str:
    """Return a table for each hardware, under its name."""
    groups: dict[str, list[list[Any]]] = {}
    for row in rows:
        groups.setdefault(where(row), []).append(cells(row))
    return "".join(f"{hardware}:\n\n{table(head, group)}" for hardware, group in groups.items())


def of_paper(paper: str, name: str, config: str = "paper") -> str:
    """Return a paper's page of that name, as the workflow has left it among the tables of a config."""
    return (RUNS / config / "tables" / paper / f"{name}.md").read_text()


def first_table(paper: str) -> str:
    """Return a paper's runs in numbers, and the first of its tables that has one."""
    said, *tables = of_paper(paper, "glance").split(TITLE)
    return said.partition(f"\n{LEGEND}")[0] + TITLE + tables[0] + "\n" if tables else said


def all_tables(paper: str) -> str:
    """Return a paper's tables at a glance, then how far they agree with print, its claims and costs."""
    glance = of_paper(paper, "glance").partition(f"{TITLE}{CLAIMS}")[0]
    return f"{glance}\n" + of_paper(paper, "agreement").partition("\n\n")[2]


def readings() -> str:
    """Return the search for what decides HBFL's and FML's numbers: what each assumption changes, seed by seed, then
    the other tables.
    """
    _, first, *others = of_paper("hbfl", "glance", "hbfl-readings").partition(LEGEND)[2].split(TITLE)
    out = "**One reading changed, 40 rounds, mean of the last five; what it changes, in points**\n\n"
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
    """HBFL and FML where parts of them have been run, as the paper has them and otherwise, run by run, beside print."""
    with (ROOT / plan.PAPERS / "hbfl.published.csv").open() as file:
        printed = [row for row in csv.DictReader(file) if row["item"] == "table1"]
    out = ""
    for name, alpha in itertools.product(("CIFAR-10", "CIFAR-100"), ("0.05", "100")):
        where = f"{name}, {finished_runs.NAMES[alpha]}"
        of_one = [row for row in printed if (row["dataset"], row["alpha"]) == (name.replace("-", ""), alpha)]
        beside = [(row["method"], "print", row["value"]) for row in of_one]
        out += pivot(f"{where}: global model, %", [*finished_runs.by_seed(where), *beside])
    return out


def listed(*tables: Iterable[dict[str, str]]) -> str:
    """Tables of rows that have their heads with them, the first row all."""
    made = [list(rows) for rows in tables]
    return "".join(
        table(heads := list(rows[0]), [[row.get(head, "") for head in heads] for row in rows]) for rows in made
    )


def pairs() -> str:
    """Return how far runs of HBFL, FML and FedAvg are ahead of each other."""
    return listed(finished_runs.pairs(finished_runs.finished(), finished_runs.PAIRS))


def mnist() -> str:
    """Return how far HBFL is ahead of Figure 3's other methods on MNIST."""
    return listed(finished_runs.pairs(finished_runs.on_mnist(), finished_runs.OF_FIGURE_3))


def clients() -> str:
    """Return how far the clients of Tables 2 and 3 are from print at alpha 0.05."""
    return listed(*map(finished_runs.clients, ("CIFAR-10", "CIFAR-100")))


def pivot(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """Return a Markdown table of (row, column, value), rows and columns in order of first appearance."""
    cells = list(cells)
    values = {(row, column): value for row, column, value in cells}
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    rows = dict.fromkeys(row for row, _, _ in cells)
    return table([corner, *columns], [[row, *(values.get((row, column), "") for column in columns)] for row in rows])


def ratios() -> str:
    """Return how much faster than the barest careful loop, on each hardware."""
    return pivot(
        "engine over the best bare loop",
        (
            (f"{r['method']}, {r['model']}, batch {r['batch_size']}", where(r), f"{r['engine_over_bare']} ({r['precision']})")
            for r in read("training")
        ),
    )  # fmt: skip


def kernels() -> str:
    """Operators of a step, in every version that has been counted."""
    counted = csv.DictReader((BENCHMARKS / "kernels.csv").read_text().splitlines())
    return pivot(
        "a step of", ((f"{r['method']}, {r['model']} ({r['precision']})", r["version"], r["kernels"]) for r in counted)
    )


def tables_of_speed() -> str:
    """Return all tables of the benchmarks."""
    training, cores, augment, overheads, startup, scaling, precision = (
        read(name) for name in ("training", "cores", "augment", "overheads", "startup", "scaling", "precision")
    )
    out = "Medians of alternating turns in one run (`benchmarks/training-*.csv`). A paper's round is computed from the rate: "
    out += "250 000 images, ten clients."
    if plain := sorted({r["hardware"] for r in training if r["bare_optimisers"] == "plain"}):
        out += f" The bare loops have PyTorch's fused optimisers, but for {', '.join(plain)}, measured before they had."
    out += " Convolutions, products and their gradients are the libraries' in both loops; were all else free, the ratio would be the"
    out += " one in the column behind their share of the engine's time (measured with one thread).\n\n"
    out += tables(
        ["method, networks, batch size", "engine, images/s", "barest loop, images/s", "ratio", "ratio of an earlier version", "products, %", "ratio, were all else free", "a paper's round", "peak memory"],
        training,
        lambda r: [
            f"{r['method']}, {r['model']}, {r['batch_size']} ({r['precision']})", r["engine_samples_per_second"],
            r["bare_samples_per_second"], f"**{r['engine_over_bare']}**",
            f"{r['before_over_bare']} ({r['before']})" if r.get("before") else "", share := r.get("engine_products_percent") or "",
            f"{100 * float(r['engine_over_bare']) / int(share):.2f}" if share else "", f"{r['paper_round_seconds']} s",
            f"{r['engine_peak_memory_mib']} MiB",
        ],
    )  # fmt: skip
    out += "One job on all cores, or a job with one thread on each, and small networks (FedAvg; `784-...`: fully connected, "
    out += "without augmentation), images a second of the whole machine (`benchmarks/cores-cpu.csv`):\n\n"
    out += tables(
        ["network, batch size", "one job", "a job a core", "ratio", "barest loop, the better way", "engine over it"],
        cores,
        lambda r: [
            f"{r['model']}, {r['batch_size']} ({r['precision']})", r["engine_one_job_images_per_second"],
            r["engine_job_a_core_images_per_second"], f"**{r['job_a_core_over_one_job']}**",
            max(int(r[f"bare_{way}_images_per_second"]) for way in ("one_job", "job_a_core")),
            f"**{r['engine_over_bare']}**",
        ],
    )  # fmt: skip
    out += "FOLA's augmentation (crop, flip, AutoAugment, Cutout) beside a training step of FedAvg, one thread, microseconds an "
    out += "image; every column of preparation includes normalising (`benchmarks/augment-cpu.csv`):\n\n"
    out += tables(
        ["network, batch size", "no augmentation", "crop and flip", "FOLA's", "training step", "FOLA's, part of a step"],
        augment,
        lambda r: [
            f"{r['model']}, {r['batch_size']} ({r['precision']})", r["none_microseconds"], r["crop_flip_microseconds"],
            r["fola_microseconds"], r["step_microseconds"], f"**{r['fola_over_step']}**",
        ],
    )  # fmt: skip
    out += "A run's share of everything but training (evaluation, aggregation, checkpoints, start-up), 100 rounds:\n\n"
    out += tables(
        ["method, networks", "training, s a round", "evaluation, s", "detailed evaluation, s", "start, s", "run, s", "share"],
        overheads,
        lambda r: [
            f"{r['method']}, {r['model']} ({r['device']}, {r['precision']})", r["training_seconds_per_round"],
            r["plain_round_seconds"], r["detailed_round_seconds"], r["start_seconds"], r["run_seconds"],
            f"**{r['overhead_percent']} %**",
        ],
    )  # fmt: skip
    if startup:
        out += "Short runs, each in a process of its own or several in one: first rounds of FOLA's MLP on MNIST with evaluation, one "
        out += "thread (`benchmarks/startup-cpu.csv`):\n\n"
        out += tables(
            ["batch size", "alone, s a run", "of that not training", "together, s a run", "of that not training", "ratio"],
            startup,
            lambda r: [
                f"{r['batch_size']} ({r['precision']}, {r['runs']} runs)", r["alone_seconds_per_run"],
                f"{r['alone_not_training_percent']} %", r["together_seconds_per_run"],
                f"{r['together_not_training_percent']} %", f"**{r['together_over_alone']}**",
            ],
        )  # fmt: skip
    out += "As work grows (FML, CNN2 for everyone, whole rounds with evaluation):\n\n"
    out += tables(
        ["clients, part in a round", "images", "µs a trained image", "against ten clients", "checkpoint", "peak memory, every client seen"],
        [r for r in scaling if r["test_images"] == "10000"],
        lambda r: [
            f"{r['clients']}, {float(r['participation']):.0%} ({r['device']})", r["images"], r["microseconds_per_sample"],
            f"**{r['times_that_of_ten_clients']}**",
            f"{r['checkpoint_mib']} MiB, {r['checkpoint_seconds']} s", f"{r['peak_resident_mib']} MiB",
        ],
    )  # fmt: skip
    if precision:
        first = precision[0]
        out += f"A faster precision against fp32 on real CIFAR-10 with the paper's clients, last of {first['rounds']} rounds of one "
        out += "local epoch, three seeds, accuracies in percent (`benchmarks/precision-*.csv`):\n\n"
        out += table(
            ["method, alpha", "accuracy of", "fp32, seeds 0 to 2", "faster", "seeds 0 to 2", "mean difference", "spread of seeds"],
            [
                [
                    f"{r['method']}, {r['alpha']} ({r['device']})", "global model" if r["accuracy"] == "global" else "clients",
                    ", ".join(r[f"fp32_seed{s}"] for s in range(3)), r["precision"],
                    ", ".join(r[f"faster_seed{s}"] for s in range(3)),
                    f"**{r['mean_difference']}**", r["spread_of_seeds"],
                ]
                for r in precision
            ],
        )  # fmt: skip
    out += "Operators of a mini-batch step, without views (`benchmarks/kernels.csv`); a GPU makes of some more kernels than one (`docs/gpu.md`):\n\n"
    return out + kernels()


def of_gpu(call: str, *parts: str) -> list[dict[str, Any]]:
    """Return the rows that a call for a GPU wrote, of some of its parts."""
    lines = (BENCHMARKS / "gpu" / "rows" / f"{call}.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["part"].startswith(parts)]


def on_gpu(rows: list[dict[str, Any]]) -> str:
    """Return where rows were measured."""
    return f"{rows[0]['hardware']}, torch {rows[0]['torch']}"


def earlier(row: dict[str, Any]) -> str:
    """Return a mark for what was measured before rows had the code that they are of."""
    return "" if "code" in row else "†"


def gpu_rounds() -> str:
    """Seconds a round of the paper on a GPU."""
    rows = of_gpu("smoke", "rounds")
    return pivot(f"seconds a round, {on_gpu(rows)}", map(seconds_of_round, rows))


def seconds_of_round(row: dict[str, Any], beside: str = "") -> tuple[str, str, str]:
    """Return a cell of the table of rounds: case, precision and seconds."""
    case, precision = row["case"].rsplit(" ", 1)
    return case + beside, precision, f"{row['round_seconds']:.2f}"


def gpu_methods() -> str:
    """Tabulate what the smoke call found of every method."""
    found: dict[str, dict[str, Any]] = {}
    rows = of_gpu("smoke", "recorded", "noise", "kernels", "method-")
    for row in rows:
        name, _, precision = row["case"].partition(" ")
        facts = found.setdefault(name, {"same": [], "title": name + earlier(row)})
        if precision:
            facts["same"] += [precision] * row["equals_unrecorded"]
        facts |= {"eager": row["difference_to_eager"]} if precision == "fp64" else {}
        facts |= {key: row[key] for key in ("difference", "kernels") if key in row}
    head = [
        "method",
        "recorded as unrecorded, to the last bit",
        "from eager, fp64",
        "GPU from CPU, fp64",
        "kernels a step, fp32",
    ]
    return f"{on_gpu(rows)}:\n\n" + table(
        head,
        [
            [
                of["title"],
                ", ".join(of["same"]),
                *(f"{of[key]:.0e}" if key in of else "" for key in ("eager", "difference")),
                of.get("kernels", ""),
            ]
            for of in found.values()
        ],
    )


def gpu_found() -> str:
    """Return all that the calls for a GPU measured."""
    out = gpu_methods() + gpu_rounds()
    layouts, fused, ceilings, profiles, jobs, whole, lanes = (
        of_gpu("speed", part) for part in ("layouts", "fused", "ceilings", "profile", "jobs", "run", "lanes")
    )
    # What was measured with the three apart lies under names of its own: no call writes it any more.
    apart, together = of_gpu("smoke", "apart-rounds"), of_gpu("smoke", "rounds")
    steps = [(r["case"], how, r["kernels"]) for how, part in (("apart", "apart-kernels"), ("in one", "kernels"))
             for r in of_gpu("smoke", part)]  # fmt: skip
    out += "Rounds of the same hour with convolution, bias and ReLU apart, as they were, and in cuDNN's one call, as they are; kernels of a step in fp32:\n\n"
    out += pivot(
        "seconds a round",
        [seconds_of_round(r, beside) for two in zip(apart, together, strict=True)
         for r, beside in zip(two, (", apart", ", in one"), strict=True)],
    )  # fmt: skip
    out += pivot("kernels a step", steps)
    out += "Local training of HBFL by the number of lanes, a fifth of the images, one local epoch, fp32, seconds:\n\n"
    out += pivot(
        "", ((*r["case"].removeprefix("hbfl mixed ").split(", "), f"{r['seconds']:.3f}") for r in lanes),
    )  # fmt: skip
    out += "Whole rounds, evaluation included, beside an eager one and a floor: a round's multiply-adds at the rate of a large "
    out += "product, or its bytes at that of a large copy, whichever takes longer:\n\n"
    rate = {r["case"]: r.get("tera_operations_per_second") or r["gigabytes_per_second"] for r in ceilings}

    def floor(of: dict[str, Any]) -> float:
        precision = of["case"].rpartition(" ")[2]
        products, copies = of["tera_operations"] / rate[f"products {precision}"], of["gigabytes"] / rate["copies"]
        return float(max(products, copies) / of["rounds"])

    out += table(
        ["", "rounds", "seconds", "first round", "median round", "eager over it", "floor of a round", "MiB of the GPU"],
        [[r["case"], r["rounds"], *(f"{r[key]:.1f}" for key in ("seconds", "first_round_seconds")), f"{r['round_seconds']:.2f}",
          f"{r['times_eager']:.1f}" if r["times_eager"] else "", f"{floor(r):.2f}" if "gigabytes" in r else "", r["device_mib"]]
         for r in whole],
    )  # fmt: skip
    out += "A training step of CNN2 on 128 images, recorded, microseconds:\n\n"
    out += pivot(
        "images and weights",
        ((r["case"].split()[2], r["case"].split()[1], f"{r['microseconds_a_step']:.0f}") for r in layouts),
    )
    out += "Convolutions with bias, ReLU and the pooling behind them, microseconds:\n\n"
    out += table(
        ["", "apart", "in cuDNN's one call", "relative difference", "the same bits again", "NaN stays"],
        [
            [r["case"], "", r["refused"], "", "", ""]
            if "refused" in r
            else [
                r["case"],
                *(f"{r[f'microseconds_{how}']:.0f}" for how in ("apart", "in_one")),
                f"{r['difference']:.0e}" if r["difference"] else "0",
                "yes" if r["repeats_itself"] else "no",
                {True: "yes", False: "no", None: ""}[r.get("passes_nan")],
            ]
            for r in fused
        ],
    )
    out += "What the GPU does at best:\n\n"
    rates = [[r["case"], f"{r[unit]:.0f} {told}"] for r in ceilings for unit, told in
             (("tera_operations_per_second", "tera-operations a second"), ("gigabytes_per_second", "GB a second")) if unit in r]  # fmt: skip
    out += table(["", "rate"], rates)
    out += "A fifth of the images, alpha 100, one local epoch of all ten clients:\n\n"
    head = ["", "seconds", "any runs, seconds", "kernels", "kernels' seconds together", "at once"]
    out += table(
        head,
        [
            [
                r["case"] + earlier(r),
                f"{r['wall_seconds']:.3f}",
                f"{r['busy_seconds']:.3f}" if "busy_seconds" in r else "",
                r["kernels"],
                f"{r['kernel_seconds']:.3f}",
                f"{r['at_once']:.1f}",
            ]
            for r in profiles
        ],
    )
    out += "Jobs that share the GPU, rounds at alpha 0.05:\n\n"
    return out + table(
        ["", "seconds a round of each", "rounds a second of all"],
        [[r["case"] + earlier(r), f"{r['seconds_a_round_of_each']:.2f}", f"{r['rounds_a_second']:.2f}"] for r in jobs],
    )


def written(name: str, heads: dict[str, str]) -> str:
    """Columns of a table beside this file, under other heads; a cell without a number is empty."""
    rows = csv.DictReader((OF_HBFL / name).read_text().splitlines())
    return table(list(heads.values()), [[row[column] for column in heads] for row in rows])


def draws() -> str:
    """Tabulate how usual sampled partitions of HBFL are, and which of their properties go together."""
    heads = {"draw": "CIFAR-10, alpha 0.05, ten clients", "largest_percent": "largest client's share of the images, %",
             "draws_with_a_smaller_percent": "of draws that are below, %", "classes": "classes of an image's client",
             "draws_with_fewer_classes_percent": "of draws that are below, %", "judged_percent": "clients by the judge, %",
             "draws_with_lower_percent": "of draws that are below, %"}  # fmt: skip
    found = measured.goes_with()
    names = [heads[measure] for measure in found.index]
    correlations = [
        [name, *(f"{value:+.2f}" for value in row)] for name, row in zip(names, found.to_numpy(), strict=True)
    ]
    return written("sampled_partitions.csv", heads) + table(
        ["correlation over ten draws, five rounds", *found.columns], correlations
    )


def classes() -> str:
    """Tabulate what global models of HBFL's clients know of their classes."""
    heads = {"method": "method", "dataset": "data", "alpha": "alpha", "rounds": "rounds", "run": "run", "all": "all, %",
             "all_in_balance": "all, in balance, %", "classes_below_5": "classes below 5 %", "mean_logit": "mean logit",
             "logits_in_bf16": "all, logits in bf16, %", "by_shares": "numbers by clients' shares, correlation",
             "slope": "slope"}  # fmt: skip
    return written("class_bias.csv", heads)


def shards() -> str:
    """Return how well rules of cutting fit what HBFL prints."""
    heads = {"dataset": "data", "rule": "rule", "sets": "sets of sizes that fit", "chi_square": "chi-square of the likeliest",
             "probability": "probability that a draw fits", "sizes": "the likeliest sizes"}  # fmt: skip
    return written("shard_sizes.csv", heads)


PAPERS = yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())["papers"]
PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    README: {
        **{f"{paper}:": partial(first_table, paper) for paper in PAPERS},
        "speed:": ratios,
        "gpu:": gpu_rounds,
    },
    RESULTS: {f"{paper}:": partial(all_tables, paper) for paper in PAPERS},
    HBFL: {
        "seeds:": by_seed,
        "along:": lambda: listed(finished_runs.along()),
        "pairs:": pairs,
        "precisions:": lambda: listed(finished_runs.precisions()),
        "readings:": readings,
        "classes:": classes,
        "draws:": draws,
        "mnist:": mnist,
        "clients:": clients,
        "computed:": lambda: listed(finished_runs.computed()),
    },
    READINGS: {"shards:": shards},
    SPEED: {"tables:": tables_of_speed},
    GPU: {"found:": gpu_found},
}


def with_tables(page: str, parts: dict[str, Callable[[], str]]) -> str:
    """Return a page with the tables of today; raises ValueError where it lacks a marker."""
    for name, text in parts.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"no place for {name}")
        page = before + begin + text() + end + after
    return page


if __name__ == "__main__":
    for path, parts in PAGES.items():
        path.write_text(with_tables(path.read_text(), parts))
        print(path)
