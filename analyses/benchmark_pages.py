"""The pages of tables that benchmarks have measured, on CPUs and on GPUs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analyses.markdown import pivot, table
from bayesfed.results import csv_file

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
DEVICES = ("cuda", "cpu")


def read(name: str) -> list[dict[str, str]]:
    """Return a benchmark's rows on all devices; none where it has not been run."""
    files = [BENCHMARKS / f"{name}-{device}.csv" for device in DEVICES]
    return [row for file in files if file.exists() for row in csv_file.read(file)]


def where(row: dict[str, str]) -> str:
    """Return the hardware of a row."""
    return f"{row['hardware']}, {row['threads'] + ' threads, ' if row['threads'] else ''}torch {row['torch']}"


def tables(head: list[str], rows: list[dict[str, str]], cells: Callable[[dict[str, str]], list[Any]]) -> str:
    """Return a table for each hardware, under its name."""
    groups: dict[str, list[list[Any]]] = {}
    for row in rows:
        groups.setdefault(where(row), []).append(cells(row))
    return "".join(f"{hardware}:\n\n{table(head, group)}" for hardware, group in groups.items())


def ratios() -> str:
    """Compute how much faster than the barest careful loop the engine is, on each hardware."""
    return pivot(
        "engine over the best bare loop",
        (
            (f"{r['method']}, {r['model']}, batch {r['batch_size']}", where(r), f"{r['engine_over_bare']} ({r['precision']})")
            for r in read("training")
        ),
    )  # fmt: skip


def peers() -> str:
    """Compare images a second with other libraries on their own workloads."""
    rows = read("peers")
    precisions = [name.removesuffix("_mib") for name in rows[0] if name.endswith("_mib") and name != "peer_mib"]
    head = ["workload", "library", "images/s", "MiB"]
    head += [f"{told} {precision}" for precision in precisions for told in ("here, images/s,", "times,", "MiB,")]

    def cells(r: dict[str, str]) -> list[Any]:
        found: list[Any] = [r["workload"], r["peer"].replace("==", " "), r["peer_images_per_second"], r["peer_mib"]]
        for one in precisions:
            found += [r[f"{one}_images_per_second"], f"**{r[f'{one}_times_the_peer']}**", r[f"{one}_mib"]]
        return found

    return tables(head, rows, cells)


def kernels() -> str:
    """Operators of a step, in every version that has been counted."""
    counted = csv_file.read(BENCHMARKS / "kernels.csv")
    return pivot(
        "a step of", ((f"{r['method']}, {r['model']} ({r['precision']})", r["version"], r["kernels"]) for r in counted)
    )


def tables_of_speed() -> str:
    """All tables of the benchmarks."""
    training, cores, augment, overheads, counting, startup, scaling, precision = (
        read(name)
        for name in ("training", "cores", "augment", "overheads", "counting", "startup", "scaling", "precision")
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
    out += "What is counted in a round beside training and tests (bytes, multiply-adds, times, further calibration), ten rounds of "
    out += "small networks of which one is detailed, seconds of the processor in turns (`benchmarks/counting-cpu.csv`):\n\n"
    out += tables(
        ["method, networks", "a round without", "a round with", "more"],
        counting,
        lambda r: [
            f"{r['method']}, {r['model']} ({r['precision']})", f"{r['round_seconds_before']} s",
            f"{r['round_seconds_after']} s", f"**{r['more_percent']} %**",
        ],
    )  # fmt: skip
    if first := read("first-minutes"):
        out += f"What is waited for first, here and in commit {first[0]['before']}, on the same records, seconds of the processor "
        out += f"(`benchmarks/first-minutes-cpu.csv`; {first[0]['hardware']}, one thread):\n\n"
        out += table(
            ["step", "before", "now", "ratio"],
            [[r["step"], f"{r['before_cpu_seconds']} s", f"{r['cpu_seconds']} s", f"**{r['times']}**"] for r in first],
        )
    if loops := read("loops"):
        out += "Local training of 784-200-10 in batches of 50 with loops in C for many operators of a step, and operator by operator, one "
        out += "thread (`benchmarks/loops-cpu.csv`):\n\n"
        out += tables(
            ["method", "one by one, images/s", "loops, images/s", "ratio"],
            loops,
            lambda r: [
                f"{r['method']} ({r['precision']})", r["one_by_one_images_per_second"], r["loops_images_per_second"],
                f"**{r['times_as_fast']}**",
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
    out += "As work grows (CNN2 for everyone, whole rounds with evaluation; FML's clients keep a model, FedAvg's nothing; the "
    out += "last four have smaller images, and of these FML's are set against each other):\n\n"
    out += tables(
        ["method, clients, part in a round", "images", "µs a trained image", "against ten clients", "checkpoint", "peak memory, every client seen"],
        [r for r in scaling if r["microseconds_per_sample"] or r["method"] == "fedavg"],
        lambda r: [
            f"{r['method']}, {r['clients']}, {100 * float(r['participation']):g} % ({r['device']})", r["images"],
            r["microseconds_per_sample"], f"**{ratio}**" if (ratio := r["times_that_of_ten_clients"]) else "",
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
    out += "Operators of a mini-batch step, without views (`benchmarks/kernels.csv`); a GPU makes of some more kernels than one, as [the GPU's page](benchmarks-gpu.md) shows:\n\n"
    return out + kernels()


def of_gpu(call: str, *parts: str) -> list[dict[str, Any]]:
    """Return the rows that a call for a GPU wrote, of some of its parts."""
    lines = (BENCHMARKS / "gpu" / "rows" / f"{call}.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["part"].startswith(parts)]


def on_gpu(rows: list[dict[str, Any]]) -> str:
    """Name the hardware that rows were measured on."""
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
    """Return what the smoke call found of every method."""
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
    """All that the calls for a GPU measured."""
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
    out += "Local training of HBFL by the number of streams, a fifth of the images, one local epoch, fp32, seconds:\n\n"
    out += pivot(
        "", ((*r["case"].removeprefix("hbfl mixed ").replace("lanes", "streams").split(", "), f"{r['seconds']:.3f}") for r in lanes),
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
