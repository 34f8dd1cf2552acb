"""One training job a run.

Needs   the run file of the plan, data/<dataset>/, data/partitions/<dataset>/*.npz
Gives   results/<config>/runs/<dataset>/<partition>/<method>/seed~S-<key>/, results/<config>/checkpoints/
"""

import re

RUNS = {run["folder"]: run for run in PLAN["runs"]}
STANDING = [
    run
    for run in RUNS
    if Path("results", config["name"], "runs", run, "summary.json").exists()
]

# What tables, figures and report are made from.
WANTED = list(RUNS) if TRAINING else STANDING
SUMMARIES = [f"<results>/runs/{run}/summary.json" for run in WANTED]
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


# A job a core does no less than one job on several, and more for most small networks (benchmarks/cores-cpu.csv).
# Where fewer runs are open than there are cores, these share them. Snakemake hands the number to torch by OMP_NUM_THREADS.
CORES = workflow.resource_settings.cores or 1
THREADS = max(1, CORES // max(1, len(OPEN)))


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
    shell:
        "exec bayesfed train {input.run} --data data --out {params.out} --checkpoint {params.checkpoint}"
        " --device {params.device} --precision {params.precision} --gpu-slots {params.slots} > {log} 2>&1"
