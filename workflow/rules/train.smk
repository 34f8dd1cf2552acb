"""One training job a run, or one for several short runs, so that not each of them pays for starting Python and torch.

Needs   the run file of the plan, data/<dataset>/, data/partitions/<dataset>/*.npz
Gives   results/<config>/runs/<dataset>/<partition>/<method>/seed~S-<key>/, results/<config>/checkpoints/
"""

import json
import re

RUNS = {run["folder"]: run for run in PLAN["runs"]}
STANDING = {
    run: None
    for run in RUNS
    if Path("results", config["name"], "runs", run, "summary.json").exists()
}

# What tables, figures and report are made from.
WANTED = list(RUNS if TRAINING else STANDING)
if not WANTED:
    raise WorkflowError(
        f"results/{config['name']}/runs holds no finished run of this config; train first, without runs=standing"
    )

# Names the runs that results are made from, beside all else that they are made from: a name tells what is up to date.
PRODUCTS = planning.digest(" ".join([PLAN["products"], *WANTED]), [])

# A run is done when its summary exists, and then it is a file like any other, not a job: no time, record or input
# (data that a clone does not have) can make it run again. Only a report, which runs nothing, tells of all of them.
REPORTING = "--report" in sys.argv and "--report-after-run" not in sys.argv
OPEN = [run for run in WANTED if REPORTING and TRAINING or run not in STANDING]


DATA_OF_RUN = {
    folder: [
        *(f"data/{dataset}/dataset.json" for dataset in run["datasets"]),
        *([f"data/{run['partition']}"] if run["partition"] else []),
    ]
    for folder, run in RUNS.items()
}


CORES = workflow.resource_settings.cores or 1

# Short runs that are open, in batches. A node of a cluster that reads this file anew finds other runs open and would form
# others: so they are in a file, named after what it holds, written by the process that submits the jobs.
BATCHES = planning.batches(
    [] if REPORTING else [RUNS[run] for run in OPEN],
    CORES,
    config.get("short_runs", {}),
)
FORMED = planning.digest(json.dumps(BATCHES), [])
BATCH_OF = {
    run: f"{FORMED}-{number}"
    for number, folders in enumerate(BATCHES)
    for run in folders
}


def batch_file(formed):
    return planning.folder(config["name"]) / "batches" / f"{formed}.json"


def batch(wildcards):
    """The runs of a batch."""
    formed, _, number = wildcards.batch.partition("-")
    return json.loads(batch_file(formed).read_text())[int(number)]


if BATCHES and workflow.is_main_process:
    files.write_json(batch_file(FORMED), BATCHES)


# A finished batch leaves a mark. One that stands while its runs are open is of an earlier time.
def mark(batch):
    return batch_file(batch).with_suffix(".trained").as_posix()


for number in range(len(BATCHES)):
    Path(mark(f"{FORMED}-{number}")).unlink(missing_ok=True)

# What waits for runs waits for the marks of those that are trained in batches.
SUMMARIES = list(
    dict.fromkeys(
        mark(BATCH_OF[run]) if run in BATCH_OF else f"<results>/runs/{run}/summary.json"
        for run in WANTED
    )
)

# A job a core does no less than one job on several, and more for most small networks (benchmarks/cores-cpu.csv).
# Where fewer jobs are open than there are cores, these share them. Snakemake hands the number to torch by OMP_NUM_THREADS.
JOBS = {BATCH_OF.get(run, run) for run in OPEN}
THREADS = max(1, CORES // max(1, len(JOBS)))


# The one declared output is the summary, written last: Snakemake deletes what is declared before it starts a job and
# when one fails, and the checkpoint must outlive both. `exec`, since signals must reach the trainer.
rule train:
    input:
        run=ancient(lambda wildcards: RUNS[wildcards.run]["runfile"]),
        data=ancient(lambda wildcards: DATA_OF_RUN[wildcards.run]),
    output:
        "<results>/runs/{run}/summary.json",
    log:
        "<logs>/train/{run}.log",
    benchmark:
        "<benchmarks>/train/{run}.tsv"
    wildcard_constraints:
        run="|".join(map(re.escape, OPEN)) or "(?!)",
    # The most valuable runs first (see `priorities` of the plan).
    priority: lambda wildcards: RUNS[wildcards.run]["priority"]
    threads: THREADS
    resources:
        gpu=1,
    params:
        out=lambda wildcards, output: Path(output[0]).parent,
        checkpoint=f"results/{config['name']}/checkpoints/{{run}}.safetensors",
        device=lambda wildcards, resources: "cpu" if resources.gpu == 0 else "auto",
        slots=config.get("gpu_slots", 1),
        precision=config.get("precision", "auto"),
        weights=config.get("weights") or "weights",
    shell:
        "exec bayesfed train {input.run} --data data --out {params.out} --checkpoint {params.checkpoint}"
        " --device {params.device} --precision {params.precision} --gpu-slots {params.slots} --weights {params.weights:q}"
        " > {log} 2>&1"


# Its runs are trained one after another, each as by `train`; one that fails leaves the others alone. Their summaries are
# not declared: Snakemake would delete those of finished runs when one fails.
rule train_batch:
    input:
        run=lambda wildcards: ancient(
            [RUNS[run]["runfile"] for run in batch(wildcards)]
        ),
        data=lambda wildcards: ancient(
            sorted({path for run in batch(wildcards) for path in DATA_OF_RUN[run]})
        ),
    output:
        touch(mark("{batch}")),
    log:
        "<logs>/train_batch/{batch}.log",
    benchmark:
        "<benchmarks>/train_batch/{batch}.tsv"
    wildcard_constraints:
        batch="[0-9a-f]{12}-[0-9]+",
    priority: lambda wildcards: RUNS[batch(wildcards)[0]]["priority"]
    threads: THREADS
    resources:
        gpu=1,
    params:
        runs=f"results/{config['name']}/runs",
        checkpoints=f"results/{config['name']}/checkpoints",
        device=lambda wildcards, resources: "cpu" if resources.gpu == 0 else "auto",
        slots=config.get("gpu_slots", 1),
        precision=config.get("precision", "auto"),
        weights=config.get("weights") or "weights",
    shell:
        "exec bayesfed train {input.run} --data data --runs {params.runs} --checkpoints {params.checkpoints}"
        " --device {params.device} --precision {params.precision} --gpu-slots {params.slots} --weights {params.weights:q}"
        " > {log} 2>&1"
