"""One training job a run, or one for several short runs, so that not each of them pays for starting Python and torch.

Needs   the run file of the plan, data/<dataset>/, data/partitions/<dataset>/*.npz (or in the config's `partitions`)
Gives   results/<config>/runs/<dataset>/<partition>/<method>/seed~S-<key>/, results/<config>/checkpoints/
"""

import re


# The one declared output is the summary, written last: Snakemake deletes what is declared when a job fails, and before it
# starts one but for what is to `update`, and the checkpoint must outlive both. `exec`, since signals must reach the trainer.
rule train:
    input:
        run=ancient(lambda wildcards: RUNS[wildcards.run]["runfile"]),
        data=ancient(lambda wildcards: DATA_OF_RUN[wildcards.run]),
    output:
        update("<results>/runs/{run}/summary.json"),
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
        partitions=lambda wildcards, output: PARTITION_PLACE,
    shell:
        "exec bayesfed train {input.run} --data data --out {params.out} --checkpoint {params.checkpoint}"
        " --device {params.device} --precision {params.precision} --gpu-slots {params.slots} --weights {params.weights:q}"
        " {params.partitions:q} > {log} 2>&1"


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
        partitions=lambda wildcards, output: PARTITION_PLACE,
    shell:
        "exec bayesfed train {input.run} --data data --runs {params.runs} --checkpoints {params.checkpoints}"
        " --device {params.device} --precision {params.precision} --gpu-slots {params.slots} --weights {params.weights:q}"
        " {params.partitions:q} > {log} 2>&1"
